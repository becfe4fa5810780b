"""What a trial counts, and the tables that are made of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.trials import Trial, main, with_tables

FIGURES: dict[str, Any] = {
    "at": "2026-01-01",
    "seconds": 1234,
    "machine": {"cpus": 2, "model": "a CPU", "kernel": "6.12", "memory_controller": "cgroup v2"},
    "load": {"before": 0.5, "after": 2.25},
    "unclean": [],
    "suites": {
        name: {
            "tests": 2,
            "failed": 1,
            "trials": 1500,
            "evictions": 7,
            "wrong_victims": 0,
            "futile_evictions": 2,
            "storms": 0,
            "guard_ends": 0,
            "skipped": 1,
        }
        for name in ("storms", "trees")
    },
}
DOCUMENT = """# T
<!-- figures of make test-hostile: begin -->
old
<!-- figures of make test-hostile: end -->
rest
"""


@pytest.fixture
def trial() -> Trial:
    return Trial(suite="storms", test="t", right={"hog"})


def ended() -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process


def test_the_right_pods_alone_are_no_wrong_victims_however_often_one_is_evicted(trial: Trial) -> None:
    trial.judge(["hog", "hog"])
    assert trial.is_clean
    assert (0, 0) == (trial.wrong_victims, trial.storms)


def test_another_pod_is_a_wrong_victim_and_one_too_many(trial: Trial) -> None:
    trial.judge(["hog", "innocent"])
    assert not trial.is_clean
    assert (1, 1) == (trial.wrong_victims, trial.storms)


def test_a_dead_process_that_had_to_live_is_a_wrong_victim_whatever_the_guard_says(
    trial: Trial,
) -> None:
    trial.must_live([ended()])
    trial.judge(["hog"])
    assert 1 == trial.wrong_victims
    assert not trial.is_clean


def test_a_process_of_one_round_is_judged_in_that_round(trial: Trial) -> None:
    assert not trial.outlived(ended())
    trial.judge([])
    assert 1 == trial.wrong_victims


@pytest.mark.parametrize(("innocents", "storms"), [(2, 0), (3, 1)])
def test_where_evicting_can_not_help_more_than_it_takes_to_see_that_is_a_storm(
    trial: Trial, innocents: int, storms: int
) -> None:
    trial.futile_at_most = 2
    trial.judge([f"innocent-{number}" for number in range(innocents)])
    assert (0, innocents, storms) == (trial.wrong_victims, trial.futile_evictions, trial.storms)


def test_a_guard_that_ended_unasked_is_not_clean(trial: Trial) -> None:
    trial.judge([], guard_ends=1)
    assert not trial.is_clean


def test_what_another_judge_has_found_is_added(trial: Trial) -> None:
    trial.judge(["hog"])
    trial.add(evictions=10, wrong_victims=1, guard_ends=0)
    assert (11, 1) == (trial.evictions, trial.wrong_victims)
    assert not trial.is_clean


def test_tables_take_the_place_of_those_before_them_one_for_each_machine(tmp_path: Path) -> None:
    figures, document = tmp_path / "figures.json", tmp_path / "document.md"
    figures.write_text(json.dumps(FIGURES))
    document.write_text(DOCUMENT)
    main(str(figures), str(document))
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**FIGURES, "machine": {**FIGURES["machine"], "kernel": "6.1"}}))
    main(str(figures), str(other), str(figures), str(document))
    text = document.read_text()
    assert "old" not in text
    for kernel, seconds, failed, skipped in (("6.12", "2,468", 4, 4), ("6.1", "1,234", 2, 2)):
        assert 1 == text.count(
            f"2026-01-01, kernel {kernel}, cgroup v2, 2 CPUs (a CPU), load 0.5 before and 2.2 after, "
            f"{seconds} s, {failed} tests failed, {skipped} tests skipped:"
        )
    assert 1 == text.count("| all | 6,000 | 28 | 0 | 0 | 0 |")
    assert 1 == text.count("| all | 3,000 | 14 | 0 | 0 | 0 |")
    assert text.startswith("# T\n")
    assert text.endswith("\nrest\n")


def test_a_suite_has_a_row_if_it_found_a_fault_and_is_summed_up_if_not() -> None:
    trees = {**FIGURES["suites"]["trees"], "wrong_victims": 1}
    text = with_tables(DOCUMENT, [{**FIGURES, "suites": {**FIGURES["suites"], "trees": trees}}])
    assert "| trees | 1,500 | 7 | 1 | 0 | 0 |\n| all | 3,000 | 14 | 1 | 0 | 0 |\n" in text
    assert "\n| storms |" not in text


def test_a_document_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="begin"):
        with_tables("# T\n", [FIGURES])
