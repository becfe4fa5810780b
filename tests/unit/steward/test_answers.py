"""What the steward remembers of the journal's lines, and what it tells clients of them."""

from __future__ import annotations

import logging
import tracemalloc

import pytest

from reactor.model.settings import RestartLoopSettings
from reactor.steward.answers import (
    QuestionError,
    RecentRecords,
    RestartLoops,
    explanation,
    name_asked,
    places_asked,
    status,
)

EVICTION = {
    "pod": "cgroup/hog",
    "uid": "uid-hog",
    "signal": "memory.available",
    "outcome": "ordered",
    "freed_ns": None,
}

THREE_IN_TEN_MINUTES = RestartLoopSettings()


def decision(number: int = 1, time: str = "t", **changed) -> dict:
    return {"kind": "decision", "id": number, "time": time, "evictions": [], "ranking": [], **changed}


def ordered(number: int = 1, time: str = "t", kind: str = "ordered") -> dict:
    return {"kind": kind, "decision": number, "time": time, "ordered": [EVICTION]}


def kill(**changed) -> dict:
    return {"kind": "oom-kill", "pod": "default/web", "uid": "uid-web", "victim_cgroup": "/x/web", **changed}


def taken(*documents: dict) -> RecentRecords:
    recent = RecentRecords()
    for document in documents:
        recent.take(document)
    return recent


def test_last_fifty_decisions_are_kept_with_the_head_of_each_ranking():
    recent = taken(*(decision(n, ranking=[{}] * 99) for n in range(80)), {"kind": "outcome"}, {})

    assert [one["id"] for one in recent.decisions()] == list(range(30, 80))
    assert {len(one["ranking"]) for one in recent.decisions()} == {20}


@pytest.mark.parametrize("key", ["kind", "id", "time", "decision"])
def test_a_line_whose_keys_are_no_texts_or_numbers_is_left(key: str) -> None:
    recent = RecentRecords()
    for line in (decision(), ordered()):
        recent.take({**line, key: []})
    assert [] == recent.decisions()


def test_order_stands_for_its_decision_until_that_is_written():
    recent = taken(ordered(), ordered(2, kind="resumed"))
    assert [one["evictions"] for one in recent.decisions()] == [[EVICTION], [EVICTION]]

    recent.take(decision(evictions=[{**EVICTION, "outcome": "killed"}]))
    recent.take(ordered())
    assert [one["evictions"][0]["outcome"] for one in recent.decisions()] == ["killed", "ordered"]


def test_outcome_completes_the_latest_decision_of_its_number_that_has_its_pod():
    outcome = {
        "kind": "outcome",
        "decision": 1,
        "uid": "uid-hog",
        "outcome": "terminated",
        "freed_ns": 5,
        "more": 1,
    }
    recent = taken(
        decision(1, "earlier", evictions=[EVICTION]),
        decision(1, "now", evictions=[{"uid": "other"}, EVICTION]),
        decision(1, "other", evictions=[{"uid": "other"}]),
        outcome,
    )

    completed = {**EVICTION, "outcome": "terminated", "pod": None, "signal": None, "freed_ns": 5}
    assert [one["evictions"] for one in recent.decisions()] == [
        [EVICTION],
        [{"uid": "other"}, completed],
        [{"uid": "other"}],
    ]


@pytest.mark.parametrize("evictions", [None, 3, [3, "x", None]])
def test_decision_whose_evictions_can_not_be_read_is_reported_without(evictions):
    recent = taken(decision(evictions=evictions, threshold="x"), {"kind": "outcome", "decision": 1})

    (told,) = status({"oom_kills": {"counted": {}}, "problems": {}}, recent, {})["decisions"]
    assert (told["evictions"], told["threshold"]) == ([], None)


def test_kills_of_a_pod_are_found_by_name_key_and_uid_and_no_others():
    recent = taken(kill(), kill(pod=None, uid=None, victim_cgroup="/elsewhere"))

    for name in ("web", "default/web", "uid-web"):
        assert [one["pod"] for one in recent.oom_kills(name)] == ["default/web"]
    assert [one["pod"] for one in recent.oom_kills("elsewhere")] == [None]  # gone before it was known
    assert recent.oom_kills("where") == recent.oom_kills("") == []
    assert len(recent.oom_kills()) == 2
    assert len(taken(*[kill()] * 100).oom_kills()) == 20


def test_status_has_the_last_ten_and_the_problems_of_both_processes():
    guard = {"oom_kills": {"counted": {"node": 3}}, "problems": {"state": "stuck"}, "passes": 7}
    recent = taken(*(decision(n, f"{n:02}", evictions=[EVICTION]) for n in range(12)), *[kill()] * 12)

    document = status(guard, recent, {"journal": "full\x1b[31m"})

    assert [one["id"] for one in document["decisions"]] == list(range(2, 12))
    assert document["decisions"][0]["evictions"][0]["pod"] == "cgroup/hog"
    assert (document["oom_kills"]["counted"], len(document["oom_kills"]["recent"])) == ({"node": 3}, 10)
    assert document["problems"] == {"state": "stuck", "journal": "full\\x1b[31m"}
    assert document["passes"] == 7


@pytest.mark.parametrize("name", ["hog", "cgroup/hog", "uid-hog"])
def test_pod_is_found_by_name_key_and_uid(name):
    places = [
        {"place": 1, "pod": "cgroup/hog", "uid": "uid-hog"},
        {"place": 2, "pod": "cgroup/calm", "uid": "u"},
    ]
    guard = {"ranking": places, "pods": 2}
    recent = taken(decision(evictions=[EVICTION], threshold={"available": 50}), decision(2))

    document = explanation(guard, recent, name)

    assert (document["pod"], document["ranking"], document["pods"]) == (name, places[:1], 2)
    assert [one["threshold"] for one in document["evictions"]] == [{"available": 50}]
    nobody = explanation(guard, recent, "nobody")
    assert (nobody["ranking"], nobody["evictions"], nobody["oom_kills"]) == ([], [], [])
    assert explanation(guard, recent, None)["ranking"] == places


def test_pod_is_found_by_its_name_as_it_is_printed():
    place = {"place": 1, "pod": "cgroup/a\x1b[m", "uid": "u"}

    assert explanation({"ranking": [place]}, RecentRecords(), "a\\x1b[m")["ranking"] == [place]


def test_unit_is_found_by_its_name_without_the_suffix_unless_a_pod_has_just_that_name():
    unit, scope, exact = (
        {"place": place, "pod": f"cgroup/{name}", "uid": name}
        for place, name in enumerate(("web.service", "db.scope", "web"), 1)
    )
    named = [explanation({"ranking": [unit, scope]}, RecentRecords(), one) for one in ("web", "db", "we")]
    assert [[unit], [scope], []] == [one["ranking"] for one in named]
    assert ["web", "db", "we"] == [one["pod"] for one in named]
    assert [exact] == explanation({"ranking": [unit, exact]}, RecentRecords(), "web")["ranking"]


def test_decisions_are_reported_in_the_order_of_their_times_whenever_they_came():
    late, early = (decision(number) | {"time": f"2026-01-01T00:00:0{number}.000Z"} for number in (2, 1))
    assert [1, 2] == [one["id"] for one in taken(late, early).decisions()]


@pytest.mark.parametrize("places", ["many", -1, None, True, 2.5])
def test_number_of_pods_that_is_none_is_refused_by_name(places):
    with pytest.raises(QuestionError, match="accepted: a number of pods"):
        places_asked(places)


def test_number_of_pods_is_bounded_and_a_name_is_text_or_nothing():
    assert (places_asked(7), places_asked(10**30)) == (7, 200)
    assert (name_asked("x"), name_asked(None)) == ("x", None)
    with pytest.raises(QuestionError, match="accepted: a pod's name"):
        name_asked(["x"])


def test_a_rule_is_explained_by_its_name_with_the_decisions_in_which_it_acted() -> None:
    rule = {"name": "full", "action": "report", "cgroup": "/apps/a"}
    recent = taken(
        *(decision(n, rule=one) for n, one in ((1, rule), (2, None), (3, {"name": "other"}), (4, 5)))
    )
    guard = {"ranking": [], "rules": [{"name": "full"}, {"name": "other"}]}
    explained = explanation(guard, recent, "full")
    assert [{"name": "full"}] == explained["rules"]
    assert [(1, rule)] == [(one["id"], one["rule"]) for one in explained["rules_acted"]]
    everything = explanation(guard, recent, None)
    assert guard["rules"] == everything["rules"]
    assert [3, 1] == [one["id"] for one in everything["rules_acted"]]
    assert [] == explanation({"ranking": []}, recent, "a-pod")["rules"]


def _evict(loops: RestartLoops, name: str, *instants: float, outcome: str = "killed") -> None:
    for at in instants:
        loops.take({"pod": name, "outcome": outcome, "ended_ns": 1, "problems": []}, at)


def _not_ended(loops: RestartLoops, name: str, *instants: float) -> None:
    for at in instants:
        loops.take({"pod": name, "outcome": "killed", "ended_ns": None, "problems": ["1 process"]}, at)


def test_a_pod_that_can_not_be_killed_is_no_restart_loop_and_is_reported_as_that() -> None:
    loops = RestartLoops(THREE_IN_TEN_MINUTES)
    _not_ended(loops, "cgroup/stuck", 0.0, 10.0, 20.0)
    assert ({}, 0) == (loops.present(20.0), loops.repeated)
    assert {"kill of cgroup/stuck": "it has not ended: 1 process"} == loops.problems(20.0)
    assert {} == loops.problems(620.0)
    _not_ended(loops, "cgroup/stuck", 630.0)
    _evict(loops, "cgroup/stuck", 640.0)
    assert {} == loops.problems(640.0), "it has ended at last"


def test_a_pod_that_is_still_being_killed_is_no_problem() -> None:
    loops = RestartLoops(THREE_IN_TEN_MINUTES)
    for at in range(3):
        ordered = {"pod": "a", "outcome": "killed", "ended_ns": None, "problems": []}
        loops.take(ordered, float(at))
    assert {} == loops.problems(3.0)


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


@pytest.mark.parametrize("outcome", ["dry-run", "failed", "gone", "process-killed", "process-terminated"])
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
    evictions = [
        {"pod": "cgroup/web", "outcome": "killed", "freed_ns": 5},
        {"pod": "cgroup/web", "outcome": "killed", "ended_ns": None, "freed_ns": None},
        {"pod": "cgroup/dry", "outcome": "dry-run", "ended_ns": 5},
    ]
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
    _evict(loops, "cgroup/dry", 3.0, outcome="dry-run")
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
