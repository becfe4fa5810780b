"""What is known of the node: which pods may be chosen, and which evictions were under way."""

from __future__ import annotations

from pathlib import Path

from reactor.guard.node import Node, UnderWay
from reactor.model.pods import Pod
from reactor.model.thresholds import Observed
from reactor.policy.events import EvictionFailed, PodEmptied
from tests.unit.guard.test_kubernetes import POD, node_in

OTHER = Pod(name="other", namespace="shop", uid="o")


def known() -> Node:
    return Node(observed=Observed(stale_seconds=0.0))


def _chosen(node: Node, *, populated: bool) -> list[str]:
    return [pod.uid for pod in node.eligible((POD, OTHER), 0.0, lambda _: populated)]


def test_an_evicted_pod_may_be_chosen_again_once_a_process_lives_in_it() -> None:
    node = known()
    node.apply(PodEmptied(uid=POD.uid))
    assert ["o"] == _chosen(node, populated=False)
    assert ["u", "o"] == _chosen(node, populated=True)


def test_a_pod_that_is_kept_down_is_not_evicted_again_for_what_its_kubelet_starts_in_it() -> None:
    node = known()
    node.is_kept_down = {POD.uid}.__contains__
    node.apply(PodEmptied(uid=POD.uid))
    assert ["o"] == _chosen(node, populated=True)
    node.is_kept_down = set[str]().__contains__
    assert ["u", "o"] == _chosen(node, populated=True)


def test_pods_that_an_earlier_run_kept_down_are_not_chosen_by_this_one(tmp_path: Path) -> None:
    earlier = node_in(tmp_path)
    earlier._evicted._pods[POD.uid] = POD
    earlier._evicted._show()
    earlier.close()
    node = known()
    node_in(tmp_path).restore(node)
    assert ["o"] == _chosen(node, populated=True)


def test_emptied_pod_is_left_out_until_it_lives_again_or_is_forgotten(make_pod):
    living: set[str] = set()
    node = known()

    def populated(pod):
        return pod.uid in living

    pods = (make_pod("a"), make_pod("b"))
    assert node.eligible(pods, 0.0, populated) is pods

    node.apply(PodEmptied(uid="uid-a"))
    assert node.eligible(pods, 0.0, populated) == (pods[1],)

    living.add("uid-a")
    assert node.eligible(pods, 0.0, populated) == pods


def test_pod_that_could_not_be_ended_is_spared_for_a_while(make_pod):
    node = known()
    node.clock_seconds = lambda: 100.0
    pods = (make_pod("a"), make_pod("b"))
    node.apply(EvictionFailed(uid="uid-a", why="Operation not permitted"))

    spared, other = node.eligible(pods, 129.0, lambda _: True)
    assert spared.critical_because == "could not be ended: Operation not permitted"
    assert other is pods[1]
    assert node.eligible(pods, 130.0, lambda _: True) == pods


def test_what_was_noted_of_pods_that_are_gone_is_forgotten(make_pod):
    node = known()
    node.apply(PodEmptied(uid="uid-a"))
    node.apply(EvictionFailed(uid="uid-b", why="why"))
    node.set_pods(())

    pods = (make_pod("a"), make_pod("b"))
    assert node.eligible(pods, 1.0, lambda _: False) is pods


def test_evictions_long_past_are_forgotten() -> None:
    under_way = UnderWay()
    for number in range(1000):
        under_way.began(f"uid-{number}", number)
    assert not under_way.at("uid-0", 5)
    assert under_way.at("uid-999", 1000)
    under_way.ended("uid-never", 5)
    under_way.began("uid-999", 2000)
    assert under_way.at("uid-999", 1000)


def test_pod_of_a_cgroup_is_the_one_that_holds_it(make_pod) -> None:
    node = known()
    node.set_pods((make_pod("a"), make_pod("ab")))
    assert node.pod_in("/node/ab/app") is node.pods[1]
    assert node.pod_in("/node/b") is None
