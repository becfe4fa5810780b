"""A node that was measured, and a journal's lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from reactor.tune.measured import AS_CONFIGURED, Growth, Measured, NodeFacts, Reaction, Reserve

MIB = 1 << 20
Line = Callable[..., bytes]


def a_reaction(kill_ms: float, *, way: str = AS_CONFIGURED, load: str = "idle", **other: Any) -> Reaction:
    return Reaction(
        **{
            "way": way,
            "load": load,
            "source": "memcg-eventfd",
            "wake_seconds": kill_ms / 4e3,
            "kill_seconds": kill_ms / 1e3,
            "freed_seconds": 0.04,
            "victim_bytes": 400 * MIB,
            "overshoot_bytes": MIB,
            **other,
        }
    )


@pytest.fixture
def measured() -> Measured:
    return Measured(
        about={"date": "2026-11-21T03:04:05+00:00", "kernel": "6.1", "cgroup": "v1", "cpus": 2},
        node=NodeFacts(
            capacity_bytes=8192 * MIB,
            cpus=2,
            huge_pages="madvise",
            reserve=Reserve(watermark_bytes=50 * MIB, batch_bytes=MIB, daemon_bytes=49 * MIB),
        ),
        growths=(
            Growth(
                allocators=1, size_bytes=64 * MIB, huge_pages=False, rate_bytes=900 * MIB, freed_seconds=0.01
            ),
            Growth(
                allocators=1,
                size_bytes=768 * MIB,
                huge_pages=False,
                rate_bytes=1000 * MIB,
                freed_seconds=0.08,
            ),
            Growth(
                allocators=2, size_bytes=384 * MIB, huge_pages=False, rate_bytes=1900 * MIB, freed_seconds=0.1
            ),
            Growth(
                allocators=1, size_bytes=768 * MIB, huge_pages=True, rate_bytes=4000 * MIB, freed_seconds=0.01
            ),
        ),
        reactions=tuple(
            a_reaction(1 + number / 10, load=load) for load in ("idle", "busy CPUs") for number in range(10)
        ),
        seconds=30,
    )


@pytest.fixture
def line() -> Line:
    """Return what makes a decision's line of a journal, at `seconds` with `available` MiB."""

    def make(seconds: float, available: int, *conditions: str, **changes: Any) -> bytes:
        document: dict[str, Any] = {
            "kind": "decision",
            "id": int(seconds),
            "time": datetime.fromtimestamp(1.8e9 + seconds, UTC).isoformat(),
            "monotonic_seconds": seconds,
            "threshold": None,
            "conditions": conditions,
            "observations": {"memory.available": {"available": available * MIB, "capacity": 8192 * MIB}},
            "ranking": [],
            "evictions": [],
            "timing": {"woke_ns": 0, "decided_ns": 1_000_000, "killed_ns": None, "freed_ns": None},
            **changes,
        }
        return json.dumps(document).encode() + b"\n"

    return make
