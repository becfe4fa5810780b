"""Crossings of which only the rate matters."""

from __future__ import annotations

from reactor.tune.history import Crossing


def make_crossing(rate_bytes: float) -> Crossing:
    """Return a hard crossing of so many bytes a second, answered by one eviction."""
    return Crossing(
        time="t",
        threshold="x",
        is_hard=True,
        evicted=1,
        wanted_bytes=2,
        available_bytes=1,
        rate_bytes=rate_bytes,
    )
