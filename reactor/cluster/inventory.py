"""What the container runtime tells of the pods on the node, kept at hand for callers that must not wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from reactor.cluster.kubepods import may_be_api_uid
from reactor.config.pod import HASH_ANNOTATION, SOURCE_ANNOTATION
from reactor.cri.messages import Container, ContainerState, Sandbox, SandboxState

_API: Final = "api"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimePod:
    """A pod as the runtime knows it. `containers` are the running ones' names by id, `sandboxes` ids.

    `static_because` is what the sandbox's annotations tell of a static pod. They are the pod's, so they count
    only where the pod's uid is none that the API server makes: such a pod was read by the kubelet from a file
    or a URL, whatever a tenant writes; and where they are as the kubelet has them, config.hash being the uid.
    """

    name: str
    namespace: str
    sandboxes: tuple[str, ...] = ()
    containers: Mapping[str, str] = field(default_factory=dict)
    static_because: str | None = None


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
            static_because=_static_because(sandbox.metadata.uid, sandbox.annotations),
        )
    return found


def _static_because(uid: str, annotations: Mapping[str, str]) -> str | None:
    source = annotations.get(SOURCE_ANNOTATION, _API)
    if source == _API or annotations.get(HASH_ANNOTATION) != uid or may_be_api_uid(uid):
        return None
    return f"static pod (source {source:.80})"
