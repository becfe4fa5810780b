"""Samples what is available while memory is short, and reports the time left until a hard threshold.

Nothing is sampled before a pass has found a soft memory threshold met, or less than a configured distance
left until a hard one; an idle node stays idle. From then on there are four samples a second, and ten while a
fall has just begun or may be over soon, and one when it is due. After a victim's end they begin anew.

If a soft eviction would come too late (`due_in_time`), an ordinary pass is asked for: it finds the time left.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Any, Final

import trio

from reactor.model.decisions import Eviction, PolicyState, Snapshot, TimeLeft
from reactor.model.settings import EvictionSettings
from reactor.model.signals import MEMORY_SIGNALS, Signal
from reactor.model.thresholds import Observation, Threshold, ThresholdValue
from reactor.model.wakes import Wake, WakeKind
from reactor.policy.claims import is_memory_awaited
from reactor.policy.holds import soft_pause_end
from reactor.policy.in_time import due_in_time, spare_seconds
from reactor.policy.thresholds import thresholds_met
from reactor.time_left.estimate import Samples

SOURCE: Final = "time-left"
_SECONDS: Final = 0.25
_OFTEN_SECONDS: Final = 0.1
_LEAST_SECONDS: Final = 0.02
_SOON_SECONDS: Final = 20.0


@dataclass(eq=False)
class TimeLeftWatch:
    """Watches the memory signals that have a hard threshold, of one configuration.

    `state` returns the policy's, `observe` what is available, `held_bytes` the working set of a pod (None:
    gone). `report` takes over the estimates, `wake` has a pass made. `within` is how far ahead of a hard
    threshold sampling begins (None: at the soft thresholds alone). `needs` outlives the configuration.
    """

    settings: EvictionSettings
    _: KW_ONLY
    state: Callable[[], PolicyState]
    observe: Callable[[], Mapping[Signal, Observation]]
    held_bytes: Callable[[str], int | None]
    report: Callable[[Mapping[Signal, TimeLeft]], None]
    wake: Callable[[Wake], None]
    needs: Needs
    within: ThresholdValue | None = None
    clock_seconds: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        memory = [one for one in self.settings.thresholds if one.signal in MEMORY_SIGNALS]
        self._hard = {one.signal: one for one in memory if one.is_hard}
        self._soft = [one for one in memory if not one.is_hard and one.signal in self._hard]
        self._samples = {signal: Samples() for signal in self._hard}
        self._lefts: Mapping[Signal, TimeLeft] = {}
        self._was_awaiting = False
        self._victims: dict[str, int] = {}  # by uid, what evicted pods held
        self._is_short = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Sample while memory is short, until cancelled."""
        task_status.started()
        try:
            while True:
                pause_seconds = self.sample()
                if pause_seconds < math.inf:
                    await trio.sleep(pause_seconds)
                    continue
                self._is_short = trio.Event()
                await self._is_short.wait()
        finally:
            self._forget()

    def passed(self, snapshot: Snapshot, ordered: Sequence[Eviction]) -> None:
        """Take over what a pass has observed, and the evictions that it has ordered."""
        now_seconds = self.clock_seconds()
        self.needs.judge(snapshot.signals, self.held_bytes, now_seconds)
        for eviction in ordered:
            if eviction.threshold is None:
                continue
            since_seconds = self.state().first_observed.get(eviction.threshold, now_seconds)
            end_seconds = since_seconds + eviction.threshold.grace_period_seconds
            self.needs.ordered(eviction, self._hard, end_seconds - now_seconds)
            used = snapshot.pods.get(eviction.pod.uid)
            if used is not None and self._lefts and not eviction.is_of_one_process:
                # What it is to free counts as available from the start.
                uid, held_bytes = eviction.pod.uid, used.memory_working_set_bytes or 0
                self._rise(held_bytes - self._victims.get(uid, 0))  # it may be asked to end before the kill
                there = {one: held for one, held in self._victims.items() if self.held_bytes(one) is not None}
                self._victims = {**there, uid: held_bytes}
        if self.is_short(snapshot.signals):
            self.needs.seen(snapshot, now_seconds)
            self._is_short.set()
        else:
            self.needs.calm()

    def is_short(self, seen: Mapping[Signal, Observation]) -> bool:
        """Return whether a soft threshold is met, or a hard one nearer than is configured."""
        known = {signal: one for signal, one in seen.items() if one.absurdity is None}
        within = self.within
        return bool(thresholds_met(self._soft, known)) or any(
            within is not None
            and (one := known.get(signal)) is not None
            and not hard.is_absurd_at(one.capacity)
            and one.available < hard.value.of(one.capacity) + within.of(one.capacity)
            for signal, hard in self._hard.items()
        )

    def sample(self) -> float:
        """Take a sample, report the time left, and return after how long to take the next; infinity: none."""
        seen = self.observe()
        now_seconds = self.clock_seconds()
        self.needs.judge(seen, self.held_bytes, now_seconds)
        if not self.is_short(seen):
            self._forget()
            return _SECONDS if self.needs.is_judging else math.inf
        state = self.state()
        self._lefts = lefts = dict(self._estimates(seen, self._awaited_bytes(state), now_seconds))
        self.report(lefts)
        is_asked = self.settings.soft_in_time
        due = due_in_time(self.settings, state, lefts, now_seconds) if is_asked else {}
        if due.keys() - state.thresholds_met or (due and now_seconds < soft_pause_end(self.settings, state)):
            self.wake(Wake(source=SOURCE, kind=WakeKind.MEMORY, at_ns=time.monotonic_ns()))
        pause_seconds = _OFTEN_SECONDS if any(map(self._is_often, lefts, lefts.values())) else _SECONDS
        spares = (spare_seconds(one.needed_seconds, lefts.get(one.threshold.signal)) for one in state.waits)
        return max(_LEAST_SECONDS, min([pause_seconds, *(one for one in spares if one > 0)]))

    def _awaited_bytes(self, state: PolicyState) -> int:
        """Return what evicted pods are still to free. After other victims samples begin anew."""
        left_bytes = sum(min(held, self.held_bytes(uid) or 0) for uid, held in self._victims.items())
        was_awaiting, self._was_awaiting = self._was_awaiting, is_memory_awaited(state)
        if self._was_awaiting:
            return left_bytes
        self._rise(-left_bytes)
        if was_awaiting and not self._victims:
            for samples in self._samples.values():
                samples.clear()
        self._victims.clear()
        return 0

    def _rise(self, by_bytes: int) -> None:
        for samples in self._samples.values():
            samples.rise(by_bytes)

    def _estimates(
        self, seen: Mapping[Signal, Observation], awaited_bytes: int, now_seconds: float
    ) -> Iterator[tuple[Signal, TimeLeft]]:
        for signal, samples in self._samples.items():
            one = seen.get(signal)
            if one is None or one.absurdity is not None or self._hard[signal].is_absurd_at(one.capacity):
                samples.clear()
                continue
            samples.add(now_seconds, min(one.available + awaited_bytes, one.capacity), one.capacity)
            yield signal, samples.time_left(float(self._hard[signal].value.of(one.capacity)), now_seconds)

    def _is_often(self, signal: Signal, left: TimeLeft) -> bool:
        if left.seconds is not None:
            return left.seconds < _SOON_SECONDS
        return self._samples[signal].falls_within(_SOON_SECONDS, self._hard[signal].value)

    def _forget(self) -> None:
        for samples in self._samples.values():
            samples.clear()
        self._lefts = {}
        self._was_awaiting = False
        self._victims.clear()
        self.report(self._lefts)

    def document(self) -> dict[str, Any]:
        """Return what is foreseen, as plain JSON values."""
        waits = [
            {"threshold": str(one.threshold), "uid": one.uid, "until_left_seconds": one.needed_seconds}
            for one in self.state().waits
        ]
        signals = [
            {"threshold": str(self._hard[one]), **left.document()} for one, left in self._lefts.items()
        ]
        in_time = {"on": self.settings.soft_in_time, **self.needs.document(), "waits": waits}
        return {"signals": signals, "in_time": in_time}


# Whether an eviction that came before its grace period was over was needed.
#
# It was if the hard threshold would have been crossed before the grace period was over. So what is available,
# less what the victim has freed since, is compared with the thresholds until then. If that is below the hard
# one, it was needed. What the victim would have gone on to take can't be known. If only its growth would have
# crossed, at the rate since the pass that found the soft threshold met, the need is presumed. If not, but the
# soft threshold would have been met throughout, it only came sooner than at its end. Else it was not needed.

_MOST_JUDGED: Final = 64
_MOST_SECONDS: Final = 600.0  # a grace period may be hours, and nothing is sampled for so long


class Judged(StrEnum):
    """What an eviction in time is found to have been."""

    NEEDED = "needed"
    PRESUMED = "presumed"
    SOONER = "sooner"
    NOT_NEEDED = "not-needed"


@dataclass(slots=True, kw_only=True)
class _Case:
    uid: str
    hard: Threshold
    soft: Threshold
    at_seconds: float
    until_seconds: float
    held_bytes: int
    grew_bytes_per_second: float
    is_presumed: bool = False
    is_over: bool = False  # the soft threshold would not have been met any more


class Needs:
    """Judges evictions; what it has counted is kept for as long as the process lives."""

    def __init__(self) -> None:
        self.counted: Counter[Judged] = Counter()
        self._cases: list[_Case] = []
        self._began: tuple[float, Mapping[str, int]] | None = None

    @property
    def is_judging(self) -> bool:
        return bool(self._cases)

    def seen(self, snapshot: Snapshot, now_seconds: float) -> None:
        """Take over what pods held in a pass that found memory short."""
        read = {uid: one.memory_working_set_bytes or 0 for uid, one in snapshot.pods.items()}
        held = {**snapshot.bounds, **read}
        if held and self._began is None:
            self._began = now_seconds, held

    def calm(self) -> None:
        """Record that memory is not short: growth is measured from the next shortage on."""
        self._began = None

    def ordered(
        self, eviction: Eviction, hard: Mapping[Signal, Threshold], grace_left_seconds: float
    ) -> None:
        """Begin to judge an eviction, if it came in time and not after its grace period."""
        left = eviction.time_left if len(self._cases) < _MOST_JUDGED else None
        soft, threshold = eviction.threshold, hard.get(Signal(eviction.signal))
        used = None if eviction.shortage is None else eviction.shortage.used
        if left is None or soft is None or used is None or threshold is None:
            return
        uid, held_bytes = eviction.pod.uid, used.memory_working_set_bytes or 0
        began_seconds, before = self._began or (left.at_seconds, {})
        elapsed_seconds = left.at_seconds - began_seconds
        grew_bytes = held_bytes - before.get(uid, 0)  # a pod that has come since has grown from nothing
        self._cases.append(
            _Case(
                uid=uid,
                hard=threshold,
                soft=soft,
                at_seconds=left.at_seconds,
                until_seconds=left.at_seconds + min(grace_left_seconds, _MOST_SECONDS),
                held_bytes=held_bytes,
                grew_bytes_per_second=max(0.0, grew_bytes / elapsed_seconds) if elapsed_seconds > 0 else 0.0,
                is_over=grace_left_seconds > _MOST_SECONDS,  # that it would have been met is not seen
            )
        )

    def judge(
        self,
        seen: Mapping[Signal, Observation],
        held_bytes: Callable[[str], int | None],
        now_seconds: float,
    ) -> None:
        """Compare what would be available now, had they not been ordered; count those that are decided."""
        left = []
        for case in self._cases:
            one = seen.get(case.hard.signal)
            if one is not None and one.absurdity is None:
                without_bytes = one.available - max(0, case.held_bytes - (held_bytes(case.uid) or 0))
                missing_bytes = case.hard.value.of(one.capacity) - without_bytes
                if missing_bytes > 0:
                    self.counted[Judged.NEEDED] += 1
                    continue
                grown_bytes = case.grew_bytes_per_second * (now_seconds - case.at_seconds)
                case.is_presumed |= missing_bytes + grown_bytes > 0
                case.is_over |= without_bytes >= case.soft.value.of(one.capacity)
            if now_seconds < case.until_seconds:
                left.append(case)
            else:
                otherwise = Judged.NOT_NEEDED if case.is_over else Judged.SOONER
                self.counted[Judged.PRESUMED if case.is_presumed else otherwise] += 1
        self._cases = left

    def document(self) -> dict[str, Any]:
        """Return what was counted, as plain JSON values."""
        counted = {one.replace("-", "_"): self.counted[one] for one in Judged}
        return {**counted, "being_judged": len(self._cases)}
