"""Measurements and history to thresholds, in numbers alone: no clock, no I/O.

    hard = fastest credible allocator x (reaction + freeing) + reserve

From the crossing on, the allocator goes on for as long as the reaction takes, and, where another pod is
the victim, until that one's memory is back; what must never be taken is the reserve. Reaction and freeing
are bounds of their p99.9 (`tail`). A victim gives its memory back while it dies, so this errs to the safe
side, the more the larger it is.

    soft = hard + rate x (grace period of the threshold + grace period of the pods)

A soft threshold can only serve an allocator that is slow enough to let its grace periods end before it
reaches the hard one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from reactor.testbed.allocator import MIB
from reactor.tune.cases import Assume, Case, Terms, cases_of, chosen
from reactor.tune.history import History
from reactor.tune.latency import Freeing, Latency, freeing_of, latencies_of, reaction_bound
from reactor.tune.measured import Measured, NodeFacts

STEP_BYTES: Final = 10 * MIB
_LARGEST_SHARE: Final = 0.5  # what keeps more of the node than this is no threshold

_LARGEST_SOFT_SHARE: Final = 0.1  # of the node, above the hard threshold
_SMALLEST_SOFT_SHARE: Final = 0.25  # of the hard threshold: soft is to be crossed first
_ASSUMED_GRACE_SECONDS: Final = 30
_ASSUMED_POD_GRACE_SECONDS: Final = 30  # terminationGracePeriodSeconds' default
_LONGEST_GRACE_SECONDS: Final = 120
_ASSUMED_SHARE_A_MINUTE: Final = 0.01
_ROUND_SECONDS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What the operator says in place of what was measured or seen; None leaves it to that."""

    assume: Assume = Assume.ONE
    victim_bytes: int | None = None
    reserve_bytes: int | None = None


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
    most_bytes = int(capacity_bytes * _LARGEST_SOFT_SHARE)
    rates = sorted(history.rates_bytes)
    served = [rate for rate in rates if rate * waited_seconds <= most_bytes]
    if served:
        rate = served[-1]
        rate_why = f"the fastest of the {len(served)} in the history that leave their grace periods time"
    else:
        rate = capacity_bytes * _ASSUMED_SHARE_A_MINUTE / 60
        none = "no rate in the history is slow enough" if rates else "the history has no rate"
        rate_why = f"assumed: {none}, so 1 % of the node a minute"
    room_bytes = max(math.ceil(rate * waited_seconds), int(hard_bytes * _SMALLEST_SOFT_SHARE))
    room_bytes = -(-min(room_bytes, most_bytes) // STEP_BYTES) * STEP_BYTES
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
    return grace, f"the slowest of {len(took)} pods that exited took {max(took):.1f} s"


def _rounded_up(seconds: float) -> int:
    return max(_ROUND_SECONDS, math.ceil(seconds / _ROUND_SECONDS) * _ROUND_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Thresholds, and what they follow from. The whys say where a number comes from.

    `covered_rate_bytes` a second is the fastest allocator that the hard threshold answers in time;
    `is_enough` says whether the threshold is all that `chosen` asks for.
    """

    node: NodeFacts
    latencies: tuple[Latency, ...]
    cases: tuple[Case, ...]
    chosen: Case
    terms: Terms
    reaction_why: str
    freeing: Freeing
    victim_bytes: int
    victim_why: str
    hard_bytes: int
    covered_rate_bytes: float
    is_enough: bool
    soft: Soft

    @property
    def seconds(self) -> float:
        """Return reaction and freeing together."""
        return self.terms.reaction_seconds + self.terms.freeing_seconds

    @property
    def evicts_at_once(self) -> bool:
        """Return whether a threshold is not below what was available: that is no recommendation."""
        available_bytes = self.node.available_bytes
        most_bytes = max(self.hard_bytes, self.soft.threshold_bytes)
        return available_bytes is not None and most_bytes >= available_bytes

    @property
    def practicable_bytes(self) -> int | None:
        """Return the hard threshold that leaves as much available again, None where the reserve is more."""
        half_bytes = (self.node.available_bytes or 0) // 2 // STEP_BYTES * STEP_BYTES
        return half_bytes if half_bytes > self.terms.reserve_bytes else None


def threshold_bytes(needed: int, *, reserve_bytes: int, capacity_bytes: int) -> int:
    """Return a threshold for what is needed: never below the reserve, never above the capacity.

    Up to the next 10 MiB, and to half of the node at the most, unless the reserve alone is more.
    """
    most = max(int(capacity_bytes * _LARGEST_SHARE), reserve_bytes)
    stepped = -(-max(needed, reserve_bytes) // STEP_BYTES) * STEP_BYTES
    return min(stepped, most, capacity_bytes)


def covered_rate_bytes(threshold: int, seconds: float, reserve_bytes: int) -> float:
    """Return the fastest allocator that a threshold answers before the reserve is touched."""
    return max(0.0, (threshold - reserve_bytes) / seconds)


def recommend(measured: Measured, history: History, assumptions: Assumptions) -> Recommendation:
    """Return the thresholds for what was measured. Raises RefusedError where that was too little."""
    node, latencies = measured.node, latencies_of(measured.reactions)
    reaction_seconds, reaction_why = reaction_bound(latencies, history)
    freeing = freeing_of(measured, history)
    victim_bytes, victim_why = _victim(measured, history, assumptions)
    reserve_bytes = assumptions.reserve_bytes
    terms = Terms(
        reaction_seconds=reaction_seconds,
        freeing_seconds=freeing.bound_seconds(victim_bytes),
        reserve_bytes=node.reserve.total_bytes if reserve_bytes is None else reserve_bytes,
    )
    cases = cases_of(measured, history, terms)
    taken = chosen(cases, assumptions.assume, node.huge_pages)
    seconds = terms.reaction_seconds + terms.freeing_seconds
    hard_bytes = threshold_bytes(
        taken.needed_bytes, reserve_bytes=terms.reserve_bytes, capacity_bytes=node.capacity_bytes
    )
    return Recommendation(
        node=node,
        latencies=latencies,
        cases=cases,
        chosen=taken,
        terms=terms,
        reaction_why=reaction_why,
        freeing=freeing,
        victim_bytes=victim_bytes,
        victim_why=victim_why,
        hard_bytes=hard_bytes,
        covered_rate_bytes=covered_rate_bytes(hard_bytes, seconds, terms.reserve_bytes),
        is_enough=hard_bytes >= taken.needed_bytes,
        soft=soft_for(hard_bytes, node.capacity_bytes, history),
    )


def _victim(measured: Measured, history: History, assumptions: Assumptions) -> tuple[int, str]:
    """Return the size of the victim whose memory is waited for, and where it comes from."""
    if assumptions.victim_bytes is not None:
        return assumptions.victim_bytes, "as asked for"
    seen = [
        (history.largest_pod_bytes, "the largest pod in the history"),
        (measured.node.largest_pod_bytes, "the largest pod on the node now"),
    ]
    known = [(size, why) for size, why in seen if size]
    if known:
        return max(known)
    largest = max(reaction.victim_bytes for reaction in measured.reactions)
    return largest, "assumed: no pod is known, so the size that was measured"
