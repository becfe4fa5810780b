"""What the container runtime tells of the pods on the node, kept at hand for callers that must not wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reactor.config.pod import HASH_ANNOTATION, SOURCE_ANNOTATION
from reactor.cri.messages import Container, ContainerState, Sandbox, SandboxState
from reactor.kube.mirrors import source_of
from reactor.model.node_pods import Inventory, RuntimePod
from reactor.model.pods import PodSource
from reactor.workloads.kubepods import may_be_api_uid


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
            source=_source(sandbox.metadata.uid, sandbox.annotations),
        )
    return found


def _source(uid: str, annotations: Mapping[str, str]) -> PodSource:
    if annotations.get(HASH_ANNOTATION) != uid or may_be_api_uid(uid):
        return PodSource.API
    return source_of(annotations.get(SOURCE_ANNOTATION))
