"""Node-level reclaim: one thing after the other, each measured by what the filesystem shows afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from reactor.errors import ReactorError
from reactor.model.decisions import Decision, Snapshot
from reactor.model.settings import EvictionSettings
from reactor.model.signals import RESOURCE, Reclaim, Signal, filesystems_of
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.decide import is_enough
from reactor.reclaim.reclaims import Patience, ReclaimReport, Reclaims, until_space_is_back
from reactor.reclaim.runner import Measurement, Reclaimed

_PATIENCE: Final = Patience(every_seconds=0.05, most_times=20, still_times=2)

Observe = Callable[[], Awaitable[None]]


class NodeReclaimer:
    """Has the node reclaim what a decision asks for, until that is enough.

    `observed` returns what was observed last. `observe` observes the filesystems and usages again, and
    `observe_space` the filesystems alone. Nothing here raises.
    """

    def __init__(
        self,
        settings: EvictionSettings,
        reclaims: Reclaims,
        observed: Callable[[], Mapping[Signal, Observation]],
    ) -> None:
        self._settings = settings
        self._reclaims = reclaims
        self._observed = observed

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
            seen = self._observed().get(signal)
            return None if seen is None else seen.available

        before = self._observed().get(signal)
        measurement = Measurement(kind, signal, available, RESOURCE[signal])
        try:
            report = await self._reclaims.run(kind, filesystems_of(signal, self._settings.layout))
        except (ReactorError, OSError) as error:
            report = ReclaimReport(problems=(str(error),))
        if report is None:
            return None
        measurement.stop_clock()

        async def observed_again() -> int | None:
            await observe_space()
            return available()

        # xfs frees in the background what was removed (since 5.14): the first statvfs after a removal showed
        # nothing of 150 MiB, another one 1 ms later all of it; with a busy CPU it takes longer.
        await until_space_is_back(
            observed_again, await observed_again(), _PATIENCE, lambda: self._suffices(decision)
        )
        return measurement.reclaimed(None if before is None else threshold.missing(before), report)

    def _suffices(self, decision: Decision) -> bool:
        return is_enough(self._settings, decision, Snapshot(signals=self._observed()))
