"""The CRI's calls, typed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal, TypeVar

from reactor.cri import messages
from reactor.cri.channel import call
from reactor.cri.endpoint import socket_path
from reactor.cri.messages import (
    POD_UID_LABEL,
    Container,
    ContainerFilter,
    Image,
    ImageFilesystems,
    ImageSpec,
    Sandbox,
    SandboxFilter,
)
from reactor.cri.wire import Message, WireError
from reactor.errors import RuntimeServiceError, RuntimeUnavailableError
from reactor.kernel.scheduling import following
from reactor.threads import in_thread

_Answer = TypeVar("_Answer", bound=Message)
_Service = Literal["RuntimeService", "ImageService"]

DEADLINE_SECONDS: Final = 10.0
REMOVAL_DEADLINE_SECONDS: Final = 120.0  # the kubelet's own; layers are deleted meanwhile
_STOP_MARGIN_SECONDS: Final = 10.0
# What takes a millisecond or more to decode is decoded in a thread: the loop may have to kill just then.
_LARGE_BYTES: Final = 16 << 10
_PACKAGES: Final = ("runtime.v1", "runtime.v1alpha2")


class RuntimeClient:
    """Calls the container runtime at an endpoint, in the newest version of the CRI that it speaks.

    Every call raises RuntimeUnavailableError where the runtime gives no answer by the deadline and
    RuntimeServiceError where its answer is an error. Nothing is kept between calls but the version, so a
    runtime that was restarted is simply called again.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._path = socket_path(endpoint)
        self._package: str | None = None

    @property
    def api_version(self) -> str | None:
        """Return the version of the interface that is spoken, None before the first answer."""
        return None if self._package is None else self._package.removeprefix("runtime.")

    async def version(self) -> messages.Version:
        """Return the runtime's name and version."""
        return await self._runtime("Version", messages.Empty(), messages.Version)

    async def sandboxes(self, pod_uid: str | None = None) -> tuple[Sandbox, ...]:
        """Return every sandbox, or those of one pod."""
        asked = None if pod_uid is None else SandboxFilter(label_selector=_of_pod(pod_uid))
        request = messages.ListSandboxesRequest(filter=asked)
        return (await self._runtime("ListPodSandbox", request, messages.Sandboxes)).items

    async def sandbox_info(self, sandbox_id: str) -> str:
        """Return what the runtime says of a sandbox beside its status: JSON, "" where it says nothing."""
        request = messages.SandboxStatusRequest(sandbox_id=sandbox_id, verbose=True)
        answer = await self._runtime("PodSandboxStatus", request, messages.SandboxStatusAnswer)
        return answer.info.get("info", "")

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Kill what still runs in a sandbox and take it down; one that is down or gone is no error."""
        request = messages.SandboxRequest(sandbox_id=sandbox_id)
        with _gone_is_fine():
            await self._runtime("StopPodSandbox", request, messages.Empty, REMOVAL_DEADLINE_SECONDS)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox with its containers; one that is gone is no error."""
        request = messages.SandboxRequest(sandbox_id=sandbox_id)
        with _gone_is_fine():
            await self._runtime("RemovePodSandbox", request, messages.Empty, REMOVAL_DEADLINE_SECONDS)

    async def containers(self, pod_uid: str | None = None) -> tuple[Container, ...]:
        """Return every container, dead ones included, or those of one pod."""
        asked = None if pod_uid is None else ContainerFilter(label_selector=_of_pod(pod_uid))
        request = messages.ListContainersRequest(filter=asked)
        return (await self._runtime("ListContainers", request, messages.Containers)).containers

    async def container_status(self, container_id: str) -> messages.ContainerStatusAnswer:
        """Return how a container stands."""
        request = messages.ContainerRequest(container_id=container_id)
        return await self._runtime("ContainerStatus", request, messages.ContainerStatusAnswer)

    async def stop_container(self, container_id: str, grace_period_seconds: int) -> None:
        """Have a container end, and killed after its grace period; return when it has ended or is gone."""
        request = messages.StopContainerRequest(
            container_id=container_id, timeout_seconds=grace_period_seconds
        )
        deadline_seconds = grace_period_seconds + _STOP_MARGIN_SECONDS
        with _gone_is_fine():
            await self._runtime("StopContainer", request, messages.Empty, deadline_seconds)

    async def remove_container(self, container_id: str) -> None:
        """Remove a container with its writable layer; one that is gone is no error."""
        request = messages.ContainerRequest(container_id=container_id)
        with _gone_is_fine():
            await self._runtime("RemoveContainer", request, messages.Empty, REMOVAL_DEADLINE_SECONDS)

    async def images(self) -> tuple[Image, ...]:
        """Return every image on the node."""
        return (await self._image("ListImages", messages.Empty(), messages.Images)).images

    async def remove_image(self, image_id: str) -> None:
        """Remove an image; one that is gone is no error."""
        request = messages.ImageRequest(image=ImageSpec(image=image_id))
        with _gone_is_fine():
            await self._image("RemoveImage", request, messages.Empty, REMOVAL_DEADLINE_SECONDS)

    async def image_filesystems(self) -> ImageFilesystems:
        """Return where images and writable layers lie, and what they use there."""
        return await self._image("ImageFsInfo", messages.Empty(), ImageFilesystems)

    async def _runtime(
        self,
        method: str,
        request: Message,
        answer: type[_Answer],
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> _Answer:
        return await self._call("RuntimeService", method, request, answer, deadline_seconds)

    async def _image(
        self,
        method: str,
        request: Message,
        answer: type[_Answer],
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> _Answer:
        return await self._call("ImageService", method, request, answer, deadline_seconds)

    async def _call(
        self,
        service: _Service,
        method: str,
        request: Message,
        answer: type[_Answer],
        deadline_seconds: float,
    ) -> _Answer:
        package = self._package or await self._newest_package()
        name = f"/{package}.{service}/{method}"
        try:
            raw = await call(self._path, name, request.encode(), deadline_seconds)
        except RuntimeServiceError as error:
            if error.code == "UNIMPLEMENTED":
                self._package = None  # another runtime may have come to the same socket
            raise
        try:
            if len(raw) < _LARGE_BYTES:
                return answer.decode(raw)
            return await in_thread(following(answer.decode), raw, abandon_on_cancel=True)
        except WireError as error:
            raise RuntimeUnavailableError(self._path, name, str(error)) from error

    async def _newest_package(self) -> str:
        """Return the newest version that the runtime speaks, as the kubelet finds it out: by asking."""
        request = messages.Empty().encode()
        for package in _PACKAGES[:-1]:
            try:
                await call(self._path, f"/{package}.RuntimeService/Version", request, DEADLINE_SECONDS)
            except RuntimeServiceError as error:
                if error.code != "UNIMPLEMENTED":
                    raise
            else:
                self._package = package
                return package
        self._package = _PACKAGES[-1]
        return self._package


def described(version: messages.Version, client: RuntimeClient) -> str:
    """Return what a runtime is, in one line."""
    name = f"{version.runtime_name} {version.runtime_version}"
    return f"{name}, CRI {client.api_version}, at {client.endpoint}"


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    """Leave the block where the runtime does not know what is to be ended or removed (any more)."""
    try:
        yield
    except RuntimeServiceError as error:
        if error.code != "NOT_FOUND":
            raise


def _of_pod(uid: str) -> dict[str, str]:
    return {POD_UID_LABEL: uid}
