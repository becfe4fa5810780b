"""The CRI's calls, typed."""

from __future__ import annotations

import math
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeVar
from urllib.parse import unquote

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import trio

from reactor.cri import messages
from reactor.cri.messages import (
    POD_UID_LABEL,
    Container,
    ContainerFilter,
    Image,
    ImageFilesystems,
    ImageSpec,
    Message,
    Sandbox,
    SandboxFilter,
    WireError,
)
from reactor.errors import RuntimeServiceError, RuntimeUnavailableError
from reactor.kernel.scheduling import following
from reactor.threads import in_thread

LARGEST_MESSAGE_BYTES: Final = 16 << 20  # the kubelet's own limit
_WINDOW_BYTES: Final = 1 << 20
_READ_BYTES: Final = 16 << 10  # what is taken apart in one go: some milliseconds, whatever frames it has
_MOST_EVENTS: Final = 200  # that bring no data: a server has some ten to send
_LONGEST_CODE: Final = 4
_LONGEST_WHY: Final = 500
_PREFIX_BYTES: Final = 5  # one byte for compression, four for the length
# A server's first frame has to be its settings; else h2 would wait for the end of a frame of megabytes.
_FRAME_TYPE: Final = slice(3, 4)
_SETTINGS: Final = b"\x04"

# Source: grpc/grpc, doc/statuscodes.md
_CODES: Final = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)


async def call(endpoint: Path, method: str, request: bytes, deadline_seconds: float) -> bytes:
    """Return the answer to a unary call of `/package.Service/Method`.

    Raises RuntimeUnavailableError where no answer comes in time or to its end, RuntimeServiceError where the
    runtime answers with an error. Both name the endpoint and the method.
    """
    try:
        with trio.fail_after(deadline_seconds):
            async with await trio.open_unix_socket(endpoint) as stream:
                return await _Exchange(endpoint, method).run(stream, request, deadline_seconds)
    except trio.TooSlowError:
        raise RuntimeUnavailableError(endpoint, method, f"no answer within {deadline_seconds:g} s") from None
    except (OSError, trio.BrokenResourceError) as error:
        cause = error.__cause__ if isinstance(error, trio.BrokenResourceError) else error
        why = getattr(cause, "strerror", None) or str(cause or error)
        raise RuntimeUnavailableError(endpoint, method, why) from error
    except (h2.exceptions.H2Error, UnicodeError) as error:
        why = f"what it sent is no HTTP/2: {error}"[:_LONGEST_WHY]
        raise RuntimeUnavailableError(endpoint, method, why) from error


@dataclass(slots=True)
class _Exchange:
    """What has been received of one call's answer."""

    endpoint: Path
    method: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    begun: bool = False
    ended: bool = False
    events: int = 0

    async def run(self, stream: trio.SocketStream, request: bytes, deadline_seconds: float) -> bytes:
        connection = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        )
        connection.local_settings.initial_window_size = _WINDOW_BYTES
        connection.initiate_connection()
        connection.increment_flow_control_window(_WINDOW_BYTES)
        connection.send_headers(1, _request_headers(self.method, deadline_seconds))
        # A request names an id or two: far from the peer's window and frame size.
        connection.send_data(1, b"\0" + len(request).to_bytes(4, "big") + request, end_stream=True)
        await stream.send_all(connection.data_to_send())
        while not self.ended:
            received = await stream.receive_some(_READ_BYTES)
            while received and not self.begun and len(received) < _FRAME_TYPE.stop:
                more = await stream.receive_some(_READ_BYTES)
                received = more and received + more
            if not received:
                raise self._unavailable("it closed the connection before its answer was complete")
            if not self.begun and received[_FRAME_TYPE] != _SETTINGS:
                raise self._unavailable(f"what it sent is no HTTP/2: {received[:32]!r}")
            self.begun = True
            for event in connection.receive_data(received):
                self._take(connection, event)
            if self.events > _MOST_EVENTS:
                raise self._unavailable(f"more than {_MOST_EVENTS} of its frames bring no data")
            if not self.ended:
                await stream.send_all(connection.data_to_send())
        return self._answer()

    def _take(self, connection: h2.connection.H2Connection, event: h2.events.Event) -> None:
        if not isinstance(event, h2.events.DataReceived) or not event.data:
            self.events += 1
        if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            self.headers |= {_as_text(name): _as_text(value) for name, value in event.headers}
        elif isinstance(event, h2.events.DataReceived):
            self.body += event.data
            if len(self.body) > LARGEST_MESSAGE_BYTES:
                raise self._unavailable(f"its answer has more than {LARGEST_MESSAGE_BYTES} bytes")
            connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.ended = True
        elif isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated):
            raise self._unavailable(f"it gave the call up (HTTP/2 error {event.error_code})")

    def _answer(self) -> bytes:
        code = self.headers.get("grpc-status")
        if code is None or not code.isdecimal() or len(code) > _LONGEST_CODE:
            got = self.headers.get(":status")
            raise self._unavailable(
                f"no gRPC service: HTTP status {str(got)[:20]}, grpc-status {str(code)[:20]}"
            )
        if int(code) != 0:
            name = _CODES[int(code)] if int(code) < len(_CODES) else f"code {code}"
            why = unquote(self.headers.get("grpc-message", "")[:_LONGEST_WHY])
            raise RuntimeServiceError(self.endpoint, self.method, name, why)
        if len(self.body) < _PREFIX_BYTES:
            raise self._unavailable("its answer has no message")
        is_compressed, size = self.body[0], int.from_bytes(self.body[1:_PREFIX_BYTES], "big")
        if is_compressed or size != len(self.body) - _PREFIX_BYTES:
            raise self._unavailable("its answer is not one uncompressed message")
        return bytes(self.body[_PREFIX_BYTES:])

    def _unavailable(self, why: str) -> RuntimeUnavailableError:
        return RuntimeUnavailableError(self.endpoint, self.method, why)


def _request_headers(method: str, deadline_seconds: float) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "reactor"),
        # So that the runtime gives up with us: at most eight digits.
        ("grpc-timeout", f"{min(99_999_999, math.ceil(deadline_seconds * 1000))}m"),
    ]


def _as_text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


# In the order in which they are tried: containerd, CRI-O, containerd as k3s and as microk8s bring it.
KNOWN_ENDPOINTS: Final = (
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/run/cri-dockerd.sock",
)
_SCHEME: Final = "unix://"


def socket_path(endpoint: str) -> Path:
    """Return the path of an endpoint written as the kubelet takes it: with or without `unix://`."""
    return Path(endpoint.removeprefix(_SCHEME))


def find_endpoint(root: Path = Path("/")) -> str | None:
    """Return the first known endpoint at which there is a socket, None where there is none."""
    for endpoint in KNOWN_ENDPOINTS:
        try:
            if stat.S_ISSOCK((root / endpoint.lstrip("/")).stat().st_mode):
                return endpoint
        except OSError:
            continue
    return None


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
