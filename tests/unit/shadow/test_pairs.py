"""What reactor decided beside what others did: each decision once, each other's act once, and why."""

from __future__ import annotations

import json
import random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from reactor.link.documents import instant
from reactor.shadow import DISAGREEMENTS, Node, Pair, Verdict, node_of, resource_in
from tests.support.executed_lines import executed_lines
from tests.support.fleet import BEGAN
from tests.support.fleet import Node as MadeUp

_T = BEGAN + 7200.0


@pytest.fixture
def node(request: pytest.FixtureRequest) -> MadeUp:
    return MadeUp("node-a", "web", random.Random(request.node.name))


def found(node: MadeUp, *more: Any, within_seconds: float = 600.0) -> Node:
    lines = [line for _, line in sorted(node.lines, key=lambda one: one[0])]
    encoded = [json.dumps(one).encode() + b"\n" for one in [*lines, *more]]
    return node_of(encoded, "by-file", within_seconds=within_seconds)


def one(node: MadeUp, *more: Any) -> Pair:
    (pair,) = found(node, *more).pairs
    return pair


def test_the_node_is_by_its_own_line(node: MadeUp) -> None:
    read = found(node)
    assert ("node-a", "alongside", "web") == (read.name, read.role, read.labels["karpenter.sh/nodepool"])
    assert "by-file" == node_of([], "by-file").name


def test_the_kubelet_evicts_the_same_pod_later(node: MadeUp) -> None:
    first, *_ = node.shortage(_T)
    node.kubelet(_T + 4.1, first)
    pair = one(node)
    assert (Verdict.SAME, first.key) == (pair.verdict, pair.pod)
    assert 4.1 == pytest.approx(pair.sooner_seconds, abs=1e-3)
    assert pair.verdict not in DISAGREEMENTS


def test_the_kubelet_was_sooner_with_the_same_pod(node: MadeUp) -> None:
    first, *_ = node.shortage(_T)
    node.kubelet(_T - 30.0, first)
    pair = one(node)
    assert Verdict.LATER == pair.verdict
    assert -30.0 == pytest.approx(pair.sooner_seconds, abs=1e-3)


def test_the_kubelet_evicts_another_pod_and_both_places_are_named(node: MadeUp) -> None:
    first, _, third, *_ = node.shortage(_T)
    node.kubelet(_T + 4, third)
    pair = one(node)
    assert Verdict.OTHER_POD == pair.verdict
    assert pair.decided is not None
    assert pair.kubelet is not None
    assert (first.key, third.key) == (pair.decided.pod, pair.kubelet.pod)
    assert "the kubelet's is place 3 of reactor's order" in pair.why


def test_a_pod_that_is_evicted_for_disk_is_no_answer_to_a_shortage_of_memory(node: MadeUp) -> None:
    node.shortage(_T)
    line = {"kind": "pod-evicted", "evicted_at": None, "pod": "a/b", "uid": "x"}
    line["message"] = "The node was low on resource: ephemeral-storage. "
    node.add(_T + 5, line)
    assert {Verdict.ALONE, Verdict.MISSED} == {pair.verdict for pair in found(node).pairs}


def test_nobody_else_evicted_and_why_is_how_the_shortage_ended(node: MadeUp) -> None:
    node.shortage(_T)
    node.over(_T + 12)
    pair = one(node)
    assert Verdict.ALONE == pair.verdict
    assert "memory.available<200Mi with " in pair.why
    assert "the shortage ended by itself within 12s" in pair.why


def test_a_shortage_that_reactor_ended_once_in_force_did_not_end_by_itself(node: MadeUp) -> None:
    node.shortage(_T)
    node.shortage(_T + 7)
    line = node.lines[-1][1]
    line["dry_run"], line["evictions"][0]["outcome"] = False, "killed"
    node.over(_T + 12)

    alone, evicted = found(node).pairs

    assert (Verdict.ALONE, Verdict.EVICTED) == (alone.verdict, evicted.verdict)
    assert evicted.decided is not None
    assert f"reactor in force evicted {evicted.decided.pod} after 7s" in alone.why
    assert "by itself" not in alone.why


def test_an_oom_kill_after_a_decision_of_a_dry_run_would_have_been_prevented(node: MadeUp) -> None:
    first, *_ = node.shortage(_T)
    node.oom_kill(_T + 2, first)
    pair = one(node)
    assert (Verdict.OOM, 1) == (pair.verdict, pair.prevented)


def _again(node: MadeUp, at_seconds: float) -> None:
    """Have the dry run decide on the same pod once more, by another threshold."""
    line = dict(node.lines[-1][1])
    threshold = {**line["threshold"], "threshold": "allocatableMemory.available<200Mi"}
    node.add(at_seconds, {**line, "time": instant(at_seconds), "threshold": threshold})


def test_a_pod_that_two_thresholds_of_one_shortage_chose_is_one_eviction(node: MadeUp) -> None:
    first, *_ = node.shortage(_T)
    _again(node, _T + 1.75)
    node.oom_kill(_T + 2, first)
    pair = one(node)
    assert (Verdict.OOM, 1) == (pair.verdict, pair.prevented)
    assert pair.decided is not None
    assert _T == pytest.approx(pair.decided.at)


def test_the_same_pod_in_a_shortage_of_another_hour_is_another_eviction(node: MadeUp) -> None:
    node.shortage(_T)
    _again(node, _T + 3600)
    assert [Verdict.ALONE] * 2 == [pair.verdict for pair in found(node).pairs]


def test_an_oom_kill_that_came_at_once_would_not_have_been(node: MadeUp) -> None:
    first, *_ = node.shortage(_T)
    node.oom_kill(_T + 0.05, first)
    assert 0 == one(node).prevented


def test_an_oom_kill_without_a_decision_and_one_at_a_pods_own_limit(node: MadeUp) -> None:
    node.oom_kill(_T, node.pods[0])
    node.add(_T + 1, {**node.lines[-1][1], "scope": "own-limit", "time": instant(_T + 1)})
    assert Verdict.OOM_MISSED == one(node).verdict


def test_the_node_is_not_ready_after_a_decision_or_without_one(node: MadeUp) -> None:
    node.shortage(_T)
    node.not_ready(_T + 60, 300)
    node.not_ready(_T + 90_000, 300)
    first, second = found(node).pairs
    assert (Verdict.NOT_READY, Verdict.NOT_READY_MISSED) == (first.verdict, second.verdict)
    assert second.not_ready is not None
    assert (_T + 90_000, _T + 90_300) == pytest.approx((second.not_ready.at, second.not_ready.until or 0))


def test_an_outage_of_which_only_the_end_was_seen_is_one(node: MadeUp) -> None:
    again = {"condition": "Ready", "status": "True", "since": instant(_T + 500), "reason": "KubeletReady"}
    node.add(_T + 500, {"kind": "node-condition", **again})
    assert Verdict.NOT_READY_MISSED == one(node).verdict


def test_the_kubelet_evicts_and_reactor_had_nobody_to_evict(node: MadeUp) -> None:
    node.kubelet(_T, node.pods[0])
    node.add(_T - 3, {"kind": "no-victim", "message": "no pod may be evicted"})
    pair = one(node)
    assert Verdict.MISSED == pair.verdict
    assert "reactor had no pod to evict: no pod may be evicted" == pair.why


def test_what_reactor_evicted_itself_is_not_the_kubelets(node: MadeUp) -> None:
    first, *_ = node.shortage(_T)
    line = node.lines[-1][1]
    line["dry_run"] = False
    line["evictions"][0]["outcome"] = "killed"
    node.kubelet(_T + 1, first)
    node.oom_kill(_T + 2, first)
    pair = one(node)
    assert (Verdict.OOM, None, 0) == (pair.verdict, pair.kubelet, pair.prevented)


def test_an_eviction_in_force_that_nobody_else_had_to_make_is_no_disagreement(node: MadeUp) -> None:
    node.shortage(_T)
    line = node.lines[-1][1]
    line["dry_run"] = False
    line["evictions"][0]["outcome"] = "killed"
    pair = one(node)
    assert Verdict.EVICTED == pair.verdict
    assert pair.verdict not in DISAGREEMENTS
    line["evictions"][0]["outcome"] = "failed"
    assert () == tuple(found(node).pairs), "nothing was evicted"


def test_an_order_whose_decision_was_never_written_counts_once(node: MadeUp) -> None:
    node.shortage(_T)
    line = dict(node.lines[-1][1])
    ordered = {**line, "kind": "ordered", "ordered": line.pop("evictions"), "decision": 1}
    assert 1 == len(found(node, ordered).pairs)


def test_a_kubelets_eviction_that_is_recorded_twice_is_one(node: MadeUp) -> None:
    node.kubelet(_T, node.pods[0])
    again = {**node.lines[-1][1], "time": instant(_T + 400)}
    assert 1 == len(found(node, again).pairs)


def test_the_time_that_a_status_states_counts_if_it_was_reported_late(node: MadeUp) -> None:
    first, *_ = node.shortage(_T)
    node.kubelet(_T + 5, first)
    line = node.lines[-1][1]
    line["time"] = instant(_T + 300)
    assert 5 == pytest.approx(one(node).sooner_seconds or 0.0, abs=1.0)


def test_two_evictions_of_one_shortage_each_have_their_decision(node: MadeUp) -> None:
    first, *_ = node.shortage(_T)
    node.kubelet(_T + 3, first)
    second, *_ = node.shortage(_T + 6)
    node.kubelet(_T + 9, second)
    pairs = found(node).pairs
    assert [(Verdict.SAME, first.key), (Verdict.SAME, second.key)] == [
        (one.verdict, one.pod) for one in pairs
    ]


@pytest.mark.parametrize(
    ("message", "resource"),
    [
        ("The node was low on resource: memory. Container main was using 1Gi. ", "memory"),
        ("The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi. ", "ephemeral-storage"),
        ("The node was low on resource: inodes. ", "inodes"),
        (
            "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
            "ephemeral-storage",
        ),
        ('Usage of EmptyDir volume "a" exceeds the limit "1Gi". ', "ephemeral-storage"),
        ("anything else", ""),
    ],
)
def test_what_a_pod_was_evicted_for_is_in_upstreams_message(message: str, resource: str) -> None:
    assert resource == resource_in(message)


_KINDS = st.sampled_from(
    ["decision", "ordered", "oom-kill", "pod-evicted", "node", "node-condition", "no-victim", "x"]
)
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text(max_size=6)
    | st.sampled_from(["2026-10-01T00:00:00Z", "dry-run", "node", "Ready", "True"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
_FIELDS = st.sampled_from(
    [
        "dry_run",
        "evictions",
        "ordered",
        "observations",
        "thresholds_met",
        "threshold",
        "ranking",
        "scope",
        "kills",
        "uid",
        "pod",
        "labels",
        "node",
        "role",
        "condition",
        "status",
        "since",
        "message",
        "rule",
    ]
)
_LINES = st.builds(
    lambda kind, time, fields: json.dumps({"kind": kind, "time": time, **fields}).encode() + b"\n",
    _KINDS,
    st.sampled_from(
        ["2026-10-01T00:00:00Z", "1969-01-01", "9999-12-31T23:59:59-23:59", "", None, 5, "9" * 99]
    ),
    st.dictionaries(_FIELDS, _VALUES, max_size=8),
)


@settings(max_examples=max(100, settings().max_examples), deadline=None)
@given(st.lists(_LINES | st.binary(max_size=60), max_size=12))
def test_no_line_ends_the_reading_and_each_is_counted(lines: list[bytes]) -> None:
    node = node_of(lines, "a")
    assert len(lines) == node.lines
    for pair in node.pairs:
        assert pair.verdict in set(Verdict)
        assert "\x1b" not in pair.pod


def test_a_line_of_endless_nesting_or_a_million_values_is_counted_and_passed_over() -> None:
    lines = [b"[" * 100_000 + b"\n", b"[" + b"1," * 1_000_000 + b"1]\n", b'{"kind": NaN}\n', b"\xff\xfe\n"]
    assert 4 == node_of(lines, "a").unread


def test_of_very_many_events_the_first_are_held(node: MadeUp) -> None:
    line = json.dumps({"kind": "oom-kill", "time": instant(_T), "scope": "node", "kills": 1}).encode()
    read = node_of((line for _ in range(25_000)), "a")
    assert (20_000, 5_000) == (len(read.pairs), read.cut)


@pytest.mark.parametrize("line", [b"x\n", b"\n", b"\xff\xfe\n", b'{"kind":\n', b"[" * 900 + b"\n", b"{}\n"])
def test_a_line_of_no_journal_is_counted_without_being_parsed(line: bytes) -> None:
    lines = [line] * 100
    assert 0 == executed_lines(lambda: node_of(lines, "a"), json.decoder.__file__)
    assert 100 == node_of(lines, "a").unread


def test_a_line_of_a_journal_after_a_byte_order_mark_is_read() -> None:
    line = json.dumps({"kind": "no-victim", "time": instant(_T), "message": "x"}).encode()
    assert 0 == node_of([b"\xef\xbb\xbf" + line, b"  " + line], "a").unread
