"""memory.high of a cgroup (v2), set for a while and restored. Source: cgroup-v2.rst, memory.high.

Past memory.high the cgroup's tasks reclaim and are slowed down, and `high` in memory.events counts up.
Writing it below the present usage reclaims before the write returns (310 ms seen), unless the kernel heeds
O_NONBLOCK there (newer than 6.12): call `set` and `put_back` from a worker thread. The new value counts from
the very begin of the write, so no caller has to wait for another's write here.

A cgroup has one memory.high, and there may be several in this process who want it: the lowest that is wanted
stands, and putting one back leaves what the others want (`BorrowedHighs` has one object a cgroup). A daemon
that was killed leaves its value behind; the operator's value is remembered in an extended attribute, and the
next daemon puts it back.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

from reactor.errors import KernelInterfaceError, ReactorError
from reactor.kernel.cgroup_files import parse_limit
from reactor.kernel.files import GONE, read_file, with_path
from reactor.kernel.procfs import PROC, read_start_ticks
from reactor.kernel.ready_write import ReadyWrite, padded

# On the cgroup's directory while memory.high is not the operator's: theirs, ours that may be found in the
# file, and by=PID:START of the process that wrote that.
_ATTRIBUTE: Final = "user.reactor.memory_high"
BY: Final = "by="


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A value that may be written in the place of another one, and of no third."""

    text: str
    instead_of: bytes

    @property
    def is_lower(self) -> bool:
        return self.instead_of == b"max" or int(self.text) < int(self.instead_of)


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
        self._prepared: _Prepared | None = None
        self._hurried: tuple[ReadyWrite, str] | None = None

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
            self._wanted[borrower] = int(_rounded(high_bytes))

    def set(self, high_bytes: int, borrower: str) -> bool:
        """Want and make it true; return whether it is not the operator's own value that stands, being lower.

        Raises as `make_true`.
        """
        self.want(high_bytes, borrower)
        return self.make_true()

    def put_back(self, borrower: str) -> None:
        """Want nothing any more: the operator's value is put back, unless another wants a lower one.

        Does nothing where nothing was set, or the cgroup is gone.
        """
        self.want(None, borrower)
        try:
            self.make_true()
        except OSError as error:
            if error.errno not in GONE:
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

    def prepare(self, high_bytes: int | None) -> None:
        """Make ready for a `hurry` with this value; None: for none any more. Raises as `make_true`."""
        with self._lock:
            before, self._prepared = self._prepared, None
            if high_bytes is None:
                with suppress(FileNotFoundError):
                    self._next_write()  # forgets what was prepared
                return
            prepared = _rounded(high_bytes)
            present = self._present()
            operators = self._operators(present)
            wanted = self._lowest_wanted(operators)
            self._remember(operators, wanted, present, prepared, None if before is None else before.text)
            self._prepared = _Prepared(text=prepared, instead_of=(wanted or operators).encode())

    def hurry(self, borrower: str, file: ReadyWrite) -> bool:
        """Have the prepared value written at once; return whether that was in order.

        One read and no lock: the operator's value is remembered since `prepare`. Not in order is what
        is not wanted any more, a value other than the prepared one, and a file that has changed since.
        `file` has to `look_again` here after its writes. Raises OSError: ENODEV where the cgroup is gone.
        """
        prepared, wanted_bytes = self._prepared, self._wanted.get(borrower)
        if prepared is None or str(wanted_bytes) != prepared.text or not prepared.is_lower:
            return False
        if file.read() != prepared.instead_of:
            return False
        self._hurried = (file, prepared.text)
        file.write(prepared.text)
        return True

    def look_again(self) -> None:
        """Put right what a hurried write has left, if it came later than what was wanted next."""
        with suppress(OSError, ReactorError):  # gone, or not in our form: then there is nothing of ours
            self.make_true()

    def _next_write(self) -> str | None:
        """Return what has to be written now, None where the file is as it should be."""
        hurrying = self._hurrying()  # before the file: a write that ends in between is not made once more
        present = self._present()
        operators = self._operators(present)
        wanted = self._lowest_wanted(operators)
        self._written = wanted
        if wanted is None and present != operators:
            return operators
        if wanted is None:
            self._remember(operators)
        elif present != wanted:
            self._remember(operators, wanted, present)
            if wanted != hurrying:  # twice the same might come after what the operator writes next
                return wanted
        return None

    def _hurrying(self) -> str | None:
        """Return what a hurried write is about to leave in the file."""
        if self._hurried is None or not self._hurried[0].is_writing:
            return None
        return self._hurried[1]

    def _remember(self, operators: str, *ours: str | None) -> None:
        """Have the attribute name the operator's value and all of ours that may be found in the file.

        A write that is still to come, or one that is prepared, would leave a value that is not on record.
        """
        prepared = None if self._prepared is None else self._prepared.text
        known = dict.fromkeys([operators, *ours, prepared, self._hurrying(), *self._on_the_way])
        words = [word for word in known if word is not None]
        if len(words) == 1:
            with suppress(OSError):
                os.removexattr(self._directory, _ATTRIBUTE)
        else:
            text = " ".join([*words, f"{BY}{self._owner}"])
            os.setxattr(self._directory, _ATTRIBUTE, text.encode())

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


def remembered(directory: Path) -> list[str]:
    """Return the words of a cgroup's attribute, none where it has none; the last one names its owner."""
    try:
        return os.getxattr(directory, _ATTRIBUTE).decode("ascii", "replace").split()
    except OSError as error:
        if error.errno in {errno.ENODATA, errno.EOPNOTSUPP}:
            return []
        raise


def _rounded(high_bytes: int) -> str:
    """Return a limit as the kernel will show it."""
    return str(high_bytes // mmap.PAGESIZE * mmap.PAGESIZE)


def _write(path: Path, text: str) -> None:
    # O_NONBLOCK: where the kernel heeds it nothing is reclaimed here, and the allocators do it.
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        os.write(fd, padded(text))
    except OSError as error:
        raise with_path(error, str(path)) from None
    finally:
        os.close(fd)


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
        """Put back what daemons that have ended left anywhere below `root`; return a line for each.

        An attribute counts only on a cgroup of root's or our own: a tenant must not be able to lift the
        memory.high of its cgroup by writing one. What a running daemon has borrowed stays as it is.
        """
        lines = []
        for directory in _own_directories(root):
            try:
                words = remembered(directory)
                if words and not self._is_borrowed(words):
                    present = read_file(directory / "memory.high").decode("ascii", "replace").strip()
                    self.of(directory).put_back("nobody")
                    if present in words[1:]:
                        lines.append(f"{directory}/memory.high is {words[0]} again, as before a crash")
            except (OSError, KernelInterfaceError) as error:
                lines.append(f"{directory}/memory.high was not put back after a crash: {error}")
        return lines

    def _is_borrowed(self, words: list[str]) -> bool:
        owner = words[-1].removeprefix(BY)
        pid, _, started = owner.partition(":")
        try:
            return pid.isdecimal() and str(read_start_ticks(self._proc, int(pid))) == started
        except (OSError, KernelInterfaceError):
            return False


def _own_directories(root: Path) -> Iterator[Path]:
    """Yield the directories at and below `root` that belong to root or to us.

    Not by os.walk, which recurses, and ends at some 1,000 levels with what called it. Where a path is longer
    than a path may be (PATH_MAX) no reactor has borrowed anything.
    """
    waiting = [os.fspath(root)]
    while waiting:
        spelled = waiting.pop()
        with suppress(OSError):  # gone meanwhile
            if os.lstat(spelled).st_uid in {0, os.geteuid()}:
                yield Path(spelled)
            with os.scandir(spelled) as entries:
                below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            waiting += reversed(below)
