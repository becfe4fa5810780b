"""What the container runtime tells of the pods on the node, kept at hand for whoever must not wait for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from reactor.config.pod import critical_because
from reactor.cri.messages import Container, ContainerState, Sandbox, SandboxState


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimePod:
    """A pod as the runtime knows it. `containers` are the running ones' names by id, `sandboxes` ids.

    `critical_because` is what the pod's annotations say: they tell a static pod, but no priority.
    """

    name: str
    namespace: str
    sandboxes: tuple[str, ...] = ()
    containers: Mapping[str, str] = field(default_factory=dict)
    critical_because: str | None = None


Inventory = Mapping[str, RuntimePod]  # by the pod's uid


def inventory_of(sandboxes: Iterable[Sandbox], containers: Iterable[Container]) -> Inventory:
    """Return the pods that are up: those with a sandbox that is ready."""
    running: dict[str, dict[str, str]] = {}
    for container in containers:
        if container.state is ContainerState.RUNNING and container.metadata is not None:
            running.setdefault(container.sandbox_id, {})[container.id] = container.metadata.name
    found: dict[str, RuntimePod] = {}
    for sandbox in sandboxes:
        if sandbox.state is not SandboxState.READY or sandbox.metadata is None:
            continue
        before = found.get(sandbox.metadata.uid)
        found[sandbox.metadata.uid] = RuntimePod(
            name=sandbox.metadata.name,
            namespace=sandbox.metadata.namespace,
            sandboxes=(*(before.sandboxes if before else ()), sandbox.id),
            containers={**(before.containers if before else {}), **running.get(sandbox.id, {})},
            critical_because=critical_because(sandbox.annotations, priority=0),
        )
    return found
