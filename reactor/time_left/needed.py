"""Whether an eviction that came before its grace period was over was needed.

It was if the hard threshold would have been crossed before the grace period was over. So what is available,
less what the victim has freed since, is compared with the hard threshold until then. If that is below, the
eviction was needed. What the victim itself would have gone on to take can't be known. If only its growth
would have crossed, at the rate between the pass that found the soft threshold met and its eviction, the need
is presumed. If not even that would have, the eviction was not needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from reactor.model.decisions import Eviction, Snapshot
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation, Threshold

_MOST_JUDGED: Final = 64
_MOST_SECONDS: Final = 600.0  # a grace period may be hours, and nothing is sampled for so long


class Judged(StrEnum):
    """What an eviction in time is found to have been; `PRESUMED`: needed if the victim had grown on."""

    NEEDED = "needed"
    PRESUMED = "presumed"
    NOT_NEEDED = "not-needed"


@dataclass(slots=True, kw_only=True)
class _Case:
    uid: str
    threshold: Threshold
    at_seconds: float
    until_seconds: float
    held_bytes: int
    grew_bytes_per_second: float
    is_presumed: bool = False


class Needs:
    """Judges evictions; what it has counted is kept for as long as the process lives."""

    def __init__(self) -> None:
        self.counted: Counter[Judged] = Counter()
        self._cases: list[_Case] = []
        self._began: tuple[float, Mapping[str, int]] | None = None
        self._last: Mapping[str, int] = {}
        self._last_seconds = 0.0

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
        left, shortage = eviction.time_left, eviction.shortage
        if left is None or shortage is None or len(self._cases) >= _MOST_JUDGED:
            return
        threshold = hard.get(Signal(eviction.signal))
        used = shortage.used
        if threshold is None or used is None:
            return
        uid, held_bytes = eviction.pod.uid, used.memory_working_set_bytes or 0
        began_seconds, before = self._began or (left.at_seconds, {})
        elapsed_seconds = left.at_seconds - began_seconds
        grew_bytes = held_bytes - before.get(uid, 0)  # a pod that has come since has grown from nothing
        self._cases.append(
            _Case(
                uid=uid,
                threshold=threshold,
                at_seconds=left.at_seconds,
                until_seconds=left.at_seconds + min(grace_left_seconds, _MOST_SECONDS),
                held_bytes=held_bytes,
                grew_bytes_per_second=max(0.0, grew_bytes / elapsed_seconds) if elapsed_seconds > 0 else 0.0,
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
            one = seen.get(case.threshold.signal)
            if one is not None and one.absurdity is None:
                missing_bytes = case.threshold.value.of(one.capacity) - one.available
                freed_bytes = max(0, case.held_bytes - (held_bytes(case.uid) or 0))
                if missing_bytes + freed_bytes > 0:
                    self.counted[Judged.NEEDED] += 1
                    continue
                grown_bytes = case.grew_bytes_per_second * (now_seconds - case.at_seconds)
                case.is_presumed |= missing_bytes + freed_bytes + grown_bytes > 0
            if now_seconds < case.until_seconds:
                left.append(case)
            else:
                self.counted[Judged.PRESUMED if case.is_presumed else Judged.NOT_NEEDED] += 1
        self._cases = left

    def document(self) -> dict[str, Any]:
        """Return what was counted, as plain JSON values."""
        return {
            "needed": self.counted[Judged.NEEDED],
            "presumed": self.counted[Judged.PRESUMED],
            "not_needed": self.counted[Judged.NOT_NEEDED],
            "being_judged": len(self._cases),
        }
