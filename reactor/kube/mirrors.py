"""Which cgroup a pod of the API server's is: the one place that goes by what a tenant may have written of it.

A pod's cgroup bears the pod's uid, a UUID that the API server makes and no tenant can choose. The exception
is a static pod: the kubelet starts it from a file, calls its cgroup by the uid in the manifest or else by the
manifest's hash, and creates a mirror of it at the API server, which has a uid of its own and never runs.

A tenant who may create pods may annotate them freely. So a mirror is one that looks in every respect as
the kubelet makes it (pkg/kubelet/pod/mirror_client.go, pkg/kubelet/config/common.go):

    annotations   kubernetes.io/config.mirror and kubernetes.io/config.hash are there and equal
    owner         its one controller is this Node: kind, apiVersion, name, and uid where it is known
    name          ends in -NODE

Even so it can be forged by a tenant who knows the node's uid: the admission plugin NodeRestriction binds
kubelets only. A forged one is deleted by the kubelet within seconds and never runs; and it may
claim no cgroup that is another pod's by its uid, and none that another mirror claims (see PodStore).

The kubelet's own list has no mirrors, but the static pods as they run. It writes config.source itself over
what a pod brings along (pkg/kubelet/config/config.go): there it can be believed, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from reactor.config.lenient import decode_leniently
from reactor.config.pod import HASH_ANNOTATION, MIRROR_ANNOTATION, SOURCE_ANNOTATION
from reactor.model.pods import PodSource

_MOST_OWNERS: Final = 16


class MirrorClaim(NamedTuple):
    """The uids of the static pod that a pod says to mirror, and of the Node that it says to be owned by."""

    uid: str
    node_uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerReference:
    """A v1.OwnerReference."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PodMetadata:
    """What a pod's metadata tell of who it is."""

    name: str = ""
    namespace: str = "default"
    uid: str = ""
    owner_references: tuple[OwnerReference, ...] = ()
    deletion_timestamp: str | None = None
    generation: int = 0

    @property
    def controller(self) -> OwnerReference | None:
        """Return the owner that controls the pod, None where there is none, or more than one."""
        found = [owner for owner in self.owner_references if owner.controller]
        return found[0] if len(found) == 1 else None


def read_metadata(document: Any) -> tuple[PodMetadata, Mapping[str, Any]]:
    """Return what a v1.Pod's metadata tell, as far as they can be read, and its annotations unread.

    Of many owners none is read: a mirror has one, and of another pod they are not asked for.
    """
    raw = document.get("metadata") if isinstance(document, Mapping) else None
    if not isinstance(raw, Mapping):
        return PodMetadata(), {}
    owners, annotations = raw.get("ownerReferences"), raw.get("annotations")
    if isinstance(owners, list) and len(owners) > _MOST_OWNERS:
        raw = {**raw, "ownerReferences": None}
    return decode_leniently(raw, PodMetadata), annotations if isinstance(annotations, Mapping) else {}


def mirror_claim(metadata: PodMetadata, annotations: Mapping[str, Any], node_name: str) -> MirrorClaim | None:
    """Return which static pod of this node a pod of the API server's mirrors, None where it mirrors none.

    The node's uid is left to be compared.
    """
    mirrored = annotations.get(MIRROR_ANNOTATION)
    if not isinstance(mirrored, str) or not mirrored or mirrored != annotations.get(HASH_ANNOTATION):
        return None
    owner = metadata.controller
    if owner is None or (owner.api_version, owner.kind, owner.name) != ("v1", "Node", node_name):
        return None
    return MirrorClaim(mirrored, owner.uid) if _is_named_for(metadata, node_name) else None


def static_source(metadata: PodMetadata, annotations: Mapping[str, Any], node_name: str) -> PodSource:
    """Return where a pod of the kubelet's own list is from: the API server, or else it is a static one."""
    if annotations.get(HASH_ANNOTATION) != metadata.uid or not _is_named_for(metadata, node_name):
        return PodSource.API
    return source_of(annotations.get(SOURCE_ANNOTATION))


def source_of(annotation: object) -> PodSource:
    """Return what the kubelet's annotation of a pod's source says; one that is missing says nothing."""
    if not isinstance(annotation, str):
        return PodSource.API
    named = (PodSource.API, PodSource.FILE, PodSource.HTTP)
    return next((source for source in named if source == annotation), PodSource.OTHER)


def _is_named_for(metadata: PodMetadata, node_name: str) -> bool:
    # generatePodName: the node's name in lower case. A node without a name has no mirror.
    return bool(node_name) and metadata.name.endswith(f"-{node_name.lower()}")
