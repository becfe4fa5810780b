"""The chart and a real Helm 4 on the cluster: installed, tested, upgraded and removed."""

from __future__ import annotations

import base64
import copy
import json
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import placement
import pytest
from api import Api, Object
from cluster import Cluster, Pods, is_running
from control_plane import free_ports
from deployed import IMAGE, NAMESPACE, collection, image_archive, remove_objects, service_of
from machine import wait_until
from reactor_daemon import HARD, Reactor

from tests.support.helm import CHART, render
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

# A test is up to seven commands of Helm's, each of which waits for itself.
pytestmark = pytest.mark.timeout(1800)

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
    wait_until(lambda: TAINT in node.taints(), "the new configuration is in force")
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
        wait_until(lambda: TAINT in node.taints(), "the pool's configuration is in force")
        told = helm("test", "reactor", "--namespace", NAMESPACE, "--timeout", "200s", **to_cluster)
        assert "Phase:          Succeeded" in told.stdout

        cluster.api.merge_patch(path, {"metadata": {"labels": {"pool": None}}})

        def daemons() -> list[str]:
            return [each["metadata"]["labels"].get("reactor/pool", "none") for each in pods_of(cluster)]

        wait_until(lambda: daemons() == ["none"], "the common DaemonSet's pod has taken over")
        wait_until(lambda: TAINT in node.taints(), "the common daemon has the taint set")
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


class MetricsProxy:
    """What the chart makes for `metrics.proxy`, on the cluster, with a stand-in for the program itself."""

    def __init__(self, cluster: Cluster, upstream: str, scrapers: list[Object]) -> None:
        self.cluster = cluster
        (self.port,) = free_ports(1)
        proxy = {"enabled": True, "port": self.port, "tlsSecret": "certificate", "scrapers": scrapers}
        metrics = {"proxy": proxy, "podMonitor": {"enabled": True}}
        documents = render({"metrics": metrics, "config": {"reactor": {"metrics": upstream}}})
        parts = ("reactor-metrics", "reactor-metrics-reader", "reactor-scraper")
        found = [each for each in documents if each["metadata"]["name"] in parts]
        (daemon_set,) = [each for each in found if each["kind"] == "DaemonSet"]
        self._objects = [self._certificate(), *(each for each in found if each is not daemon_set)]
        self._pod = self._pod_of(daemon_set)

    def start(self) -> None:
        """Create all of it, and wait until it serves."""
        for body in (*self._objects, self._pod):
            self.cluster.api.create(self._path(body), body)
        pod = f"{self._path(self._pod)}/{self._pod['metadata']['name']}"
        wait_until(lambda: is_running(self.cluster.api.get(pod)), "the proxy's pod runs")
        wait_until(lambda: self.status(None) == 401, "the proxy serves")

    def remove(self) -> None:
        """Delete all of it."""
        for body in (self._pod, *self._objects):
            self.cluster.api.delete(f"{self._path(body)}/{body['metadata']['name']}", 0)

    def status(self, token: str | None, path: str = "/metrics") -> int | None:
        """Return how a request with this token is answered; None if no proxy does."""
        try:
            return self.get(token, path)[0]
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return None

    def get(self, token: str | None, path: str = "/metrics") -> tuple[int, str]:
        """Return an answer. Raises HTTPError for a refusal."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"https://127.0.0.1:{self.port}{path}", headers=headers)
        context = ssl.create_default_context(cafile=str(self.cluster.plane.authority))
        with urllib.request.urlopen(request, context=context, timeout=30) as answer:  # noqa: S310 - https
            return answer.status, answer.read().decode()

    def _path(self, body: Object) -> str:
        if body["kind"] == "Pod":
            return f"/api/v1/namespaces/{NAMESPACE}/pods"
        return collection(body)

    def _certificate(self) -> Object:
        directory = self.cluster.plane.directory
        files = {"tls.crt": directory / "server.crt", "tls.key": directory / "server.key"}
        return {
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": "certificate", "namespace": NAMESPACE},
            "data": {name: base64.b64encode(path.read_bytes()).decode() for name, path in files.items()},
        }

    def _pod_of(self, daemon_set: Object) -> Object:
        template = copy.deepcopy(daemon_set["spec"]["template"])
        (container,) = template["spec"]["containers"]
        source = (Path(__file__).parent / "metrics_proxy.py").read_text()
        container |= {
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "command": ["/usr/bin/python3", "-I", "-c", source],
            "env": service_of(self.cluster),
        }
        template["spec"]["nodeName"] = self.cluster.node.name
        metadata = {**template["metadata"], "name": "metrics-proxy", "namespace": NAMESPACE}
        return {"kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def token_of(cluster: Cluster, namespace: str, account: str) -> str:
    """Return a token of an account, as a pod of it has one."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    return str(cluster.api.create(path, {"kind": "TokenRequest", "spec": {}})["status"]["token"])


def may(cluster: Cluster, token: str, **attributes: Any) -> bool:
    """Return what `kubectl auth can-i` says to the owner of a token."""
    asking = Api(cluster.plane.url, token, str(cluster.plane.authority))
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    return bool(asking.create(path, {"spec": attributes})["status"]["allowed"])


def test_the_metrics_are_for_the_charts_scrapers_by_tls_and_for_nobody_else(
    controlled: Cluster, reactor: Reactor, pods: Pods
) -> None:
    cluster = controlled
    (port,) = free_ports(1)
    upstream = f"127.0.0.1:{port}"
    reactor.configure({"evictionHard": HARD}, {"metrics": upstream})
    reactor.start()
    for account in ("prometheus", "other"):
        path = f"/api/v1/namespaces/{pods.namespace}/serviceaccounts"
        cluster.api.create(path, {"metadata": {"name": account}})
    scraper = {"kind": "ServiceAccount", "name": "prometheus", "namespace": pods.namespace}
    proxy = MetricsProxy(cluster, upstream, [scraper])
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/reactor-scraper"
    try:
        proxy.start()
        wait_until(lambda: "token" in cluster.api.get(secret).get("data", {}), "the scraper has a token")
        own = base64.b64decode(cluster.api.get(secret)["data"]["token"]).decode()
        named = token_of(cluster, pods.namespace, "prometheus")
        other = token_of(cluster, pods.namespace, "other")
        asking = token_of(cluster, NAMESPACE, "reactor-metrics")

        for token in (own, named):
            status, text = proxy.get(token)
            assert status == 200
            assert "\nreactor_build_info{" in text
            assert proxy.status(token, "/healthz") == 404
            assert may(cluster, token, nonResourceAttributes={"path": "/metrics", "verb": "get"})
            assert not may(cluster, token, nonResourceAttributes={"path": "/logs", "verb": "get"})
        refused = {"a stranger": other, "the proxy itself": asking}
        assert {who: proxy.status(token) for who, token in refused.items()} == dict.fromkeys(refused, 403)
        assert [proxy.status(token) for token in (None, "wrong", named[:-2])] == [401, 401, 401]

        for resource in ("pods", "nodes", "secrets", "configmaps", "serviceaccounts"):
            for verb in ("get", "list", "create", "delete"):
                attributes = {"resource": resource, "verb": verb, "namespace": NAMESPACE}
                assert [may(cluster, one, resourceAttributes=attributes) for one in (own, asking)] == [
                    False
                ] * 2
        asked = cluster.plane.audited(f"system:serviceaccount:{NAMESPACE}:reactor-metrics")
        made = {(one["verb"], one["objectRef"]["resource"], one["responseStatus"]["code"]) for one in asked}
        assert made - {("create", "selfsubjectaccessreviews", 201)} == {
            ("create", "tokenreviews", 201),
            ("create", "subjectaccessreviews", 201),
        }
    finally:
        proxy.remove()
