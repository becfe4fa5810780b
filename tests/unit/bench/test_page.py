"""The part of docs/figures.md that the bench writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.baseline import BASELINE, stored_in
from bench.page import BEGIN, END, PAGE, put_in, write_page, written
from bench.parts import OVERSHOOT, TO_FREED, TO_KILL, TO_WAKE, WAKE_TO_KILL
from reactor.errors import RefusedError

ROOT = Path(__file__).parents[3]


def summed(p50: float) -> dict[str, Any]:
    return {"p50": p50, "p99": 3 * p50, "max": 3 * p50, "n": 30, "turns": [p50, 1.25 * p50]}


def entry() -> dict[str, Any]:
    kills = {
        name: {"reactor": summed(0.9), "floor": summed(0.5)}
        for name in (TO_WAKE, WAKE_TO_KILL, TO_KILL, TO_FREED, OVERSHOOT)
    }
    rest = {
        "guard at rest, % of a CPU": summed(0.05),
        "both at rest, % of a CPU": summed(0.08),
        "guard at rest, wakes a minute": summed(7.0),
        "guard under MemoryPressure, wakes a minute": summed(9.0),
        "wakes by ticker at rest, a minute": summed(6.0),
        "wakes by psi at rest, a minute": summed(0.0),
    }
    about = {
        "date": "2026-11-27T05:00:00+00:00",
        "cgroup": "v1",
        "cpus": 2,
        "cpu": "AMD EPYC",
        "kernel": "6.18.44",
        "python": "3.11.7",
    }
    rows = {"kill-max-110": kills, "rest-110": {name: {"reactor": one} for name, one in rest.items()}}
    return {"about": about, "rows": rows}


def test_the_page_has_what_the_stored_run_says() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert text == put_in(text, written(stored_in(ROOT / BASELINE)))


def test_each_figure_stands_in_its_table_with_its_goal() -> None:
    lines = written({"cgroup v1, 2 CPUs": entry()}).splitlines()
    assert lines[0].startswith(
        "Machine: cgroup v1, 2 CPUs (AMD EPYC), kernel 6.18.44, Python 3.11.7, 2026-11-27, every CPU busy."
    )
    assert "differed by up to 25 %" in lines[0]
    for line in (
        f"| full speed, 110 pods |{' 0.9 / 2.7 |' * 5} 0.5 / 1.5 | 1.8 / 1.8 | 2.5 / 4 |",
        "| kill at full speed, 110 pods: wake to kill, ms, p50 | 0.9 | 0.8 |",
        "| rest, 110 pods: both at rest, % of a CPU | 0.08 | 0.1 |",
        "| guard, threads that wake | 7 | 9 |",
        "| wakes by ticker | 6 | 0 |",
    ):
        assert line in lines
    assert not any("psi" in line or "guard at rest" in line for line in lines)  # no wake; no goal


def test_only_what_is_between_the_marks_is_written_anew(tmp_path: Path) -> None:
    page, nothing = tmp_path / "page.md", tmp_path / "none.json"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n")
    write_page(nothing, page)
    assert f"before\n{BEGIN}\n{END}after\n" == page.read_text()
    page.write_text("no marks")
    with pytest.raises(RefusedError, match="without the lines"):
        write_page(nothing, page)
    assert "no marks" == page.read_text()
