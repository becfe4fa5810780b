"""What the runtime is asked, by the field numbers of the CRI's api.proto; see messages.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reactor.cri.messages import ImageSpec
from reactor.cri.wire import Message, flag, message, signed, text, text_map


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
