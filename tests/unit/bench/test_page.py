"""The part of docs/figures.md that the bench writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.baseline import BASELINE, stored_in
from bench.page import (
    BEGIN,
    BEGIN_COUNTED,
    COUNTED,
    END,
    PAGE,
    put_in,
    update_counted,
    write_page,
    written,
    written_counted,
)
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
    here = stored_in(ROOT / BASELINE)
    assert text == put_in(text, written(here))
    assert text == put_in(text, written_counted(stored_in(ROOT / COUNTED), here), BEGIN_COUNTED)


def test_each_figure_stands_in_its_table_with_its_goal() -> None:
    lines = written({"cgroup v1, 2 CPUs": entry()}).splitlines()
    assert lines[0].startswith(
        "Machine: cgroup v1, 2 CPUs (AMD EPYC), kernel 6.18.44, Python 3.11.7, 2026-11-27, every CPU busy."
    )
    assert "differed by up to 25 %" in lines[0]
    one = "0.9 / 2.7"
    for line in (
        f"| full speed, 110 pods | {one} (goal 0.8) |{f' {one} |' * 3} 0.5 / 1.5 | 1.8 / 1.8 | 2.5 / 4 |",
        "| rest, 110 pods: both at rest, % of a CPU | 0.08 | 0.1 |",
    ):
        assert line in lines
    assert not any(line.startswith("| kill at") for line in lines)  # they stand above
    assert not any("wakes" in line or "guard at rest" in line for line in lines)  # without a goal


def test_counted_guests_stand_beside_this_machine_each_in_its_column(tmp_path: Path) -> None:
    results = []
    for kernel, cgroup in (("6.1.0-44-cloud-amd64", "v1"), ("6.12.9", "v2")):
        found = entry()
        found["about"] |= {"kernel": kernel, "cgroup": cgroup}
        results.append(tmp_path / f"{cgroup}.json")
        results[-1].write_text(json.dumps(found))
    counted = tmp_path / "counted.json"
    update_counted(results, counted)
    lines = written_counted(stored_in(counted), {"cgroup v1, 2 CPUs": entry()}).splitlines()
    assert "Medians, 110 pods; in a guest of 30 kills each, 2026-11-27." == lines[0]
    assert (
        "|  | cgroup v1, 2 CPUs, in ms | 6.1, cgroup v1, in millions | 6.12, cgroup v2, in millions |"
        == lines[2]
    )
    assert "| wake to kill, reactor | 0.9 | 0.9 | 0.9 |" in lines
    assert "| crossing to wake, floor | 0.5 | 0.5 | 0.5 |" in lines
    assert "| a pass in which nothing is met, mean | - | - | - |" == lines[-2]


def test_a_result_without_parts_is_refused_as_counted(tmp_path: Path) -> None:
    result, counted = tmp_path / "figures-counted.json", tmp_path / "counted.json"
    result.write_text('{"about": {"kernel": "6.1.0", "cgroup": "v2"}, "by_source": {}}')
    with pytest.raises(RefusedError, match=r"figures-counted\.json.*accepted: parts-counted\.json"):
        update_counted([result], counted)
    assert not counted.exists()


def test_only_what_is_between_the_marks_is_written_anew(tmp_path: Path) -> None:
    page, nothing = tmp_path / "page.md", tmp_path / "none.json"
    here = tmp_path / "here.json"
    here.write_text(json.dumps({"cgroup v1, 2 CPUs": entry()}))
    page.write_text(f"before\n{BEGIN}old\n{END}between\n{BEGIN_COUNTED}old\n{END}after\n")
    write_page(nothing, page, here)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n{END}between\n{BEGIN_COUNTED}\nMedians")
    assert text.endswith(f"|\n\n{END}after\n")
    for kept in ("no marks", f"{BEGIN}{END}no second marks"):
        page.write_text(kept)
        with pytest.raises(RefusedError, match="without the lines"):
            write_page(nothing, page, here)
        assert kept == page.read_text()
