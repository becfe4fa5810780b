"""The one job that ends a pod, or a process of it, with a grace period, and what has become of it.

SIGTERM, the grace period, still wanted?, SIGKILL, and the wait until the memory is free: for soft evictions,
for evictions of one process, and for the shutdown of the node.
"""

from __future__ import annotations

import os
import select
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import trio

from reactor.act.kill_path import KillPath
from reactor.act.one_process import Chosen, OneProcess
from reactor.act.reap import KillReport, ReapReport
from reactor.errors import ReactorError
from reactor.kernel.files import close_descriptor
from reactor.link.documents import Outcome
from reactor.model.decisions import Claim
from reactor.model.pods import Pod


class Victim(NamedTuple):
    """A pod, or one process of it: how it is asked to end and waited for, see KillPath."""

    terminate: Callable[[float, Callable[[], bool]], Awaitable[KillReport | None]]
    reap: Callable[[float], Awaitable[ReapReport]]
    close: Callable[[], None] = lambda: None


def whole_pod(kills: KillPath, pod: Pod) -> Victim:
    return Victim(partial(kills.terminate, pod), partial(kills.reap, pod))


def one_process(kills: OneProcess, chosen: Chosen) -> Victim:
    """Return one process of a pod; its pidfd is the victim's to close."""
    return Victim(partial(kills.terminate, chosen), partial(kills.reap, chosen), chosen.close)


@dataclass(slots=True, kw_only=True)
class Termination:
    """What becomes of a pod, or of one process of it, that is to end; filled in as it happens.

    `ended_ns` is when its last process had ended, `freed_ns` when nothing of it was counted any more.
    `stopped` is set when its processes have ended or are killed, what they held may still be there, `ended`,
    as both are by `end`, when nothing more becomes of it.
    """

    outcome: Outcome = Outcome.ORDERED
    processes: int | None = None
    is_empty: bool = False
    killed_ns: int | None = None
    ended_ns: int | None = None
    freed_ns: int | None = None
    problems: tuple[str, ...] = ()
    stopped: trio.Event = field(default_factory=trio.Event)
    ended: trio.Event = field(default_factory=trio.Event)

    def add_problems(self, *problems: str) -> None:
        self.problems = tuple(dict.fromkeys((*self.problems, *problems)))

    def fail(self, error: Exception) -> None:
        """Fill in why nothing was ended."""
        self.outcome = Outcome.FAILED
        self.add_problems(str(error))

    def stop(self, report: KillReport | None) -> None:
        """Fill in how its processes have stopped; None: by themselves."""
        if report is None:
            self.outcome = Outcome.TERMINATED
            return
        self.outcome = Outcome.GONE if report.is_gone else Outcome.KILLED
        self.processes, self.is_empty = report.processes, report.is_empty
        self.killed_ns = None if report.is_gone else report.killed_ns
        self.add_problems(*report.problems)

    async def carry_out(
        self, victim: Victim, grace_period_seconds: float, still_wanted: Callable[[], bool]
    ) -> bool:
        """Ask the victim to end, and kill it if it outlives its grace period and is `still_wanted`.

        Returns whether it has stopped. It has not, as far as this termination goes, if it has another
        outcome by then: it was called off, or pre-empted.
        """

        def is_wanted() -> bool:
            if still_wanted():
                return True
            self.outcome = Outcome.CALLED_OFF
            return False

        try:
            report = await victim.terminate(grace_period_seconds, is_wanted)
        except (ReactorError, OSError) as error:
            self.fail(error)
            return False
        if self.outcome is not Outcome.ORDERED:
            return False
        self.stop(report)
        self.stopped.set()
        return True

    async def reap(self, victim: Victim, deadline_seconds: float) -> int | None:
        """Wait until the memory of what was killed is free; return when it was, None if not in time."""
        try:
            report = await victim.reap(deadline_seconds)
        except (ReactorError, OSError) as error:
            self.add_problems(str(error))
            return None
        self.add_problems(*report.problems)
        return report.freed_ns

    def end(self) -> None:
        """Record that nothing more becomes of it."""
        self.stopped.set()
        self.ended.set()


# Which evictions and victims have come to their end.

_KEPT: Final = 256  # evictions
_NONE: Final = -1


class UnderWay:
    """When evictions were ordered and when they came to their end, the last few hundred of them, by uid.

    Instants are on CLOCK_MONOTONIC in ns. A report of what happened to a pod may come only after its eviction
    has come to its end, or before a report of the kernel's own kill.
    """

    def __init__(self) -> None:
        self._spans: OrderedDict[str, tuple[int, int | None]] = OrderedDict()

    def began(self, uid: str, at_ns: int) -> None:
        """Record that an eviction was ordered; one that is under way goes on."""
        before = self._spans.get(uid)
        if before is not None and before[1] is None:
            return
        self._spans[uid] = (at_ns, None)
        self._spans.move_to_end(uid)
        while len(self._spans) > _KEPT:
            self._spans.popitem(last=False)

    def ended(self, uid: str, at_ns: int) -> None:
        """Record that nothing more is expected of an eviction."""
        before = self._spans.get(uid)
        if before is not None and before[1] is None:
            self._spans[uid] = (before[0], at_ns)

    def at(self, uid: str, at_ns: int) -> bool:
        """Return whether the pod was being evicted at that moment."""
        began_ns, ended_ns = self._spans.get(uid, (None, None))
        return began_ns is not None and began_ns <= at_ns and (ended_ns is None or at_ns <= ended_ns)


class Victims:
    """Holds a pidfd of each killed process, by its id: whether it has exited. Nothing waits or raises.

    A pidfd taken after the kill may be that of a later process of the same number, or can't be had though
    the victim is there: such a victim is waited for until the policy gives it up.
    """

    def __init__(self) -> None:
        self._pidfds: dict[int, int] = {}

    def hold(self, pid: int) -> None:
        """Hold a victim; a second time is harmless."""
        if pid not in self._pidfds:
            try:
                self._pidfds[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                return  # it has exited already
            except OSError:
                self._pidfds[pid] = _NONE

    def exited(self, victims: Sequence[Claim]) -> frozenset[int]:
        """Return which of these victims have exited, and let go of all others than these.

        The memory of a process is freed before it counts as exited.
        """
        wanted = {victim.pid for victim in victims if victim.pid is not None}
        for pid in self._pidfds.keys() - wanted:
            close_descriptor(self._pidfds.pop(pid))
        poll = select.poll()
        for fd in {*self._pidfds.values()} - {_NONE}:
            poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(0)}
        return frozenset(pid for pid in wanted if pid not in self._pidfds or self._pidfds[pid] in ready)

    def close(self) -> None:
        """Close every descriptor. Harmless when repeated."""
        while self._pidfds:
            close_descriptor(self._pidfds.popitem()[1])  # also where none could be had
