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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import trio

BATCH: Final = 256  # pidfds open at once: well below the usual soft limit of 1,024 file descriptors
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
            if error.errno in {errno.EMFILE, errno.ENFILE} and opened:
                return opened, tried
            if error.errno not in {errno.ESRCH, errno.EINVAL}:
                raise
    return opened, len(pids)


def send(pidfds: Mapping[int, int], members: Collection[int], number: signal.Signals) -> int:
    """Return how many of `pidfds` took the signal; those whose process is not among `members` are spared."""
    sent = 0
    for pid, fd in pidfds.items():
        if pid in members:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, number)
                sent += 1
    return sent


def signal_members(
    members: Callable[[], Collection[int]], number: signal.Signals, spared: Collection[int] = ()
) -> tuple[int, dict[int, int]]:
    """Return how many members were signalled, and up to HELD pidfds of them, which are now the caller's.

    `members` lists the cgroup's process ids anew at each call. Members that are born meanwhile are
    signalled too, until a listing shows no new one. Id 0 stands for a process of another PID namespace,
    which can't be reached from here: it is passed over.
    """
    done = {0, *spared}
    held: dict[int, int] = {}
    sent = 0
    fresh = [pid for pid in members() if pid not in done]
    while fresh:
        batch = fresh[:BATCH]
        opened, tried = open_pidfds(batch)
        listed = frozenset(members())
        sent += send(opened, listed, number)
        done.update(batch[:tried])
        for pid, fd in opened.items():
            if len(held) < HELD and pid in listed and pid not in held:
                held[pid] = fd
            else:
                os.close(fd)
        fresh = [pid for pid in members() if pid not in done]
    return sent, held


async def wait_exited(pidfds: Collection[int]) -> None:
    """Wait until every process has exited, its memory given back.

    A pidfd turns readable in exit_notify(), after exit_mm(): by then its pages are uncharged
    (kernel/exit.c). A cgroup.procs that is empty says less: it drops a process before exit_mm().
    """
    for fd in pidfds:
        await trio.lowlevel.wait_readable(fd)


def close_all(pidfds: Iterable[int]) -> None:
    """Close the pidfds."""
    for fd in pidfds:
        os.close(fd)
