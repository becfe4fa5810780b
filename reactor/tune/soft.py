"""The soft threshold and its grace periods, by what the node has been through."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from reactor.lab.hog import MIB
from reactor.tune.history import History

_STEP_BYTES: Final = 10 * MIB
_LARGEST_SHARE: Final = 0.1  # of the node, above the hard threshold
_SMALLEST_SHARE: Final = 0.25  # of the hard threshold: soft is to be crossed first
_ASSUMED_GRACE_SECONDS: Final = 30
_ASSUMED_POD_GRACE_SECONDS: Final = 30  # terminationGracePeriodSeconds' default
_LONGEST_GRACE_SECONDS: Final = 120
_ASSUMED_SHARE_A_MINUTE: Final = 0.01
_ROUND_SECONDS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Soft:
    """A soft threshold: where, for how long it has to be crossed, and how long a pod may then take to end.

    `rate_bytes` a second is the fastest allocator that both grace periods serve; of the `known` crossings
    in the history whose rate is known, `served` were no faster.
    """

    threshold_bytes: int
    grace_seconds: int
    pod_grace_seconds: int
    rate_bytes: float
    grace_why: str
    pod_grace_why: str
    rate_why: str
    served: int
    known: int


def soft_for(hard_bytes: int, capacity_bytes: int, history: History) -> Soft:
    """Return the soft threshold that goes with a hard one."""
    grace_seconds, grace_why = _grace(history)
    pod_grace_seconds, pod_grace_why = _pod_grace(history)
    waited_seconds = grace_seconds + pod_grace_seconds
    most_bytes = int(capacity_bytes * _LARGEST_SHARE)
    rates = sorted(history.rates_bytes)
    served = [rate for rate in rates if rate * waited_seconds <= most_bytes]
    if served:
        rate = served[-1]
        rate_why = f"the fastest of the {len(served)} in the history that leave their grace periods time"
    else:
        rate = capacity_bytes * _ASSUMED_SHARE_A_MINUTE / 60
        none = "no rate in the history is slow enough" if rates else "the history has no rate"
        rate_why = f"assumed: {none}, so 1 % of the node a minute"
    room_bytes = max(math.ceil(rate * waited_seconds), int(hard_bytes * _SMALLEST_SHARE))
    room_bytes = -(-min(room_bytes, most_bytes) // _STEP_BYTES) * _STEP_BYTES
    return Soft(
        threshold_bytes=min(hard_bytes + room_bytes, capacity_bytes),
        grace_seconds=grace_seconds,
        pod_grace_seconds=pod_grace_seconds,
        rate_bytes=rate,
        grace_why=grace_why,
        pod_grace_why=pod_grace_why,
        rate_why=rate_why,
        served=len(served),
        known=len(rates),
    )


def _grace(history: History) -> tuple[int, str]:
    """Return for how long the threshold is to be crossed: longer than what used to pass by itself."""
    spells = sorted(history.spells_seconds)
    if not spells:
        return _ASSUMED_GRACE_SECONDS, "assumed: the history knows no shortage that passed by itself"
    wanted = spells[math.ceil(0.9 * len(spells)) - 1]
    grace = min(_rounded_up(wanted), _LONGEST_GRACE_SECONDS)
    return grace, f"nine of ten of the {len(spells)} shortages that passed by themselves took {wanted:.0f} s"


def _pod_grace(history: History) -> tuple[int, str]:
    took = history.terminated_seconds
    if not took:
        late = history.killed_after_grace
        known = f"{late} pods did not end within theirs" if late else "the history knows no soft eviction"
        return _ASSUMED_POD_GRACE_SECONDS, f"assumed: {known}, and Kubernetes gives pods 30 s"
    grace = min(_rounded_up(max(took)), _LONGEST_GRACE_SECONDS)
    return grace, f"the slowest of {len(took)} pods that ended by themselves took {max(took):.1f} s"


def _rounded_up(seconds: float) -> int:
    return max(_ROUND_SECONDS, math.ceil(seconds / _ROUND_SECONDS) * _ROUND_SECONDS)
