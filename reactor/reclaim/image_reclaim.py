"""Unused images, removed before a pod is evicted and by regular collection, for every store of images.

Source: image_gc_manager.go.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from reactor.kernel.scheduling import following
from reactor.model.amounts import bytes_text
from reactor.model.pods import Image
from reactor.model.settings import ImageGcSettings
from reactor.model.signals import Filesystem
from reactor.model.thresholds import Observation
from reactor.policy.images import images_to_collect, images_too_old, unused_images, wanted_bytes
from reactor.reclaim.images import ImageHistory, ListedImage
from reactor.reclaim.reclaims import LATE, MOST_SECONDS, ReclaimReport, shortened, tried
from reactor.reclaim.removed_images import RemovedFor, RemovedImages
from reactor.threads import in_thread


class ImageStore(Protocol):
    """A store of images: a container runtime, podman."""

    async def images(self) -> tuple[ListedImage, ...]:
        """List what is there. Raises ReactorError."""

    async def remove(self, image_id: str) -> None:
        """Remove an image that was listed, unless it is in use by now. Raises ReactorError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What regular collection was to free and did, by the images' sizes; no report where it did nothing."""

    wanted_bytes: int
    freed_bytes: int
    report: ReclaimReport | None


class ImageReclaim:
    """Removes unused images, and counts them in `counted`."""

    def __init__(
        self,
        store: ImageStore,
        history: ImageHistory,
        gc: ImageGcSettings,
        counted: RemovedImages | None = None,
    ) -> None:
        self._store = store
        self._history = history
        self._gc = gc
        self._counted = RemovedImages() if counted is None else counted
        self._watched_since = time.time()

    async def look(self) -> tuple[Image, ...]:
        """Return the images on the node, and remember them. Raises ReactorError."""
        found = self._history.take(await self._store.images(), time.time())
        await in_thread(following(self._history.keep))
        return found

    async def run(self, filesystems: Collection[Filesystem]) -> ReclaimReport | None:  # noqa: ARG002 - all of them
        """Remove every image that may go; see NodeReclaim.run."""
        chosen = unused_images(await self.look(), self._gc, time.time())
        removed, problems = await self._remove(chosen)
        self._counted[RemovedFor.SPACE] += len(removed)
        return _report(chosen, removed, problems)

    async def collect(self, image_filesystem: Observation | None) -> Collected:
        """Remove what regular garbage collection does, by watermarks and age."""
        images, now = await self.look(), time.time()
        old = images_too_old(images, self._gc, now, self._watched_since)
        chosen = images_to_collect(
            images, self._gc, image_filesystem, now, watched_since_seconds=self._watched_since
        )
        removed, problems = await self._remove(chosen)
        for image in removed:
            self._counted[RemovedFor.AGE if image in old else RemovedFor.SPACE] += 1
        return Collected(
            wanted_bytes=wanted_bytes(self._gc, image_filesystem),
            freed_bytes=sum(one.size_bytes for one in removed),
            report=_report(chosen, removed, problems),
        )

    async def _remove(self, images: Sequence[Image]) -> tuple[list[Image], list[str]]:
        """Return which of the images were removed, and what went wrong with the others."""
        removed, problems = list[Image](), list[str]()
        with trio.move_on_after(MOST_SECONDS) as scope:
            for one in images:
                if await tried(self._store.remove(one.id), problems):
                    removed.append(one)
        problems += [LATE] if scope.cancelled_caught else []
        return removed, problems


def _report(
    chosen: Sequence[Image], removed: Sequence[Image], problems: Sequence[str]
) -> ReclaimReport | None:
    if not chosen:
        return None
    size_bytes = sum(one.size_bytes for one in removed)
    did = f"removed {len(removed)} of {len(chosen)} unused images, {bytes_text(size_bytes)}"
    return ReclaimReport(did=(did,), problems=shortened(problems))
