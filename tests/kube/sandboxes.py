"""Pods made through the runtime alone, without a kubelet, in a machine with nothing but containerd in it.

The messages that make sandboxes and containers are the tests' own: the reactor only ends them.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import cgroups
import images
import trio
from cluster import LOGS
from machine import LostError, Machine
from node import Node

from reactor.cri.client import RuntimeClient, call
from reactor.cri.messages import (
    ContainerMetadata,
    Image,
    ImageSpec,
    Message,
    SandboxMetadata,
    message,
    signed,
    text,
    text_map,
    texts,
)
from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree

_SECONDS: Final = 60.0
_HOST: Final = 2  # NamespaceMode NODE
_BURSTABLE_SCORE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class _Namespaces(Message):
    network: int = signed(1)
    pid: int = signed(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Security(Message):
    namespaces: _Namespaces | None = message(1, _Namespaces)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LinuxSandbox(Message):
    cgroup_parent: str = text(1)
    security: _Security | None = message(2, _Security)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SandboxConfig(Message):
    metadata: SandboxMetadata | None = message(1, SandboxMetadata)
    log_directory: str = text(3)
    labels: Mapping[str, str] = text_map(6)
    annotations: Mapping[str, str] = text_map(7)
    linux: _LinuxSandbox | None = message(8, _LinuxSandbox)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunSandbox(Message):
    config: _SandboxConfig | None = message(1, _SandboxConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resources(Message):
    oom_score_adj: int = signed(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LinuxContainer(Message):
    resources: _Resources | None = message(1, _Resources)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ContainerConfig(Message):
    metadata: ContainerMetadata | None = message(1, ContainerMetadata)
    image: ImageSpec | None = message(2, ImageSpec)
    command: tuple[str, ...] = texts(3)
    args: tuple[str, ...] = texts(4)
    labels: Mapping[str, str] = text_map(9)
    log_path: str = text(11)
    linux: _LinuxContainer | None = message(15, _LinuxContainer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CreateContainer(Message):
    sandbox_id: str = text(1)
    config: _ContainerConfig | None = message(2, _ContainerConfig)
    sandbox_config: _SandboxConfig | None = message(3, _SandboxConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Id(Message):
    id: str = text(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPod:
    """A pod that runs: its cgroup, its sandbox's id, its containers' ids by name."""

    uid: str
    name: str
    cgroup: str
    sandbox_id: str
    containers: Mapping[str, str] = field(default_factory=dict)


async def until(true: Callable[[], Awaitable[object]], seconds: float = _SECONDS) -> None:
    """Wait until something holds."""
    with trio.fail_after(seconds):
        while not await true():  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.05)


class Runtime:
    """The machine, as a context manager. Raises LostError where it doesn't come up, or not all of it goes.

    `api_version` is the one of the CRI that its containerd speaks.
    """

    api_version = "v1"

    def __init__(self) -> None:
        self.machine = Machine(LOGS.with_name("runtime-logs"))

    def __enter__(self) -> Self:
        self.machine.__enter__()
        try:
            self.prepare()
            nobody: Any = None  # a node without a kubelet needs no control plane
            self.node = Node(self.machine, nobody, Path(), runtime=self.containerd())
            self.node.start_containerd()
            self.import_images()
        except BaseException:
            self.machine.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.machine.close()
        assert self.node.containerd is not None
        self.node.containerd.process.wait(_SECONDS)

    def containerd(self) -> str | Path:
        """Return the program."""
        return "containerd"

    def prepare(self) -> None:
        """Do what has to be done in the machine before containerd is started in it."""

    async def start_again(self) -> None:
        """Start containerd, which was stopped, and wait until it answers."""
        self.node.start_containerd()

        async def answers() -> bool:
            try:
                await self.client().version()
            except ReactorError:  # "server is not initialized yet", for some hundred milliseconds
                return False
            return True

        await until(answers)

    @property
    def kubepods(self) -> str:
        """Return the cgroup below which all pods live."""
        return self.node.kubepods

    @property
    def endpoint(self) -> str:
        """Return the runtime's socket."""
        return str(self.node.containerd_socket)

    def client(self) -> RuntimeClient:
        """Return a client of the runtime."""
        return RuntimeClient(self.endpoint)

    async def run_pod(
        self,
        containers: Mapping[str, Sequence[str]],
        *,
        qos: str = "burstable",
        score: int = _BURSTABLE_SCORE,
        annotations: Mapping[str, str] | None = None,
        namespace: str = "test",
        uid: str | None = None,
    ) -> RunningPod:
        """Run a pod; `containers` are the arguments of the image LOAD by the containers' names."""
        uid = uid or str(uuid.uuid4())
        name = f"pod-{uid[:8]}"
        labels = {
            "io.kubernetes.pod.name": name,
            "io.kubernetes.pod.namespace": namespace,
            "io.kubernetes.pod.uid": uid,
        }
        cgroup = self.node.pod_cgroup(qos, uid)
        config = _SandboxConfig(
            metadata=SandboxMetadata(name=name, uid=uid, namespace=namespace),
            log_directory=f"/var/log/pods/{namespace}_{name}_{uid}",
            labels=labels,
            annotations=annotations or {},
            linux=_LinuxSandbox(
                cgroup_parent=cgroup.rpartition("/")[2] if self.machine.by_systemd else cgroup,
                security=_Security(namespaces=_Namespaces(network=_HOST, pid=1)),
            ),
        )
        sandbox_id = await self._make("RunPodSandbox", _RunSandbox(config=config))
        started = {}
        for container, words in containers.items():
            request = _CreateContainer(
                sandbox_id=sandbox_id,
                config=_ContainerConfig(
                    metadata=ContainerMetadata(name=container),
                    image=ImageSpec(image=images.LOAD),
                    command=tuple(words) if words[0].startswith("/") else (),
                    args=() if words[0].startswith("/") else tuple(words),
                    labels={**labels, "io.kubernetes.container.name": container},
                    log_path=f"{container}/0.log",
                    linux=_LinuxContainer(resources=_Resources(oom_score_adj=score)),
                ),
                sandbox_config=config,
            )
            started[container] = await self._make("CreateContainer", request)
            await self._make("StartContainer", _Id(id=started[container]))
        return RunningPod(uid=uid, name=name, cgroup=cgroup, sandbox_id=sandbox_id, containers=started)

    async def clear(self) -> None:
        """Remove every pod, wait until their shims have ended, and import the images that are gone."""
        await self._remove_pods()

        async def no_shims() -> bool:
            return not self.shims()

        await until(no_shims)
        client = self.client()
        if None in [await image_named(client, name) for name in (images.LOAD, images.PAUSE)]:
            self.import_images()

    def import_images(self) -> None:
        """Import the tests' images. Raises LostError."""
        for archive in images.archives(self.node.directory):
            self.node.import_image(archive)

    async def _remove_pods(self) -> None:
        client = self.client()
        for sandbox in await client.sandboxes():
            await client.stop_sandbox(sandbox.id)
            await client.remove_sandbox(sandbox.id)
        tree = CgroupTree.discover()
        for path in (tree.path(self.kubepods), tree.path(self.kubepods, "freezer")):
            for pod in path.glob("*/pod*"):  # the kubelet's to remove, if there were one
                with suppress(OSError):
                    pod.rmdir()

    def shims(self) -> int:
        """Return how many shims of this machine's containerd are there: one for each sandbox."""
        programs = cgroups.processes(self.machine.system_cgroup)
        names = [Path(f"/proc/{pid}/comm") for pid in programs]
        return sum(path.exists() and path.read_text().startswith("containerd-shim") for path in names)

    async def _make(self, method: str, request: Message) -> str:
        name = f"/runtime.{self.api_version}.RuntimeService/{method}"
        return _Id.decode(await call(Path(self.endpoint), name, request.encode(), _SECONDS)).id


class OldRuntime(Runtime):
    """A machine whose containerd is 1.4, which knows nothing of the CRI's v1."""

    api_version = "v1alpha2"

    def containerd(self) -> Path:
        """Return the program, fetched once. Raises LostError."""
        fetch = Path(__file__).resolve().parent / "fetch-containerd-1.4.sh"
        done = subprocess.run([fetch], capture_output=True, text=True, check=False, timeout=500)
        if done.returncode:
            raise LostError(f"containerd 1.4 can't be had: {done.stderr}")
        return Path(done.stdout.strip()) / "containerd"


async def image_named(client: RuntimeClient, name: str) -> Image | None:
    """Return the image of that name, None where the node has none."""
    return next((one for one in await client.images() if name in one.repo_tags), None)
