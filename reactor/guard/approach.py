"""Before a crossing: what is done there saves work at it, and never an observation.

After the pass of an early level the decision is made once more as the crossing would make it
(policy/forecast.py), and everything that stands `Ahead` prepares for it: the kills, and what else the guard
was made with.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from operator import itemgetter
from typing import Final

from reactor.guard.bounded import FEW_PODS, GivesWayError, Known
from reactor.guard.observations import Observations
from reactor.model.decisions import Inputs, Snapshot
from reactor.model.pods import Pod
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation
from reactor.policy.claims import is_memory_awaited
from reactor.policy.events import PodEmptied
from reactor.policy.forecast import READY_PODS, Forecast, near, with_victims
from reactor.policy.thresholds import is_hard_memory
from reactor.sources.levels import MemoryLevel, MemoryLevels

# Long enough from one early level to the next where nothing is slower than an allocator at 0.6 GiB/s.
_FRESH_SECONDS: Final = 0.05
_MOST_PUT_ASIDE: Final = 8  # each costs a pass 0.04 ms on v1

_Memory = Mapping[Signal, Observation]
_Nearby = frozenset[Signal]


class Approach:
    """Has everything prepare that stands ahead of a crossing while one `is_near`, or passed."""

    def __init__(self, pods: Observations) -> None:
        self.is_near = False
        self._node = pods.node
        self._pods = pods
        self._has_forecast = False
        self._fresh_until_seconds = -math.inf

    def is_due(self, now_seconds: float) -> bool:
        """Return whether a fresh forecast is wanted though nothing has woken the loop."""
        return self._has_forecast and any(now_seconds >= one.retry_seconds() for one in self._pods.ahead)

    def prepare(self, *, again: bool = False) -> None:
        """Prepare by what is observed now; nothing is decided. See `after`."""
        self.after(self._pods.observer.memory(), self._node.clock_seconds(), again=again)

    def after(self, memory: _Memory, now_seconds: float, *, again: bool = False) -> None:
        """Prepare after a pass that has seen so much memory, if a crossing is near.

        `again`: all was prepared a moment ago, and of many pods only as much is read as at the crossing.
        After a pass so, too, if that shows the same victim: a crossing would have to wait for the rest.
        """
        nearby = near(self._node.settings.thresholds, memory)
        self.is_near = bool(nearby)
        state = self._node.state  # while a crossing waits for a victim's memory no other is decided on
        is_claimed = is_memory_awaited(state) and any(map(is_hard_memory, state.thresholds_met))
        self._has_forecast = self.is_near and not is_claimed
        if self._has_forecast:
            with suppress(GivesWayError):  # to a crossing: what was prepared before stays so
                self._prepare(memory, nearby, now_seconds, again=again)
            return
        self._fresh_until_seconds = -math.inf
        if self.is_near:
            self._pods.kernel.far()
        else:
            for one in self._pods.ahead:
                one.far()

    def _prepare(self, memory: _Memory, nearby: _Nearby, now_seconds: float, *, again: bool) -> None:
        bounded = self._pods.bounded
        if len(self._node.pods) > FEW_PODS and (again or now_seconds < self._fresh_until_seconds):
            self._pods.refresh_pods()
            victims: Sequence[Pod] = ()
            if (few := bounded.observe_few()) is not None:
                victims = self._forecast(memory, nearby, few, now_seconds).prepared
            if (again and bounded.largest) or (victims and victims[0].uid in bounded.likely[:1]):
                return
        self._pods.kernel.begin()
        self._pods.refresh_pods()
        reads_all, give_way = any(one.reads_all for one in self._pods.ahead), self._give_way
        is_whole = len(self._node.pods) <= FEW_PODS or (reads_all and not again)
        usages = self._pods.usages
        known = Known({}, dict(usages.memory(give_way))) if is_whole else bounded.observe(give_way)
        charged = dict(known.bounds)
        found = self._forecast(memory, nearby, known, now_seconds)
        if self._put_aside_empty(found):
            found = self._forecast(memory, nearby, known, now_seconds)
        bounded.expect(charged, found.prepared)
        for one in self._pods.ahead:
            if is_whole or not one.reads_all:
                one.near(found, self._pods.shortage_has_grown)
        if not reads_all and not any(pod.process_victim for pod in found.prepared):
            self._fresh_until_seconds = now_seconds + _FRESH_SECONDS

    def _give_way(self) -> None:
        if self._pods.shortage_has_grown():
            raise GivesWayError

    def _forecast(self, memory: _Memory, nearby: _Nearby, known: Known, now_seconds: float) -> Forecast:
        pods = self._pods.eligible_pods(now_seconds)
        node = self._node
        asleep: Sequence[Pod] = ()
        if node.state.ineligible.emptied:
            asked = {pod.uid for pod in pods}
            asleep = tuple(pod for pod in self._pods.present_pods() if pod.uid not in asked)
        snapshot = Snapshot(signals=memory, pods=known.used, bounds=known.bounds)
        found = Forecast(inputs=Inputs(node.settings, node.state, snapshot, pods, now_seconds), asleep=asleep)

        def settle(inputs: Inputs) -> bool:
            bounded = self._pods.bounded
            if not known.bounds:
                return True
            self._give_way()
            if bounded.hold_too_little(inputs, known):
                return False
            heads = 1 if known.is_wide else READY_PODS
            due = bounded.settle(inputs, known, heads=heads, between=self._give_way)
            if due is None and not known.is_wide:
                known.used.update(self._pods.usages.memory(self._give_way))
                known.bounds.clear()
            return due is not None or not known.is_wide

        return with_victims(found, nearby, settle)

    def _put_aside_empty(self, found: Forecast) -> bool:
        """Leave out those that hold nothing and have no process, until one lives in them: none would die.

        Return whether there was one. Asked while the crossing is only near, and of a few: each that is left
        out is checked again by each pass.
        """
        room = _MOST_PUT_ASIDE - len(self._node.emptied_among(self._node.pods))
        held_bytes = {uid: one.memory_working_set_bytes for uid, one in found.inputs.snapshot.pods.items()}
        idle = (pod for pod in found.prepared if held_bytes.get(pod.uid) == 0)
        empty = [pod.uid for pod in idle if self._pods.is_populated(pod) is False][: max(0, room)]
        for uid in empty:
            self._node.apply(PodEmptied(uid=uid, was_found=True))
        return bool(empty)


# --- the last stretch ---
#
# Usage is read again and again, and the crossing's pass is rehearsed. The nearer early level wakes the loop
# milliseconds before an allocator crosses the threshold. To wait for its event is slow: cgroup v1 checks a
# threshold every 128 pages of a CPU, a task that sleeps is awake after 0.1 ms, and others fill the caches
# meanwhile, in which the same pass takes twice as long. So the loop stays. It reads usage every 0.3 ms, and
# without a pause at first, and once the level is as near as usage has grown since the last look: it sees the
# crossing itself. An allocator on the same CPU grows in pauses alone: these are short then. After growth, and
# now and then without, it prepares the likeliest victims again, which leads through the code of the pass and
# its counters; more often it would keep the allocator from its CPU.
# Nothing else is done meanwhile, so it is not long, and then not again for ten times as long.

_MOST_SECONDS: Final = 0.03
# On a busy CPU an allocator waits for its turn: a slice of the scheduler, 3 to 4 ms, for each other task.
_STILL_SECONDS: Final = 0.012
_REST_SHARE: Final = 10
_PAUSE_SECONDS: Final = 0.00025
_SHORT_PAUSE_SECONDS: Final = 0.00005
_STANDS_SECONDS: Final = 0.001  # of pauses without growth, before victims are prepared again
_AT_ONCE_SECONDS: Final = 0.0003  # at full speed usage moves on every 0.2 ms, by 64 pages
_REACH_BYTES: Final = 6 << 20  # twice the nearer early level: page cache may have lifted the crossing since


@dataclass(eq=False)
class LastStretch:
    """Sees a crossing that is imminent by its usage, and has the `approach` prepare again meanwhile."""

    levels: MemoryLevels
    approach: Approach
    _: KW_ONLY
    clock_seconds: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _rests_until_seconds: float = 0.0

    def watch(self, levels: Sequence[MemoryLevel]) -> MemoryLevel | None:
        """Stay until usage is past one of these levels, and return it; None where that does not come soon.

        `levels` are those of hard thresholds at which a crossing is. Where usage is past one already a pass
        has seen to it. Blocks.
        """
        began_seconds = now_seconds = self.clock_seconds()
        if now_seconds < self._rests_until_seconds:
            return None
        ahead = [one for one in self._left(levels) if one[0] > 0]
        left_bytes, nearest = min(ahead, key=itemgetter(0), default=(0, None))
        if nearest is None or left_bytes >= _REACH_BYTES:
            return None
        until_seconds, has_grown = now_seconds + _STILL_SECONDS, False
        pause_seconds, paused_seconds = _PAUSE_SECONDS, 0.0
        at_once_until_seconds = now_seconds + _AT_ONCE_SECONDS
        while left_bytes > 0 and now_seconds < until_seconds:
            is_paused = now_seconds >= at_once_until_seconds
            if is_paused and paused_seconds >= (_PAUSE_SECONDS if has_grown else _STANDS_SECONDS):
                self.approach.prepare(again=True)
                paused_seconds = 0.0
            elif is_paused:
                self.sleep(pause_seconds)
                paused_seconds += pause_seconds
            found = self._left([level for _, level in ahead])
            now_seconds = self.clock_seconds()
            if not found:
                break
            now_left_bytes, nearest = min(found, key=itemgetter(0))
            has_grown = now_left_bytes < left_bytes
            if has_grown:
                pause_seconds = _PAUSE_SECONDS
                if 3 * now_left_bytes <= 2 * left_bytes:
                    pause_seconds = _SHORT_PAUSE_SECONDS
                    at_once_until_seconds = now_seconds + _AT_ONCE_SECONDS
                until_seconds = min(began_seconds + _MOST_SECONDS, now_seconds + _STILL_SECONDS)
                left_bytes = now_left_bytes
        self._rests_until_seconds = now_seconds + _REST_SHARE * (now_seconds - began_seconds)
        return nearest if left_bytes <= 0 else None

    def _left(self, levels: Iterable[MemoryLevel]) -> list[tuple[int, MemoryLevel]]:
        """Return how much is left until past each of these levels whose usage is known."""
        read = self.levels.usage_bytes
        return [(one.level_bytes + 1 - used, one) for one in levels if (used := read(one.cgroup)) is not None]
