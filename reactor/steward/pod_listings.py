"""Hands the guard what is known of the node's pods: each time something differs, the listing that it is in.

A listing goes as a whole; the guard keeps the one before it until then. Nothing is told before all pods of
the source have been listed: what the guard knows is better than a part of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import trio

from reactor.cluster.pod_specs import NodeFilesWatch, PodSpecs
from reactor.cluster.runtime import RuntimeWatch
from reactor.link.listings import (
    FileNames,
    files_record,
    fitting,
    is_cut,
    pieces,
    runtime_record,
    spec_record,
)
from reactor.link.requests import Request, RequestKind, Section
from reactor.steward.guard import Guard

_BETWEEN_SECONDS: Final = 0.25
_HEARD_SECONDS: Final = 5.0


class PodListings:
    """Tells the guard; `due` says that something may differ. `run` is a part of the steward."""

    def __init__(self, guard: Guard, specs: PodSpecs, runtime: RuntimeWatch, files: NodeFilesWatch) -> None:
        self._guard = guard
        self._specs = specs
        self._runtime = runtime
        self._files = files
        self._number = 0
        self._told: dict[Section, tuple[int, Sequence[bytes]]] = {}  # the listing's number and its records
        self._due = trio.Event()
        self.problem: str | None = None

    def due(self) -> None:
        """Have the guard told soon."""
        self._due.set()

    async def run(self) -> None:
        """Tell until cancelled; at intervals that all pods are still heard of."""
        while True:
            self._due = trio.Event()
            if self._specs.store.is_complete:
                await self._tell(Section.SPECS, list(self._spec_records()))
            await self._tell(Section.RUNTIME, list(self._runtime_records()))
            await self._tell(Section.FILES, list(self._file_records()))
            number, _ = self._told.get(Section.SPECS, (0, ()))
            if number:
                is_heard = self._specs.is_heard
                await self._guard.say(Request(kind=RequestKind.PODS_HEARD, number=number, places=is_heard))
            await trio.sleep(_BETWEEN_SECONDS)
            with trio.move_on_after(_HEARD_SECONDS):
                await self._due.wait()

    async def _tell(self, section: Section, records: Sequence[bytes]) -> None:
        fits = fitting(records)
        if section is Section.SPECS and len(fits) < len(records):
            self.problem = f"the guard is told of {len(fits)} of {len(records)} pods: more than it accepts"
        if section in self._told and self._told[section][1] == fits:
            return
        self._number += 1
        for piece in pieces(section, self._number, fits):
            await self._guard.say(piece)
        self._told[section] = (self._number, fits)

    def _spec_records(self) -> Iterator[bytes]:
        """Yield the records of specs; those of pods that have ended last."""
        self.problem = None
        for known in sorted(self._specs.store.known.values(), key=lambda one: one.is_terminal):
            if is_cut(known.pod):
                self.problem = f"pod {known.pod.key}: the guard is told of some containers and volumes alone"
            record = spec_record(known.source, known.pod)
            if record is not None:
                yield record

    def _runtime_records(self) -> Iterator[bytes]:
        for uid, pod in self._runtime.inventory.items():
            record = runtime_record(uid, pod)
            if record is not None:
                yield record

    def _file_records(self) -> Iterator[bytes]:
        files = self._files.files
        for uid in sorted(files.names.keys() | files.static_uids):
            record = files_record(FileNames(uid, files.names.get(uid), uid in files.static_uids))
            if record is not None:
                yield record
