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
