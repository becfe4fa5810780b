"""The tables are made of the benchmark's JSON and of nothing else."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

RUNNER = Path(__file__).resolve().parents[2] / "vm"
SPREAD = {"p50": 2.5, "p99": 7.25, "max": 5523.1, "n": 15}


def measured(missed: int = 0) -> dict[str, Any]:
    by_rate = {} if missed else {"max": SPREAD}
    return {
        "crossing_to_wake_ms": by_rate,
        "crossing_to_kill_ms": by_rate,
        "crossing_to_freed_ms": by_rate,
        "overshoot_mib": by_rate,
        "missed": missed,
        "woken_by": {},
        "failures": [],
        "rss_mib": 38.5,
        "at_rest_cpu_percent": {"p50": 0.0214, "p99": 1, "max": 1, "n": 5},
    }


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(RUNNER))
    yield importlib.import_module("figures")
    del sys.modules["figures"]


def test_every_source_has_its_row_and_one_that_did_not_wake_says_so(figures: ModuleType) -> None:
    about = {"kernel": "6.1", "cgroup": "v2", "cpus": 2, "date": "2026-11-21"}
    costs = {"1 inside": {"percent": 0.251, "p25": -0.1, "p75": 0.62, "n": 20}}
    document = {
        "about": about,
        "by_source": {"ebpf": measured(), "psi": measured(missed=5)},
        "probe_cost_percent": costs,
    }
    lines = list(figures.tables(document))
    assert "6.1, cgroup v2, 2 CPUs, 2026-11-21" == lines[0]
    columns = {line.count("|") for line in lines[2:6]}
    assert len(columns) == 1
    spread = "2.5 / 7.25 / 5523"
    assert f"| ebpf | max | 15 | {' | '.join([spread] * 4)} | 0.0214 | 38.5 |" in lines
    assert any(line.startswith("| psi | | 5 | not woken |") for line in lines)
    assert "| 1 inside | 0.25 | -0.10 to 0.62 | 20 |" == lines[-1]


def test_parts_have_a_row_for_each_figure_of_each_contestant(figures: ModuleType) -> None:
    about = {"kernel": "6.1", "cgroup": "v1", "cpus": 1, "date": "2026-11-21"}
    rows = {"kill-max": {"wake to kill, ms": {"reactor": SPREAD, "floor": SPREAD}}}
    lines = list(figures.tables({"about": about, "rows": rows}))
    assert [
        "| kill-max | wake to kill, ms | reactor | 15 | 2.5 / 7.25 / 5523 |",
        "| kill-max | wake to kill, ms | floor | 15 | 2.5 / 7.25 / 5523 |",
    ] == lines[-2:]
