"""The lab's C programs, each compiled at its first use.

A measurement must not lean on the daemon's word, nor on an interpreter's pauses: what allocates and what
watches is C with its own clock readings. The source is shipped; a compiler is needed once for each version.
"""

from __future__ import annotations

import atexit
import hashlib
import mmap
import os
import shutil
import stat
import struct
import subprocess
import tempfile
from functools import cache
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from reactor.errors import RefusedError

_WORDS: Final = 8
_SHARED: Final = Path("/tmp")  # noqa: S108 - sticky and root's: no other user exchanges what is ours there
_GO: Final = 6


def compiled_tool(name: str = "allocator", package: str = "reactor.lab") -> Path:
    """Return the path of the package's program, compiled from NAME.c.

    Raises RefusedError where there is no compiler or the compilation fails.
    """
    source = resources.files(package).joinpath(f"{name}.c").read_bytes()
    directory = _cache_directory()
    tool = directory / f"{name}-{hashlib.sha256(source).hexdigest()[:16]}"
    if not tool.exists():
        _compile(source, tool)
    return tool


class Record:
    """The eight 64-bit words through which the tool reports; they outlive its death.

    A file that we have touched first, so that its page is charged to us and not to a pod. `directory` is to
    outlive the process that reports there.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / name
        self.path.write_bytes(bytes(8 * _WORDS))
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._memory = mmap.mmap(fd, 8 * _WORDS)
        finally:
            os.close(fd)

    def words(self) -> tuple[int, ...]:
        """Return the words as they are now; zero is what has not happened."""
        return struct.unpack(f"={_WORDS}q", self._memory[:])

    def go(self) -> None:
        """Let the allocator that reports here begin."""
        self._memory[8 * _GO : 8 * _GO + 8] = struct.pack("=q", 1)

    def is_done(self) -> bool:
        """Tell whether what was to begin has cleared that again."""
        return self.words()[_GO] == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._memory.close()  # the file stays: a process may be about to open it


def _cache_directory() -> Path:
    """Return a directory that only we can write: what is in it will be executed.

    Where the user's cache is none, as for root with a user's HOME, it is one of this process's alone, and
    ends with it.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    directory = Path(os.path.realpath(home)) / "reactor"
    try:
        if _is_ours(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_ours(directory):
                return directory
    except OSError:
        pass
    return _own_directory()


def _is_ours(directory: Path, *, may_be_sticky: bool = False) -> bool:
    """Return whether no other user can change or exchange a directory, or what there is yet of its path.

    The owner of one above it can rename what lies there, whoever that belongs to. In a sticky one (/tmp) only
    a file's own user can. Raises OSError.
    """
    for one in (directory, *directory.parents):
        try:
            status = one.lstat()
        except FileNotFoundError:
            continue
        is_sticky = status.st_mode & stat.S_ISVTX and (may_be_sticky or one != directory)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid not in {0, os.geteuid()}:
            return False
        if status.st_mode & 0o022 and not is_sticky:
            return False
    return True


@cache
def _own_directory() -> Path:
    above = Path(os.path.realpath(tempfile.gettempdir()))
    if not _is_ours(above, may_be_sticky=True):
        above = _SHARED
    directory = Path(tempfile.mkdtemp(prefix="reactor-lab-", dir=above))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _compile(source: bytes, tool: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RefusedError("no C compiler; install one (Debian: apt-get install gcc libc6-dev)")
    # Beside its place and then renamed: two first uses at the same time both end with a whole file.
    unfinished = tool.with_name(f"{tool.name}.{os.getpid()}")
    command = [compiler, "-O2", "-Wall", "-pthread", "-x", "c", "-o", str(unfinished), "-"]
    done = subprocess.run(command, input=source, capture_output=True, check=False)
    if done.returncode:
        raise RefusedError(f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip()}")
    unfinished.rename(tool)
