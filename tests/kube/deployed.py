"""The reactor as it is deployed: deploy/image and the manifests of deploy/kustomize, on the cluster.

There is no DaemonSet controller here: what it would make of the template is made by hand, one pod a node.
"""

from __future__ import annotations

import copy
import hashlib
import io
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from api import Object
from cluster import CACHE, Cluster
from machine import LostError, wait_until
from ruamel.yaml import YAML

CHECKOUT: Final = Path(__file__).resolve().parents[2]
BASE: Final = CHECKOUT / "deploy/kustomize/base"
IMAGE: Final = "reactor.example/reactor:dev"
NAMESPACE: Final = "reactor-system"
_COLLECTIONS: Final = {
    "Namespace": "/api/v1/namespaces",
    "ResourceQuota": "/api/v1/namespaces/{namespace}/resourcequotas",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "Secret": "/api/v1/namespaces/{namespace}/secrets",
    "DaemonSet": "/apis/apps/v1/namespaces/{namespace}/daemonsets",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "Job": "/apis/batch/v1/namespaces/{namespace}/jobs",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}
# Their numbers in capabilities(7), of those that the manifests name.
_CAPABILITIES: Final = {
    "DAC_OVERRIDE": 1,
    "KILL": 5,
    "NET_ADMIN": 12,
    "IPC_LOCK": 14,
    "SYS_PTRACE": 19,
    "SYS_NICE": 23,
    "SYS_RESOURCE": 24,
    "SYSLOG": 34,
    "PERFMON": 38,
    "BPF": 39,
}


def image_archive() -> Path:
    """Return the image as an archive, built once for each state of the checkout. Raises LostError."""
    digest = hashlib.sha256()
    for path in sorted(_ingredients()):
        digest.update(str(path).encode() + b"\0" + path.read_bytes())
    CACHE.mkdir(parents=True, exist_ok=True)
    archive = CACHE / f"reactor-{digest.hexdigest()[:12]}.tar"
    if not archive.exists():
        for old in CACHE.glob("reactor-*.tar"):
            old.unlink()
        command = [sys.executable, CHECKOUT / "deploy/image/build.py", "--archive", archive, "--tag", IMAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
        if done.returncode:
            raise LostError(f"the image can't be built: {done.stderr}")
    return archive


def manifests(directory: Path = BASE) -> list[Object]:
    """Return the objects that `kubectl apply -k` would create."""
    done = subprocess.run(
        ["kubectl", "kustomize", directory], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode:
        raise LostError(f"kubectl kustomize: {done.stderr}")
    return [dict(document) for document in YAML(typ="safe").load_all(done.stdout)]


def collection(body: Mapping[str, Any]) -> str:
    """Return the path of the collection to which an object belongs."""
    return _COLLECTIONS[body["kind"]].format(namespace=body["metadata"].get("namespace", ""))


class Deployment:
    """The manifests on the cluster, the DaemonSet's template among them; `pod` makes pods of it."""

    def __init__(self, cluster: Cluster, configuration: Mapping[str, Any]) -> None:
        self.cluster = cluster
        self.pods_path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        self._objects = {body["kind"]: body for body in manifests()}
        self._uids: dict[str, str] = {}  # of the pods made last, by their names
        self._configure(configuration)

    def apply(self) -> None:
        """Create everything but the DaemonSet, of which the server is only asked whether it is valid."""
        for kind, body in self._objects.items():
            if kind == "DaemonSet":
                continue
            self.cluster.api.create_unless_there(collection(body), body)
        self._publish_authority()
        self.cluster.node.import_image(image_archive())

    def write_configuration(self, change: Callable[[str], str] = lambda text: text) -> None:
        """Have the pods that are made from now on read the configuration as `change` makes it."""
        body = self._objects["ConfigMap"]
        text = change(body["data"]["config.yaml"])
        path = f"{collection(body)}/{body['metadata']['name']}"
        self.cluster.api.merge_patch(path, {"data": {"config.yaml": text}})

    def create_pod(self, name: str) -> None:
        """Create a pod of the DaemonSet's template on the node."""
        template = copy.deepcopy(self._objects["DaemonSet"]["spec"]["template"])
        spec = template["spec"]
        spec["nodeName"] = self.cluster.node.name
        (container,) = spec["containers"]
        container["env"] += service_of(self.cluster)
        # What this machine itself is not allowed it can't give; the reactor reports it and goes on.
        granted = container["securityContext"]["capabilities"]
        granted["add"] = [name for name in granted["add"] if have_capability(name)]
        metadata = {**template["metadata"], "name": name, "namespace": NAMESPACE}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        self._uids[name] = self.cluster.api.create(self.pods_path, body)["metadata"]["uid"]

    def wait_ready(self, name: str) -> None:
        """Wait until the pod is ready. Raises TimeoutError with its log."""
        try:
            wait_until(lambda: self.is_ready(name), f"{name} is ready")
        except TimeoutError as error:
            status = self.cluster.api.get(f"{self.pods_path}/{name}")["status"]
            raise TimeoutError(f"{error}: {status}; its log:\n{self.log(name)}") from None

    def is_ready(self, name: str) -> bool:
        """Tell whether the pod's condition Ready holds."""
        status = self.cluster.api.get(f"{self.pods_path}/{name}")["status"]
        conditions = {each["type"]: each["status"] for each in status.get("conditions", [])}
        return conditions.get("Ready") == "True"

    def delete_pod(self, name: str, grace_seconds: int | None = None) -> None:
        """Delete the pod as a controller does, which does not wait for it: its daemon ends first."""
        self.cluster.api.delete(f"{self.pods_path}/{name}", grace_seconds)

    def wait_gone(self, name: str) -> None:
        """Wait until the kubelet has removed all of a deleted pod, its object last."""
        wait_until(lambda: self.cluster.api.find(f"{self.pods_path}/{name}") is None, f"{name} is gone")

    def log(self, name: str) -> str:
        """Return what the pod's container has written."""
        return "\n".join(path.read_text() for path in self.log_paths(name))

    def log_paths(self, name: str) -> list[Path]:
        """Return the files into which the pod's container writes, one for each start."""
        logs = self.cluster.machine.path("/var/log/pods/x").parent
        return sorted(logs.glob(f"{NAMESPACE}_{name}_{self._uids[name]}/reactor/*.log"))

    def exec(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the pod's container as `kubectl exec` does."""
        status = self.cluster.api.get(f"{self.pods_path}/{name}")["status"]
        container = status["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        done: subprocess.CompletedProcess[str] = self.cluster.node.ctr(
            "tasks", "exec", "--exec-id", f"test-{hash(words) & 0xFFFF}", container, *words
        )
        return done

    def remove(self) -> None:
        """Delete the pods and the objects."""
        for pod in self.cluster.api.get(self.pods_path)["items"]:
            self.delete_pod(pod["metadata"]["name"], grace_seconds=0)
            self.wait_gone(pod["metadata"]["name"])
        remove_objects(self.cluster)

    def validate_daemon_set(self) -> Object:
        """Return the DaemonSet as the server would take it, nothing being kept."""
        body = copy.deepcopy(self._objects["DaemonSet"])
        # A server older than 1.22 knows no maxSurge, without which maxUnavailable can't be 0.
        body["spec"]["updateStrategy"]["rollingUpdate"] = {"maxUnavailable": 1}
        return self.cluster.api.create(f"{collection(body)}?dryRun=All", body)

    def _configure(self, configuration: Mapping[str, Any]) -> None:
        body = self._objects["ConfigMap"]
        yaml = YAML()
        document = yaml.load(body["data"]["config.yaml"])
        section = {**document["reactor"], "dryRun": False, **configuration.get("reactor", {})}
        out = io.StringIO()
        yaml.dump({**document, **configuration, "reactor": section}, out)
        body["data"]["config.yaml"] = out.getvalue()

    def _publish_authority(self) -> None:
        """Create the ConfigMap that a controller keeps in each namespace."""
        body = {
            "kind": "ConfigMap",
            "metadata": {"name": "kube-root-ca.crt", "namespace": NAMESPACE},
            "data": {"ca.crt": self.cluster.plane.authority.read_text()},
        }
        self.cluster.api.create_unless_there(collection(body), body)


def service_of(cluster: Cluster) -> list[Object]:
    """Return where a pod finds the server: kube-proxy would forward it; here the service has no way there."""
    return [
        {"name": "KUBERNETES_SERVICE_HOST", "value": "127.0.0.1"},
        {"name": "KUBERNETES_SERVICE_PORT", "value": cluster.plane.url.rpartition(":")[2]},
    ]


def remove_objects(cluster: Cluster) -> None:
    """Delete what there is of the manifests' objects; the namespace stays, since no controller empties it."""
    for body in manifests():
        if body["kind"] != "Namespace":
            cluster.api.delete(f"{collection(body)}/{body['metadata']['name']}")


def have_capability(name: str) -> bool:
    effective = Path("/proc/self/status").read_text().split("CapEff:")[1].split()[0]
    return bool(int(effective, 16) >> _CAPABILITIES[name] & 1)


def _ingredients() -> Iterator[Path]:
    yield from (CHECKOUT / name for name in ("pyproject.toml", "constraints.txt"))
    yield from (CHECKOUT / "deploy/image").glob("*.py")
    for pattern in ("**/*.py", "**/*.c", "**/*.bpf.o"):
        yield from (CHECKOUT / "reactor").glob(pattern)
