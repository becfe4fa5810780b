"""A Kubernetes node whose steward dies or never comes: the right pod is evicted, the cluster hears it."""

from __future__ import annotations

import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from reactor.testbed.virtual_node import VirtualNode
from tests.hostile.test_annotations import NODE, api_server, document, start
from tests.hostile.test_steward import killed_every_200_ms
from tests.support.daemon import RunningDaemon, after_housekeeping, after_passes, without_steward
from tests.support.kubelet_tree import HOG, OTHER, add_pod, kubeconfig, pods_of_a_kubelet
from tests.support.processes import descendants_called, hold
from tests.support.trials import Trial
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.suite("crash-only")

COMES = "0e4a3c0a-3333-4222-8333-0123456789ab"
_PODS = [document("hog", HOG), document("critical", OTHER, priority=2_000_001_000)]


def _configured(daemon: RunningDaemon, node: VirtualNode, directory: Path, url: str) -> None:
    daemon.configure(
        {"evictionHard": {"memory.available": "96Mi"}},
        {
            "kubernetes": {"nodeName": NODE, "kubeconfig": kubeconfig(directory, url), "role": "sole"},
            "pods": {"parents": [f"{node.cgroup}/kubepods"]},
        },
    )


def test_a_guard_without_a_steward_from_the_start_evicts_by_what_the_cgroups_show(
    node: VirtualNode,
    daemon: RunningDaemon,
    trial: Trial,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inside = pods_of_a_kubelet(node)
    smaller = node.spawn(inside[OTHER], hold(60))
    trial.right, trial.needed = {f"pod{HOG}"}, 0  # no journal tells of it
    trial.must_live([smaller])
    without_steward(tmp_path, monkeypatch)
    _configured(daemon, node, tmp_path, "http://127.0.0.1:1")
    daemon.start()
    hog = node.spawn(inside[HOG], hold(470))
    assert -signal.SIGKILL == hog.wait(10 * PATIENCE)
    assert smaller.poll() is None
    assert 0 == daemon.stop()


def test_a_guard_that_restarts_without_a_steward_knows_the_specs_that_it_was_told_before(
    node: VirtualNode,
    daemon: RunningDaemon,
    trial: Trial,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The critical pod is the larger one, and without its spec it is a pod like any other."""
    inside = pods_of_a_kubelet(node)
    critical = node.spawn(inside[OTHER], hold(260))
    trial.right, trial.needed = {"hog"}, 0
    trial.must_live([critical])
    with api_server(_PODS) as url:
        start(daemon, node, kubeconfig(tmp_path, url))
        eventually(lambda: "specs" not in daemon.status()["problems"], "the specs are told")
        assert 0 == daemon.stop()
    without_steward(tmp_path, monkeypatch)
    daemon.start()
    hog = node.spawn(inside[HOG], hold(170))
    assert -signal.SIGKILL == hog.wait(10 * PATIENCE)
    assert critical.poll() is None
    assert 0 == daemon.stop()


def test_the_api_server_hears_of_an_eviction_during_which_stewards_were_killed(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, tmp_path: Path
) -> None:
    inside = pods_of_a_kubelet(node)
    critical = node.spawn(inside[OTHER], hold(260))
    trial.right.add("hog")
    trial.must_live([critical])
    written: list[Any] = []
    with api_server(_PODS, on_write=written.append) as url:
        start(daemon, node, kubeconfig(tmp_path, url))
        eventually(lambda: "specs" not in daemon.status()["problems"], "the specs are told")
        with killed_every_200_ms(daemon) as killed:
            hog = node.spawn(inside[HOG], hold(170))
            assert -signal.SIGKILL == hog.wait(10 * PATIENCE)
            eventually(lambda: len(killed) >= 3, "stewards were killed after it, too")
        eventually(lambda: {"Evicted"} <= _reasons(written), "the event", 60)
        eventually(lambda: any(path.endswith("/hog/status") for path, _ in written), "the pod's status", 60)
        eventually(lambda: daemon.evicted() == ["hog"], "the eviction in the journal")
        assert critical.poll() is None
        assert 0 == daemon.status()["kubernetes"]["lost_reports"]
        assert 0 == daemon.stop()
    names = [body["metadata"]["name"] for path, body in written if path.endswith("/events")]
    evicted = [name for name in names if name.startswith("hog.")]
    assert len(set(evicted)) == 1  # of one name, which the server takes once


def _reasons(written: list[Any]) -> set[str]:
    return {body["reason"] for path, body in written if path.endswith("/events")}


def test_what_a_kubelet_starts_again_in_an_evicted_pod_is_killed_without_a_steward_and_after_a_restart(
    node: VirtualNode,
    daemon: RunningDaemon,
    trial: Trial,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inside = pods_of_a_kubelet(node)
    trial.right, trial.needed = {f"pod{HOG}"}, 0
    without_steward(tmp_path, monkeypatch)
    _configured(daemon, node, tmp_path, "http://127.0.0.1:1")
    daemon.start()
    hog = node.spawn(inside[HOG], hold(470))
    assert -signal.SIGKILL == hog.wait(10 * PATIENCE)
    for _ in range(2):
        again = node.spawn(inside[HOG], hold(1))
        assert -signal.SIGKILL == again.wait(10 * PATIENCE)
        daemon.kill()
        daemon.start()
    innocent = node.spawn(inside[OTHER], hold(1))
    again = node.spawn(inside[HOG], hold(1))
    assert -signal.SIGKILL == again.wait(10 * PATIENCE)
    assert innocent.poll() is None
    assert 0 == daemon.stop()


@pytest.mark.parametrize("descriptors", [20, 25, 30, 40])
def test_a_guard_whose_descriptors_are_taken_away_evicts_the_hog_or_nobody(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, tmp_path: Path, descriptors: int
) -> None:
    """By `prlimit --nofile`, below what it has open; the pod of the hog comes then.

    If it evicts nobody, the kernel's OOM killer takes the hog.
    """
    innocents = [node.spawn(cgroup, hold(60)) for cgroup in pods_of_a_kubelet(node).values()]
    trial.right.add(f"pod{COMES}")
    trial.must_live(innocents)
    with api_server([document("innocent", HOG), document("another", OTHER)]) as url:
        start(daemon, node, kubeconfig(tmp_path, url))
        after_housekeeping(daemon, 1)
        assert daemon.process is not None
        resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (descriptors, descriptors))
        hog = node.spawn(add_pod(node, COMES), hold(440))
        assert -signal.SIGKILL == hog.wait(30 * PATIENCE)
        assert [None, None] == [innocent.poll() for innocent in innocents]


def test_the_guard_of_a_kubernetes_node_is_small(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, tmp_path: Path
) -> None:
    """What talks to the cluster takes its memory in the steward."""
    pods_of_a_kubelet(node)
    trial.needed = 0
    with api_server(_PODS) as url:
        start(daemon, node, kubeconfig(tmp_path, url))
        after_passes(daemon, 5)
        assert daemon.process is not None
        (steward,) = descendants_called(daemon.process.pid, "reactor.steward")
        steward_kib = int(Path(f"/proc/{steward}/status").read_text().split("VmRSS:")[1].split()[0])
        print(f"RSS: guard {daemon.rss_mib():.1f} MiB, steward {steward_kib / 1024:.1f} MiB")
        assert daemon.rss_mib() + 5 < steward_kib / 1024
        assert 0 == daemon.stop()
