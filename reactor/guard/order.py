"""The pods in the order in which they would be evicted now, for a live view of the daemon.

A thousand pods read at once would keep the loop from a wake for 6 ms. One who looks every second is not
to cost a kill that: pods are read a few at a time, the loop goes first between them, and the more a look has
cost the longer it is good for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import trio

from reactor.guard.record import ranked_document
from reactor.model.decisions import PolicyState, RankedPod
from reactor.model.pods import Pod, PodUsage
from reactor.model.settings import EvictionSettings
from reactor.model.signals import FREED_TOGETHER, RESOURCE, Resource, Signal
from reactor.observe.storage import with_storage
from reactor.policy import rank

if TYPE_CHECKING:
    from reactor.guard.status import View

# 0.25 ms on cgroup v1, 0.6 ms at the most of 640 times.
PODS_AT_ONCE: Final = 32
_MOST_PLACES: Final = 200
# Of the time, for looking at pods on behalf of people: a look of 20 ms is good for 4 s.
_SHARE: Final = 0.005


def ranked_signal(state: PolicyState) -> Signal:
    """Return the signal for which a pod would be evicted now: of the threshold met, else memory."""
    return state.thresholds_met[0].signal if state.thresholds_met else Signal.MEMORY_AVAILABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    signal: Signal
    places: tuple[RankedPod, ...]
    pods: int
    at_seconds: float
    took_seconds: float

    def is_good(self, signal: Signal, places: int, now_seconds: float) -> bool:
        wanted = min(places, self.pods)
        good_for_seconds = self.took_seconds / _SHARE
        return (
            self.signal is signal
            and len(self.places) >= wanted
            and now_seconds - self.at_seconds < good_for_seconds
        )


class EvictionOrder:
    """The head of the ranking. All who ask share one look; nothing of it takes part in a pass."""

    def __init__(self, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self._clock_seconds = clock_seconds
        self._looking = trio.Lock()
        self._last: _Look | None = None

    async def first(self, view: View, places: int) -> dict[str, Any]:
        """Return up to `places` (200 at the most) of the ranking as plain JSON values, and how old it is."""
        places = max(0, min(places, _MOST_PLACES))
        signal = ranked_signal(view.known.state)
        async with self._looking:
            last = self._last
            if last is None or not last.is_good(signal, places, self._clock_seconds()):
                last = self._last = await self._look(view, signal, places)
        resource = RESOURCE[signal]
        ending = {flight.uid for flight in view.known.state.in_flight}
        return {
            "signal": signal,
            "resource": resource,
            "pods": last.pods,
            "age_seconds": round(self._clock_seconds() - last.at_seconds, 3),
            "first": [
                {
                    "place": number,
                    "being_evicted": place.pod.uid in ending,
                    **ranked_document(place, resource),
                }
                for number, place in enumerate(last.places[:places], 1)
            ],
        }

    async def _look(self, view: View, signal: Signal, places: int) -> _Look:
        pods = view.known.pods
        took_seconds = 0.0
        best: tuple[RankedPod, ...] = ()
        usages: dict[str, PodUsage] = {}
        for start in range(0, len(pods), PODS_AT_ONCE):
            began = self._clock_seconds()
            some = pods[start : start + PODS_AT_ONCE]
            usages |= _usages(view, some, signal)
            present = (pod for pod in some if pod.uid not in view.usages.vanished)
            # The best so far stand before the others, so that ties keep the pods' order.
            among = (*(place.pod for place in best), *present)
            best = rank_now(view.settings.eviction, among, usages, signal)[:places]
            usages = {place.pod.uid: usages[place.pod.uid] for place in best if place.pod.uid in usages}
            took_seconds += self._clock_seconds() - began
            await trio.lowlevel.checkpoint()
        return _Look(
            signal=signal,
            places=best,
            pods=len(pods),
            at_seconds=self._clock_seconds(),
            took_seconds=took_seconds,
        )


def rank_now(
    settings: EvictionSettings, pods: Iterable[Pod], usages: Mapping[str, PodUsage], signal: Signal
) -> tuple[RankedPod, ...]:
    """Return the pods in the order in which a pass would rank them."""
    return rank(pods, usages, signal, settings.layout, with_swap=settings.ranks_swap)


async def usages_in_turns(view: View, pods: Sequence[Pod], signal: Signal) -> Mapping[str, PodUsage]:
    """Return what pods use of what the signal is about, by uid; the loop goes first between a few of them."""
    usages: dict[str, PodUsage] = {}
    for start in range(0, len(pods), PODS_AT_ONCE):
        usages |= _usages(view, pods[start : start + PODS_AT_ONCE], signal)
        await trio.lowlevel.checkpoint()
    return usages


def _usages(view: View, pods: Sequence[Pod], signal: Signal) -> Mapping[str, PodUsage]:
    """Return what these pods use of what the signal is about, by uid."""
    uids = [pod.uid for pod in pods]
    if RESOURCE[signal] in FREED_TOGETHER:
        return view.usages.of(uids)
    counted = view.usages.of(uids, with_processes=True) if RESOURCE[signal] is Resource.PIDS else {}
    return with_storage(counted, view.known.storage.usages(pods), pods)
