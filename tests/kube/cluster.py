"""One cluster of one node, and the pods that a test puts on it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import cgroups
import images
from api import Api, Object
from control_plane import ControlPlane
from machine import HANG_SECONDS, LostError, Machine, wait_until
from node import NODE_BYTES, PODS_BYTES, Node

_HERE: Final = Path(__file__).resolve().parent
REACTOR_USER: Final = "reactor-test-reactor"
CACHE: Final = Path(os.environ.get("REACTOR_KUBE_CACHE") or _HERE.parents[1] / ".cache" / "kube").resolve()
LOGS: Final = CACHE / "logs"


def programs() -> Path:
    """Return the directory of kube-apiserver and kubelet. Raises LostError where they aren't built."""
    done = subprocess.run(
        [_HERE / "build-kubernetes.sh"], stdout=subprocess.PIPE, text=True, check=False, timeout=3600
    )
    if done.returncode:
        raise LostError("kube-apiserver and kubelet could not be built; see above")
    return Path(done.stdout.strip())


class Cluster:
    """Everything, as a context manager. Raises LostError where it doesn't come up, or not all of it goes.

    `api` is the administrator's; `node.cgroup` is the virtual node's cgroup, its pods live below
    `node.cgroup`/kubepods; `reactor_kubeconfig()` is a user in no group, whose rules a test binds itself.
    """

    def __init__(
        self, logs: Path = LOGS, *, node_bytes: int = NODE_BYTES, pods_bytes: int = PODS_BYTES
    ) -> None:
        self.machine = Machine(logs)
        self._bytes = {"node_bytes": node_bytes, "pods_bytes": pods_bytes}

    def __enter__(self) -> Self:
        programs_directory = programs()
        self.machine.__enter__()
        try:
            name = self.machine.state.name.replace("_", "-")
            users = [
                (f"system:node:{name}", ["system:nodes"]),
                (REACTOR_USER, []),
            ]
            self.plane = ControlPlane(self.machine, programs_directory, users)
            self.plane.start()
            self.node = Node(self.machine, self.plane, programs_directory, **self._bytes)
            self.node.start()
        except BaseException:
            self.machine.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.machine.close()

    @property
    def api(self) -> Api:
        """Return requests as the cluster's administrator."""
        return self.plane.api

    def reactor_kubeconfig(self) -> Path:
        """Return a kubeconfig of the user REACTOR_USER."""
        return self.plane.kubeconfig(REACTOR_USER)

    @contextmanager
    def without(self, *, server: bool = False, runtime: bool = False) -> Iterator[None]:
        """Have the API server or the runtime (or both) gone for as long as the context lasts."""
        try:
            if server:
                self.plane.stop_server()
            if runtime:
                self.node.stop_containerd()
            yield
        finally:
            self.come_back()

    def come_back(self) -> None:
        """Start the API server and the runtime where a test has left them stopped."""
        if self.node.containerd is not None and not self.node.containerd.is_alive():
            self.node.start_containerd()
        if self.plane.server is not None and not self.plane.server.is_alive():
            self.plane.start_server()

    def lost(self) -> str | None:
        """Return which of the programs has ended, None while all of them run."""
        programs = (self.plane.etcd, self.plane.server, self.node.containerd, self.node.kubelet)
        for program in programs:
            if program is not None and not program.is_alive():
                return f"{program.name} ended with {program.process.returncode}: see {program.log_path}"
        return None


class Pods:
    """The pods of one namespace, which is a test's own."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    def run(self, name: str, command: list[str], **more: Any) -> Object:
        """Create a pod as `pod` describes it, wait until it runs, and return it."""
        self.create(name, command, **more)
        return self.wait(name, is_running, "runs")

    def create(
        self,
        name: str,
        command: list[str],
        *,
        requests: Mapping[str, str] | None = None,
        limits: Mapping[str, str] | None = None,
        priority_class: str | None = None,
        spec: Mapping[str, Any] | None = None,
        container: Mapping[str, Any] | None = None,
    ) -> Object:
        """Create a pod of one container on the node, its `command` the arguments of images/load.c."""
        resources = {"requests": dict(requests or {}), "limits": dict(limits or {})}
        body: Object = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "nodeName": self.cluster.node.name,
                "hostNetwork": True,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 2,
                "automountServiceAccountToken": False,
                "containers": [
                    {
                        "name": "main",
                        "image": images.LOAD,
                        "imagePullPolicy": "Never",
                        "args": command,
                        "resources": resources,
                        **(container or {}),
                    }
                ],
                **({"priorityClassName": priority_class} if priority_class else {}),
                **(spec or {}),
            },
        }
        return self.cluster.api.create(self.path, body)

    def get(self, name: str) -> Object:
        """Return a pod."""
        return self.cluster.api.get(f"{self.path}/{name}")

    def wait(
        self, name: str, true: Callable[[Object], object], what: str, seconds: float = HANG_SECONDS
    ) -> Object:
        """Wait until `true` holds for the pod and return it. Raises TimeoutError with its status."""
        seen: list[Object] = []

        def holds() -> object:
            seen[:] = [self.get(name)]
            return true(seen[0])

        try:
            wait_until(holds, f"pod {name} {what}", seconds)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; status {seen[0]['status']}") from None
        return seen[0]

    def names(self, phase: str | None = None) -> list[str]:
        """Return the names of the pods, or of those in one phase."""
        items = self.cluster.api.get(self.path)["items"]
        return sorted(
            pod["metadata"]["name"] for pod in items if phase is None or pod["status"].get("phase") == phase
        )

    def events(self, reason: str | None = None) -> list[Object]:
        """Return the namespace's events, or those of one reason."""
        items: list[Object] = self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return [event for event in items if reason is None or event["reason"] == reason]

    def cgroup(self, name: str) -> str:
        """Return the pod's cgroup, below the hierarchies' roots."""
        pod = self.get(name)
        return self.cluster.node.pod_cgroup(pod["status"]["qosClass"].lower(), pod["metadata"]["uid"])

    def remove(self) -> None:
        """Delete the namespace's pods and wait until the kubelet has taken them down."""
        ours = {pod["metadata"]["uid"] for pod in self.cluster.api.get(self.path)["items"]}
        for name in self.names():
            self.cluster.api.delete(f"{self.path}/{name}", grace_seconds=0)
        wait_until(lambda: not self.names(), f"the pods of {self.namespace} are gone")
        wait_until(lambda: not ours & self._with_cgroups(), f"{self.namespace}'s cgroups are gone")

    def _with_cgroups(self) -> set[str]:
        """Return the uids of the pods that have a cgroup, of whatever namespace."""
        kubepods = cgroups.directory(self.cluster.node.kubepods)
        # Not by glob: it raises where a directory goes away while it is walked.
        names = {name for _, directories, _ in os.walk(kubepods) for name in directories if "pod" in name}
        return {name.removesuffix(".slice").rpartition("pod")[2].replace("_", "-") for name in names}


def is_running(pod: Object) -> bool:
    """Tell whether every container of the pod runs."""
    statuses = pod["status"].get("containerStatuses", [])
    return bool(statuses) and all("running" in status["state"] for status in statuses)


def is_evicted(pod: Object) -> bool:
    """Tell whether the pod's status says that it was evicted."""
    return bool(pod["status"].get("phase") == "Failed" and pod["status"].get("reason") == "Evicted")


def is_failed(pod: Object) -> bool:
    """Tell whether the pod has ended by other than its own will."""
    return bool(pod["status"].get("phase") == "Failed")


def namespaced(cluster: Cluster, name: str) -> Pods:
    """Return the pods of a new namespace."""
    cluster.api.create_unless_there("/api/v1/namespaces", {"metadata": {"name": name}})
    return Pods(cluster, name)
