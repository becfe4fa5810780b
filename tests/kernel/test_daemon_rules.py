"""The operator's rules with the whole daemon: cgroups with limits of their own, and memory ample for all."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from reactor.kernel.cgroup import CgroupVersion
from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon, after_passes
from tests.support.kubelet_tree import HOG, OTHER, add_system_pod, kubeconfig, pods_of_a_kubelet
from tests.support.processes import MIB, hold
from tests.support.rules import partition_rule
from tests.support.waiting import eventually

AMPLE = {"evictionHard": {"memory.available": "16Mi"}}  # of 256
LIMIT_MIB, FULL_MIB, SMALL_MIB = 64, 56, 20
SMALL_SYSTEM, FULL_SYSTEM = "0e4a3c0a-3333-4222-8333-0123456789ab", "0e4a3c0a-4444-4222-8333-0123456789ab"


def rule(node: VirtualNode, **others: Any) -> dict[str, Any]:
    """Return a rule for the node's pods that are nearly full."""
    return {
        "name": "full",
        "cgroups": [f"{node.cgroup}/*"],
        "when": [{"usage": "80%"}],
        "for": "1s",
        "action": "evict",
        "cooldown": "1h",
        **others,
    }


def start(node: VirtualNode, daemon: RunningDaemon, *rules: Mapping[str, Any], **section: Any) -> None:
    daemon.configure(AMPLE, {"rules": list(rules), "housekeepingInterval": "100ms", **section})
    daemon.start()


def firings(daemon: RunningDaemon) -> list[dict[str, Any]]:
    return [line for line in daemon.lines() if line["kind"] == "decision" and line["rule"] is not None]


def add_limited(node: VirtualNode, name: str) -> str:
    cgroup = node.add_pod(name)
    node.tree.set_memory_limit(cgroup, LIMIT_MIB * MIB)
    return cgroup


def test_a_pod_that_fills_its_own_limit_is_evicted_by_the_rule_and_its_neighbours_are_not(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    full, small, unlimited = add_limited(node, "full"), add_limited(node, "small"), node.add_pod("unlimited")
    survivors = [node.spawn(small, hold(SMALL_MIB)), node.spawn(unlimited, hold(2 * FULL_MIB))]
    start(node, daemon, rule(node))
    after_passes(daemon, 3)
    assert [] == firings(daemon)

    victim = node.spawn(full, hold(FULL_MIB))
    eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")

    assert -signal.SIGKILL == victim.wait(60)
    after_passes(daemon, 20)
    assert [None, None] == [process.poll() for process in survivors]
    assert ["full"] == daemon.evicted()
    decision = daemon.evictions()[0]
    eviction = decision["evictions"][0]
    assert ("rule", "killed", None) == (eviction["signal"], eviction["outcome"], decision["threshold"])
    assert (full, "full", "evict") == tuple(decision["rule"][key] for key in ("cgroup", "name", "action"))
    (used,) = decision["rule"]["inputs"]
    assert 80 <= used["lowest"] <= used["value"] <= used["highest"] <= 100
    assert decision["rule"]["held_seconds"] >= 1
    assert eviction["credited_bytes"] >= FULL_MIB * MIB
    (status,) = daemon.status()["rules"]
    assert (3, 0) == (status["matched"], status["held_in"])
    assert status["cooldown_left_seconds"] > 0


def test_the_worst_below_a_full_cgroup_goes_and_one_that_is_never_evicted_stays(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    parent = node.cgroup
    spared, worst, least = (node.add_pod(name) for name in ("spared.service", "worst", "least"))
    node.tree.set_memory_limit(parent, 256 * MIB)
    processes = [node.spawn(spared, hold(110)), node.spawn(least, hold(30))]
    worst_first = rule(node, cgroups=[parent], action="evictWorst", when=[{"usage": "75%"}])
    start(node, daemon, worst_first, pods={"parents": [parent], "never": ["spared.service"]})
    after_passes(daemon, 3)

    victim = node.spawn(worst, hold(60))
    eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")

    assert -signal.SIGKILL == victim.wait(60)
    after_passes(daemon, 20)
    assert [None, None] == [process.poll() for process in processes]
    ranking = daemon.evictions()[0]["ranking"]
    assert ["cgroup/worst", "cgroup/least", "cgroup/spared.service"] == [one["pod"] for one in ranking]


@pytest.mark.parametrize("how", ["report", "dry-run"])
def test_a_rule_that_only_reports_and_one_in_a_dry_run_evict_no_pod(
    node: VirtualNode, daemon: RunningDaemon, how: str
) -> None:
    process = node.spawn(add_limited(node, "full"), hold(FULL_MIB))
    written = rule(node, action="report") if how == "report" else rule(node)
    start(node, daemon, written, dryRun=how == "dry-run")

    eventually(lambda: bool(firings(daemon)), "a journal line of the rule")
    after_passes(daemon, 20)

    assert process.poll() is None
    (decision,) = firings(daemon)
    expected = [] if how == "report" else ["dry-run"]
    assert expected == [one["outcome"] for one in decision["evictions"]]
    explained = daemon.ask("status").stdout
    assert "rule full" in explained


def test_a_rule_says_so_where_no_pod_may_be_evicted_and_does_so_once_in_its_cool_down(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    process = node.spawn(add_limited(node, "full.service"), hold(FULL_MIB))
    never = {"parents": [node.cgroup], "never": ["full.service"]}
    start(node, daemon, rule(node, **{"for": "0s"}), pods=never)

    eventually(lambda: bool(firings(daemon)), "a journal line of the rule")
    after_passes(daemon, 20)

    assert process.poll() is None
    (decision,) = firings(daemon)
    assert "never is (pods.never: unit full.service)" in decision["deferred_because"]


def test_a_rule_reclaims_from_a_full_cgroup_and_ends_no_process(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    full = add_limited(node, "full")
    process = node.spawn(full, hold(FULL_MIB))
    start(node, daemon, rule(node, action="reclaim", amount="8Mi", timeout="20s"))

    eventually(lambda: bool(firings(daemon)), "a journal line of the rule")
    after_passes(daemon, 20)

    assert process.poll() is None
    (decision,) = firings(daemon)
    (reclaimed,) = decision["reclaimed"]
    assert ([], full, "8Mi") == (
        decision["evictions"],
        decision["rule"]["cgroup"],
        decision["rule"]["amount"],
    )
    assert "rule" == reclaimed["kind"]
    if node.tree.version is CgroupVersion.V1:
        assert "cgroup v1, which has no memory.reclaim" in reclaimed["problems"][0]
    else:
        assert ([], 8 * MIB) == (reclaimed["problems"], reclaimed["wanted"])
    assert "reclaimed " in daemon.ask("status").stdout


def start_on_a_kubelets_node(node: VirtualNode, daemon: RunningDaemon, directory: Path, hard: str) -> str:
    """Start with the documented rule for the system partition; return that partition's cgroup.

    The limit is set before: a daemon that has found none looks again after a minute.
    """
    partition = f"{node.cgroup}/kubepods/system"
    node.tree.set_memory_limit(partition, 2 * LIMIT_MIB * MIB)
    daemon.configure(
        {"evictionHard": {"memory.available": hard}},
        {
            "rules": [partition_rule(partition)],
            "kubernetes": {"nodeName": "a", "kubeconfig": kubeconfig(directory, "http://127.0.0.1:1")},
            "pods": {"parents": [f"{node.cgroup}/kubepods"]},
            "housekeepingInterval": "100ms",
        },
    )
    daemon.start()
    return partition


def test_a_full_system_partition_loses_its_own_largest_pod_and_no_larger_one_outside(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path
) -> None:
    outside = node.spawn(pods_of_a_kubelet(node)[OTHER], hold(2 * FULL_MIB))
    small, full = (add_system_pod(node, uid) for uid in (SMALL_SYSTEM, FULL_SYSTEM))
    partition = start_on_a_kubelets_node(node, daemon, tmp_path, "16Mi")
    bystander = node.spawn(small, hold(SMALL_MIB))
    after_passes(daemon, 20)
    assert [] == firings(daemon)

    victim = node.spawn(full, hold(90))
    eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")

    assert -signal.SIGKILL == victim.wait(60)
    after_passes(daemon, 20)
    assert [None, None] == [process.poll() for process in (outside, bystander)]
    (decision,) = daemon.evictions()
    assert ("system-partition", partition) == (decision["rule"]["name"], decision["rule"]["cgroup"])
    assert [FULL_SYSTEM, SMALL_SYSTEM] == [one["uid"] for one in decision["ranking"]]


def test_the_nodes_threshold_takes_a_smaller_pod_outside_and_none_of_the_system_partition(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path
) -> None:
    outside = pods_of_a_kubelet(node)
    full = add_system_pod(node, FULL_SYSTEM)
    start_on_a_kubelets_node(node, daemon, tmp_path, "100Mi")
    survivors = [node.spawn(full, hold(85)), node.spawn(outside[OTHER], hold(SMALL_MIB))]
    after_passes(daemon, 20)
    assert [] == daemon.evictions()

    victim = node.spawn(outside[HOG], hold(FULL_MIB + 15))
    eventually(lambda: bool(daemon.evictions()), "a journal line of the eviction")

    assert -signal.SIGKILL == victim.wait(60)
    after_passes(daemon, 20)
    assert [None, None] == [process.poll() for process in survivors]
    (decision,) = daemon.evictions()
    assert (None, HOG) == (decision["rule"], decision["evictions"][0]["uid"])
    assert [] == firings(daemon)
