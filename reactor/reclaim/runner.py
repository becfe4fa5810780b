"""How a reclaim is measured, and the one runner of those that take memory in pieces.

Each piece is reclaimed by a thread of ordinary priority, in which the kernel blocks: it must not displace the
loop. Between two pieces the loop decides whether the reclaim may go on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import trio

from reactor.errors import ReactorError
from reactor.model.decisions import Decision, Snapshot
from reactor.model.quantity import amount_text, bytes_text
from reactor.model.settings import EvictionSettings
from reactor.model.signals import RESOURCE, Reclaim, Resource, RuleSignal, Signal, filesystems_of
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.decide import is_enough
from reactor.reclaim.reclaims import SOON, ReclaimReport, Reclaims, until_space_is_back
from reactor.threads import in_thread

_LOG: Final = logging.getLogger("reactor.reclaim")

Observe = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed:
    """What the node reclaimed of one kind, for one signal.

    `wanted` is what was missing to the threshold and its minimum reclaim, `freed` by how much more was
    available afterwards (bytes or inodes, as `resource` says): below zero if others wrote faster. None: the
    signal was not observed. For a rule: by how much less its cgroup held afterwards.
    """

    kind: Reclaim
    signal: Signal | RuleSignal
    resource: Resource
    at_unix_seconds: float
    wanted: int | None
    freed: int | None
    took_seconds: float
    did: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return it as one line for an operator."""
        amounts = [amount_text(amount, self.resource) for amount in (self.freed, self.wanted)]
        return (
            f"reclaim of {self.kind} for {self.signal}: freed {amounts[0]} of {amounts[1]} wanted in "
            f"{self.took_seconds:.1f} s: {'; '.join(self.did) or 'nothing was done'}"
        )


@dataclass(eq=False)
class Measurement:
    """The measurement of a reclaim, which begins with what is available then.

    `available` returns what is available now, None if it is not observed.
    """

    kind: Reclaim
    signal: Signal | RuleSignal
    available: Callable[[], int | None]
    resource: Resource = Resource.MEMORY

    def __post_init__(self) -> None:
        self._began_unix_seconds, self._began_seconds = time.time(), time.monotonic()
        self.before = self.available()

    def reclaimed(
        self, wanted: int | None, report: ReclaimReport, ended_seconds: float | None = None
    ) -> Reclaimed:
        """Return the result of the reclaim, which ended now or then, and log it."""
        ended_seconds = time.monotonic() if ended_seconds is None else ended_seconds
        after = self.available()
        reclaimed = Reclaimed(
            kind=self.kind,
            signal=self.signal,
            resource=self.resource,
            at_unix_seconds=self._began_unix_seconds,
            wanted=wanted,
            freed=None if self.before is None or after is None else after - self.before,
            took_seconds=ended_seconds - self._began_seconds,
            did=report.did,
            problems=report.problems,
        )
        _LOG.info("%s", reclaimed)
        for problem in report.problems:
            _LOG.warning("reclaim of %s: %s", self.kind, problem)
        return reclaimed


@dataclass(slots=True)
class Taken:
    """What a reclaim has taken so far, by the words for where from; and its problems."""

    bytes: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, source: str, amount_bytes: int) -> None:
        self.bytes[source] = self.bytes.get(source, 0) + amount_bytes

    def report(self) -> ReclaimReport:
        """Return it in words."""
        did = tuple(f"{bytes_text(taken)} {source}" for source, taken in self.bytes.items() if taken > 0)
        return ReclaimReport(did=did, problems=tuple(self.problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimJob:
    """A reclaim of so much memory.

    Each step of `takes` blocks until a piece is reclaimed, counts that in what it is given, and raises
    nothing. With `stops_at_enough` the reclaim ends when as much more is available as is wanted, or when what
    is available can't be observed any more.
    """

    kind: Reclaim
    signal: Signal | RuleSignal
    wanted_bytes: int
    most_seconds: float
    available_bytes: Callable[[], int | None]
    takes: Callable[[Taken], Iterator[None]]
    stops_at_enough: bool = False
    stopped_because: str | None = None  # the problem that it is, if it may not go on


class ReclaimRunner:
    """Runs reclaims, of each kind one at a time."""

    def __init__(self) -> None:
        self._in_kernel: set[Reclaim] = set()

    async def run(self, job: ReclaimJob, may_go_on: Callable[[], bool] = lambda: True) -> Reclaimed:
        """Return what was reclaimed. It ends if `may_go_on` is false, asked between two pieces.

        A piece that hangs in the kernel is left to its thread when the time is up.
        """
        measurement = Measurement(job.kind, job.signal, job.available_bytes)
        taken = Taken()

        def is_enough() -> bool:
            if not job.stops_at_enough:
                return False
            before_bytes, available_bytes = measurement.before, job.available_bytes()
            if before_bytes is None or available_bytes is None:
                return True
            return available_bytes >= before_bytes + job.wanted_bytes

        if job.kind in self._in_kernel:
            taken.problems.append("an earlier reclaim is still under way")
        else:
            takes = job.takes(taken)
            with trio.move_on_after(job.most_seconds) as scope:
                while await in_thread(self._step, job.kind, takes, abandon_on_cancel=True):
                    if is_enough():
                        break
                    if not may_go_on():
                        taken.problems += [] if job.stopped_because is None else [job.stopped_because]
                        break
            if scope.cancelled_caught:
                taken.problems.append(f"not done within {job.most_seconds:g} s")
        return measurement.reclaimed(job.wanted_bytes, taken.report())

    def _step(self, kind: Reclaim, takes: Iterator[None]) -> bool:
        """Take the next piece; return whether there may be another."""
        self._in_kernel.add(kind)
        try:
            next(takes)
        except StopIteration:
            return False
        finally:
            self._in_kernel.discard(kind)
        return True


@dataclass(eq=False)
class NodeReclaimer:
    """Has the node reclaim what a decision asks for, until that is enough.

    `observed` returns what was observed last. `observe` observes the filesystems and usages again, and
    `observe_space` the filesystems alone. Nothing here raises.
    """

    settings: EvictionSettings
    reclaims: Reclaims
    observed: Callable[[], Mapping[Signal, Observation]]

    async def run(
        self, decision: Decision, observe: Observe, observe_space: Observe
    ) -> tuple[Reclaimed, ...]:
        """Return what was reclaimed, kind by kind; the filesystems have been observed again on return.

        What would be reclaimed after it was enough stays: an image that is removed in vain has to be fetched
        again. Upstream goes through all of it (reclaimNodeLevelResources).
        """
        found: list[Reclaimed] = []
        threshold = decision.acted_on
        if threshold is not None:
            for kind in decision.reclaim:
                if found and self._suffices(decision):
                    break
                reclaimed = await self._reclaim(kind, threshold, decision, observe_space)
                found += [] if reclaimed is None else [reclaimed]
        await observe()
        return tuple(found)

    async def _reclaim(
        self, kind: Reclaim, threshold: Threshold, decision: Decision, observe_space: Observe
    ) -> Reclaimed | None:
        signal = threshold.signal

        def available() -> int | None:
            seen = self.observed().get(signal)
            return None if seen is None else seen.available

        before = self.observed().get(signal)
        measurement = Measurement(kind, signal, available, RESOURCE[signal])
        try:
            report = await self.reclaims.run(kind, filesystems_of(signal, self.settings.layout))
        except (ReactorError, OSError) as error:
            report = ReclaimReport(problems=(str(error),))
        if report is None:
            return None
        ended_seconds = time.monotonic()  # what follows, until the result shows, is no reclaim's time

        async def observed_again() -> int | None:
            await observe_space()
            return available()

        await until_space_is_back(
            observed_again, await observed_again(), SOON, lambda: self._suffices(decision)
        )
        wanted = None if before is None else threshold.missing(before)
        return measurement.reclaimed(wanted, report, ended_seconds)

    def _suffices(self, decision: Decision) -> bool:
        return is_enough(self.settings, decision, Snapshot(signals=self.observed()))
