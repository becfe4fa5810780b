"""Node-level reclaim: one thing after the other, each measured by what the filesystem shows afterwards."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from reactor.errors import ReactorError
from reactor.guard.record import Reclaimed
from reactor.model.decisions import Decision, Snapshot
from reactor.model.settings import EvictionSettings
from reactor.model.signals import RESOURCE, Reclaim, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.observe.latest import Observed
from reactor.policy.decide import is_enough
from reactor.policy.reclaim import filesystems_of
from reactor.reclaim.reclaims import ReclaimReport, Reclaims
from reactor.reclaim.space import Patience, until_space_is_back

_LOG: Final = logging.getLogger("reactor.reclaim")

_PATIENCE: Final = Patience(every_seconds=0.05, most_looks=20, still_looks=2)

Observe = Callable[[], Awaitable[None]]


class NodeReclaimer:
    """Has the node give back what a decision asks for, until that is enough.

    `observe` looks at the filesystems again, and leaves what it finds in `observed`; `glance` looks at
    nothing else. Nothing here raises.
    """

    def __init__(
        self,
        settings: EvictionSettings,
        reclaims: Reclaims,
        observed: Observed,
        clock_seconds: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._reclaims = reclaims
        self._observed = observed
        self._clock_seconds = clock_seconds

    async def run(self, decision: Decision, observe: Observe, glance: Observe) -> tuple[Reclaimed, ...]:
        """Return what was given back, kind by kind; the filesystems have been observed again on return.

        What would be given back after it was enough stays: an image that is removed in vain has to be
        fetched again. Upstream goes through all of it (reclaimNodeLevelResources).
        """
        found: list[Reclaimed] = []
        threshold = decision.acted_on
        if threshold is not None:
            for kind in decision.reclaim:
                if found and self._suffices(decision):
                    break
                given = await self._give_back(kind, threshold, decision, glance)
                found += [] if given is None else [given]
        await observe()
        return tuple(found)

    async def _give_back(
        self, kind: Reclaim, threshold: Threshold, decision: Decision, glance: Observe
    ) -> Reclaimed | None:
        began_unix_seconds, began_seconds = time.time(), time.monotonic()
        before = self._seen(threshold.signal)
        report = await self._reclaim(kind, threshold.signal)
        if report is None:
            return None
        took_seconds = time.monotonic() - began_seconds
        await self._settle(threshold.signal, decision, glance)
        after = self._seen(threshold.signal)
        given = Reclaimed(
            kind=kind,
            signal=threshold.signal,
            resource=RESOURCE[threshold.signal],
            at_unix_seconds=began_unix_seconds,
            wanted=None if before is None else threshold.missing(before),
            freed=None if before is None or after is None else after.available - before.available,
            took_seconds=took_seconds,
            did=report.did,
            problems=report.problems,
        )
        _LOG.info("%s", given)
        for problem in report.problems:
            _LOG.warning("reclaim of %s: %s", kind, problem)
        return given

    async def _settle(self, signal: Signal, decision: Decision, glance: Observe) -> None:
        """Look until it is enough, or no more comes back.

        xfs frees in the background what was removed (since 5.14): the first statvfs after a removal showed
        nothing of 150 MiB, another one 1 ms later all of it; with a busy CPU it takes longer.
        """

        async def look() -> int | None:
            await glance()
            seen = self._seen(signal)
            return None if seen is None else seen.available

        await until_space_is_back(look, await look(), _PATIENCE, lambda: self._suffices(decision))

    async def _reclaim(self, kind: Reclaim, signal: Signal) -> ReclaimReport | None:
        try:
            return await self._reclaims.run(kind, filesystems_of(signal, self._settings.layout))
        except (ReactorError, OSError) as error:
            return ReclaimReport(problems=(str(error),))

    def _suffices(self, decision: Decision) -> bool:
        return is_enough(self._settings, decision, Snapshot(signals=self._observed.at(self._clock_seconds())))

    def _seen(self, signal: Signal) -> Observation | None:
        return self._observed.at(self._clock_seconds()).get(signal)
