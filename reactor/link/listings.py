"""Listings: what the steward knows of a Kubernetes node's pods, by the uids of their cgroups.

    specs     what a pod asks for, its priority, and where the kubelet has it from
    runtime   which sandboxes and containers a pod has, by the container runtime
    files     names of pods by the kubelet's directories of logs, and which uids manifests of static pods give

A listing is a row of records, each with its length before it, sent in pieces. A record has a fixed form
(`reactor.forms`): its numbers have bounds, its names are of the letters that the API server accepts, and
there are few enough of each for the guard to read a record in a millisecond. What has no such form is left
out by the writer, and refused by the reader with all of its listing.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from reactor.forms import Field, Form, FormError, Tail, matching, member, number, rows
from reactor.link.requests import MOST_LISTED_BYTES, PIECE_BYTES, Piece, Section
from reactor.model.pod_lists import MOST_LABEL_KEYS
from reactor.model.pods import Container, Pod, PodSource, QosClass, RuntimePod, Volume
from reactor.model.quantity import Quantity
from reactor.model.signals import Resource

MOST_RECORDS: Final = 2_000
LONGEST_RECORD_BYTES: Final = 64 << 10
MOST_CONTAINERS: Final = 64
MOST_VOLUMES: Final = 64
_MOST_SANDBOXES: Final = 16
_LENGTH: Final = struct.Struct("=I")
_AMOUNT: Final = struct.Struct("=QI")
_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,252}")
_LABEL_KEY: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._/-]{0,252}")
_LABEL_VALUE: Final = re.compile(r"|[0-9A-Za-z][0-9A-Za-z._-]{0,62}")
_ID: Final = re.compile(r"[0-9a-f]{64}")
_AMOUNT_TEXT: Final = re.compile(r"[0-9A-Za-z.+-]{1,64}")
_LONGEST_AMOUNT_TEXT: Final = 64
_ODD: Final = re.compile(r"[^0-9A-Za-z._-]")
_LARGEST: Final = (1 << 63) - 1
_BILLION: Final = 10**9

CriticalBecause = Callable[[PodSource, int], str | None]
_Item = TypeVar("_Item")


def is_name(text: str) -> bool:
    """Return whether a uid, or a name, is of the letters that the API server and the kubelet make them of."""
    return _NAME.fullmatch(text) is not None


def _cleaned(text: str) -> str:
    """Return a name, the letters that none has replaced: it is only shown."""
    if is_name(text):
        return text
    cleaned = _ODD.sub("-", text)[:252]
    return cleaned if is_name(cleaned) else f"x{cleaned}"


@functools.lru_cache(maxsize=1024)
def _quantity(whole: int, billionths: int, text: bytes) -> Quantity:
    """Return an amount; the pods of a node ask for few different ones. Raises FormError."""
    written = text.decode("ascii", errors="replace")
    if whole > _LARGEST or billionths >= _BILLION or _AMOUNT_TEXT.fullmatch(written) is None:
        raise FormError(f"got {whole}, {billionths} billionths, {text!r}; accepted: an amount up to 2^63")
    return Quantity(
        Fraction(whole * _BILLION + billionths, _BILLION) if billionths else Fraction(whole), written
    )


def _read_amount(length: int, raw: bytes, at: int) -> tuple[Quantity, int]:
    start = at + _AMOUNT.size
    if start + length > len(raw):
        raise FormError(f"got an amount that is cut short; accepted: {length} letters of one")
    return _quantity(*_AMOUNT.unpack_from(raw, at), raw[start : start + length]), start + length


def _write_amount(quantity: Quantity) -> tuple[int, bytes]:
    billionths = max(0, min(int(quantity.amount * _BILLION), _LARGEST * _BILLION))
    text = quantity.text
    if _AMOUNT_TEXT.fullmatch(text) is None:
        text = str(quantity)[:_LONGEST_AMOUNT_TEXT]
    return len(text), _AMOUNT.pack(*divmod(billionths, _BILLION)) + text.encode()


_Name = Annotated[str, matching(_NAME, 253)._replace(write=lambda text: _cleaned(text).encode())]
_Id = Annotated[str, matching(_ID, 64)]
_Quantity = Annotated[
    Quantity, Field("B", tail=Tail(_read_amount, _write_amount, _AMOUNT.size + _LONGEST_AMOUNT_TEXT))
]
_Bytes = Annotated[int, number("Q", _LARGEST, is_cut=True)]
_Source = Annotated[PodSource, member(PodSource)]


class _Container(NamedTuple):
    name: _Name
    memory: _Quantity | None
    storage: _Quantity | None
    limit: _Quantity | None


class _Volume(NamedTuple):
    name: _Name
    is_local: bool
    is_empty_dir: bool
    size_limit: _Quantity | None


class _Label(NamedTuple):
    key: Annotated[str, matching(_LABEL_KEY, 253)]
    value: Annotated[str, matching(_LABEL_VALUE, 63)]


class _Spec(NamedTuple):
    source: _Source
    uid: _Name
    namespace: _Name
    name: _Name
    qos_class: Annotated[QosClass, member(QosClass)]
    priority: Annotated[int, number("i", (1 << 31) - 1, least=-(1 << 31), is_cut=True)]
    grace_seconds: Annotated[int, number("I", (1 << 32) - 1, is_cut=True)]
    memory: _Bytes | None
    storage: _Bytes | None
    own_memory: _Quantity | None
    limit: _Quantity | None
    containers: Annotated[tuple[_Container, ...], rows(_Container, MOST_CONTAINERS)]
    volumes: Annotated[tuple[_Volume, ...], rows(_Volume, MOST_VOLUMES)]
    labels: Annotated[tuple[_Label, ...], rows(_Label, MOST_LABEL_KEYS)]


class _RunningContainer(NamedTuple):
    id: _Id
    name: _Name


class _Sandbox(NamedTuple):
    id: _Id


class _Runtime(NamedTuple):
    source: _Source
    uid: _Name
    namespace: _Name
    name: _Name
    sandboxes: Annotated[tuple[_Sandbox, ...], rows(_Sandbox, _MOST_SANDBOXES)]
    containers: Annotated[tuple[_RunningContainer, ...], rows(_RunningContainer, MOST_CONTAINERS)]


class FileNames(NamedTuple):
    """What files say of a uid: its pod's namespace and name, if any, and whether a manifest gives it."""

    uid: _Name
    is_static: bool
    namespace: _Name | None = None
    name: _Name | None = None


def _spec_problem(spec: _Spec) -> str | None:
    if len({one.key for one in spec.labels}) < len(spec.labels):
        return "got a label of a spec twice; accepted: each once"
    return None


def _runtime_problem(pod: _Runtime) -> str | None:
    if pod.source is PodSource.MIRROR:
        return f"got source {pod.source} of a pod of the runtime's; accepted: any but a mirror"
    return None


def _files_problem(names: FileNames) -> str | None:
    if (names.namespace is None) != (names.name is None):
        return "got half a name; accepted: namespace and name, or neither"
    return None


_SPEC: Final = Form(_Spec, check=_spec_problem)
_RUNTIME: Final = Form(_Runtime, check=_runtime_problem)
_FILES: Final = Form(FileNames, check=_files_problem)
read_files = _FILES.read


def joined(records: Iterable[bytes]) -> bytes:
    return b"".join(part for record in records for part in (_LENGTH.pack(len(record)), record))


def pieces(section: Section, number: int, records: Iterable[bytes]) -> Iterator[Piece]:
    """Yield the pieces of a listing of records that fit into one."""
    content = joined(records)
    for index, start in enumerate(range(0, max(1, len(content)), PIECE_BYTES)):
        yield Piece(
            section=section,
            number=number,
            index=index,
            total_bytes=len(content),
            is_last=start + PIECE_BYTES >= len(content),
            content=content[start : start + PIECE_BYTES],
        )


def fitting(records: Iterable[bytes]) -> list[bytes]:
    """Return the first records that fit into one listing."""
    found, left_bytes = list[bytes](), MOST_LISTED_BYTES
    for record in records:
        left_bytes -= _LENGTH.size + len(record)
        if left_bytes < 0 or len(found) == MOST_RECORDS:
            break
        found.append(record)
    return found


def split_records(buffer: bytearray) -> Iterator[bytes]:
    """Yield the whole records at the head of the buffer, and remove them. Raises FormError."""
    start = 0
    try:
        while start + _LENGTH.size <= len(buffer):
            (length,) = _LENGTH.unpack_from(buffer, start)
            if not 0 < length <= LONGEST_RECORD_BYTES:
                raise FormError(f"got a record of {length} bytes; accepted: 1 to {LONGEST_RECORD_BYTES}")
            end = start + _LENGTH.size + length
            if end > len(buffer):
                return
            yield bytes(buffer[start + _LENGTH.size : end])
            start = end
    finally:
        del buffer[:start]


def spec_record(source: PodSource, pod: Pod) -> bytes | None:
    """Return a spec's record; None where no cgroup can be of the pod's uid.

    Of more containers or volumes than a record holds those with a limit or a request come first.
    """
    if not is_name(pod.uid):
        return None
    labels = [_Label(key, value) for key, value in sorted(pod.labels.items()) if is_label(key, value)]
    local = [one for one in pod.volumes if one.is_local or one.is_empty_dir or one.size_limit is not None]
    spec = _Spec(
        *(source, pod.uid, pod.namespace, pod.name, pod.qos_class, pod.priority),
        pod.termination_grace_period_seconds,
        *_of_resources(pod.requests),
        *(pod.own_memory_request, pod.ephemeral_storage_limit),
        tuple(
            _Container(one.name, *_of_resources(one.requests), one.ephemeral_storage_limit)
            for one in _first(pod.containers, MOST_CONTAINERS, _asks)
        ),
        tuple(
            _Volume(one.name, one.is_local, one.is_empty_dir, one.size_limit)
            for one in _first(local, MOST_VOLUMES, lambda one: one.size_limit is not None)
        ),
        tuple(labels[:MOST_LABEL_KEYS]),
    )
    return _SPEC.write(spec)


def is_label(key: object, value: object) -> bool:
    """Return whether these are a label's, of the letters that the API server accepts; long keys are none."""
    return (
        isinstance(key, str)
        and isinstance(value, str)
        and _LABEL_KEY.fullmatch(key) is not None
        and _LABEL_VALUE.fullmatch(value) is not None
    )


def is_cut(pod: Pod) -> bool:
    return len(pod.containers) > MOST_CONTAINERS or len(pod.volumes) > MOST_VOLUMES


def runtime_record(uid: str, pod: RuntimePod) -> bytes | None:
    """Return the record of a pod as the runtime knows it; None where no cgroup can be of its uid."""
    if not is_name(uid):
        return None
    sandboxes = [_Sandbox(one) for one in pod.sandboxes if _ID.fullmatch(one)][-_MOST_SANDBOXES:]
    containers = [_RunningContainer(*one) for one in pod.containers.items() if _ID.fullmatch(one[0])]
    running = tuple(containers[:MOST_CONTAINERS])
    return _RUNTIME.write(_Runtime(pod.source, uid, pod.namespace, pod.name, tuple(sandboxes), running))


def files_record(names: FileNames) -> bytes | None:
    """Return the record of what files say of a pod; None where no cgroup can be of its uid."""
    return _FILES.write(names) if is_name(names.uid) else None


def read_spec(record: bytes, critical_because: CriticalBecause) -> tuple[PodSource, Pod]:
    """Return the spec in a record. Raises FormError."""
    spec = _SPEC.read(record)
    pod = Pod(
        name=spec.name,
        namespace=spec.namespace,
        uid=spec.uid,
        priority=spec.priority,
        qos_class=spec.qos_class,
        critical_because=critical_because(spec.source, spec.priority),
        termination_grace_period_seconds=spec.grace_seconds,
        requests=_requests(spec.memory, spec.storage),
        own_memory_request=spec.own_memory,
        ephemeral_storage_limit=spec.limit,
        containers=tuple(
            Container(
                name=one.name,
                requests=_requests(one.memory, one.storage),
                ephemeral_storage_limit=one.limit,
            )
            for one in spec.containers
        ),
        volumes=tuple(Volume(**one._asdict()) for one in spec.volumes),
        labels=dict(spec.labels),
    )
    return spec.source, pod


def read_runtime(record: bytes) -> tuple[str, RuntimePod]:
    """Return the uid and what the runtime knows of its pod, in a record. Raises FormError."""
    found = _RUNTIME.read(record)
    pod = RuntimePod(
        name=found.name,
        namespace=found.namespace,
        sandboxes=tuple(one.id for one in found.sandboxes),
        containers=dict(found.containers),
        source=found.source,
    )
    return found.uid, pod


def _of_resources(requests: Mapping[Resource, Any]) -> tuple[Any, Any]:
    return requests.get(Resource.MEMORY), requests.get(Resource.EPHEMERAL_STORAGE)


def _requests(memory: _Item | None, storage: _Item | None) -> dict[Resource, _Item]:
    found = {Resource.MEMORY: memory, Resource.EPHEMERAL_STORAGE: storage}
    return {resource: amount for resource, amount in found.items() if amount is not None}


def _asks(container: Container) -> bool:
    return container.ephemeral_storage_limit is not None or bool(container.requests)


def _first(items: Sequence[_Item], most: int, is_first: Callable[[_Item], bool]) -> list[_Item]:
    """Return as many items, in their order; where there are more, those that come first stay."""
    if len(items) <= most:
        return list(items)
    chosen = sorted(range(len(items)), key=lambda place: (not is_first(items[place]), place))[:most]
    return [items[place] for place in sorted(chosen)]
