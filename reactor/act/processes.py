"""Processes of a cgroup, held and signalled through pidfds.

A process id may be reused between the reading of `cgroup.procs` and a kill(2). A pidfd names one process
for good, but pidfd_open(2) itself takes an id: so each id is opened first, and signalled only if it is
still listed in the cgroup afterwards. What the pidfd then names was in the cgroup while we held it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import trio

from reactor.kernel.cgroup import CgroupTree, Controller
from reactor.kernel.cgroup_files import parse_processes
from reactor.kernel.files import read_file
from reactor.model.pods import Pod

BATCH: Final = 256  # pidfds open at once: well below the usual soft limit of 1,024 file descriptors
# A cgroup that goes away while it is being listed; a threaded cgroup's cgroup.procs (v2).
_GONE: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP})
NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_NOBODY: Final = frozenset({errno.ESRCH, errno.EINVAL})  # gone, or no process's own id
HELD: Final = 64  # pidfds kept after a kill, to be waited on


def open_pidfds(pids: Sequence[int]) -> tuple[dict[int, int], int]:
    """Return pidfds by process id, and how many of `pids` were tried. A process that is gone is absent.

    Stops early where the process has no file descriptors left. Raises OSError where there was not even one.
    """
    opened: dict[int, int] = {}
    for tried, pid in enumerate(pids):
        try:
            opened[pid] = os.pidfd_open(pid)
        except OSError as error:
            if error.errno in NO_DESCRIPTORS and opened:
                return opened, tried
            if error.errno not in _NOBODY:
                raise
    return opened, len(pids)


class Members:
    """Lists the processes of a cgroup and of those below it but for `spared`, its path resolved once.

    Every call opens `cgroup.procs` anew: on v1 a descriptor that is read again shows the list as it was at
    the first read (cgroup_pidlist_start(), kernel/cgroup/cgroup-v1.c). Half the time of CgroupTree.processes,
    which a kill would need three times over.
    """

    def __init__(
        self,
        tree: CgroupTree,
        cgroup: str,
        controller: Controller = "memory",
        *,
        spared: Collection[str] = (),
    ) -> None:
        self._directory = os.fspath(tree.path(cgroup, controller))
        self._spared = frozenset(os.fspath(tree.path(one, controller)) for one in spared)

    def __call__(self) -> list[int]:
        """Return the process ids, each once; none where the cgroup is gone.

        Processes of other PID namespaces, listed as 0, can't be reached from here and are left out.
        """
        return self.within(self._directory)

    def within(self, directory: str) -> list[int]:
        """Return those in one of the `subtrees`."""
        pids: dict[int, None] = {}
        waiting = [directory]
        while waiting:
            directory = waiting.pop()
            try:
                pids.update(dict.fromkeys(parse_processes(read_file(f"{directory}/cgroup.procs"))))
                waiting += self._below(directory)
            except OSError as error:
                if error.errno not in _GONE:
                    raise
        return list(pids)

    def subtrees(self) -> list[str]:
        """Return the directories that together are the cgroup: its own where nothing in it is spared.

        None where the cgroup is gone.
        """
        if not self._spared:
            return [self._directory]
        try:
            return self._below(self._directory)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return []

    def _below(self, directory: str) -> list[str]:
        with os.scandir(directory) as entries:
            found = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        return [path for path in found if path not in self._spared] if self._spared else found


def populated(tree: CgroupTree, pod: Pod) -> bool:
    """Return whether anybody lives in a pod's cgroup, but for what a kill spares."""
    return pod.cgroup is not None and bool(Members(tree, pod.cgroup, spared=pod.spared_cgroups)())


class Volley:
    """One signal for every member of a cgroup, in rounds, until a listing shows none that has not had it.

    `members` lists the process ids anew at each call; `listed` is such a list, where there is one already.
    `ready` are pidfds by process id that were opened before that list was made, so that they need no second
    look. They are owned from now on; what `held` has at the end, up to HELD pidfds of those signalled, by
    process id, is the caller's to close.
    """

    def __init__(
        self,
        members: Callable[[], Collection[int]],
        number: signal.Signals,
        *,
        listed: Collection[int] | None = None,
        ready: Mapping[int, int] | None = None,
    ) -> None:
        self.sent = 0
        self.held: dict[int, int] = {}
        self._members = members
        self._number = number
        self._done: set[int] = set()
        self._waiting = list(members() if listed is None else listed)
        self._ready = dict(ready or {})

    def fire(self) -> bool:
        """Signal those listed so far; return whether others have been born meanwhile."""
        self._fire_ready()
        while self._waiting:
            opened, tried = self._open()
            self._done.update(self._waiting[:tried])
            self._waiting = self._waiting[tried:]
            listed = frozenset(self._members())
            for pid, fd in opened.items():
                if pid in listed:
                    self._send(pid, fd)
                else:
                    os.close(fd)
        self._waiting = self._fresh(self._members())
        return bool(self._waiting)

    def _fire_ready(self) -> None:
        """Signal those that are listed and held already; one whose id is another's by now stays waiting."""
        for pid in self._waiting:
            fd = self._ready.pop(pid, None)
            if fd is not None and self._send(pid, fd):
                self._done.add(pid)
        close_all(self._ready.values())
        self._ready.clear()
        self._waiting = self._fresh(self._waiting)

    def _open(self) -> tuple[dict[int, int], int]:
        """Open pidfds of those that wait, and leave a descriptor for the listing that follows."""
        while True:
            spare = None
            try:
                spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
                return open_pidfds(self._waiting[:BATCH])
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS or not self.held:
                    raise
                close_all(self.held.values())  # to signal is worth more than to wait by event
                self.held.clear()
            finally:
                if spare is not None:
                    os.close(spare)

    def _fresh(self, pids: Iterable[int]) -> list[int]:
        return [pid for pid in pids if pid not in self._done]

    def _send(self, pid: int, fd: int) -> bool:
        """Signal the process and hold its pidfd, or close it; return whether there was one to signal."""
        try:
            signal.pidfd_send_signal(fd, self._number)
        except ProcessLookupError:
            os.close(fd)
            return False
        self.sent += 1
        if len(self.held) < HELD:
            self.held[pid] = fd
        else:
            os.close(fd)
        return True


async def wait_exited(pidfds: Collection[int]) -> None:
    """Wait until every process has exited, its memory given back.

    A pidfd turns readable in exit_notify(), after exit_mm(): by then its pages are uncharged
    (kernel/exit.c). A cgroup.procs that is empty says less: it drops a process before exit_mm().
    """
    for fd in pidfds:
        await trio.lowlevel.wait_readable(fd)


class Reserve:
    """Descriptors kept open for nothing, so that there are some when a kill needs them.

    A process that has used up its own must still be able to kill: to list a cgroup, to freeze it, and to
    hold a few pidfds at a time.
    """

    _SIZE: Final = 8

    def __init__(self) -> None:
        self._fds: list[int] = []
        self.fill()

    def fill(self) -> bool:
        """Take descriptors again; return whether there were enough."""
        with contextlib.suppress(OSError):
            if not self._fds:
                self._fds.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
            while len(self._fds) < self._SIZE:
                self._fds.append(os.dup(self._fds[0]))
        return len(self._fds) == self._SIZE

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Let the body have them."""
        self.close()
        try:
            yield
        finally:
            self.fill()

    def close(self) -> None:
        """Give them up; harmless when repeated."""
        while self._fds:
            os.close(self._fds.pop())

    def __del__(self) -> None:
        self.close()


def close_all(pidfds: Iterable[int]) -> None:
    """Close the pidfds."""
    for fd in pidfds:
        os.close(fd)
