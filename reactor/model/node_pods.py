"""What is known of a node's pods beside their specs: by the container runtime, and by files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reactor.model.pods import PodSource


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimePod:
    """A pod as the runtime knows it. `containers` are the running ones' names by id, `sandboxes` ids.

    `source` is what the sandbox's annotations say of a static pod. They are the pod's, so they count only
    where the pod's uid is none that the API server makes: such a pod was read by the kubelet from a file or a
    URL, whatever a tenant writes; and where they are as the kubelet has them, config.hash being the uid.
    """

    name: str
    namespace: str
    sandboxes: tuple[str, ...] = ()
    containers: Mapping[str, str] = field(default_factory=dict)
    source: PodSource = PodSource.API


Inventory = Mapping[str, RuntimePod]  # by the pod's uid


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFiles:
    """Namespace and name of pods by uid, and the uids that static pods' manifests name."""

    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    static_uids: frozenset[str] = frozenset()
