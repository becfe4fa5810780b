"""Measurements and history to thresholds, in numbers alone: no clock, no I/O.

    hard = fastest credible allocator x (reaction + freeing) + reserve

From the crossing on, the allocator goes on for as long as the reaction takes, and, where another pod is
the victim, until that one's memory is back; what must never be taken is the reserve. Reaction and freeing
are bounds of their p99.9 (`tail`). A victim gives its memory back while it dies, so this errs to the safe
side, the more the larger it is.

    soft = hard + rate x (grace period of the threshold + grace period of the pods)

A soft threshold can only serve an allocator that is slow enough to let its grace periods end before it
comes to the hard one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from reactor.lab.hog import MIB
from reactor.tune.cases import Assume, Case, Terms, brake_for, cases_of, chosen
from reactor.tune.history import History
from reactor.tune.latency import Freeing, Latency, brake_bound, freeing_of, latencies_of, reaction_bound
from reactor.tune.measured import Measured, NodeFacts
from reactor.tune.soft import Soft, soft_for

STEP_BYTES: Final = 10 * MIB
_LARGEST_SHARE: Final = 0.5  # what keeps more of the node than this is no threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What the operator says in place of what was measured or seen; None leaves it to that."""

    assume: Assume = Assume.ONE
    victim_bytes: int | None = None
    reserve_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Thresholds, and what they follow from. The whys say where a number comes from.

    `covered_rate_bytes` a second is the fastest allocator that the hard threshold answers in time, without
    the brake; `is_enough` says whether the threshold is all that `chosen` asks for.
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
    brake: bool
    brake_why: str
    covered_rate_bytes: float
    is_enough: bool
    soft: Soft

    @property
    def seconds(self) -> float:
        """Return reaction and freeing together."""
        return self.terms.reaction_seconds + self.terms.freeing_seconds


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
        brake_seconds=brake_bound(latencies),
        braked_rate_bytes=measured.braked_rate_bytes,
    )
    cases = cases_of(measured, history, terms)
    taken = chosen(cases, assumptions.assume, node.huge_pages)
    seconds = terms.reaction_seconds + terms.freeing_seconds
    brake, brake_why = brake_for(taken, node.capacity_bytes, seconds, can_brake=node.can_brake)
    wanted = taken.braked_bytes if brake and taken.braked_bytes is not None else taken.needed_bytes
    hard_bytes = threshold_bytes(
        wanted, reserve_bytes=terms.reserve_bytes, capacity_bytes=node.capacity_bytes
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
        brake=brake,
        brake_why=brake_why,
        covered_rate_bytes=covered_rate_bytes(hard_bytes, seconds, terms.reserve_bytes),
        is_enough=hard_bytes >= wanted,
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
