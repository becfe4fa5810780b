"""The one job that ends a pod, or a process of it, with a grace period, and what has become of it.

SIGTERM, the grace period, still wanted?, SIGKILL, and the wait until the memory is free: for soft evictions,
for evictions of one process, and for the shutdown of the node.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

import trio

from reactor.act.one_process import Chosen, OneProcess
from reactor.act.reap import KillReport, ReapReport
from reactor.errors import ReactorError
from reactor.link.documents import Outcome
from reactor.model.pods import Pod


class Kills(Protocol):
    """Kills pods."""

    def prepare(self, pods: Sequence[Pod]) -> None:
        """Hold what a kill of these pods needs, and of no others; never raises."""

    def holds(self, pod: Pod) -> bool:
        """Return whether this pod is prepared: checked, and not one that must not be killed."""

    def kill_now(self, pod: Pod) -> KillReport:
        """Kill everything in the pod; raises RefusedError or OSError."""

    async def reap(self, pod: Pod, deadline_seconds: float = ...) -> ReapReport:
        """Wait until what was killed is gone."""

    async def terminate(
        self, pod: Pod, grace_period_seconds: float, still_wanted: Callable[[], bool] = ...
    ) -> KillReport | None:
        """Ask the pod to end, and kill it if it has not in time and `still_wanted` says so."""


class Victim(NamedTuple):
    """A pod, or one process of it: how it is asked to end and waited for, see Kills."""

    terminate: Callable[[float, Callable[[], bool]], Awaitable[KillReport | None]]
    reap: Callable[[float], Awaitable[ReapReport]]
    close: Callable[[], None] = lambda: None


def whole_pod(kills: Kills, pod: Pod) -> Victim:
    return Victim(partial(kills.terminate, pod), partial(kills.reap, pod))


def one_process(kills: OneProcess, chosen: Chosen) -> Victim:
    """Return one process of a pod; its pidfd is the victim's to close."""
    return Victim(partial(kills.terminate, chosen), partial(kills.reap, chosen), chosen.close)


@dataclass(slots=True, kw_only=True)
class Termination:
    """What becomes of a pod, or of one process of it, that is to end; filled in as it happens.

    `stopped` is set when its processes have ended or are killed, while what they held may still be there;
    `ended` when nothing more becomes of it.
    """

    outcome: Outcome = Outcome.ORDERED
    processes: int | None = None
    is_empty: bool = False
    killed_ns: int | None = None
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
        self.processes = report.processes
        self.is_empty = report.is_empty
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

    async def wait_stopped(self) -> None:
        """Wait until its processes have stopped, or nothing more becomes of it."""
        async with trio.open_nursery() as nursery:

            async def wait(event: trio.Event) -> None:
                await event.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(wait, self.stopped)
            nursery.start_soon(wait, self.ended)
