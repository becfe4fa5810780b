"""Pods come under new names and are evicted: the steward keeps the last of them, and no more."""

from __future__ import annotations

from datetime import UTC, datetime

from reactor.blackbox import KnownPod, PodChanges
from reactor.blackbox.sampler import Sampler
from reactor.link.documents import OOM_KILL
from reactor.model.settings import RestartLoopSettings, Settings
from reactor.steward.answers import RecentRecords, RestartLoops
from tests.support.generations import generations

_HALF = 1200  # generations after which it is full: at most 1,000 are kept of anything


def test_pods_of_other_names_leave_no_more_than_so_many_before_them() -> None:
    recent, loops, sampler = RecentRecords(), RestartLoops(RestartLoopSettings()), Sampler(Settings)

    with generations(_HALF) as found:
        for generation in found:
            name = f"pod-{generation}-{'x' * 200}"
            sampler.know(PodChanges(came=(KnownPod(f"uid-{name}", name, f"/node/{name}"),)))
            at_unix_seconds = 1e9 + generation / 10
            time = datetime.fromtimestamp(at_unix_seconds, UTC).isoformat()
            eviction = {"pod": f"ns/{name}", "uid": f"uid-{name}", "outcome": "killed", "ended_ns": 9}
            recent.take({"kind": "decision", "id": generation, "time": time, "evictions": [eviction]})
            recent.take({"kind": OOM_KILL, "time": time, "pod": f"ns/{name}", "uid": f"uid-{name}"})
            loops.take(eviction, at_unix_seconds)
            sampler.know(PodChanges(gone=(f"uid-{name}",)))

    assert found.filling > _HALF
    assert found.more < _HALF // 2
