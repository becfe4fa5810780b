"""What the comparison sees, and what it leaves free."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest

from tests.upstream.differential.compare import compare
from tests.upstream.differential.known import KNOWN, Case, recognised, taught
from tests.upstream.differential.shrink import shrink
from tests.upstream.differential.sides import project
from tests.upstream.differential.words import GIB, Json


def _scenario() -> Json:
    pods = [
        {
            "metadata": {"name": name, "namespace": "shop", "uid": name},
            "spec": {"containers": [{"name": "c"}]},
        }
        for name in ("a", "b")
    ]
    stats = [{"podRef": {"uid": name}, "memory": {"workingSetBytes": GIB}} for name in ("a", "b")]
    node = {"memory": {"availableBytes": GIB // 2, "workingSetBytes": 3 * GIB}}
    return {
        "apiVersion": "reactor/v1alpha1",
        "kind": "Scenario",
        "name": "two pods that use as much",
        "kubeletConfiguration": {"evictionHard": {"memory.available": "1Gi"}, "enforceNodeAllocatable": []},
        "filesystems": {"dedicatedImageFs": False, "splitImageFs": False},
        "pods": pods,
        "images": [],
        "steps": [{"at": "0s", "summary": {"node": node, "pods": stats}}],
    }


def _answer(line: Json, ranking: Sequence[Sequence[str]], victim: str) -> Json:
    """Return what upstream would say if it agreed, with this ranking and victim."""
    evicted = {
        "pod": victim,
        "uid": victim.rpartition("/")[2],
        "grace": 0,
        "reason": "Evicted",
        "message": "The node was low on resource: memory. ",
        "annotations": line["evicted"][0]["annotations"],
    }
    outcome = {"signal": "memory.available", "reclaimed": [], "evicted": [evicted], "ranking": ranking}
    met = {
        "signal": "memory.available",
        "grace": 0.0,
        "quantity": "1Gi",
        "wanted": "1Gi",
        "available": "512Mi",
    }
    step = {
        "conditions": ["MemoryPressure"],
        "met": [met],
        "outcomes": [outcome],
        "runs": 1,
        "admit": {},
        "memcg": {},
    }
    return {"id": "0", "steps": [step]}


@pytest.mark.parametrize("victim", ["shop/a", "shop/b"])
def test_either_of_two_pods_that_rank_alike_may_be_evicted(victim: str) -> None:
    document = _scenario()
    lines = project(document)

    assert compare(document, lines, _answer(lines[0], [["shop/b", "shop/a"]], victim)) == []


def test_another_order_of_pods_that_do_not_rank_alike_is_a_difference() -> None:
    document = _scenario()
    lines = project(document)
    found = compare(document, lines, _answer(lines[0], [["shop/b"], ["shop/a"]], "shop/b"))

    assert [each.kind for each in found] == ["outcome:ranking:memory.available"]


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("conditions", [], "conditions"),
        ("met", [], "met:memory.available"),
        ("memcg", {"memory.available@0": 5}, "memcg"),
        ("admit", {"shop/c": {"admitted": True, "reason": "", "message": ""}}, "admit"),
    ],
)
def test_what_a_step_decided_otherwise_is_a_difference(key: str, value: object, kind: str) -> None:
    document = _scenario()
    lines = project(document)
    answer = _answer(lines[0], [["shop/a", "shop/b"]], "shop/a")
    answer["steps"][0][key] = value

    assert [each.kind for each in compare(document, lines, answer)] == [kind]


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("grace", 5, "outcome:grace"),
        ("annotations", {"starved_resource": "pids"}, "annotations"),
        ("message", "The node was low on resource: pids. ", "message-resource"),
    ],
)
def test_another_grace_period_message_or_annotation_is_a_difference(
    key: str, value: object, kind: str
) -> None:
    document = _scenario()
    lines = project(document)
    answer = _answer(lines[0], [["shop/a", "shop/b"]], "shop/a")
    answer["steps"][0]["outcomes"][0]["evicted"][0][key] = value

    assert [each.kind for each in compare(document, lines, answer)] == [kind]


def test_teaching_leaves_the_document_as_it_was_and_takes_absurd_statistics_out_of_it() -> None:
    document = _scenario()
    document["steps"][0]["summary"]["node"]["fs"] = {"availableBytes": 11, "capacityBytes": 10}
    before = copy.deepcopy(document)
    flags, amended = taught(document, KNOWN)

    assert document == before
    assert "availableBytes" not in amended["steps"][0]["summary"]["node"]["fs"]
    assert "below-capacity" in flags


@pytest.mark.parametrize(("told_bytes", "is_known"), [(200, True), (50, False)])
def test_a_limit_is_known_to_differ_only_where_what_is_reported_lies_beyond_it(
    told_bytes: int, *, is_known: bool
) -> None:
    document = _scenario()
    document["pods"][0]["spec"]["containers"][0]["resources"] = {"limits": {"ephemeral-storage": "100"}}
    document["steps"][0]["summary"]["pods"][0]["ephemeral-storage"] = {"usedBytes": told_bytes}
    lines = project(document)
    answer = _answer({"evicted": [{"annotations": {}}]}, [["shop/a"], ["shop/b"]], "shop/a")
    answer["steps"][0]["outcomes"][0]["reclaimed"] = ["images"]
    (difference,) = compare(document, lines, answer)
    known = recognised(Case(document=document, difference=difference), KNOWN)

    assert (known is not None and known.name == "storage-told") is is_known


def test_shrinking_leaves_only_what_the_difference_needs() -> None:
    def differing(documents: Sequence[Json]) -> list[bool]:
        return [any(pod["metadata"]["name"] == "b" for pod in document["pods"]) for document in documents]

    small = shrink(_scenario(), differing)

    assert [pod["metadata"]["name"] for pod in small["pods"]] == ["b"]
    assert "summary" not in small["steps"][0]
