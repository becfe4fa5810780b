"""What others do on a node, as lines of the journal: each once, of a bounded number."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from reactor.cluster.others import Others
from reactor.kube.pods import KnownPod, read_pod
from reactor.model.settings import Role
from tests.support.api_faults import pod_document

_NOW = 1_790_000_000.0


class _Inner:
    """Counts what a sink is handed on."""

    def __init__(self) -> None:
        self.taken = 0

    def listing(self) -> None: ...
    def listed(self) -> None: ...
    def drop(self, document: Any) -> None: ...

    def take(self, document: Any) -> None:
        del document
        self.taken += 1


class _Node:
    def __init__(self, role: Role = Role.ALONGSIDE, own: Collection[str] = ()) -> None:
        self.lines: list[Any] = []
        self.now = _NOW
        self.inner = _Inner()
        self.others = Others(
            self.lines.append,
            self.inner,
            name="node-a",
            role=role,
            is_own=own.__contains__,
            clock_unix_seconds=lambda: self.now,
        )

    def pods(self, *pods: KnownPod) -> None:
        self.others.pods_changed({one.pod.uid: one for one in pods})

    def kinds(self) -> list[str]:
        return [one["kind"] for one in self.lines]


def _evicted(name: str = "web", at: str | None = None, message: str = "low on memory") -> KnownPod:
    conditions = [{"type": "DisruptionTarget", "status": "True", "lastTransitionTime": at}] if at else []
    status = {"phase": "Failed", "reason": "Evicted", "message": message, "conditions": conditions}
    return read_pod(pod_document(name, status=status))


def _node(status: str = "True", since: str = "2026-09-21T12:00:00Z", **labels: str) -> Any:
    ready = {"type": "Ready", "status": status, "lastTransitionTime": since, "reason": "because"}
    return {"metadata": {"name": "node-a", "labels": labels}, "status": {"conditions": [ready]}}


def test_a_pod_that_the_kubelet_evicts_is_a_line_once_and_one_that_reactor_evicted_is_none():
    node = _Node(own={"uid-own"})
    running = read_pod(pod_document("web"))
    node.pods(running)
    node.pods(_evicted(at="2026-09-21T13:33:20Z"), _evicted("own"))
    node.pods(_evicted(at="2026-09-21T13:33:20Z"), _evicted("own"), read_pod(pod_document("b")))
    (line,) = node.lines
    assert ("pod-evicted", "default/web", "uid-web", "low on memory") == tuple(
        line[key] for key in ("kind", "pod", "uid", "message")
    )
    assert "2026-09-21T13:33:20.000000Z" == line["evicted_at"]


@pytest.mark.parametrize("before", ["", "Pod ", "Pod was rejected: "])
def test_a_pod_that_was_not_admitted_under_pressure_is_no_eviction(before: str):
    node = _Node()
    node.pods()
    node.pods(_evicted(message=f"{before}The node had condition: [MemoryPressure]. "))
    assert [] == node.lines


def test_corpses_of_the_first_list_are_an_earlier_runs_to_record_and_recent_ones_are_not():
    node = _Node()
    recent, old = "2026-09-21T14:10:00Z", "2026-09-20T13:33:20Z"
    node.now = datetime.fromisoformat(recent).timestamp() + 60
    node.pods(_evicted("recent", at=recent), _evicted("old", at=old), _evicted("undated"))
    assert ["default/recent"] == [one["pod"] for one in node.lines]


def test_the_node_is_a_line_at_first_when_a_label_changes_and_every_six_hours():
    node = _Node()
    node.others.take(_node(pool="gpu"))
    node.others.take(_node(pool="gpu"))
    assert ["node", "node-condition"] == node.kinds()
    assert {"pool": "gpu"} == node.lines[0]["labels"]
    node.others.take(_node(pool="cpu"))
    assert ["node", "node-condition", "node"] == node.kinds()
    node.now += 6 * 3600
    node.others.take(_node(pool="cpu"))
    assert ["node", "node-condition", "node", "node"] == node.kinds()
    assert 4 == node.inner.taken


def test_ready_is_a_line_when_it_changes_also_there_and_back_unseen():
    node = _Node()
    node.others.take(_node())
    node.others.take(_node("Unknown", "2026-09-21T12:10:00Z"))
    node.others.take(_node("True", "2026-09-21T12:11:00Z"))
    node.others.take(_node("True", "2026-09-21T12:30:00Z"))
    found = [(one["status"], one["since"]) for one in node.lines if one["kind"] == "node-condition"]
    assert [
        ("True", "2026-09-21T12:00:00.000000Z"),
        ("Unknown", "2026-09-21T12:10:00.000000Z"),
        ("True", "2026-09-21T12:11:00.000000Z"),
        ("True", "2026-09-21T12:30:00.000000Z"),
    ] == found


def test_the_kubelets_pressure_is_a_line_beside_it_and_reactors_own_is_none():
    pressure = {"type": "MemoryPressure", "status": "True", "lastTransitionTime": "2026-09-21T12:10:00Z"}
    for role, expected in ((Role.ALONGSIDE, ["MemoryPressure"]), (Role.SOLE, [])):
        node = _Node(role)
        before = {**pressure, "status": "False", "lastTransitionTime": "2026-09-21T12:00:00Z"}
        node.others.take({"status": {"conditions": [before]}})
        node.others.take({"status": {"conditions": [pressure]}})
        assert expected == [one["condition"] for one in node.lines if one["kind"] == "node-condition"]


def test_a_flood_is_120_lines_in_an_hour_and_the_rest_is_counted():
    node = _Node()
    node.pods()
    for number in range(500):
        node.pods(*(_evicted(f"p{n}") for n in range(number, number + 1)))
    assert 120 == len(node.lines)
    node.now += 3600
    node.pods(_evicted("late"))
    assert 380 == node.lines[-1]["skipped"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["metadata", "labels", "status", "conditions", "type", "lastTransitionTime", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(_JSON)
def test_no_document_of_a_server_ends_the_watch(document: Any):
    node = _Node()
    node.others.take(document)
    assert node.inner.taken == 1
    assert all(len(str(one)) < 60_000 for one in node.lines)
