"""`reactor simulate --benchmark`: how many passes over many pods a CPU makes in a second."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

from reactor.simulate.replay import passes, replay
from reactor.simulate.scenario import (
    API_VERSION,
    KIND,
    Scenario,
    scenario_from_text,
    without_cycle_collection,
)
from reactor.simulate.summary import Summary
from reactor.simulate.sweep import Speed, sweep
from reactor.simulate.sweep_axes import axes_of

_PODS: Final = 110  # the kubelet's own default for a node
_STEPS: Final = 200
_NODE_BYTES: Final = 16 << 30
_LOW_BYTES: Final = 200 << 20
_HIGH_BYTES: Final = 2 << 30
_THRESHOLDS: Final = "memory.available<100Mi..1Gi/100Mi"
_ROUNDS: Final = 3


def benchmark() -> int:
    """Print the figures as one JSON object: of each the best of three rounds, in passes a second of CPU time.

    By CPU time what else the machine does is left out, but for the caches that it takes away.
    """
    with without_cycle_collection():
        text = json.dumps(recording(_PODS, _STEPS))
        pressed = scenario_from_text(text, "recording")
        calm = scenario_from_text(json.dumps(recording(_PODS, _STEPS, low_bytes=_HIGH_BYTES)), "recording")
        figures = {
            "pods": _PODS,
            "steps": _STEPS,
            "passes_per_second_sweep": _best(lambda: _swept(pressed)),
            "passes_per_second_everybody_ranked": _best(lambda: _made(pressed)),
            "passes_per_second_at_rest": _best(lambda: _made(calm)),
            "passes_per_second_with_json_lines": _best(lambda: sum(1 for _ in replay(pressed))),
            "steps_read_per_second": _best(lambda: len(scenario_from_text(text, "recording").steps)),
        }
    print(json.dumps(figures))
    return 0


def recording(pods: int, steps: int, *, low_bytes: int = _LOW_BYTES) -> dict[str, Any]:
    """Return a scenario of pods with two containers each, and between `low_bytes` and 2 GiB available.

    Nothing in it is left to chance: the same numbers each time.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "kubeletConfiguration": {"evictionHard": {"memory.available": "1Gi"}},
        "pods": [_pod(number) for number in range(pods)],
        "steps": [
            {"at": f"{10 * step}s", "summary": _summary(step, pods, min(low_bytes, _HIGH_BYTES))}
            for step in range(steps)
        ],
    }


def _pod(number: int) -> dict[str, Any]:
    resources = {"requests": {"memory": f"{32 << number % 3}Mi"}}
    return {
        "metadata": {"name": f"web-{number}", "namespace": "shop", "uid": f"uid-{number}"},
        "spec": {
            "priority": number % 4 * 100,
            "containers": [{"name": "web", "resources": resources}, {"name": "proxy"}],
        },
    }


def _summary(step: int, pods: int, low_bytes: int) -> dict[str, Any]:
    available = low_bytes + step % 8 * (low_bytes // 16)
    return {
        "node": {"memory": {"availableBytes": available, "workingSetBytes": _NODE_BYTES - available}},
        "pods": [_statistics(number, step) for number in range(pods)],
    }


def _statistics(number: int, step: int) -> dict[str, Any]:
    used = (20 + (number * 37 + step * 11) % 150) << 20
    filesystem = {"usedBytes": 1 << 20, "inodesUsed": 20}
    return {
        "podRef": {"name": f"web-{number}", "namespace": "shop", "uid": f"uid-{number}"},
        "memory": {"workingSetBytes": used},
        "containers": [
            {"name": name, "memory": {"workingSetBytes": used // 2}, "rootfs": filesystem, "logs": filesystem}
            for name in ("web", "proxy")
        ],
        "process_stats": {"process_count": 9},
    }


def _made(scenario: Scenario) -> int:
    return sum(1 for _ in passes(scenario, scenario.settings, Summary.snapshot))


def _swept(scenario: Scenario) -> int:
    return sum(
        row.outcome.passes for row in sweep([("recording", scenario)], axes_of([_THRESHOLDS]), Speed())
    )


def _best(count: Callable[[], int]) -> int:
    """Return how many a second were counted in the best round."""
    rates = []
    for _ in range(_ROUNDS):
        began = time.process_time()
        counted = count()
        rates.append(counted / (time.process_time() - began))
    return round(max(rates))
