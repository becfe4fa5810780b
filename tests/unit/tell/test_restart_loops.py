from __future__ import annotations

import logging
import tracemalloc

import pytest

from reactor.model.settings import RestartLoopSettings
from reactor.tell.restart_loops import RestartLoops

THREE_IN_TEN_MINUTES = RestartLoopSettings()


def _evict(loops: RestartLoops, name: str, *instants: float, outcome: str = "killed") -> None:
    for at in instants:
        loops.evicted(name, outcome, at)


def test_the_third_eviction_within_ten_minutes_is_a_restart_loop_and_the_second_is_not() -> None:
    loops = RestartLoops(THREE_IN_TEN_MINUTES)
    _evict(loops, "cgroup/web", 0.0, 1.0)
    assert {} == loops.present(2.0)
    assert 0 == loops.repeated
    _evict(loops, "cgroup/web", 2.0)
    assert {"cgroup/web": 3} == loops.present(2.0)
    assert 1 == loops.repeated
    ((what, why),) = loops.problems(2.0).items()
    assert "restart loop cgroup/web" == what
    assert why.startswith("evicted 3 times in 10 min")


def test_evictions_further_apart_than_the_window_are_none() -> None:
    loops = RestartLoops(THREE_IN_TEN_MINUTES)
    _evict(loops, "cgroup/web", 0.0, 400.0, 800.0, 1200.0)
    assert {} == loops.present(1200.0)


def test_a_loop_that_has_ended_is_no_problem_any_more() -> None:
    loops = RestartLoops(THREE_IN_TEN_MINUTES)
    _evict(loops, "cgroup/web", 0.0, 1.0, 2.0)
    assert {} == loops.problems(602.0)


def test_several_pods_that_are_evicted_once_are_no_loop() -> None:
    loops = RestartLoops(THREE_IN_TEN_MINUTES)
    for number in range(10):
        _evict(loops, f"cgroup/{number}", float(number))
    assert {} == loops.present(10.0)


@pytest.mark.parametrize("outcome", ["dry-run", "failed", "process-killed", "process-terminated"])
def test_what_evicted_no_pod_does_not_count(outcome: str) -> None:
    loops = RestartLoops(THREE_IN_TEN_MINUTES)
    _evict(loops, "cgroup/web", 0.0, 1.0, 2.0, 3.0, outcome=outcome)
    assert {} == loops.present(3.0)


def test_a_loop_is_logged_once_when_it_begins(caplog: pytest.LogCaptureFixture) -> None:
    loops = RestartLoops(THREE_IN_TEN_MINUTES)
    with caplog.at_level(logging.WARNING):
        _evict(loops, "cgroup/web", *map(float, range(20)))
    assert 1 == len(caplog.records)
    assert 18 == loops.repeated


def test_an_earlier_runs_evictions_count_and_garbage_in_its_journal_does_not() -> None:
    loops = RestartLoops(THREE_IN_TEN_MINUTES)
    evictions = [{"pod": "cgroup/web", "outcome": "killed"}, {"pod": "cgroup/dry", "outcome": "dry-run"}]
    loops.remember(
        [
            {"time": "1970-01-01T00:00:01Z", "evictions": evictions},
            {"time": "1970-01-01T00:00:02Z", "evictions": evictions},
            {"kind": "oom-kill", "time": "1970-01-01T00:00:03Z"},
            {"time": "yesterday", "evictions": evictions},
            {"time": None, "evictions": evictions},
            {"time": "1970-01-01T00:00:03Z", "evictions": [{"pod": "x"}]},
            {"time": "1970-01-01T00:00:03Z", "evictions": 7},
        ]
    )
    _evict(loops, "cgroup/web", 3.0)
    _evict(loops, "cgroup/dry", 3.0)
    assert {"cgroup/web": 3} == loops.present(3.0)


def test_thousands_of_names_are_forgotten_the_least_recently_evicted_first() -> None:
    loops = RestartLoops(THREE_IN_TEN_MINUTES)
    _evict(loops, "cgroup/web", 0.0, 0.0)
    for number in range(5000):
        _evict(loops, f"cgroup/{number}", 1.0)
    assert 1000 == len(loops._evicted)
    _evict(loops, "cgroup/web", 2.0)
    assert {} == loops.present(2.0)


def test_name_that_is_evicted_no_more_is_forgotten_once_its_evictions_are_out_of_the_window() -> None:
    loops = RestartLoops(THREE_IN_TEN_MINUTES)
    for number in range(100):
        _evict(loops, f"cgroup/{number}", float(number))
    _evict(loops, "cgroup/web", 650.0)
    assert 50 == len(loops._evicted)  # those of 51 to 99, and the last


def test_many_names_that_are_evicted_once_take_little_memory() -> None:
    loops = RestartLoops(THREE_IN_TEN_MINUTES)
    names = [f"cgroup/{number}" for number in range(1000)]
    tracemalloc.start()
    try:
        _evict(loops, "cgroup/web", 1.0)
        before_bytes, _ = tracemalloc.get_traced_memory()
        for name in names:
            _evict(loops, name, 1.0)
        after_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after_bytes - before_bytes < 300 * len(names)


def test_a_clock_that_was_set_back_is_survived() -> None:
    loops = RestartLoops(THREE_IN_TEN_MINUTES)
    _evict(loops, "cgroup/web", 5000.0, 1.0, 2.0, 3.0)
    assert {"cgroup/web": 4} == loops.present(3.0)
