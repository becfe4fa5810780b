"""Answers of the daemon's to `top`, and their frames as a person would read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reactor.terminal.top import Shown, frame
from reactor.terminal.top.sections import Rates

MIB = 1 << 20


def signal(
    name: str = "memory.available", *, available: int | None = 300 * MIB, **threshold: Any
) -> dict[str, Any]:
    """A signal of a node of 512 MiB, with one threshold at 100 MiB."""
    amount = threshold.get("amount", 100 * MIB)
    return {
        "signal": name,
        "unit": "bytes",
        "available": available,
        "capacity": None if available is None else 512 * MIB,
        "absurd": None,
        "age_seconds": None if available is None else 0.0,
        "source": {"name": "memcg-eventfd", "health": "armed", "detail": "", "wakes": 1, "lost": 0},
        "thresholds": [
            {
                "threshold": f"{name}<100Mi",
                "kind": "hard",
                "amount": None if available is None else amount,
                "margin": None if available is None else available - amount,
                "reached_in_seconds": None,
                "grace_period_seconds": 0.0,
                "met": False,
                "below_for_seconds": None,
                **threshold,
            }
        ],
    }


def place(number: int, name: str = "", **fields: Any) -> dict[str, Any]:
    """A place in the order of eviction."""
    return {
        "place": number,
        "pod": name or f"shop/web-{number}",
        "uid": f"uid-{number}",
        "qos_class": "Burstable",
        "priority": 100,
        "usage": (100 - number) * MIB,
        "request": 10 * MIB,
        "exceeds_request": True,
        "critical_because": None,
        "preference": "none",
        "because": "",
        "being_evicted": False,
        **fields,
    }


def decision(time: str = "2026-11-21T08:00:01.000000Z", **fields: Any) -> dict[str, Any]:
    """A decision of which nothing came."""
    return {
        "id": 1,
        "time": time,
        "dry_run": False,
        "conditions": [],
        "thresholds_met": [],
        "deferred_because": None,
        "reclaim": [],
        "timing": {"woke_ns": 0},
        "brake": [],
        "rule": None,
        "reclaimed": [],
        "threshold": None,
        "evictions": [],
        **fields,
    }


def document(**fields: Any) -> dict[str, Any]:
    """The daemon's whole answer."""
    return {
        "version": "0.1.0",
        "pid": 7,
        "dry_run": False,
        "kubernetes": None,
        "node_cgroup": "/machines",
        "pods": 3,
        "signals": [signal()],
        "conditions": [
            {"condition": name, "in_force": False, "since": None, "for_seconds": None}
            for name in ("MemoryPressure", "DiskPressure", "PIDPressure")
        ],
        "in_flight": [],
        "sources": [
            {"name": "memcg-eventfd", "health": "armed", "detail": "at 412Mi", "wakes": 7, "lost": 0},
            {"name": "ebpf", "health": "off", "detail": "cgroup v1", "wakes": 0, "lost": 0},
        ],
        "brake": {"mode": "off", "on": [], "times": 0, "seconds": 0.0},
        "rules": [],
        "swap_traffic": None,
        "decisions": [decision()],
        "oom_kills": {"counted": {}, "recent": []},
        "problems": {},
        "order": {
            "signal": "memory.available",
            "resource": "memory",
            "pods": 3,
            "age_seconds": 0.0,
            "first": [place(1), place(2), place(3)],
        },
        **fields,
    }


def read(
    shown: Mapping[str, Any] | Shown, width: int = 80, height: int = 24, rates: Rates | None = None
) -> list[str]:
    """Return a frame's lines as text."""
    if not isinstance(shown, Shown):
        shown = Shown(document=shown, rates=rates or Rates(), clock="08:00:02 UTC", keys="q quits")
    return ["".join(span.text for span in line) for line in frame(shown, width, height)]
