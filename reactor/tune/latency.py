"""What each way of watching showed, and which reaction a threshold has to reckon with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reactor.errors import RefusedError
from reactor.tune.history import History
from reactor.tune.measured import AS_CONFIGURED, Reaction
from reactor.tune.tail import FEWEST, Tail, tail_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """What one way of watching showed under one load, in seconds.

    `source` is what woke the daemon most often; `braked` from the crossing to the brake, None where nothing
    braked.
    """

    way: str
    load: str
    source: str
    wake: Tail
    kill: Tail
    freed: Tail
    overshoot_bytes: int
    braked: Tail | None


def latencies_of(reactions: Iterable[Reaction]) -> tuple[Latency, ...]:
    """Return what each way showed under each load, as measured first; left out where that is too little."""
    groups: dict[tuple[str, str], list[Reaction]] = {}
    for reaction in reactions:
        groups.setdefault((reaction.way, reaction.load), []).append(reaction)
    return tuple(
        Latency(
            way=way,
            load=load,
            source=Counter(reaction.source for reaction in group).most_common(1)[0][0],
            wake=tail_of([reaction.wake_seconds for reaction in group]),
            kill=tail_of([reaction.kill_seconds for reaction in group]),
            freed=tail_of([reaction.freed_seconds for reaction in group]),
            overshoot_bytes=max(reaction.overshoot_bytes for reaction in group),
            braked=_tail_of_known([reaction.braked_seconds for reaction in group]),
        )
        for (way, load), group in groups.items()
        if len(group) >= FEWEST
    )


def reaction_bound(latencies: Sequence[Latency], history: History) -> tuple[float, str]:
    """Return the bound from crossing to kill under the worst load, and where it comes from.

    What the daemon took in service counts as well: its crossings are not known there, only its wakes.
    Raises RefusedError where too little was measured.
    """
    configured = [latency for latency in latencies if latency.way == AS_CONFIGURED]
    if not configured:
        raise RefusedError(f"too few crossings were measured: a bound needs {FEWEST} under one load")
    worst = max(configured, key=lambda latency: latency.kill.bound)
    bound = worst.kill.bound
    why = f"{worst.load}: the largest of {worst.kill.n} was {worst.kill.max * 1e3:.3g} ms"
    lived = [crossing.killed_seconds for crossing in history.crossings if crossing.killed_seconds is not None]
    if lived:
        wakes = max(latency.wake.bound for latency in configured)
        in_service = wakes + (tail_of(lived).bound if len(lived) >= FEWEST else max(lived))
        if in_service > bound:
            slowest = f"the largest of {len(lived)} was {max(lived) * 1e3:.3g} ms"
            wake = f"the wake as measured, up to {wakes * 1e3:.3g} ms"
            return in_service, f"{wake}, and from there to the kill in the history: {slowest}"
    return bound, why


def brake_bound(latencies: Iterable[Latency]) -> float | None:
    """Return the bound from crossing to the brake under the worst load; None where none was seen."""
    return max((latency.braked.bound for latency in latencies if latency.braked is not None), default=None)


def _tail_of_known(values: Sequence[float | None]) -> Tail | None:
    known = [value for value in values if value is not None]
    return tail_of(known) if len(known) >= FEWEST else None
