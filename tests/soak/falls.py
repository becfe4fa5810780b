"""Falls past a soft threshold: how they go on, and whether an eviction in time was needed. Pure.

How each goes on is drawn, and ends where it happens to: nothing looks at where the last moment is to save.

    half          go on until the limit stops them
    half          end anywhere between the soft threshold and the limit: below the hard threshold they have
                  crossed, above it they have stopped; then every second one keeps its memory, the others
                  give it back at some time within twice the grace period
    a fifth of all  go to a part of the way and back instead, once to four times

Whoever is evicted in time dies, and what would have been otherwise is not seen. But it is known: what is
available goes on from where it was at the eviction, and all that was planned to grow grows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MIB: Final = 1 << 20
_BACK_AND_FORTH: Final = 0.2
_ENDS_ANYWHERE: Final = 0.5
_KEEPS: Final = 0.5
_STEPS: Final = 0.3
_LIMIT_BYTES: Final = 12 * MIB
_GRACE_SECONDS: Final = (2.0, 6.0)
_WAY_SECONDS: Final = (0.4, 6.0)
_SAVE_SECONDS: Final = (0.05, 1.2)
_SAVES: Final = 0.85
_GIVES_BACK: Final = "u"  # see stage.c
_KINDS: Final = {"a": 80, "s": 10, "t": 10}


class End(StrEnum):
    """How a fall is planned to end."""

    CROSSES = "cross"
    STAYS = "stop and keep it"
    RETURNS = "stop and give it back"
    BACK_AND_FORTH = "go to a part of the way and back"


class Need(StrEnum):
    """What an eviction in time was."""

    NEEDED = "needed"
    SOONER = "sooner"
    IN_VAIN = "in vain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a pod does so long after a fall began: see stage.c for the kinds; at once if the rate is 0."""

    after_seconds: float
    kind: str
    size_bytes: int = 0
    rate_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FallPlan:
    """A fall: it goes a `share` of the way between the thresholds, all of which takes `way_seconds`."""

    name: str
    end: End
    share: float
    way_seconds: float
    orders: tuple[Order, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """So many bytes more (or fewer) of an instance, taken evenly between two instants."""

    instance: int
    began_ns: int
    ended_ns: int
    size_bytes: int

    def until(self, at_ns: int) -> float:
        """Return how much of it is taken by then."""
        if at_ns >= self.ended_ns:
            return self.size_bytes
        if at_ns <= self.began_ns:
            return 0
        return self.size_bytes * (at_ns - self.began_ns) / (self.ended_ns - self.began_ns)


def grace_ns(drawn: random.Random) -> int:
    return int(drawn.uniform(*_GRACE_SECONDS) * 1e9)


def save_seconds(drawn: random.Random) -> float:
    """Draw how long a pod needs to end; one in seven ends at once."""
    return _between(drawn, _SAVE_SECONDS) if drawn.random() < _SAVES else 0.0


def fall(
    drawn: random.Random, name: str, soft_bytes: int, hard_bytes: int, grace_seconds: float, before_bytes: int
) -> FallPlan:
    """Draw a fall that begins so far before the soft threshold."""
    way_bytes = soft_bytes - hard_bytes
    way_seconds = _between(drawn, _WAY_SECONDS)
    rate_bytes = int(way_bytes / way_seconds)
    if drawn.random() < _BACK_AND_FORTH:
        share = drawn.uniform(0.1, 0.5)
        turns = tuple(_back_and_forth(drawn, before_bytes + int(share * way_bytes), rate_bytes))
        return FallPlan(name=name, end=End.BACK_AND_FORTH, share=share, way_seconds=way_seconds, orders=turns)
    most_bytes = soft_bytes - _LIMIT_BYTES
    is_anywhere = drawn.random() < _ENDS_ANYWHERE
    size_bytes = int(drawn.uniform(0, most_bytes)) if is_anywhere else most_bytes
    gives_back = size_bytes < way_bytes and drawn.random() >= _KEEPS
    end = End.CROSSES if size_bytes >= way_bytes else End.RETURNS if gives_back else End.STAYS
    share = size_bytes / way_bytes
    size_bytes += before_bytes
    # Of several pieces only the last can be given back.
    is_steps = not gives_back and drawn.random() < _STEPS
    kind = "a" if gives_back else drawn.choices(list(_KINDS), list(_KINDS.values()))[0]
    if is_steps:
        orders = _steps(size_bytes, rate_bytes, kind, drawn.randint(10, 30) * size_bytes // way_bytes)
    else:
        orders = [Order(after_seconds=0.0, kind=kind, size_bytes=size_bytes, rate_bytes=rate_bytes)]
    if gives_back:
        held_seconds = drawn.uniform(0, 2 * grace_seconds)
        orders.append(Order(after_seconds=size_bytes / rate_bytes + held_seconds, kind=_GIVES_BACK))
    return FallPlan(name=name, end=end, share=share, way_seconds=way_seconds, orders=tuple(orders))


def _back_and_forth(drawn: random.Random, size_bytes: int, rate_bytes: int) -> Iterator[Order]:
    at_seconds = 0.0
    rest_seconds = drawn.choice((0.02, drawn.uniform(0.2, 2.0)))
    for _ in range(drawn.randint(1, 4)):
        yield Order(after_seconds=at_seconds, kind="a", size_bytes=size_bytes, rate_bytes=rate_bytes)
        at_seconds += size_bytes / rate_bytes + 0.01
        yield Order(after_seconds=at_seconds, kind=_GIVES_BACK)
        at_seconds += rest_seconds


def _steps(size_bytes: int, rate_bytes: int, kind: str, count: int) -> list[Order]:
    piece_bytes = size_bytes // max(1, count)
    return [
        Order(after_seconds=(step + 1) * piece_bytes / rate_bytes, kind=kind, size_bytes=piece_bytes)
        for step in range(max(1, count))
    ]


def growths(instance: int, orders: Sequence[Order], began_ns: int) -> Iterator[Growth]:
    """Yield what the orders to an instance come to; what is given back is what it took last."""
    last_bytes = 0
    for order in orders:
        at_ns = began_ns + int(order.after_seconds * 1e9)
        size_bytes = -last_bytes if order.kind == _GIVES_BACK else order.size_bytes
        ended_ns = at_ns + int(1e9 * size_bytes / order.rate_bytes) if order.rate_bytes else at_ns
        yield Growth(instance=instance, began_ns=at_ns, ended_ns=ended_ns, size_bytes=size_bytes)
        last_bytes = order.size_bytes


def need(
    going_on: Sequence[Growth],
    at_ns: int,
    available_bytes: int,
    until_ns: int,
    *,
    soft_bytes: int,
    hard_bytes: int,
) -> Need:
    """Return what an eviction was, with so much available at its instant, and what would have grown on.

    Needed: the hard threshold would have been crossed by the end of the grace period. Sooner: the soft one
    would have been met until then. In vain: neither.
    """
    turns = {at_ns, until_ns}
    for one in going_on:
        turns |= {turn for turn in (one.began_ns, one.ended_ns) if at_ns < turn < until_ns}
    left = [
        available_bytes - sum(one.until(turn) - one.until(at_ns) for one in going_on)
        for turn in sorted(turns)
    ]
    if min(left) < hard_bytes:
        return Need.NEEDED
    return Need.SOONER if max(left) < soft_bytes else Need.IN_VAIN


def _between(drawn: random.Random, span: tuple[float, float]) -> float:
    """Draw a time: each doubling of it is as likely."""
    low, high = span
    return math.exp(drawn.uniform(math.log(low), math.log(high)))
