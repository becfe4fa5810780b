"""The cluster's node: containerd and the kubelet, at their usual paths inside the machine.

The node is virtual: the kubelet sees the machine's memory, but its pods live below a cgroup of ours whose
limit is `NODE_BYTES`, and what of the machine's memory is reserved leaves `PODS_BYTES` for them, which the
kubelet sets as the limit of its `kubepods` cgroup.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import cgroups
import images
from api import ApiError, Object
from control_plane import ControlPlane, free_ports
from machine import LostError, Machine, Program, wait_until

MIB: Final = 1 << 20
NODE_BYTES: Final = 768 * MIB
PODS_BYTES: Final = 640 * MIB
CONTAINERD_SOCKET: Final = "/run/containerd/containerd.sock"
# Zero turns a signal off: the kubelet sees to nothing by itself. What `role: sole` asks for.
NO_EVICTION: Final[Mapping[str, str]] = {
    "memory.available": "0%",
    "nodefs.available": "0%",
    "nodefs.inodesFree": "0%",
    "imagefs.available": "0%",
    "pid.available": "0%",
}

_KUBELETS_CONDITIONS: Final = frozenset({"Ready", "MemoryPressure", "DiskPressure", "PIDPressure"})
# A pod in the host's network never calls a plugin, but the runtime wants one configured to call itself ready.
_NETWORK: Final = '{"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "none"}]}'


class Node:
    """containerd and the kubelet of one node, each of which can be stopped and started again.

    `node_bytes` is the virtual node's memory, `pods_bytes` its pods' share; `runtime` is its containerd.
    """

    def __init__(
        self,
        machine: Machine,
        plane: ControlPlane,
        programs: Path,
        *,
        node_bytes: int = NODE_BYTES,
        pods_bytes: int = PODS_BYTES,
        runtime: str | Path = "containerd",
    ) -> None:
        self.machine = machine
        self._node_bytes = node_bytes
        self._pods_bytes = pods_bytes
        self._runtime = runtime
        self._plane = plane
        self._programs = programs
        self.name = machine.state.name.replace("_", "-")
        self.user = f"system:node:{self.name}"
        self.directory = machine.state / "node"
        self.directory.mkdir()
        self.cgroup = machine.node_cgroup
        self.kubelet_port, self._health_port = free_ports(2)
        self._kubelet_configuration: Object = {}
        self.containerd: Program | None = None
        self.kubelet: Program | None = None

    @property
    def kubelet_url(self) -> str:
        """Return the address of the kubelet's own API, which lets everybody in."""
        return f"https://127.0.0.1:{self.kubelet_port}"

    @property
    def containerd_socket(self) -> Path:
        """Return the runtime's socket as it is reached from outside the machine."""
        return self.machine.path(CONTAINERD_SOCKET)

    @property
    def is_virtual(self) -> bool:
        """Tell whether the node is a cgroup with a limit, not the machine itself."""
        return not self.machine.by_systemd

    @property
    def kubepods(self) -> str:
        """Return the cgroup below which the kubelet's pods live."""
        return "/kubepods.slice" if self.machine.by_systemd else f"{self.cgroup}/kubepods"

    def pod_cgroup(self, quality: str, uid: str) -> str:
        """Return the cgroup of a pod of the QoS class `quality`, in lower case."""
        middle = "" if quality == "guaranteed" else quality
        if not self.machine.by_systemd:
            return "/".join(filter(None, (self.kubepods, middle, f"pod{uid}")))
        between = f"/kubepods-{middle}.slice" if middle else ""
        words = filter(None, ("kubepods", middle, f"pod{uid.replace('-', '_')}"))
        return f"{self.kubepods}{between}/{'-'.join(words)}.slice"

    def container_cgroup(self, pod: str, container_id: str) -> str:
        """Return the cgroup of a container of the pod with this cgroup; a sandbox is one, too."""
        return (
            f"{pod}/cri-containerd-{container_id}.scope"
            if self.machine.by_systemd
            else f"{pod}/{container_id}"
        )

    def start(self) -> None:
        """Start both, import the images, and wait until the node is ready."""
        self._limit_memory()
        self.start_containerd()
        for archive in images.archives(self.directory):
            self.import_image(archive)
        self.start_kubelet()

    def start_containerd(self) -> None:
        """Start containerd and wait until it answers."""
        network = self.directory / "cni"
        network.mkdir(exist_ok=True)
        (network / "10-none.conflist").write_text(_NETWORK)
        path = self.directory / "containerd.toml"
        path.write_text(
            f"""version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{images.PAUSE}"
  # Lowering a score below one's own needs CAP_SYS_RESOURCE, which may be missing here.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "{network}"
    bin_dir = "{network}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    # What is unpacked once need not be kept packed.
    discard_unpacked_layers = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    SystemdCgroup = {str(self.machine.by_systemd).lower()}
"""
        )
        self.containerd = self.machine.start("containerd", [self._runtime, "--config", path])
        self.containerd.wait_ready(self._containerd_answers)

    def start_kubelet(self, changes: Mapping[str, Any] | None = None) -> None:
        """Start the kubelet, its configuration with `changes`, and wait until the node is ready."""
        self._kubelet_configuration = self._configuration() | dict(changes or {})
        path = self.directory / "kubelet.json"
        path.write_text(json.dumps(self._kubelet_configuration, indent=2))
        self.kubelet = self.machine.start(
            "kubelet",
            [
                self._programs / "kubelet",
                f"--config={path}",
                f"--kubeconfig={self._plane.kubeconfig(self.user)}",
                f"--hostname-override={self.name}",
                "--node-ip=127.0.0.1",
                "--container-runtime=remote",
                f"--container-runtime-endpoint=unix://{CONTAINERD_SOCKET}",
                f"--volume-plugin-dir={self.directory}/volume-plugins",
            ],
            {"AWS_EC2_METADATA_DISABLED": "true"},  # its credential provider would ask outside
        )
        self.kubelet.wait_ready(self._is_ready, seconds=120)

    def restart_kubelet(self, changes: Mapping[str, Any] | None = None) -> None:
        """Stop the kubelet and start it with `changes` to its usual configuration."""
        assert self.kubelet is not None
        self.kubelet.stop()
        self.start_kubelet(changes)

    def stop_containerd(self) -> None:
        """Stop containerd; containers outlive that."""
        assert self.containerd is not None
        self.containerd.stop()

    def restart_containerd(self) -> None:
        """Stop containerd and start it."""
        self.stop_containerd()
        self.start_containerd()

    def import_image(self, archive: Path) -> None:
        """Import an archive into the runtime's store. Raises LostError."""
        done = self.ctr("images", "import", str(archive))
        if done.returncode:
            raise LostError(f"ctr images import {archive}: {done.stderr}")

    def start_outside_pods(self, name: str, command: list[str]) -> Program:
        """Start images/load.c with these arguments in the node's cgroup, beside its pods."""
        path = cgroups.directory(self.cgroup) / name
        path.mkdir()
        enter = ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(path / "cgroup.procs")]
        return self.machine.start(name, [*enter, self.directory / "load", *command])

    def ctr(self, *words: str) -> Any:
        """Run containerd's own client in the kubelet's namespace of containers."""
        return self.machine.run(["ctr", "--address", CONTAINERD_SOCKET, "--namespace", "k8s.io", *words])

    def summary(self) -> Object:
        """Return the kubelet's Summary API."""
        return self._ask_kubelet("/stats/summary")

    def kubelet_configuration(self) -> Object:
        """Return the configuration that the kubelet acts on, its own defaults in it."""
        configuration: Object = self._ask_kubelet("/configz")["kubeletconfig"]
        return configuration

    def _ask_kubelet(self, path: str) -> Object:
        # Not through the API server: it refuses to proxy to loopback addresses.
        context = ssl._create_unverified_context()  # noqa: S323 - the kubelet signs for itself
        connection = http.client.HTTPSConnection("127.0.0.1", self.kubelet_port, timeout=30, context=context)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer: Object = json.load(connection.getresponse())
        return answer

    def state(self) -> Object:
        """Return the node as the API server knows it."""
        return self._plane.api.get(f"/api/v1/nodes/{self.name}")

    def conditions(self) -> dict[str, str]:
        """Return the status of each condition of the node."""
        return {each["type"]: each["status"] for each in self.state()["status"].get("conditions", [])}

    def taints(self) -> set[str]:
        """Return the keys of the node's taints."""
        return {each["key"] for each in self.state()["spec"].get("taints", [])}

    def calm(self) -> None:
        """Take off what pressure has left on the node: taints, and conditions that are not the kubelet's."""
        path = f"/api/v1/nodes/{self.name}"
        self._plane.api.patch(path, {"spec": {"taints": None}, "metadata": {"annotations": None}})
        others = [each for each in self.conditions() if each not in _KUBELETS_CONDITIONS]
        removed = [{"type": each, "$patch": "delete"} for each in others]
        self._plane.api.patch(f"{path}/status", {"status": {"conditions": removed}})
        wait_until(
            lambda: (
                {self.conditions()[each] for each in _KUBELETS_CONDITIONS} == {"True", "False"}
                and self.conditions()["MemoryPressure"] == "False"
            ),
            "the kubelet has said its own word again",
            30,
        )

    def configuration_path(self) -> Path:
        """Return the kubelet's configuration file."""
        return self.directory / "kubelet.json"

    def _limit_memory(self) -> None:
        if not self.is_virtual:
            return
        try:
            cgroups.set_limit(self.cgroup, self._node_bytes)
        except OSError as error:
            raise LostError(f"no memory controller to limit the virtual node with: {error}") from error

    def _configuration(self) -> Object:
        meminfo = Path("/proc/meminfo").read_text().split()
        reserved_bytes = int(meminfo[1]) * 1024 - self._pods_bytes
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": self.kubelet_port,
            "readOnlyPort": 0,
            "healthzPort": self._health_port,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "systemd" if self.machine.by_systemd else "cgroupfs",
            "cgroupRoot": self.cgroup,
            "enforceNodeAllocatable": ["pods"],
            "kubeReserved": {"memory": str(reserved_bytes)},
            "evictionHard": dict(NO_EVICTION),
            "evictionPressureTransitionPeriod": "5s",
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "nodeStatusUpdateFrequency": "2s",
            "nodeStatusReportFrequency": "10s",
            "syncFrequency": "5s",
            "imageGCHighThresholdPercent": 100,
            "registerNode": True,
            "rotateCertificates": False,
            "oomScoreAdj": 0,
            "resolvConf": "",
            "staticPodPath": str(self._static_pods()),
        }

    def _static_pods(self) -> Path:
        path = self.directory / "static-pods"
        path.mkdir(exist_ok=True)
        return path

    def _containerd_answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(self.containerd_socket))
        except OSError:
            return False
        return self.ctr("version").returncode == 0

    def _is_ready(self) -> bool:
        try:
            conditions = self.state()["status"].get("conditions", [])
        except (OSError, ApiError):
            return False
        heard = {condition["type"]: condition["status"] for condition in conditions}
        return heard.get("Ready") == "True" and self._kubelet_listens()

    def _kubelet_listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.kubelet_port)) == 0
