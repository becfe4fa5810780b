"""Pods of a Kubernetes node, as the steward reports them. Untrusted.

A listing replaces the one before it as a whole. One that is incomplete, contradicts itself or says what can't
be is dropped and named. What was reported before stands, however long nothing comes: without a steward, and
after a restart of the guard too, which keeps the specs in a file of its own. Whether a pod is critical is
decided here, by its priority and by where the kubelet has it from.
"""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import trio

from reactor.forms import FormError
from reactor.kernel.small_file import KeptFile
from reactor.link.listings import (
    MOST_RECORDS,
    FileNames,
    joined,
    read_files,
    read_runtime,
    read_spec,
    split_records,
)
from reactor.link.requests import Piece, Request, Section
from reactor.model.pods import SYSTEM_CRITICAL_PRIORITY, Inventory, NodeFiles, Pod, PodSource, RuntimePod
from reactor.model.settings import PodOrigin, Settings
from reactor.workloads.kubepods import may_be_api_uid

_LOG: Final = logging.getLogger("reactor.pods")
_SPECS: Final = "pods.json"
_MOST_BYTES: Final = 8 << 20
_BETWEEN_SECONDS: Final = 5.0
_COMPLETE_SECONDS: Final = 30.0
_BETWEEN_CHANGES_SECONDS: Final = 0.1

_NOT_OF_KUBELET: Final = frozenset({PodSource.MIRROR})
_NOT_OF_API: Final = frozenset({PodSource.FILE, PodSource.HTTP, PodSource.OTHER})

_Records = Mapping[bytes, tuple[str, Any]]  # the uid and what is reported of its pod, by the record


class PodFacts:
    """Keeps what was reported; `on_change` is called, a few times a second at the most, if it differs.

    `specs` are by the uids of cgroups, `runtime` is what the runtime knows of pods; both are replaced, and
    never changed. `has_specs` is set once they were listed. `run` is a part of the daemon, and so is
    `remembered.run`. It may be read in any thread.
    """

    def __init__(self, settings: Settings, *, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self._clock_seconds = clock_seconds
        kubernetes = settings.kubernetes
        origin = PodOrigin.API if kubernetes is None else kubernetes.pods_from
        self._is_of_kubelet = origin is PodOrigin.KUBELET
        # For a start while the API server is away. A spec counts for the pod of its uid and for no other, so
        # one that is out of date does no harm: there is no cgroup of that uid any more.
        self.remembered = KeptFile[_Records](
            Path(settings.state_path).with_name(_SPECS),
            lambda records: {"specs": base64.b64encode(joined(records)).decode("ascii")},
            lambda document: self._remembered(base64.b64decode(document["specs"], validate=True)),
            "pods: not saved, a restart without the API server would not know them",
            _LOG,
            most_bytes=_MOST_BYTES,
            between_seconds=_BETWEEN_SECONDS,
        )
        self.on_change: Callable[[], None] = lambda: None
        self.specs: Mapping[str, Pod] = {}
        self.runtime: Inventory = {}
        self.files = NodeFiles()
        self._known: dict[Section, _Records] = {}
        self._listings: dict[Section, _Listing] = {}
        self._numbers: dict[Section, int] = {}
        self._complete_at = float("-inf")
        self._is_changed = trio.Event()
        self.has_specs = trio.Event()

    def load(self) -> None:
        """Take over the specs of an earlier run. Blocks on the disk."""
        records = self.remembered.load()
        if records is not None:
            self._known[Section.SPECS] = records
            self.specs = dict(records.values())

    def is_complete(self) -> bool:
        """Return whether all pods are listed and changes arrive, as was confirmed lately."""
        return self._clock_seconds() - self._complete_at < _COMPLETE_SECONDS

    async def run(self) -> None:
        """Report changes, until cancelled."""
        while True:
            await self._is_changed.wait()
            self._is_changed = trio.Event()
            self.on_change()
            await trio.sleep(_BETWEEN_CHANGES_SECONDS)

    def restart(self) -> None:
        """Begin again with another steward: a listing that was not complete is dropped."""
        self._listings.clear()
        self._numbers.clear()
        self._complete_at = float("-inf")

    def confirm(self, request: Request) -> None:
        """Record PODS_COMPLETE. Raises FormError where it is about no listing that is in force."""
        if request.number != self._numbers.get(Section.SPECS, 0):
            raise FormError(
                f"got all pods in the listing {request.number}; accepted: the last whole one of specs"
            )
        self._complete_at = self._clock_seconds() if request.places else float("-inf")

    def take(self, piece: Piece) -> None:
        """Take a piece of a listing. Raises FormError for what fits no listing, which is dropped then."""
        section = piece.section
        before = self._listings.pop(section, None)
        if piece.index == 0:
            if piece.number <= self._numbers.get(section, 0):
                raise FormError(
                    f"got the listing {piece.number} of {section.name} again; accepted: a later one"
                )
            listing = _Listing(piece, self._known.get(section, {}))
        elif before is None or (piece.number, piece.index) != (before.number, before.next_index):
            raise FormError(
                f"got piece {piece.index} of the listing {piece.number} of {section.name}, out of its turn; "
                f"dropped: the listing"
            )
        else:
            listing = before
        listing.take(piece, self._read_spec if section is Section.SPECS else _READERS[section])
        if piece.is_last:
            self._numbers[section] = piece.number
            self._adopt(section, listing)
        else:
            self._listings[section] = listing
        if piece.index == 0 and before is not None:
            raise FormError(
                f"got listing {piece.number} of {section.name} within listing {before.number}; dropped: that "
                f"one, of which {before.left_bytes} bytes are missing"
            )

    def _adopt(self, section: Section, listing: _Listing) -> None:
        records = listing.records
        is_news = records.keys() != self._known.get(section, {}).keys()
        self._known[section] = records
        if section is Section.SPECS:
            self.has_specs.set()
        if not is_news:
            return
        found = dict(records.values())
        if section is Section.SPECS:
            self.specs = found
            self.remembered.show(records)
        elif section is Section.RUNTIME:
            self.runtime = found
        else:
            self.files = NodeFiles(
                names={one.uid: (one.namespace, one.name) for one in found.values() if one.name is not None},
                static_uids=frozenset(one.uid for one in found.values() if one.is_static),
            )
        self._is_changed.set()

    def _read_spec(self, record: bytes) -> tuple[str, Pod]:
        source, pod = read_spec(record, critical_because)
        # Only the kubelet lists static pods themselves, and only the API server of their mirrors.
        if source in (_NOT_OF_KUBELET if self._is_of_kubelet else _NOT_OF_API):
            raise FormError(f"got a pod of source {source}; accepted: one that its list can have")
        return pod.uid, pod

    def _remembered(self, raw: bytes) -> _Records:
        buffer = bytearray(raw)
        records = {record: self._read_spec(record) for record in split_records(buffer)}
        if buffer:
            raise FormError(f"got {len(buffer)} bytes too many")
        return records


def critical_because(source: PodSource, priority: int) -> str | None:
    """Return why a pod is never evicted, None where it may be. Source: kubelet/types, IsCriticalPod."""
    if source is PodSource.MIRROR or priority < SYSTEM_CRITICAL_PRIORITY:
        return source.critical_because
    return f"priority {priority}"


class _Listing:
    """A listing on its way; `records` are those that came, each with its uid and what it says."""

    def __init__(self, first: Piece, known: _Records) -> None:
        self.number = first.number
        self.next_index = 0
        self.left_bytes = first.total_bytes
        self.records: dict[bytes, tuple[str, Any]] = {}
        self._total_bytes = first.total_bytes
        self._known = known
        self._uids: set[str] = set()
        self._buffer = bytearray()

    def take(self, piece: Piece, read: Callable[[bytes], tuple[str, Any]]) -> None:
        """Take the next piece. Raises FormError; a record that was known already is not read again."""
        self.next_index = piece.index + 1
        self.left_bytes -= len(piece.content)
        if (
            piece.total_bytes != self._total_bytes
            or self.left_bytes < 0
            or piece.is_last != (not self.left_bytes)
        ):
            raise FormError(
                f"got a listing of {piece.total_bytes} bytes, {self.left_bytes} of them missing at its piece "
                f"{piece.index}; accepted: as many as its first piece says"
            )
        self._buffer += piece.content
        for record in split_records(self._buffer):
            uid, _ = found = self._known.get(record) or read(record)
            if uid in self._uids or len(self._uids) >= MOST_RECORDS:
                raise FormError(f"got the pod {uid} twice, or more than {MOST_RECORDS}; dropped: the listing")
            self._uids.add(uid)
            self.records[record] = found
        if piece.is_last and self._buffer:
            raise FormError("got a listing with a record that is cut short; dropped: the listing")


def _read_runtime(record: bytes) -> tuple[str, RuntimePod]:
    uid, pod = read_runtime(record)
    if pod.source is not PodSource.API and may_be_api_uid(uid):
        raise FormError(f"got pod {uid} of source {pod.source}; accepted: from the API server, as its uid is")
    return uid, pod


def _read_files(record: bytes) -> tuple[str, FileNames]:
    return (names := read_files(record)).uid, names


_READERS: Final = {Section.RUNTIME: _read_runtime, Section.FILES: _read_files}
