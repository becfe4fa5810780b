"""What the runtime is asked and answers, by the field numbers of its api.proto, as far as reactor uses them.

They are the same in runtime.v1 and in runtime.v1alpha2; newer fields are simply absent in what an old
runtime sends. Instants are nanoseconds of the Unix clock. Source: kubernetes/cri-api, pkg/apis/runtime/v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from reactor.config.pod import HASH_ANNOTATION, MIRROR_ANNOTATION, SOURCE_ANNOTATION
from reactor.cri.wire import (
    Message,
    choice,
    flag,
    message,
    messages,
    signed,
    text,
    text_map,
    texts,
    unsigned,
)

# A label that the kubelet gives to sandboxes and containers (pkg/kubelet/types/labels.go).
POD_UID_LABEL: Final = "io.kubernetes.pod.uid"
# Of the pods' own labels and annotations only these are read: tenants choose how many there are.
_LABELS: Final = frozenset({POD_UID_LABEL})
_ANNOTATIONS: Final = frozenset({SOURCE_ANNOTATION, MIRROR_ANNOTATION, HASH_ANNOTATION})
_INFO: Final = frozenset({"info"})


class SandboxState(IntEnum):
    """Whether a sandbox is up."""

    READY = 0
    NOT_READY = 1


class ContainerState(IntEnum):
    """How a container stands."""

    CREATED = 0
    RUNNING = 1
    EXITED = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Version(Message):
    """The runtime's name and version, as `containerd` and `1.6.20`."""

    runtime_name: str = text(2)
    runtime_version: str = text(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxMetadata(Message):
    """Whose sandbox it is: the pod's name, uid and namespace."""

    name: str = text(1)
    uid: str = text(2)
    namespace: str = text(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox(Message):
    """A pod's sandbox: its pause container, its namespaces. Annotations are the pod's."""

    id: str = text(1)
    metadata: SandboxMetadata | None = message(2, SandboxMetadata)
    state: SandboxState = choice(3, SandboxState.READY, unknown=SandboxState.NOT_READY)
    created_at_ns: int = signed(4)
    labels: Mapping[str, str] = text_map(5, _LABELS)
    annotations: Mapping[str, str] = text_map(6, _ANNOTATIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandboxes(Message):
    """A list of sandboxes."""

    items: tuple[Sandbox, ...] = messages(1, Sandbox)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStatusAnswer(Message):
    """What the runtime says besides of a sandbox: JSON by its own keys."""

    info: Mapping[str, str] = text_map(2, _INFO)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerMetadata(Message):
    """A container's name in its pod."""

    name: str = text(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpec(Message):
    """An image, by any of its names."""

    image: str = text(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container(Message):
    """A container, dead ones included. `image_id` is absent in runtimes of before 1.29: see `image_ref`."""

    id: str = text(1)
    sandbox_id: str = text(2)
    metadata: ContainerMetadata | None = message(3, ContainerMetadata)
    image: ImageSpec | None = message(4, ImageSpec)
    image_ref: str = text(5)
    state: ContainerState = choice(6, ContainerState.CREATED, unknown=ContainerState.UNKNOWN)
    created_at_ns: int = signed(7)
    labels: Mapping[str, str] = text_map(8, _LABELS)
    image_id: str = text(10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Containers(Message):
    """A list of containers."""

    containers: tuple[Container, ...] = messages(1, Container)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStatus(Message):
    """How a container stands."""

    state: ContainerState = choice(3, ContainerState.CREATED, unknown=ContainerState.UNKNOWN)
    exit_code: int = signed(7)
    log_path: str = text(15)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStatusAnswer(Message):
    """A container's status."""

    status: ContainerStatus | None = message(1, ContainerStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesystemIdentifier(Message):
    """A filesystem, by a path on it."""

    mountpoint: str = text(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesystemUsage(Message):
    """On which filesystem something lies."""

    filesystem: FilesystemIdentifier | None = message(2, FilesystemIdentifier)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image(Message):
    """An image on the node."""

    id: str = text(1)
    repo_tags: tuple[str, ...] = texts(2)
    repo_digests: tuple[str, ...] = texts(3)
    size_bytes: int = unsigned(4)
    pinned: bool = flag(8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Images(Message):
    """A list of images."""

    images: tuple[Image, ...] = messages(1, Image)


@dataclass(frozen=True, slots=True, kw_only=True)
class Empty(Message):
    """A message that says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFilesystems(Message):
    """The filesystems that hold images and, where those are kept apart, writable layers."""

    image_filesystems: tuple[FilesystemUsage, ...] = messages(1, FilesystemUsage)
    container_filesystems: tuple[FilesystemUsage, ...] = messages(2, FilesystemUsage)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxFilter(Message):
    """Which sandboxes are meant; empty: all."""

    label_selector: Mapping[str, str] = text_map(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSandboxesRequest(Message):
    """Asks for sandboxes."""

    filter: SandboxFilter | None = message(1, SandboxFilter)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRequest(Message):
    """Names a sandbox: to be stopped, to be removed."""

    sandbox_id: str = text(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStatusRequest(Message):
    """Asks how a sandbox stands; `verbose`: and for what the runtime has to say besides."""

    sandbox_id: str = text(1)
    verbose: bool = flag(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFilter(Message):
    """Which containers are meant; empty: all."""

    label_selector: Mapping[str, str] = text_map(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListContainersRequest(Message):
    """Asks for containers."""

    filter: ContainerFilter | None = message(1, ContainerFilter)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRequest(Message):
    """Names a container: to be removed, its status to be told."""

    container_id: str = text(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopContainerRequest(Message):
    """Names a container to be stopped; after `timeout_seconds` it is killed."""

    container_id: str = text(1)
    timeout_seconds: int = signed(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest(Message):
    """Names an image to be removed."""

    image: ImageSpec | None = message(1, ImageSpec)
