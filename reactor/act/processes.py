"""Processes held through pidfds: opened, signalled, waited on.

A process id may be reused between the reading of `cgroup.procs` and a kill(2). A pidfd names one process
for good, but pidfd_open(2) itself takes an id: so each id is opened first, and signalled only if it is
still listed in the cgroup afterwards. What the pidfd then names was in the cgroup while we held it.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import time
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, NamedTuple

import trio

from reactor.errors import KernelInterfaceError, RefusedError
from reactor.kernel.cgroup_directory import CgroupDirectory, walk
from reactor.kernel.files import NO_DESCRIPTORS, close_descriptor

_NOBODY: Final = frozenset({errno.ESRCH, errno.EINVAL})  # gone, or no process's own id
HELD: Final = 64  # pidfds kept of a pod, to be waited on

BATCH: Final = 256  # pidfds open at once: well below the usual soft limit of 1,024 file descriptors
_BREADTH: Final = 64


class Opened(NamedTuple):
    """Pidfds by process id, how many ids were tried, and those that were refused."""

    pidfds: dict[int, int]
    tried: int
    refused: dict[int, OSError]


def open_pidfds(pids: Sequence[int]) -> Opened:
    """Return pidfds of these processes. One that is gone is absent.

    Stops early where the process has no file descriptors left. Raises OSError where there was not even one.
    """
    opened: dict[int, int] = {}
    refused: dict[int, OSError] = {}
    for tried, pid in enumerate(pids):
        try:
            opened[pid] = os.pidfd_open(pid)
        except OSError as error:
            if error.errno in _NOBODY:
                continue
            if error.errno not in NO_DESCRIPTORS:
                refused[pid] = error
            elif opened:
                return Opened(opened, tried, refused)
            else:
                raise
    return Opened(opened, len(pids), refused)


async def wait_exited(pidfds: Collection[int]) -> None:
    """Wait until every process has exited, its memory freed.

    A pidfd turns readable in exit_notify(), after exit_mm(): by then its pages are uncharged
    (kernel/exit.c). A cgroup.procs that is empty says less: it drops a process before exit_mm().
    """
    for fd in pidfds:
        await trio.lowlevel.wait_readable(fd)


def has_exited(pidfd: int, within_ms: int = 0) -> bool:
    """Return whether a process has exited, or does in time. Its memory is free before that."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(within_ms))


def close_all(pidfds: Iterable[int]) -> None:
    """Close the pidfds. One that can't be closed keeps no other open."""
    for fd in pidfds:
        close_descriptor(fd)


@dataclass(eq=False)
class SignalSweep:
    """Signals every process in `top` and below, but for `spared` cgroups; processes of `never` are refused.

    In rounds, until one finds no new process. A process that is found first is signalled first: the cgroup's
    own processes before anything below it is listed, and so on breadth first. Thousands of cgroups without a
    process in them, which cost a tenant nothing, then delay the end of the round, not the signal. What one
    process, one directory or one call refuses is a line in `problems`, and the others are signalled.

    `ready` are pidfds by process id that were opened before: a process that is listed and held needs no
    second check. They are owned from now on. What `held` has at the end, up to HELD pidfds of those
    signalled, by process id, is the caller's to close. `sent` counts signals; `sent_ns` is when the last one
    was sent. Of the last round, `found_new_process` is whether it found a process that the rounds before had
    not, `ran_out_of_fds` whether a call failed for want of descriptors, `is_cut` whether it ended before all
    cgroups were listed.
    """

    top: CgroupDirectory
    number: signal.Signals
    _: KW_ONLY
    spared: Collection[str] = ()
    ready: dict[int, int] = field(default_factory=dict)
    never: Collection[int] = ()

    def __post_init__(self) -> None:
        self.sent = self.sent_ns = 0
        self.held: dict[int, int] = {}
        self.ran_out_of_fds = self.found_new_process = self.is_cut = False
        self._breadth = _BREADTH
        self._done: set[int] = set()
        self._seen: set[int] = set()
        self._refused: dict[int, OSError] = {}
        self._unlisted: dict[str, Exception] = {}

    @property
    def problems(self) -> list[str]:
        """Return what was refused and not overcome in a later round, alike ones in one line."""
        signals = {f"process {pid}": error.strerror or str(error) for pid, error in self._refused.items()}
        lists = {
            repr(cgroup): (error.strerror if isinstance(error, OSError) else None) or str(error)
            for cgroup, error in self._unlisted.items()
        }
        return [*_summed(signals, f"not sent {self.number.name}"), *_summed(lists, "not listed")]

    @property
    def error(self) -> OSError:
        """Return the problems as one error, of the first one's number."""
        errors = (*self._refused.values(), *self._unlisted.values())
        number = next((error.errno for error in errors if isinstance(error, OSError)), errno.EIO)
        return OSError(number, "; ".join(self.problems))

    def fire(self, most_cgroups: int = sys.maxsize) -> bool:
        """Make a round over so many cgroups at the most; return whether it found a new process.

        What was refused before is tried once more. Raises RefusedError where a process is found that is
        never to be signalled.
        """
        pieces = self.steps(most_cgroups)
        try:
            self.is_cut = next(pieces, False) is None
        finally:
            pieces.close()
        return self.found_new_process

    def steps(self, cgroups: int) -> Generator[None, None, None]:
        """Make a round that stops, to be continued, after every so many cgroups. Raises as `fire`."""
        self.ran_out_of_fds = self.found_new_process = self.is_cut = False
        self._unlisted.clear()
        directories = walk(self.top, self._note, spared=self.spared, held=self._breadth)
        try:
            for count, directory in enumerate(directories, 1):
                self._signal_in(directory)
                if count % cgroups == 0:
                    yield
        finally:
            directories.close()
            close_all(self.ready.values())  # of those who are not in the cgroup any more
            self.ready.clear()

    def use_fewer_fds(self) -> None:
        """Need as few descriptors as can be from now on: to signal is worth more than to wait by event."""
        self._breadth = 0
        close_all(self.held.values())
        self.held.clear()

    def _signal_in(self, directory: CgroupDirectory) -> None:
        """Signal who is in this very cgroup, and has not been signalled."""
        try:
            waiting = self._waiting(directory)
            while waiting:
                opened = self._open(waiting[:BATCH])
                waiting = waiting[opened.tried :]
                self._send_to_listed(directory, opened)
        except OSError as error:
            self._note(directory.cgroup, error)
        except KernelInterfaceError as error:
            self._unlisted[directory.cgroup] = error

    def _waiting(self, directory: CgroupDirectory) -> list[int]:
        """Return who is listed and not yet signalled, once those held ready have been."""
        waiting = []
        listed = directory.processes()
        # Before any other is signalled, whichever is listed first.
        for pid in frozenset(self.never).intersection(listed):
            what = "init" if pid == 1 else "reactor"
            raise RefusedError(f"{directory.cgroup!r} holds process {pid}, {what}")
        for pid in listed:
            if pid in self._done:
                continue
            if pid not in self._seen:
                self._seen.add(pid)
                self.found_new_process = True
            ready = self.ready.pop(pid, None)
            if ready is None or not self._send(pid, ready):  # the id is another's by now
                waiting.append(pid)
        return waiting

    def _open(self, pids: Sequence[int]) -> Opened:
        """Open pidfds, and leave a descriptor for the listing that follows."""
        while True:
            spare = -1
            try:
                spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
                return open_pidfds(pids)
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS or not self.held:
                    raise
                self.use_fewer_fds()
            finally:
                if spare >= 0:
                    close_descriptor(spare)

    def _send_to_listed(self, directory: CgroupDirectory, opened: Opened) -> None:
        """Signal those who are still listed here, now that their pidfds are held; see processes.py."""
        self._refused |= opened.refused
        self.ran_out_of_fds |= any(error.errno in NO_DESCRIPTORS for error in opened.refused.values())
        pidfds = opened.pidfds
        try:
            listed = frozenset(directory.processes())
            for pid in tuple(pidfds):
                fd = pidfds.pop(pid)
                if pid in listed:
                    self._send(pid, fd)
                else:
                    close_descriptor(fd)
                    self.found_new_process = True  # ended, or moved to another cgroup of these
        finally:
            close_all(pidfds.values())

    def _send(self, pid: int, fd: int) -> bool:
        """Signal the process and hold its pidfd, or close it; return whether there was one to signal."""
        try:
            signal.pidfd_send_signal(fd, self.number)
        except OSError as error:
            close_descriptor(fd)
            if error.errno == errno.ESRCH:
                return False
            self._refused[pid] = error
            return True
        if self._refused:
            self._refused.pop(pid, None)
        self.sent_ns = time.monotonic_ns()
        self._done.add(pid)
        self.sent += 1
        if len(self.held) < HELD and self._breadth:
            self.held[pid] = fd
        else:
            close_descriptor(fd)
        return True

    def _note(self, cgroup: str, error: OSError) -> None:
        self.ran_out_of_fds |= error.errno in NO_DESCRIPTORS
        self._unlisted[cgroup] = error


def _summed(reasons: Mapping[str, str], what: str) -> list[str]:
    """Return one line for each reason: its first subject, and how many more."""
    alike: dict[str, list[str]] = {}
    for subject, reason in reasons.items():
        alike.setdefault(reason, []).append(subject)
    return [
        f"{subjects[0]} {what}: {reason}" + (f" (and {len(subjects) - 1} more)" if len(subjects) > 1 else "")
        for reason, subjects in alike.items()
    ]
