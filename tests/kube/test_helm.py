"""The chart and a real Helm 4 on the cluster: installed, tested, upgraded and removed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import placement
import pytest
from api import Object
from cluster import Cluster, Pods
from deployed import NAMESPACE, image_archive, remove_objects
from machine import wait_until

from tests.support.helm import CHART
from tests.support.helm import helm as helm_program

TAINT = "node.kubernetes.io/memory-pressure"
CONDITION = "reactor/MemoryPressure"
# Without those a DaemonSet, a Job, an account's token, a quota and what is deleted with its owner are no more
# than objects.
CONTROLLERS = (
    "daemonset",
    "job",
    "garbagecollector",
    "serviceaccount",
    "serviceaccount-token",
    "root-ca-cert-publisher",
    "resourcequota",
)
# Met by any pod, for longer than the test takes.
SOFT = {
    "evictionSoft": {"memory.available": "600Mi"},
    "evictionSoftGracePeriod": {"memory.available": "1h"},
}

Helm = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    """Return what runs Helm, with nothing of this user's."""
    program = helm_program()

    def run(
        *words: str | Path, values: dict[str, Any] | None = None, fails: bool = False, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "values.json"
        path.write_text(json.dumps(values or {}))
        given = ["--values", path] if values is not None else []
        done = subprocess.run(
            [program, *words, *given],
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", **environment},
        )
        assert bool(done.returncode) == fails, f"{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture
def controlled(cluster: Cluster) -> Iterator[Cluster]:
    """Return the cluster with the controllers that a release needs."""
    if not cluster.plane.has_controllers:
        pytest.skip("no kube-controller-manager; tests/kube/build-kubernetes.sh builds it")
    cluster.node.import_image(image_archive())
    cluster.plane.gives_tokens = True
    cluster.plane.restart_server()
    program = cluster.plane.start_controllers(*CONTROLLERS)
    cluster.api.create_unless_there("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
    wait_until(lambda: (cluster.api.find(account) or {}).get("secrets"), "the account has a token")
    yield cluster
    program.stop()
    cluster.plane.gives_tokens = False
    cluster.plane.restart_server()
    cluster.node.calm()


def values_with(cluster: Cluster, **changes: Any) -> dict[str, Any]:
    """Return values for the virtual node."""
    kubernetes = {"role": "alongside"}
    section = {"nodeCgroup": cluster.node.cgroup, "kubernetes": kubernetes}
    # Others of Debian's programs may have the port; null takes the chart's own thresholds of disks away.
    hard = {"memory.available": "64Mi", "nodefs.available": None, "nodefs.inodesFree": None}
    hard |= {"imagefs.available": None, "imagefs.inodesFree": None}
    return {"dryRun": False, "config": {"evictionHard": hard, "reactor": section, **changes}}


def pods_of(cluster: Cluster) -> list[Object]:
    """Return the release's pods that are not on their way out."""
    items: list[Object] = cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    return [each for each in items if "deletionTimestamp" not in each["metadata"]]


def test_a_release_is_installed_upgraded_and_removed_and_nothing_of_it_is_left_on_the_node(
    helm: Helm, controlled: Cluster, pods: Pods, tmp_path: Path
) -> None:
    cluster, node = controlled, controlled.node
    release = ["reactor", CHART, "--namespace", NAMESPACE, "--wait", "--timeout", "200s"]
    release += ["--post-renderer", placement.NAME]
    to_cluster = {
        "KUBECONFIG": str(cluster.plane.kubeconfig("reactor-test-admin")),
        "HELM_PLUGINS": str(placement.make_plugin(tmp_path / "plugins", cluster)),
    }

    remove_objects(cluster)  # Helm takes over nothing that it did not make, such as other tests' roles
    helm("install", *release, values=values_with(cluster), **to_cluster)
    (first,) = pods_of(cluster)
    wait_until(lambda: node.conditions().get(CONDITION) == "False", "the node has its condition")

    test = ["reactor", "--namespace", NAMESPACE, "--timeout", "200s"]
    assert "Phase:          Succeeded" in helm("test", *test, **to_cluster).stdout

    default = f"/api/v1/namespaces/{pods.namespace}/serviceaccounts/default"
    wait_until(lambda: (cluster.api.find(default) or {}).get("secrets"), "the account has a token")
    pods.run("holder", ["hold", "256"])
    assert node.taints() == set()
    helm("upgrade", *release, values=values_with(cluster, **SOFT), **to_cluster)
    wait_until(lambda: TAINT in node.taints(), "the new configuration is in force", 60)
    (second,) = pods_of(cluster)
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    assert node.conditions()[CONDITION] == "True"

    # Whoever upgrades without the value is told that nobody evicts from now on.
    told = helm("upgrade", *release, values={**values_with(cluster), "dryRun": True}, **to_cluster)
    assert "!!! reactor evicted until now, and from this upgrade on it is a dry run" in told.stdout
    told = helm("upgrade", *release, values={**values_with(cluster), "dryRun": True}, **to_cluster)
    assert "DRY RUN: NO POD IS EVICTED" in told.stdout
    assert "evicted until now" not in told.stdout

    told = helm("uninstall", "reactor", "--namespace", NAMESPACE, "--timeout", "200s", **to_cluster)
    assert 'release "reactor" uninstalled' in told.stdout
    assert node.taints() == set()
    assert [each for each in node.conditions() if each.startswith("reactor/")] == []
    assert "reactor/taints" not in node.state()["metadata"].get("annotations", {})
    listed = helm("list", "--namespace", NAMESPACE, "--output", "json", **to_cluster)
    assert json.loads(listed.stdout) == []
    assert left_by_the_release(cluster) == []


def test_a_node_has_the_daemon_of_its_pool_and_the_common_one_once_it_has_left_the_pool(
    helm: Helm, controlled: Cluster, pods: Pods, tmp_path: Path
) -> None:
    """Under pressure: the common daemon finds the taint in the state on the node, and keeps it."""
    cluster, node = controlled, controlled.node
    to_cluster = {
        "KUBECONFIG": str(cluster.plane.kubeconfig("reactor-test-admin")),
        "HELM_PLUGINS": str(placement.make_plugin(tmp_path / "plugins", cluster)),
    }
    release = ["reactor", CHART, "--namespace", NAMESPACE, "--wait", "--timeout", "200s"]
    path = f"/api/v1/nodes/{node.name}"
    values = values_with(cluster, **SOFT)
    values["pools"] = [
        {
            "name": "first",
            "nodeSelector": {"pool": "first"},
            "config": {"reactor": {"housekeepingInterval": "2s"}},
        },
        {"name": "second", "nodeSelector": {"pool": "first", "kubernetes.io/arch": "amd64"}},
    ]
    cluster.api.merge_patch(path, {"metadata": {"labels": {"pool": "first"}}})
    try:
        remove_objects(cluster)
        default = f"/api/v1/namespaces/{pods.namespace}/serviceaccounts/default"
        wait_until(lambda: (cluster.api.find(default) or {}).get("secrets"), "the account has a token")
        pods.run("holder", ["hold", "256"])
        helm("install", *release, "--post-renderer", placement.NAME, values=values, **to_cluster)
        (pod,) = pods_of(cluster)
        assert pod["metadata"]["labels"]["reactor/pool"] == "first"
        wait_until(lambda: TAINT in node.taints(), "the pool's configuration is in force", 60)
        told = helm("test", "reactor", "--namespace", NAMESPACE, "--timeout", "200s", **to_cluster)
        assert "Phase:          Succeeded" in told.stdout

        cluster.api.merge_patch(path, {"metadata": {"labels": {"pool": None}}})

        def daemons() -> list[str]:
            return [each["metadata"]["labels"].get("reactor/pool", "none") for each in pods_of(cluster)]

        wait_until(lambda: daemons() == ["none"], "the common DaemonSet's pod has taken over", 90)
        wait_until(lambda: TAINT in node.taints(), "the common daemon has the taint set", 60)
    finally:
        cluster.api.merge_patch(path, {"metadata": {"labels": {"pool": None}}})
        helm("uninstall", "reactor", "--namespace", NAMESPACE, "--timeout", "200s", **to_cluster)
    assert node.taints() == set()
    assert left_by_the_release(cluster) == []


def left_by_the_release(cluster: Cluster) -> list[str]:
    """Return the kinds and names of objects that have the release's label."""
    found = []
    for group, kinds in {
        "/api/v1": ["serviceaccounts", "configmaps", "resourcequotas"],
        "/apis/apps/v1": ["daemonsets"],
        "/apis/batch/v1": ["jobs"],
        "/apis/rbac.authorization.k8s.io/v1": [
            "clusterroles",
            "clusterrolebindings",
            "roles",
            "rolebindings",
        ],
    }.items():
        for kind in kinds:
            items = cluster.api.get(f"{group}/{kind}", labelSelector="app.kubernetes.io/instance=reactor")[
                "items"
            ]
            found += [f"{kind} {each['metadata']['name']}" for each in items]
    return found
