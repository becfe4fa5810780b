"""Which lines of the journal are events, what they say, and that they are clean."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.settings import EventKind
from reactor.tell.events import LONGEST_BYTES, Events

MIB = 1 << 20


def eviction(outcome: str = "killed", pod: str = "n/hog", **more: Any) -> dict[str, Any]:
    return {
        "pod": pod,
        "uid": f"uid-{pod}",
        "signal": "memory.available",
        "outcome": outcome,
        "returned_bytes": 200 * MIB,
        "problems": [],
        **more,
    }


def decision(*evictions: dict[str, Any], number: int = 7, **more: Any) -> dict[str, Any]:
    return {
        "kind": "decision",
        "id": number,
        "start": "now/1",
        "time": "2026-01-01T00:00:00Z",
        "dry_run": False,
        "threshold": {"threshold": "memory.available<64Mi", "available": 60 * MIB, "capacity": 256 * MIB},
        "ranking": [{"pod": f"n/{place}"} for place in range(100)],
        "evictions": list(evictions),
        **more,
    }


def ordered(*evictions: dict[str, Any], kind: str = "ordered", **more: Any) -> dict[str, Any]:
    document = decision(**more)
    del document["evictions"], document["id"]
    return {**document, "kind": kind, "decision": 7, "ordered": list(evictions)}


def outcome(of: dict[str, Any], number: int = 7, **more: Any) -> dict[str, Any]:
    return {"kind": "outcome", "decision": number, "start": "now/1", "time": "later", **of, **more}


def test_an_eviction_is_one_event_that_says_why_with_its_decisions_inputs() -> None:
    [event] = Events("node-1").take(decision(eviction()))

    assert EventKind.EVICTION is event.kind
    assert (
        "node-1: evicted n/hog (killed) for memory.available<64Mi: 60Mi was available; 200Mi came back"
        == event.text
    )
    told = json.loads(event.content)
    assert told == event.document
    assert ("eviction", "node-1", event.text, "n/hog", "killed", 7) == tuple(
        told[key] for key in ("event", "node", "text", "pod", "outcome", "decision")
    )
    assert 10 == len(told["ranking"])
    assert "memory.available<64Mi" == told["threshold"]["threshold"]


def test_an_eviction_by_a_rule_says_which_and_why() -> None:
    rule = {"name": "thrash", "cgroup": "/apps/a", "inputs": [{"condition": "usage >= 90 %", "value": 95.5}]}
    [event] = Events("a").take(decision(eviction(signal="rule"), threshold=None, rule=rule))
    because = "rule thrash in /apps/a: usage >= 90 % is 95.5"
    assert f"a: evicted n/hog (killed) for {because}; 200Mi came back" == event.text
    assert rule == event.document["rule"]
    assert [] == Events("a").take(decision(threshold=None, rule=rule))


def test_each_of_several_evictions_is_an_event() -> None:
    events = Events("a").take(decision(eviction(), eviction(pod="n/other")))
    assert ["n/hog", "n/other"] == [event.document["pod"] for event in events]


def test_an_eviction_that_failed_is_an_event_with_its_problems() -> None:
    [event] = Events("a").take(decision(eviction("failed", problems=["EPERM", "still there"])))
    assert "a: the eviction of n/hog for memory.available failed: EPERM; still there" == event.text


@pytest.mark.parametrize("outcome", ["process-killed", "process-terminated"])
def test_the_eviction_of_one_process_is_an_event_that_names_it(outcome: str) -> None:
    process = {"pid": 42, "name": "tab", "bytes": 200 << 20}
    (event,) = Events("node-1").take(decision(eviction(outcome, process=process, pod_lives=True)))
    assert f"evicted one process of n/hog: tab (process 42, 200Mi) ({outcome}) for memory" in event.text
    assert process == event.document["process"]
    (event,) = Events("node-1").take(decision(eviction(outcome, process="garbage")))
    assert "one process of n/hog: a process" in event.text


def test_what_came_to_nothing_and_a_dry_run_are_no_events() -> None:
    events = Events("a")
    for nothing in ("gone", "called off", "pre-empted", "dry-run"):
        assert [] == events.take(decision(eviction(nothing)))
    assert [] == events.take(decision(eviction(), dry_run=True))
    assert [] == events.take(ordered(eviction("ordered"), dry_run=True))
    assert [] == events.take(outcome(eviction()))
    assert [] == events.take({"kind": "brake", "decision": 7})


def test_what_a_dry_run_would_evict_is_an_event_that_is_marked_as_such() -> None:
    [event] = Events("a").take(decision(eviction("dry-run", returned_bytes=None), dry_run=True))

    assert EventKind.EVICTION is event.kind
    assert "a: dry run: would have evicted n/hog for memory.available<64Mi: 60Mi was available" == event.text
    assert (True, "dry-run") == (event.document["dry_run"], event.document["outcome"])


@pytest.mark.parametrize(("dry_run", "expected"), [(False, "a: no pod"), (True, "a: dry run: no pod")])
def test_a_shortage_without_a_pod_to_evict_is_an_event(*, dry_run: bool, expected: str) -> None:
    line = {"kind": "no-victim", "message": "no pod", "signal": "memory.available", "dry_run": dry_run}
    [event] = Events("a").take(line)
    assert (EventKind.NO_VICTIM, expected) == (event.kind, event.text)
    assert "memory.available" == event.document["signal"]


def test_an_eviction_whose_outcome_comes_later_is_an_event_then_and_only_once() -> None:
    events = Events("a")
    assert [] == events.take(ordered(eviction("ordered")))
    assert [] == events.take(decision(eviction("ordered")))
    [event] = events.take(outcome(eviction("terminated")))

    assert "evicted n/hog (terminated) for memory.available<64Mi: 60Mi was available" in event.text
    assert "now/1" not in event.content.decode()
    assert [] == events.take(outcome(eviction("terminated")))


def test_an_eviction_that_its_decision_has_told_is_not_reported_again_by_its_outcome() -> None:
    events = Events("a")
    events.take(ordered(eviction("ordered")))
    assert 1 == len(events.take(decision(eviction())))
    assert [] == events.take(outcome(eviction()))


def test_an_eviction_that_a_restarted_daemon_has_resumed_is_an_event() -> None:
    events = Events("a")
    events.take(ordered(eviction("ordered"), kind="resumed", threshold=None))
    [event] = events.take(outcome(eviction()))
    assert "evicted n/hog (killed) for memory.available; 200Mi came back" in event.text


def test_outcome_of_another_run_is_another_eviction_s() -> None:
    events = Events("a")
    events.take(ordered(eviction("ordered"), start="before/1"))
    assert [] == events.take(outcome(eviction()))


def test_what_an_earlier_steward_has_told_is_not_reported_again_and_what_it_awaited_is() -> None:
    events = Events("a")
    events.remember([{}, {"kind": "decision", "evictions": 3}, ordered(eviction("ordered"))])
    assert 1 == len(events.take(outcome(eviction())))


def test_the_kernels_oom_kills_and_lost_sources_are_events() -> None:
    events = Events("a")
    [kill] = events.take({"kind": "oom-kill", "message": "OOM kill of java", "pod": None, "scope": "node"})
    [lost] = events.take({"kind": "source-lost", "message": "source ebpf is degraded: x", "source": "ebpf"})

    assert (EventKind.OOM_KILL, "a: OOM kill of java") == (kill.kind, kill.text)
    assert (EventKind.SOURCE_LOST, "a: source ebpf is degraded: x") == (lost.kind, lost.text)
    assert ("oom-kill", "node") == (kill.document["event"], kill.document["scope"])


def test_evictions_that_are_awaited_without_an_end_are_bounded() -> None:
    events = Events("a")
    for number in range(1000):
        events.take(ordered(eviction("ordered", pod=f"n/{number}")))
    assert [] == events.take(outcome(eviction(pod="n/0")))
    assert 1 == len(events.take(outcome(eviction(pod="n/999"))))


HOSTILE = "\x1b[2J\n\r\udcff\u202e\0" + "x" * 100_000


def test_what_a_tenant_has_written_arrives_printable_and_cut() -> None:
    [event] = Events("a").take(
        decision(
            eviction(pod=HOSTILE, cgroup=HOSTILE, annotations={HOSTILE: HOSTILE}, problems=[HOSTILE] * 999)
        )
    )
    assert event.text.isprintable()
    assert len(event.content) <= LONGEST_BYTES
    assert event.content.decode().count("\n") == 1
    assert event.content.decode().rstrip("\n").isprintable()
    assert json.loads(event.content)["pod"].startswith("\\x1b[2J\\x0a\\x0d\\xff\\u202e\\x00xxx")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.slow
@given(JSON)
def test_an_event_is_bounded_clean_json_whatever_its_line_holds(value: object) -> None:
    [event] = Events("a").take({"kind": "oom-kill", "message": "m", "filler": value, "more": [value] * 70})
    assert len(event.content) <= LONGEST_BYTES
    assert json.loads(event.content)["event"] == "oom-kill"
    assert event.content.decode().rstrip("\n").isprintable()


def test_a_line_too_long_in_any_case_is_reported_by_its_text_alone() -> None:
    [event] = Events("a").take(
        {"kind": "oom-kill", "message": "m", **{f"k{n}": ["y" * 999] * 64 for n in range(9)}}
    )
    assert {"event": "oom-kill", "node": "a", "text": "a: m"} == json.loads(event.content)
