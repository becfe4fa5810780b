"""The oracle of the survival test: who is first by the counters, and when that is not clear."""

from __future__ import annotations

from random import Random

import pytest

from tests.survival.oracle import MIB, DrawnPod, draw, first_of, innocents_among


def pod(name: str, request_mib: int = 0, priority: int = 0) -> DrawnPod:
    return DrawnPod(name=name, mib=50, request_mib=request_mib, priority=priority)


@pytest.mark.parametrize(
    ("pods", "used_mib", "first"),
    [
        ((pod("a"), pod("b")), (50, 60), "b"),
        ((pod("a"), pod("b")), (50, 52), None),  # too close to tell
        ((pod("within", 200), pod("over")), (150, 30), "over"),
        ((pod("vital", priority=1000), pod("other")), (150, 30), "other"),
        ((pod("vital", priority=1000), pod("within", 200)), (30, 150), "vital"),
        ((pod("a", 50), pod("b")), (51, 80), None),  # over its request, or within it
        ((pod("a", 100), pod("b", 20)), (130, 70), "b"),
    ],
)
def test_first_is_the_policys(
    pods: tuple[DrawnPod, ...], used_mib: tuple[int, ...], first: str | None
) -> None:
    used = {one.name: mib * MIB for one, mib in zip(pods, used_mib, strict=True)}
    assert first == first_of(pods, used)


def test_drawn_pods_hold_what_was_asked_for_and_it_is_clear_who_is_first() -> None:
    for seed in range(50):
        pods = draw(Random(seed), 170)
        assert sum(one.mib for one in pods) == 170
        assert first_of(pods, {one.name: one.mib * MIB for one in pods}) is not None


@pytest.mark.parametrize(("request_mib", "score"), [(0, 1000), (1, 997), (128, 500), (300, 3)])
def test_scores_are_the_kubelets(request_mib: int, score: int) -> None:
    assert score == pod("a", request_mib).kubelet_score(256)


@pytest.mark.parametrize(
    ("died", "innocents"),
    [
        ({"hog"}, set()),
        ({"small"}, {"small"}),
        ({"hog", "middle"}, set()),  # one after the other
        ({"hog", "small"}, {"small"}),
        ({"hog", "middle", "small"}, set()),
    ],
)
def test_innocent_is_who_died_while_another_was_first(died: set[str], innocents: set[str]) -> None:
    pods = (pod("hog"), pod("middle"), pod("small"))
    used = {"hog": 90 * MIB, "middle": 60 * MIB, "small": 30 * MIB}
    assert innocents == innocents_among(died, pods, used)


def test_nobody_is_called_innocent_where_it_is_not_clear_who_was_first() -> None:
    assert set() == innocents_among({"a"}, (pod("a"), pod("b")), {"a": 50 * MIB, "b": 52 * MIB})
