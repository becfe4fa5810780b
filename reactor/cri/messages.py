"""What the runtime is asked and answers, by the field numbers of its api.proto, as far as reactor uses them.

They are the same in runtime.v1 and in runtime.v1alpha2; newer fields are simply absent in what an old
runtime sends. Instants are nanoseconds of the Unix clock. Source: kubernetes/cri-api, pkg/apis/runtime/v1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Self, TypeVar

from reactor.config.pod import HASH_ANNOTATION, MIRROR_ANNOTATION, SOURCE_ANNOTATION
from reactor.errors import ReactorError

_VARINT: Final = 0
_BYTES: Final = 2
_FIXED_SIZES: Final = {1: 8, 5: 4}
_LONGEST_VARINT: Final = 10
_LARGEST_FIELD_NUMBER: Final = (1 << 29) - 1
_MOST_FIELDS: Final = 1_000_000  # of one message; 60,000 annotations are as many
_MOST_REPEATED: Final = 20_000  # what is kept takes memory: a node has some hundreds of containers and images
_UINT64: Final = 1 << 64
_INT64_SIGN: Final = 1 << 63
_KEY: Final = "wire"
_KEY_TAG: Final = b"\x0a"  # field 1, delimited

_Enum = TypeVar("_Enum", bound=IntEnum)


class WireError(ReactorError):
    """Received bytes are not a message of the wire format."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Kind:
    """How one field is read and written.

    `add` takes the value so far (None: there was none) and what came, and returns the value; that of a field
    that is repeated is a list, and in the end a tuple.
    """

    number: int
    wire_type: int
    add: Callable[[Any, Any], Any]
    encode: Callable[[Any], Iterator[bytes]]
    is_repeated: bool = False


_DECLARED: Final[dict[Any, Mapping[int, tuple[str, _Kind]]]] = {}


class Message:
    """A message; its fields are declared by the functions below."""

    __slots__ = ()

    @classmethod
    def decode(cls, raw: bytes | memoryview) -> Self:
        """Return the message. Raises WireError."""
        known = _by_number(cls)
        values: dict[str, Any] = {}
        for number, wire_type, value in _fields(memoryview(raw)):
            found = known.get(number)
            if found is not None and found[1].wire_type == wire_type:
                name, kind = found
                values[name] = kind.add(values.get(name), value)
        for name, kind in known.values():
            if kind.is_repeated and name in values:
                values[name] = tuple(values[name])
        return cls(**values)

    def encode(self) -> bytes:
        """Return the message's bytes; defaults are left out."""
        return b"".join(
            chunk
            for name, kind in _by_number(type(self)).values()
            for chunk in kind.encode(getattr(self, name))
        )


def text(number: int) -> Any:
    """Declare a string; what is not UTF-8 is read with replacement characters."""

    def encode(value: str) -> Iterator[bytes]:
        if value:
            yield from _delimited(number, value.encode())

    return _declare(_Kind(number, _BYTES, lambda _, raw: _text(raw), encode), default="")


def texts(number: int) -> Any:
    """Declare a repeated string, a tuple."""

    def encode(values: tuple[str, ...]) -> Iterator[bytes]:
        for value in values:
            yield from _delimited(number, value.encode())

    return _declare(_repeated(number, _text, encode), ())


def unsigned(number: int) -> Any:
    return _declare(_Kind(number, _VARINT, lambda _, value: value, _number_encoder(number)), default=0)


def signed(number: int) -> Any:
    """Declare an int32 or int64 (two's complement, not zigzag)."""
    return _declare(
        _Kind(number, _VARINT, lambda _, value: _as_signed(value), _number_encoder(number)), default=0
    )


def flag(number: int) -> Any:
    return _declare(
        _Kind(number, _VARINT, lambda _, value: bool(value), _number_encoder(number)), default=False
    )


def choice(number: int, default: _Enum, *, unknown: _Enum) -> Any:
    """Declare an enumeration; `unknown` stands for values that are newer than this client."""
    known = {int(member): member for member in type(default)}

    def add(_: object, value: int) -> _Enum:
        return known.get(value, unknown)

    return _declare(_Kind(number, _VARINT, add, _number_encoder(number)), default=default)


def message(number: int, of: type[Message]) -> Any:
    """Declare a message, None where absent."""

    def encode(value: Message | None) -> Iterator[bytes]:
        if value is not None:
            yield from _delimited(number, value.encode())

    return _declare(_Kind(number, _BYTES, lambda _, raw: of.decode(raw), encode), default=None)


def messages(number: int, of: type[Message]) -> Any:
    """Declare a repeated message, a tuple."""

    def encode(values: tuple[Message, ...]) -> Iterator[bytes]:
        for value in values:
            yield from _delimited(number, value.encode())

    return _declare(_repeated(number, of.decode, encode), ())


def text_map(number: int, keys: Collection[str] | None = None) -> Any:
    """Declare a map<string, string>, a dict, of which only these keys are read (None: all)."""
    # An entry begins with its key, as every known encoder writes it; one that doesn't is read as a whole.
    beginnings = tuple(b"".join(_delimited(1, key.encode())) for key in keys or ())
    longest = max(map(len, beginnings), default=0)

    def add(so_far: dict[str, str] | None, raw: memoryview) -> dict[str, str]:
        found = {} if so_far is None else so_far
        if keys is not None:
            beginning = bytes(raw[:longest])
            if beginning[:1] == _KEY_TAG and not beginning.startswith(beginnings):
                return found
        entry = {inner: _text(part) for inner, kind, part in _fields(raw) if kind == _BYTES}
        if keys is None or entry.get(1, "") in keys:
            found[entry.get(1, "")] = entry.get(2, "")
        if len(found) > _MOST_REPEATED:
            raise WireError(f"got more than {_MOST_REPEATED} entries of field {number}; accepted: so many")
        return found

    def encode(values: Mapping[str, str]) -> Iterator[bytes]:
        for key, value in values.items():
            entry = (*_delimited(1, key.encode()), *_delimited(2, value.encode()))
            yield from _delimited(number, b"".join(entry))

    kind = _Kind(number, _BYTES, add, encode)
    return dataclasses.field(default_factory=dict, metadata={_KEY: kind})


def _repeated(
    number: int, read: Callable[[memoryview], Any], encode: Callable[[Any], Iterator[bytes]]
) -> _Kind:
    def add(so_far: list[Any] | None, raw: memoryview) -> list[Any]:
        found = [] if so_far is None else so_far
        if len(found) >= _MOST_REPEATED:
            raise WireError(f"got more than {_MOST_REPEATED} of field {number}; accepted: so many")
        found.append(read(raw))
        return found

    return _Kind(number, _BYTES, add, encode, is_repeated=True)


def _declare(kind: _Kind, default: object) -> Any:
    return dataclasses.field(default=default, metadata={_KEY: kind})


def _by_number(of: Any) -> Mapping[int, tuple[str, _Kind]]:
    """Return a message's fields by their number, in the order of declaration."""
    known = _DECLARED.get(of)
    if known is None:
        kinds = {field.name: field.metadata[_KEY] for field in dataclasses.fields(of)}
        known = _DECLARED[of] = {kind.number: (name, kind) for name, kind in kinds.items()}
    return known


def _fields(raw: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Yield number, wire type and value of each field: an int, or the bytes as a view.

    Raises WireError for what is cut off, for a field number that can't be, and for groups, which proto3
    does not have.
    """
    position, end, fields = 0, len(raw), 0
    while position < end:
        fields += 1
        if fields > _MOST_FIELDS:
            raise WireError(f"got more than {_MOST_FIELDS} fields; accepted: so many")
        tag, position = _varint(raw, position)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number <= _LARGEST_FIELD_NUMBER:
            raise WireError(f"got field number {number} at byte {position}; accepted: 1 to 2^29 - 1")
        if wire_type == _VARINT:
            value, position = _varint(raw, position)
            yield number, wire_type, value
            continue
        if wire_type == _BYTES:
            size, position = _varint(raw, position)
        elif wire_type in _FIXED_SIZES:
            size = _FIXED_SIZES[wire_type]
        else:
            raise WireError(f"got wire type {wire_type} at byte {position}; accepted: 0, 1, 2 or 5")
        if size > end - position:
            raise WireError(f"got {end - position} bytes of a field of {size}; accepted: all of it")
        yield number, wire_type, raw[position : position + size]
        position += size


def _varint(raw: memoryview, position: int) -> tuple[int, int]:
    """Return the number that begins at a position, and where it ends. Raises WireError."""
    value = 0
    for index, byte in enumerate(raw[position : position + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value % _UINT64, position + index + 1
    raise WireError(f"got a number without an end at byte {position}; accepted: at most 10 bytes")


def _number_encoder(number: int) -> Callable[[int], Iterator[bytes]]:
    def encode(value: int) -> Iterator[bytes]:
        if value:
            yield _as_varint(number << 3 | _VARINT) + _as_varint(int(value) % _UINT64)

    return encode


def _delimited(number: int, content: bytes) -> tuple[bytes, bytes]:
    return _as_varint(number << 3 | _BYTES) + _as_varint(len(content)), content


def _as_varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _as_signed(value: int) -> int:
    return value - _UINT64 if value >= _INT64_SIGN else value


def _text(raw: memoryview) -> str:
    return str(raw, "utf-8", "replace")


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
    """Names a container: to be removed, or its status to be reported."""

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
