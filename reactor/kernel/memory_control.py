"""What is written to a cgroup of v2: memory.high, set for a while and restored, and memory.reclaim.

Source: cgroup-v2.rst.

Past memory.high the cgroup's tasks reclaim and are slowed down, and `high` in memory.events counts up.
Writing it below the present usage reclaims before the write returns (310 ms seen), unless the kernel respects
O_NONBLOCK there (newer than 6.12): call `set` and `restore` from a worker thread. The new value counts from
the very begin of the write.

A daemon that was killed leaves its value behind; the operator's value is remembered in an extended attribute,
and the next daemon restores it.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Final

from reactor.errors import KernelInterfaceError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion, parse_limit
from reactor.kernel.files import GONE, read_file, with_path, write_file
from reactor.kernel.procfs import PROC, lasting_name, lives

# On the cgroup's directory while memory.high is not the operator's: theirs, ours that may be found in the
# file, and by=PID:START of the process that wrote that.
_ATTRIBUTE: Final = "user.reactor.memory_high"
BY: Final = "by="
_LENGTH: Final = 21  # a limit has up to 20 digits

NAME: Final = "memory.reclaim"
_ANONYMOUS: Final = 200  # of 200: page cache is left alone as far as the kernel can


class BorrowedHigh:
    """The memory.high of one cgroup, for any number of threads.

    A value that the operator changes meanwhile is the operator's again: it is never overwritten by an
    older one.
    """

    def __init__(self, directory: Path, *, owner: str = "") -> None:
        self._directory = directory
        self._path = directory / "memory.high"
        self._owner = owner
        self._lock = Lock()
        self._wanted: str | None = None
        self._written: str | None = None

    @property
    def path(self) -> Path:
        return self._path

    def stands(self) -> bool:
        """Return whether what was set is still there: systemd, for one, writes its own now and then."""
        return self._written is not None and read_file(self._path).strip() == self._written.encode()

    def set(self, high_bytes: int) -> bool:
        """Lower memory.high to this; return False if the operator's own value is as low already, and stays.

        Raises OSError with the path: ENOENT if the cgroup is gone or is the root, EOPNOTSUPP if it keeps no
        extended attributes (before 5.7), EPERM if another user may write them: without them a killed daemon
        would leave its value.
        """
        with self._lock:
            self._wanted = _rounded(high_bytes)
            self._make_true()
            return self._written is not None

    def restore(self) -> None:
        """Restore the operator's value. Does nothing if nothing was set, or the cgroup is gone."""
        with self._lock:
            self._wanted = None
            with _gone_ignored():
                self._make_true()

    def restore_abandoned(self) -> None:
        """Restore the operator's value unless this process has set one of its own by now."""
        with self._lock, _gone_ignored():
            self._make_true()

    def _make_true(self) -> None:
        """Write until the file has the wanted value, or the operator's."""
        while (text := self._next_write()) is not None:
            _write(self._path, text)

    def _next_write(self) -> str | None:
        """Return what has to be written now, None if the file is as it should be."""
        present = self._present()
        operators = self._operators(present)
        wanted = self._written = None if self._is_as_low(operators) else self._wanted
        if wanted is None and present != operators:
            return operators
        if wanted is None:
            with suppress(OSError):
                os.removexattr(self._directory, _ATTRIBUTE)
        elif present != wanted:
            if not _is_own(self._directory):
                raise PermissionError(errno.EPERM, "another user may write to the cgroup", str(self._path))
            known = dict.fromkeys([operators, wanted, present])  # all of ours that may be found in the file
            os.setxattr(self._directory, _ATTRIBUTE, " ".join([*known, f"{BY}{self._owner}"]).encode())
            return wanted
        return None

    def _is_as_low(self, operators: str) -> bool:
        """Return whether the operator's value is as low as the wanted one."""
        operators_bytes = parse_limit(operators.encode(), str(self._path))
        if operators_bytes is None or self._wanted is None:
            return False
        return operators_bytes <= int(self._wanted)

    def _operators(self, present: str) -> str:
        """Return the operator's value: what is there, or what was there when ours took its place."""
        words = remembered(self._directory)
        # Neither value of ours: the operator's, or we were stopped between the attribute and the file.
        if present in words[1:]:
            parse_limit(words[0].encode(), f"{self._directory}: {_ATTRIBUTE}")
            return words[0]
        return present

    def _present(self) -> str:
        present = read_file(self._path).strip()
        parse_limit(present, str(self._path))
        return present.decode("ascii")


@contextmanager
def _gone_ignored() -> Iterator[None]:
    """Ignore an OSError for a cgroup that is gone."""
    try:
        yield
    except OSError as error:
        if error.errno not in GONE:
            raise


def remembered(directory: Path) -> list[str]:
    """Return the words of a cgroup's attribute, none if it has none; the last one names its owner.

    It counts only if none but root and we can have written it: a tenant must not be able to lift the limit of
    its cgroup. `trusted.*` would say so by itself, but takes CAP_SYS_ADMIN; memory.high stands in without.
    """
    try:
        raw = os.getxattr(directory, _ATTRIBUTE) if _is_own(directory) else b""
        return raw.decode("ascii", "replace").split()
    except OSError as error:
        if error.errno in {errno.ENODATA, errno.EOPNOTSUPP}:
            return []
        raise


def _is_own(directory: Path | str) -> bool:
    status = os.stat(directory)
    return status.st_uid in {0, os.geteuid()} and not status.st_mode & 0o022


def _rounded(high_bytes: int) -> str:
    """Return a limit as the kernel will show it."""
    return str(high_bytes // mmap.PAGESIZE * mmap.PAGESIZE)


def _write(path: Path, text: str) -> None:
    # O_NONBLOCK: if the kernel respects it, the allocators reclaim instead of this write.
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        os.write(fd, text.ljust(_LENGTH - 1).encode() + b"\n")  # of one length: never found half written
    except OSError as error:
        raise with_path(error, str(path)) from None
    finally:
        os.close(fd)


class BorrowedHighs:
    """Every cgroup's memory.high in this process, one object each."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._owner = lasting_name(proc)
        self._lock = Lock()
        self._highs: dict[Path, BorrowedHigh] = {}

    def of(self, directory: Path) -> BorrowedHigh:
        """Return the memory.high of the cgroup with this directory, which need not exist."""
        with self._lock:
            if directory not in self._highs:
                self._highs[directory] = BorrowedHigh(directory, owner=self._owner)
            return self._highs[directory]

    def restore_abandoned(self, root: Path) -> list[str]:
        """Restore what daemons that have ended left anywhere below `root`; return a line for each.

        What a running daemon has borrowed stays as it is.
        """
        lines = []
        for directory in _own_directories(root):
            try:
                words = remembered(directory)
                if words and not lives(words[-1].removeprefix(BY), self._proc):
                    present = read_file(directory / "memory.high").decode("ascii", "replace").strip()
                    self.of(directory).restore_abandoned()
                    if present in words[1:]:
                        lines.append(f"{directory}/memory.high is {words[0]} again, as before a crash")
            except (OSError, KernelInterfaceError) as error:
                lines.append(f"{directory}/memory.high was not restored after a crash: {error}")
        return lines


def _own_directories(root: Path) -> Iterator[Path]:
    """Yield the directories at and below `root` to which none but root and we can write.

    Not by os.walk, which recurses, and ends at some 1,000 levels with what called it. Where a path is longer
    than a path may be (PATH_MAX) no reactor has borrowed anything.
    """
    waiting = [os.fspath(root)]
    while waiting:
        spelled = waiting.pop()
        with suppress(OSError):  # gone meanwhile
            if _is_own(spelled):
                yield Path(spelled)
            with os.scandir(spelled) as entries:
                below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            waiting += reversed(below)


# memory.reclaim of cgroup v2: the kernel reclaims so much of a cgroup, in the writer's time.
#
# Since Linux 5.19 (94968384dde1, "memcg: introduce per-memcg reclaim interface"); `swappiness=` came later,
# and a kernel that does not know it refuses the whole write with EINVAL. What memory.low and memory.min
# protect stays. Source: Documentation/admin-guide/cgroup-v2.rst.


def unavailable_because(tree: CgroupTree) -> str | None:
    """Return why nothing can be reclaimed from a cgroup of one's choice here, None where it can."""
    if tree.version is CgroupVersion.V1:
        return "the memory controller is on cgroup v1, which has no memory.reclaim"
    if not (tree.memory_root / NAME).exists():  # the root has one, too
        return "this kernel has no memory.reclaim (it needs Linux 5.19)"
    return None


def reclaim(tree: CgroupTree, cgroup: str, wanted_bytes: int, *, to_swap: bool = False) -> bool:
    """Reclaim so much from a cgroup; return whether all of it was found. Blocks in the kernel meanwhile.

    With `to_swap` anonymous memory and tmpfs go first, if the kernel can be asked for it. Raises OSError with
    the path, RefusedError as CgroupTree.path.
    """
    path = tree.path(cgroup) / NAME
    if to_swap:
        try:
            return _is_found(path, f"{wanted_bytes} swappiness={_ANONYMOUS}")
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    return _is_found(path, str(wanted_bytes))


def _is_found(path: Path, text: str) -> bool:
    try:
        write_file(path, text)
    except OSError as error:
        if error.errno != errno.EAGAIN:
            raise
        return False
    return True
