"""memory.high of a cgroup (v2), set for a while and put back. Source: cgroup-v2.rst, memory.high.

Past memory.high the cgroup's tasks reclaim and are slowed down, and `high` in memory.events counts up.
Writing it below the present usage reclaims before the write returns (310 ms seen), unless the kernel heeds
O_NONBLOCK there (6.17): call `set` and `put_back` from a worker thread. The new value counts from the very
begin of the write, which is why nobody has to wait for a write of somebody else here.

A cgroup has one memory.high, and there may be several in this process who want it: the lowest that is
wanted stands, and whoever puts back leaves what the others want. A daemon that was killed leaves its value
behind; what the operator had is remembered in an extended attribute, and the next daemon puts it back.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

from reactor.errors import KernelInterfaceError
from reactor.kernel.cgroup_files import parse_limit
from reactor.kernel.files import read_file, with_path
from reactor.kernel.procfs import PROC, read_start_ticks

# On the cgroup's directory while memory.high is not the operator's: theirs, ours that may be found in the
# file, and by=PID:START of whoever wrote that.
_ATTRIBUTE: Final = "user.reactor.memory_high"
_BY: Final = "by="
_GONE: Final = frozenset({errno.ENOENT, errno.ENODEV})


class BorrowedHigh:
    """The memory.high of one cgroup, for any number of borrowers in any number of threads.

    A value that the operator changes meanwhile is the operator's again: it is never overwritten by an
    older one.
    """

    def __init__(self, directory: Path, *, owner: str = "") -> None:
        self._directory = directory
        self._path = directory / "memory.high"
        self._owner = owner
        self._lock = Lock()  # never held while memory.high is written
        self._wanted: dict[str, int] = {}
        self._on_the_way: list[str] = []  # written, and the write has not returned
        self._written: str | None = None

    @property
    def path(self) -> Path:
        """Return the path of the file."""
        return self._path

    def stands(self) -> bool:
        """Return whether what was set is still there: systemd, for one, writes its own now and then."""
        return self._written is not None and read_file(self._path).strip() == self._written.encode()

    def want(self, high_bytes: int | None, borrower: str) -> None:
        """Want memory.high to be this low at the most from now on, or nothing any more; `make_true` writes.

        Takes no lock: who must not wait may call it.
        """
        if high_bytes is None:
            self._wanted.pop(borrower, None)
        else:
            self._wanted[borrower] = high_bytes // mmap.PAGESIZE * mmap.PAGESIZE

    def set(self, high_bytes: int, borrower: str) -> bool:
        """Want and make it true; return whether it is not the operator's own value that stands, being lower.

        Raises as `make_true`.
        """
        self.want(high_bytes, borrower)
        return self.make_true()

    def put_back(self, borrower: str) -> None:
        """Want nothing any more: the operator's value is put back, unless somebody else wants a lower one.

        Does nothing where nothing was set, or the cgroup is gone.
        """
        self.want(None, borrower)
        try:
            self.make_true()
        except OSError as error:
            if error.errno not in _GONE:
                raise

    def make_true(self) -> bool:
        """Write until the file says what is wanted by now; return whether that is ours, not the operator's.

        Several threads may be at it at the same time. Raises OSError with the path: ENOENT where the cgroup
        is gone or is the root, EOPNOTSUPP where it keeps no extended attributes (before 5.7): without them
        a killed daemon would leave its value.
        """
        while True:
            with self._lock:
                text = self._next_write()
                if text is None:
                    return self._written is not None
                self._on_the_way.append(text)
            try:
                _write(self._path, text)
            finally:
                with self._lock:
                    self._on_the_way.remove(text)

    def _next_write(self) -> str | None:
        """Return what has to be written now, None where the file is as it should be."""
        present = self._present()
        operators = self._operators(present)
        wanted = self._lowest_wanted(operators)
        self._written = wanted
        if wanted is None:
            if present != operators:
                return operators
            if not self._on_the_way:  # a write that is still to come would leave a value without its memory
                with suppress(OSError):
                    os.removexattr(self._directory, _ATTRIBUTE)
            return None
        if present == wanted:
            return None
        remembered = dict.fromkeys([operators, wanted, present, *self._on_the_way])
        text = " ".join([*remembered, f"{_BY}{self._owner}"])
        os.setxattr(self._directory, _ATTRIBUTE, text.encode())
        return wanted

    def _lowest_wanted(self, operators: str) -> str | None:
        """Return what is wanted here, None where nothing is or the operator's value is as low already."""
        all_wanted = tuple(self._wanted.values())  # in one step: `want` changes it at any time
        if not all_wanted:
            return None
        wanted_bytes = min(all_wanted)
        operators_bytes = parse_limit(operators.encode(), str(self._path))
        if operators_bytes is not None and operators_bytes <= wanted_bytes:
            return None
        return str(wanted_bytes)

    def _operators(self, present: str) -> str:
        """Return the operator's value: what is there, or what was there when ours took its place."""
        remembered = _remembered(self._directory)
        # Neither value of ours: the operator's, or we were stopped between the attribute and the file.
        if present in remembered[1:]:
            parse_limit(remembered[0].encode(), f"{self._directory}: {_ATTRIBUTE}")
            return remembered[0]
        return present

    def _present(self) -> str:
        present = read_file(self._path).strip()
        parse_limit(present, str(self._path))
        return present.decode("ascii")


class BorrowedHighs:
    """Every cgroup's memory.high in this process, one object each."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._owner = f"{os.getpid()}:{read_start_ticks(proc)}"
        self._lock = Lock()
        self._highs: dict[Path, BorrowedHigh] = {}

    def of(self, directory: Path) -> BorrowedHigh:
        """Return the memory.high of the cgroup with this directory, which need not exist."""
        with self._lock:
            if directory not in self._highs:
                self._highs[directory] = BorrowedHigh(directory, owner=self._owner)
            return self._highs[directory]

    def put_back_abandoned(self, root: Path) -> list[str]:
        """Put back what daemons that are no more have left anywhere below `root`; return a line for each.

        An attribute counts only on a cgroup of root's or our own: whoever was given a cgroup must not have
        its memory.high lifted by writing one. What a daemon that lives has borrowed is left to it.
        """
        told = []
        for directory in _own_directories(root):
            try:
                remembered = _remembered(directory)
                if remembered and not self._is_borrowed(remembered):
                    self.of(directory).put_back("nobody")
                    told.append(f"{directory}/memory.high is {remembered[0]} again, as before a crash")
            except (OSError, KernelInterfaceError) as error:
                told.append(f"{directory}/memory.high was not put back after a crash: {error}")
        return told

    def _is_borrowed(self, remembered: list[str]) -> bool:
        owner = remembered[-1].removeprefix(_BY)
        pid, _, started = owner.partition(":")
        try:
            return pid.isdecimal() and str(read_start_ticks(self._proc, int(pid))) == started
        except (OSError, KernelInterfaceError):
            return False


def _remembered(directory: Path) -> list[str]:
    """Return the words of a cgroup's attribute, none where it has none."""
    try:
        return os.getxattr(directory, _ATTRIBUTE).decode("ascii", "replace").split()
    except OSError as error:
        if error.errno in {errno.ENODATA, errno.EOPNOTSUPP}:
            return []
        raise


def _own_directories(root: Path) -> Iterator[Path]:
    """Yield the directories at and below `root` that belong to root or to us."""
    for spelled, _, _ in os.walk(root):
        with suppress(OSError):  # gone meanwhile
            if os.lstat(spelled).st_uid in {0, os.geteuid()}:
                yield Path(spelled)


def _write(path: Path, text: str) -> None:
    # O_NONBLOCK: where the kernel heeds it nothing is reclaimed here, and the allocators do it. The blanks,
    # which it strips, let the file be any file: nobody finds it empty, or the end of a longer value.
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        os.write(fd, f"{text:<20}\n".encode())
    except OSError as error:
        raise with_path(error, str(path)) from None
    finally:
        os.close(fd)
