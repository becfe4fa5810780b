"""Which pods may be chosen after an eviction has emptied them."""

from __future__ import annotations

from pathlib import Path

from reactor.guard.candidates import Candidates
from reactor.model.pods import Pod
from tests.unit.guard.test_kubernetes import POD, node_in

OTHER = Pod(name="other", namespace="shop", uid="o")


def _chosen(candidates: Candidates, *, populated: bool) -> list[str]:
    return [pod.uid for pod in candidates.of((POD, OTHER), 0.0, lambda _: populated)]


def test_an_evicted_pod_may_be_chosen_again_once_a_process_lives_in_it() -> None:
    candidates = Candidates()
    candidates.ended(POD.uid)
    assert ["o"] == _chosen(candidates, populated=False)
    assert ["u", "o"] == _chosen(candidates, populated=True)


def test_a_pod_that_is_kept_down_is_not_evicted_again_for_what_its_kubelet_starts_in_it() -> None:
    candidates = Candidates()
    candidates.is_kept_down = {POD.uid}.__contains__
    candidates.ended(POD.uid)
    assert ["o"] == _chosen(candidates, populated=True)
    candidates.is_kept_down = set[str]().__contains__
    assert ["u", "o"] == _chosen(candidates, populated=True)


def test_pods_that_an_earlier_run_kept_down_are_not_chosen_by_this_one(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node._held_down._pods[POD.uid] = POD
    node._held_down._show()
    node.close()
    candidates = Candidates()
    node_in(tmp_path).spare_kept_down(candidates)
    assert ["o"] == _chosen(candidates, populated=True)


def test_emptied_pod_is_left_out_until_it_lives_again_or_is_forgotten(make_pod):
    living: set[str] = set()
    candidates = Candidates()

    def populated(pod):
        return pod.uid in living

    pods = (make_pod("a"), make_pod("b"))
    assert candidates.of(pods, 0.0, populated) is pods

    candidates.ended("uid-a")
    assert candidates.of(pods, 0.0, populated) == (pods[1],)

    living.add("uid-a")
    assert candidates.of(pods, 0.0, populated) == pods


def test_pod_that_could_not_be_ended_is_spared_for_a_while(make_pod):
    candidates = Candidates(spare_seconds=30)
    pods = (make_pod("a"), make_pod("b"))
    candidates.failed("uid-a", "Operation not permitted", 100.0)

    spared, other = candidates.of(pods, 129.0, lambda _: True)
    assert spared.critical_because == "could not be ended: Operation not permitted"
    assert other is pods[1]
    assert candidates.of(pods, 130.0, lambda _: True) == pods


def test_what_was_noted_of_pods_that_are_gone_is_forgotten(make_pod):
    candidates = Candidates()
    candidates.ended("uid-a")
    candidates.failed("uid-b", "why", 0.0)
    candidates.forget_absent(())

    pods = (make_pod("a"), make_pod("b"))
    assert candidates.of(pods, 1.0, lambda _: False) is pods
