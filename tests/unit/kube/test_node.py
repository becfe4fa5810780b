from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.errors import ConfigError
from reactor.kube.node import (
    NodeObject,
    TaintId,
    conditions_patch,
    contested_taints,
    read_node,
    taints_patch,
)
from reactor.model.rules import Mark, Marks
from reactor.model.settings import Role, TaintedBy
from reactor.model.signals import NodeCondition

_MEMORY, _DISK, _PID = NodeCondition
_MEMORY_TAINT = "node.kubernetes.io/memory-pressure"


def _node(annotation: str | None = None, *taints: dict[str, str], **status: Any) -> NodeObject:
    return read_node(
        {
            "metadata": {
                "name": "one",
                "resourceVersion": "5",
                "annotations": {} if annotation is None else {"reactor/taints": annotation},
            },
            "spec": {"taints": list(taints)} if taints else {},
            "status": status,
        }
    )


def _applied(node: NodeObject, patch: dict[str, Any] | None) -> NodeObject:
    """Return the node as the server has it after a merge patch."""
    if patch is None:
        return node
    return _node(patch["metadata"]["annotations"]["reactor/taints"], *(patch["spec"]["taints"] or ()))


def _taint(key: str, effect: str = "NoSchedule") -> dict[str, str]:
    return {"key": key, "effect": effect}


def test_beside_a_kubelet_the_conditions_are_of_our_own_types() -> None:
    patch = conditions_patch(_node(), [_MEMORY], Role.ALONGSIDE, 60.0)
    assert patch is not None
    told = {one["type"]: (one["status"], one["reason"]) for one in patch["status"]["conditions"]}
    assert {
        "reactor/MemoryPressure": ("True", "ReactorHasInsufficientMemory"),
        "reactor/DiskPressure": ("False", "ReactorHasNoDiskPressure"),
        "reactor/PIDPressure": ("False", "ReactorHasSufficientPID"),
    } == told
    assert "1970-01-01T00:01:00Z" == patch["status"]["conditions"][0]["lastTransitionTime"]


def test_alone_the_conditions_are_the_kubelets() -> None:
    patch = conditions_patch(_node(), [], Role.SOLE, 60.0)
    assert patch is not None
    assert ["MemoryPressure", "DiskPressure", "PIDPressure"] == [
        one["type"] for one in patch["status"]["conditions"]
    ]


def test_alone_the_conditions_of_a_time_beside_a_kubelet_are_removed() -> None:
    left = {"type": "reactor/DiskPressure", "status": "True", "reason": "ReactorHasDiskPressure"}
    as_wanted = conditions_patch(_node(), [], Role.SOLE, 60.0)
    assert as_wanted is not None
    node = _node(conditions=[*as_wanted["status"]["conditions"], left])
    patch = conditions_patch(node, [], Role.SOLE, 120.0)
    assert {
        "status": {"conditions": [{"type": "reactor/DiskPressure", "$patch": "delete"}]},
    } == patch
    assert conditions_patch(node, [], Role.ALONGSIDE, 120.0) is not None


def test_conditions_that_are_as_wanted_are_not_written_but_for_the_heartbeat() -> None:
    first = conditions_patch(_node(), [_DISK], Role.SOLE, 60.0)
    assert first is not None
    node = _node(conditions=first["status"]["conditions"])
    assert conditions_patch(node, [_DISK], Role.SOLE, 99.0) is None
    beat = conditions_patch(node, [_DISK], Role.SOLE, 120.0, heartbeat=True)
    assert beat is not None
    assert all("lastTransitionTime" not in one for one in beat["status"]["conditions"])
    assert {"1970-01-01T00:02:00Z"} == {one["lastHeartbeatTime"] for one in beat["status"]["conditions"]}


def test_a_condition_that_was_overwritten_is_written_again_alone() -> None:
    first = conditions_patch(_node(), [_MEMORY], Role.SOLE, 60.0)
    assert first is not None
    overwritten = [dict(one) for one in first["status"]["conditions"]]
    overwritten[0] |= {"status": "False", "reason": "KubeletHasSufficientMemory"}
    patch = conditions_patch(_node(conditions=overwritten), [_MEMORY], Role.SOLE, 90.0)
    assert patch is not None
    [told] = patch["status"]["conditions"]
    assert ("MemoryPressure", "True") == (told["type"], told["status"])


def test_a_taint_is_set_noted_and_removed_again() -> None:
    patch = taints_patch(_node(None, _taint("mine", "NoExecute")), [_MEMORY], Role.SOLE, 60.0)
    assert patch is not None
    told = {"reactor/taints": f"{_MEMORY_TAINT}:NoSchedule"}
    assert {"resourceVersion": "5", "annotations": told} == patch["metadata"]
    assert [
        _taint("mine", "NoExecute"),
        {**_taint(_MEMORY_TAINT), "timeAdded": "1970-01-01T00:01:00Z"},
    ] == patch["spec"]["taints"]
    node = _applied(_node(), patch)
    assert taints_patch(node, [_MEMORY], Role.SOLE, 61.0) is None
    removal = taints_patch(node, [], Role.SOLE, 62.0)
    assert removal is not None
    assert {"reactor/taints": None} == removal["metadata"]["annotations"]
    assert [_taint("mine", "NoExecute")] == removal["spec"]["taints"]


def test_a_foreign_taint_is_neither_set_twice_nor_removed() -> None:
    node = _node(None, _taint(_MEMORY_TAINT))
    assert taints_patch(node, [_MEMORY], Role.SOLE, 60.0) is None
    assert taints_patch(node, [], Role.SOLE, 60.0) is None


def test_a_taint_that_was_removed_under_pressure_is_set_again() -> None:
    patch = taints_patch(_node(_MEMORY_TAINT), [_MEMORY], Role.SOLE, 60.0)
    assert patch is not None
    assert [_MEMORY_TAINT] == [taint["key"] for taint in patch["spec"]["taints"]]


def test_a_taint_that_is_left_alone_is_not_set_again_and_stays_our_own() -> None:
    both = frozenset({TaintId(_MEMORY_TAINT, "NoSchedule"), TaintId(_MEMORY_TAINT, "PreferNoSchedule")})
    node = _applied(_node(), taints_patch(_node(), [_MEMORY], Role.ALONGSIDE, 60.0))
    removed = _node(
        f"{_MEMORY_TAINT}:NoSchedule,{_MEMORY_TAINT}:PreferNoSchedule",
        _taint(_MEMORY_TAINT, "PreferNoSchedule"),
    )
    assert frozenset() == contested_taints(node, [_MEMORY], Role.ALONGSIDE)
    contested = contested_taints(removed, [_MEMORY], Role.ALONGSIDE)
    assert {TaintId(_MEMORY_TAINT, "NoSchedule")} == contested
    assert taints_patch(removed, [_MEMORY], Role.ALONGSIDE, 60.0, left=contested) is None
    patch = taints_patch(removed, [_MEMORY, _DISK], Role.ALONGSIDE, 60.0, left=contested)
    after = _applied(removed, patch)
    assert both <= after.own_taints
    assert TaintId(_MEMORY_TAINT, "NoSchedule") not in {taint.id for taint in after.taints}


def test_a_taint_of_the_node_controllers_is_contested_until_it_is_there() -> None:
    taint = TaintId(_MEMORY_TAINT, "NoSchedule")
    assert {taint} == contested_taints(_node(), [_MEMORY], Role.SOLE, TaintedBy.NODE_CONTROLLER)
    there = _node(None, _taint(_MEMORY_TAINT))
    assert not contested_taints(there, [_MEMORY], Role.SOLE, TaintedBy.NODE_CONTROLLER)
    assert taints_patch(_node(), [_MEMORY], Role.SOLE, 60.0, left=[taint]) is None


def test_beside_a_kubelet_a_taint_has_an_effect_more_which_the_node_controller_leaves_alone() -> None:
    patch = taints_patch(_node(), [_MEMORY], Role.ALONGSIDE, 60.0)
    assert patch is not None
    set_ = [(taint["key"], taint["effect"]) for taint in patch["spec"]["taints"]]
    assert [(_MEMORY_TAINT, "NoSchedule"), (_MEMORY_TAINT, "PreferNoSchedule")] == set_
    node = _applied(_node(), patch)
    assert taints_patch(node, [_MEMORY], Role.ALONGSIDE, 61.0) is None
    removal = taints_patch(node, [], Role.ALONGSIDE, 62.0)
    assert removal is not None
    assert removal["spec"]["taints"] is None


def test_the_same_key_with_another_effect_stays() -> None:
    node = _node(_MEMORY_TAINT, _taint(_MEMORY_TAINT), _taint(_MEMORY_TAINT, "NoExecute"))
    patch = taints_patch(node, [], Role.SOLE, 60.0)
    assert patch is not None
    assert [_taint(_MEMORY_TAINT, "NoExecute")] == patch["spec"]["taints"]


_CONDITIONS = st.lists(st.sampled_from(list(NodeCondition)), unique=True)


@given(
    others=st.lists(
        st.sampled_from([_MEMORY_TAINT, "other", "node.kubernetes.io/disk-pressure"]), unique=True
    ),
    steps=st.lists(_CONDITIONS, max_size=6),
    role=st.sampled_from(Role),
)
def test_only_what_was_set_is_ever_removed(
    others: list[str], steps: list[list[NodeCondition]], role: Role
) -> None:
    node = _node(None, *(_taint(key) for key in others))
    for wanted in steps:
        node = _applied(node, taints_patch(node, wanted, role, 60.0))
        assert taints_patch(node, wanted, role, 61.0) is None
    node = _applied(node, taints_patch(node, [], role, 62.0))
    assert others == [taint.key for taint in node.taints]
    assert frozenset() == node.own_taints


@pytest.mark.parametrize("document", [None, [], {}, {"metadata": {}, "spec": {"taints": 3}}])
def test_what_is_no_node_is_refused(document: Any) -> None:
    with pytest.raises(ConfigError):
        read_node(document)


def test_a_node_that_shuts_down_has_a_condition_and_a_taint_of_our_own_and_then_neither() -> None:
    calm = _node()
    patch = conditions_patch(calm, [], Role.ALONGSIDE, 60.0, is_shutting_down=True)
    assert patch is not None
    told = {one["type"]: (one["status"], one["message"]) for one in patch["status"]["conditions"]}
    assert ("True", "node is shutting down") == told["reactor/NodeShutdown"]
    tainted = _applied(calm, taints_patch(calm, [], Role.ALONGSIDE, 60.0, is_shutting_down=True))
    assert ["reactor/node-shutdown"] == [taint.key for taint in tainted.taints]

    left = _node(
        "reactor/node-shutdown:NoSchedule",
        _taint("reactor/node-shutdown"),
        conditions=[{"type": "reactor/NodeShutdown", "status": "True"}],
    )
    undone = conditions_patch(left, [], Role.ALONGSIDE, 60.0)
    assert undone is not None
    assert {"type": "reactor/NodeShutdown", "$patch": "delete"} in undone["status"]["conditions"]
    assert () == _applied(left, taints_patch(left, [], Role.ALONGSIDE, 60.0)).taints


def test_a_shutdown_that_is_shown_already_is_not_written_again() -> None:
    shown = _node(conditions=[{"type": "reactor/NodeShutdown", "status": "True"}])
    patch = conditions_patch(shown, [], Role.ALONGSIDE, 60.0, is_shutting_down=True)
    assert patch is not None
    assert "reactor/NodeShutdown" not in [one["type"] for one in patch["status"]["conditions"]]


_CONTENTION = Mark("MemoryContention", "example.com/contention:NoSchedule", "rule r: usage >= 90 %")
_OURS = "reactor/MemoryContention"


def _changed(node: NodeObject, marks: Marks | None, role: Role = Role.ALONGSIDE) -> dict[str, Any]:
    """Return by type what is changed of a node's conditions that rules can put there."""
    patch = conditions_patch(node, [], role, 60.0, marks=marks)
    changed = [] if patch is None else patch["status"]["conditions"]
    return {one["type"]: one for one in changed if not one["type"].endswith("Pressure")}


@pytest.mark.parametrize("role", Role)
def test_a_rules_condition_is_there_while_it_is_shown_and_removed_then(role: Role) -> None:
    shown = _changed(_node(), Marks(shown=(_CONTENTION,)), role)[_OURS]
    assert ("True", "ReactorRuleHolds", "rule r: usage >= 90 %") == (
        shown["status"],
        shown["reason"],
        shown["message"],
    )
    there = _node(conditions=[shown, {"type": "NetworkUnavailable", "status": "False"}])
    assert {} == _changed(there, Marks(shown=(_CONTENTION,)), role)
    assert {} == _changed(there, Marks(left=(_CONTENTION,)), role)
    assert {} == _changed(there, None, role)
    assert {_OURS: {"type": _OURS, "$patch": "delete"}} == _changed(there, Marks(), role)
    assert {_OURS} == _changed(_node(conditions=[{**shown, "status": "False"}]), Marks((_CONTENTION,))).keys()


@pytest.mark.parametrize("role", Role)
def test_a_rules_taint_has_its_own_effect_alone_and_is_removed_again(role: Role) -> None:
    foreign = _taint("mine", "NoExecute")
    tainted = _applied(
        _node(None, foreign), taints_patch(_node(None, foreign), [], role, 60.0, marks=Marks((_CONTENTION,)))
    )
    assert [("mine", "NoExecute"), ("example.com/contention", "NoSchedule")] == [
        (one.key, one.effect) for one in tainted.taints
    ]
    for kept in (Marks(shown=(_CONTENTION,)), Marks(left=(_CONTENTION,)), None):
        assert taints_patch(tainted, [], role, 60.0, marks=kept) is None
    removed = _applied(tainted, taints_patch(tainted, [], role, 60.0, marks=Marks()))
    assert ([("mine", "NoExecute")], frozenset()) == (
        [(one.key, one.effect) for one in removed.taints],
        removed.own_taints,
    )


def test_while_rules_are_not_known_pressure_taints_go_all_the_same() -> None:
    node = _node(
        f"{_MEMORY_TAINT}:NoSchedule,example.com/contention:NoSchedule",
        _taint(_MEMORY_TAINT),
        _taint("example.com/contention"),
    )
    left = _applied(node, taints_patch(node, [], Role.SOLE, 60.0, marks=None))
    assert ["example.com/contention"] == [one.key for one in left.taints]


def test_a_taint_of_a_rule_that_another_has_set_is_not_ours_to_remove() -> None:
    node = _node(None, _taint("example.com/contention"))
    assert taints_patch(node, [], Role.SOLE, 60.0, marks=Marks((_CONTENTION,))) is None
    assert taints_patch(node, [], Role.SOLE, 60.0, marks=Marks()) is None


@pytest.mark.parametrize("tainted_by", TaintedBy)
def test_a_rules_taint_that_another_writer_removes_is_contested(tainted_by: TaintedBy) -> None:
    removed = _node("example.com/contention:NoSchedule")
    marks = Marks((_CONTENTION,))
    assert {TaintId("example.com/contention", "NoSchedule")} == contested_taints(
        removed, [], Role.SOLE, tainted_by, marks
    )
    assert frozenset() == contested_taints(_node(), [], Role.SOLE, tainted_by, marks)
