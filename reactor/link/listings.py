"""Listings: what the steward knows of a Kubernetes node's pods, by the uids of their cgroups.

    specs     what a pod asks for, its priority, and where the kubelet has it from
    runtime   which sandboxes and containers a pod has, by the container runtime
    files     names of pods by the kubelet's directories of logs, and which uids manifests of static pods give

A listing is a row of records, each with its length before it, sent in pieces. A record has a fixed form: its
numbers have bounds, its names are of the letters that the API server accepts, and there are few enough of
each for the guard to read a record in a millisecond. What has no such form is left out by the writer, and
refused by the reader with all of its listing.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Final, NamedTuple, TypeVar

from reactor.forms import FormError
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
_SPEC: Final = struct.Struct("=BBBBiIQQ")
_COUNTS: Final = struct.Struct("=HH")
_BYTE: Final = struct.Struct("=B")
_AMOUNT: Final = struct.Struct("=QI")
_NAME: Final = re.compile(rb"[0-9A-Za-z][0-9A-Za-z._-]{0,252}")
_LABEL_KEY: Final = re.compile(rb"[0-9A-Za-z][0-9A-Za-z._/-]{0,252}")
_LABEL_VALUE: Final = re.compile(rb"|[0-9A-Za-z][0-9A-Za-z._-]{0,62}")
_ID: Final = re.compile(rb"[0-9a-f]{64}")
_AMOUNT_TEXT: Final = re.compile(rb"[0-9A-Za-z.+-]{1,64}")
_ODD: Final = re.compile(r"[^0-9A-Za-z._-]")
_LARGEST: Final = (1 << 63) - 1
_LONGEST_GRACE: Final = (1 << 32) - 1
_BILLION: Final = 10**9
_QOS: Final = tuple(QosClass)
_SOURCES: Final = tuple(PodSource)
_HAS_MEMORY, _HAS_STORAGE, _HAS_OWN_MEMORY, _HAS_LIMIT, _HAS_LABELS = 1, 2, 4, 8, 16
_IS_LOCAL, _IS_EMPTY_DIR, _HAS_SIZE_LIMIT = 1, 2, 4

CriticalBecause = Callable[[PodSource, int], str | None]
_Item = TypeVar("_Item")


class FileNames(NamedTuple):
    """What files say of a uid: the name of its pod (None: nothing), and whether a manifest gives it."""

    uid: str
    name: tuple[str, str] | None
    is_static: bool


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

    Of more containers or volumes than a record holds those with a limit or a request come first. Without
    labels a record is as it was before there were any in one.
    """
    labels = [(key, value) for key, value in sorted(pod.labels.items()) if is_label(key, value)]
    if not is_name(pod.uid):
        return None
    containers = _first(pod.containers, MOST_CONTAINERS, _asks)
    local = [one for one in pod.volumes if one.is_local or one.is_empty_dir or one.size_limit is not None]
    volumes = _first(local, MOST_VOLUMES, lambda one: one.size_limit is not None)
    memory, storage = (pod.requests.get(one) for one in (Resource.MEMORY, Resource.EPHEMERAL_STORAGE))
    flags = (
        (memory is not None) * _HAS_MEMORY
        | (storage is not None) * _HAS_STORAGE
        | (pod.own_memory_request is not None) * _HAS_OWN_MEMORY
        | (pod.ephemeral_storage_limit is not None) * _HAS_LIMIT
        | bool(labels) * _HAS_LABELS
    )
    head = _SPEC.pack(
        *(flags, _QOS.index(pod.qos_class), _SOURCES.index(source), 0),
        max(-(1 << 31), min(pod.priority, (1 << 31) - 1)),
        max(0, min(pod.termination_grace_period_seconds, _LONGEST_GRACE)),
        *(max(0, min(amount or 0, _LARGEST)) for amount in (memory, storage)),
    )
    return b"".join(
        (
            head,
            *map(_name, (pod.uid, pod.namespace, pod.name)),
            *map(_amount, _given(pod.own_memory_request, pod.ephemeral_storage_limit)),
            _COUNTS.pack(len(containers), len(volumes)),
            *map(_container, containers),
            *map(_volume, volumes),
            *_written_labels(labels[:MOST_LABEL_KEYS]),
        )
    )


def _written_labels(labels: Sequence[tuple[str, str]]) -> Iterator[bytes]:
    if labels:
        yield _BYTE.pack(len(labels))
    for text in (part for label in labels for part in label):
        yield _BYTE.pack(len(text)) + text.encode()


def is_label(key: object, value: object) -> bool:
    """Return whether these are a label's, of the letters that the API server accepts; long keys are none."""
    return (
        isinstance(key, str)
        and isinstance(value, str)
        and _LABEL_KEY.fullmatch(key.encode(errors="replace")) is not None
        and _LABEL_VALUE.fullmatch(value.encode(errors="replace")) is not None
    )


def is_cut(pod: Pod) -> bool:
    return len(pod.containers) > MOST_CONTAINERS or len(pod.volumes) > MOST_VOLUMES


def runtime_record(uid: str, pod: RuntimePod) -> bytes | None:
    """Return the record of a pod as the runtime knows it; None where no cgroup can be of its uid."""
    if not is_name(uid):
        return None
    sandboxes = [one for one in pod.sandboxes if _is_id(one)][-_MOST_SANDBOXES:]
    containers = [(key, name) for key, name in pod.containers.items() if _is_id(key)][:MOST_CONTAINERS]
    return b"".join(
        (
            _BYTE.pack(_SOURCES.index(pod.source)),
            *map(_name, (uid, pod.namespace, pod.name)),
            _COUNTS.pack(len(sandboxes), len(containers)),
            *map(bytes.fromhex, sandboxes),
            *(bytes.fromhex(key) + _name(name) for key, name in containers),
        )
    )


def files_record(names: FileNames) -> bytes | None:
    """Return the record of what files say of a pod; None where no cgroup can be of its uid."""
    if not is_name(names.uid):
        return None
    name = () if names.name is None else names.name
    return b"".join((_BYTE.pack(names.is_static | bool(name) << 1), *map(_name, (names.uid, *name))))


def is_name(text: str) -> bool:
    """Return whether a uid, or a name, is of the letters that the API server and the kubelet make them of."""
    return _NAME.fullmatch(text.encode(errors="replace")) is not None


def read_spec(record: bytes, critical_because: CriticalBecause) -> tuple[PodSource, Pod]:
    """Return the spec in a record. Raises FormError."""
    reader = _Reader(record)
    flags, qos, source, reserved, priority, grace_seconds, memory, storage = reader.take(_SPEC)
    if flags > _HAS_MEMORY | _HAS_STORAGE | _HAS_OWN_MEMORY | _HAS_LIMIT | _HAS_LABELS or reserved:
        raise FormError(f"got flags {flags:#x} of a spec; accepted: those that there are")
    if qos >= len(_QOS) or source >= len(_SOURCES) or max(memory, storage) > _LARGEST:
        raise FormError(f"got class {qos}, source {source}, {memory} and {storage} bytes of a spec")
    uid, namespace, name = reader.name(), reader.name(), reader.name()
    own_memory = reader.amount() if flags & _HAS_OWN_MEMORY else None
    limit = reader.amount() if flags & _HAS_LIMIT else None
    containers, volumes = reader.counts(MOST_CONTAINERS, MOST_VOLUMES)
    requests = {}
    if flags & _HAS_MEMORY:
        requests[Resource.MEMORY] = memory
    if flags & _HAS_STORAGE:
        requests[Resource.EPHEMERAL_STORAGE] = storage
    pod = Pod(
        name=name,
        namespace=namespace,
        uid=uid,
        priority=priority,
        qos_class=_QOS[qos],
        critical_because=critical_because(_SOURCES[source], priority),
        termination_grace_period_seconds=grace_seconds,
        requests=requests,
        own_memory_request=own_memory,
        ephemeral_storage_limit=limit,
        containers=tuple(_read_container(reader) for _ in range(containers)),
        volumes=tuple(_read_volume(reader) for _ in range(volumes)),
        labels=reader.labels() if flags & _HAS_LABELS else {},
    )
    reader.end()
    return _SOURCES[source], pod


def read_runtime(record: bytes) -> tuple[str, RuntimePod]:
    """Return the uid and what the runtime knows of its pod, in a record. Raises FormError."""
    reader = _Reader(record)
    (source,) = reader.take(_BYTE)
    if source >= len(_SOURCES) or _SOURCES[source] is PodSource.MIRROR:
        raise FormError(f"got source {source} of a pod of the runtime's; accepted: any but a mirror")
    uid, namespace, name = reader.name(), reader.name(), reader.name()
    sandboxes, containers = reader.counts(_MOST_SANDBOXES, MOST_CONTAINERS)
    pod = RuntimePod(
        name=name,
        namespace=namespace,
        sandboxes=tuple(reader.id() for _ in range(sandboxes)),
        containers={reader.id(): reader.name() for _ in range(containers)},
        source=_SOURCES[source],
    )
    reader.end()
    return uid, pod


def read_files(record: bytes) -> FileNames:
    """Return what files say of a pod, in a record. Raises FormError."""
    reader = _Reader(record)
    (flags,) = reader.take(_BYTE)
    if flags > 3:
        raise FormError(f"got flags {flags:#x} of files; accepted: up to 3")
    uid = reader.name()
    name = (reader.name(), reader.name()) if flags & 2 else None
    reader.end()
    return FileNames(uid, name, bool(flags & 1))


class _Reader:
    """Reads a record from its beginning. Everything raises FormError for what is not of the form."""

    def __init__(self, record: bytes) -> None:
        self._record = record
        self._at = 0

    def take(self, form: struct.Struct) -> tuple[int, ...]:
        if self._at + form.size > len(self._record):
            raise FormError(f"got a record of {len(self._record)} bytes, which is cut short")
        found = form.unpack_from(self._record, self._at)
        self._at += form.size
        return found

    def name(self) -> str:
        return self._text(_NAME)

    def counts(self, *most: int) -> tuple[int, ...]:
        found = self.take(_COUNTS)
        if any(count > largest for count, largest in zip(found, most, strict=True)):
            raise FormError(f"got {found} items of a record; accepted: up to {most}")
        return found

    def id(self) -> str:
        return self._bytes(32).hex()

    def amount(self) -> Quantity:
        whole, billionths = self.take(_AMOUNT)
        return _quantity(whole, billionths, self._text(_AMOUNT_TEXT))

    def labels(self) -> dict[str, str]:
        (count,) = self.take(_BYTE)
        if not 0 < count <= MOST_LABEL_KEYS:
            raise FormError(f"got {count} labels of a spec; accepted: 1 to {MOST_LABEL_KEYS}")
        found = {self._text(_LABEL_KEY): self._text(_LABEL_VALUE) for _ in range(count)}
        if len(found) < count:
            raise FormError("got a label of a spec twice; accepted: each once")
        return found

    def end(self) -> None:
        if self._at != len(self._record):
            raise FormError(f"got {len(self._record) - self._at} bytes too many in a record")

    def _text(self, form: re.Pattern[bytes]) -> str:
        (length,) = self.take(_BYTE)
        raw = self._bytes(length)
        if form.fullmatch(raw) is None:
            raise FormError(f"got {raw[:40]!r} in a record; accepted: a name, a label or an amount")
        return raw.decode("ascii")

    def _bytes(self, length: int) -> bytes:
        found = self._record[self._at : self._at + length]
        if len(found) != length:
            raise FormError(f"got a record of {len(self._record)} bytes, which is cut short")
        self._at += length
        return found


@functools.lru_cache(maxsize=1024)
def _quantity(whole: int, billionths: int, text: str) -> Quantity:
    """Return an amount; the pods of a node ask for few different ones."""
    if whole > _LARGEST or billionths >= _BILLION:
        raise FormError(f"got an amount of {whole} and {billionths} billionths; accepted: up to 2^63")
    return Quantity(
        Fraction(whole * _BILLION + billionths, _BILLION) if billionths else Fraction(whole), text
    )


def _read_container(reader: _Reader) -> Container:
    (flags,) = reader.take(_BYTE)
    if flags & ~(_HAS_MEMORY | _HAS_STORAGE | _HAS_LIMIT):
        raise FormError(f"got flags {flags:#x} of a container; accepted: those that there are")
    name = reader.name()
    requests = {}
    if flags & _HAS_MEMORY:
        requests[Resource.MEMORY] = reader.amount()
    if flags & _HAS_STORAGE:
        requests[Resource.EPHEMERAL_STORAGE] = reader.amount()
    limit = reader.amount() if flags & _HAS_LIMIT else None
    return Container(name=name, requests=requests, ephemeral_storage_limit=limit)


def _read_volume(reader: _Reader) -> Volume:
    (flags,) = reader.take(_BYTE)
    if flags > _IS_LOCAL | _IS_EMPTY_DIR | _HAS_SIZE_LIMIT:
        raise FormError(f"got flags {flags:#x} of a volume; accepted: those that there are")
    return Volume(
        name=reader.name(),
        is_local=bool(flags & _IS_LOCAL),
        is_empty_dir=bool(flags & _IS_EMPTY_DIR),
        size_limit=reader.amount() if flags & _HAS_SIZE_LIMIT else None,
    )


def _container(container: Container) -> bytes:
    memory, storage = (container.requests.get(one) for one in (Resource.MEMORY, Resource.EPHEMERAL_STORAGE))
    limit = container.ephemeral_storage_limit
    flags = (
        (memory is not None) * _HAS_MEMORY
        | (storage is not None) * _HAS_STORAGE
        | (limit is not None) * _HAS_LIMIT
    )
    return b"".join((_BYTE.pack(flags), _name(container.name), *map(_amount, _given(memory, storage, limit))))


def _volume(volume: Volume) -> bytes:
    flags = (
        volume.is_local * _IS_LOCAL
        | volume.is_empty_dir * _IS_EMPTY_DIR
        | (volume.size_limit is not None) * _HAS_SIZE_LIMIT
    )
    return b"".join((_BYTE.pack(flags), _name(volume.name), *map(_amount, _given(volume.size_limit))))


def _asks(container: Container) -> bool:
    return container.ephemeral_storage_limit is not None or bool(container.requests)


def _first(items: Sequence[_Item], most: int, is_first: Callable[[_Item], bool]) -> list[_Item]:
    """Return as many items, in their order; where there are more, those that come first stay."""
    if len(items) <= most:
        return list(items)
    chosen = sorted(range(len(items)), key=lambda place: (not is_first(items[place]), place))[:most]
    return [items[place] for place in sorted(chosen)]


def _given(*amounts: Quantity | None) -> Iterator[Quantity]:
    return (amount for amount in amounts if amount is not None)


def _amount(quantity: Quantity) -> bytes:
    billionths = max(0, min(int(quantity.amount * _BILLION), _LARGEST * _BILLION))
    text = quantity.text.encode(errors="replace")
    if _AMOUNT_TEXT.fullmatch(text) is None:
        text = str(quantity).encode()[:64]
    return _AMOUNT.pack(*divmod(billionths, _BILLION)) + _BYTE.pack(len(text)) + text


def _name(text: str) -> bytes:
    """Return a name, the letters that none has replaced: it is only shown."""
    if not is_name(text):
        cleaned = _ODD.sub("-", text)[:252]
        text = cleaned if is_name(cleaned) else f"x{cleaned}"
    return _BYTE.pack(len(text)) + text.encode()


def _is_id(text: str) -> bool:
    return _ID.fullmatch(text.encode(errors="replace")) is not None
