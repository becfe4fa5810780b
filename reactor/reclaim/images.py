"""Which images are on the node, since when, and when each was last in use: as observed, over restarts too.

The runtime reports neither. So an image is detected when it is first seen, and was used whenever a container,
dead ones included, was of it. Source: image_gc_manager.go, detectImages.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

import trio

from reactor.kernel.scheduling import following
from reactor.kernel.small_file import KeptFile
from reactor.model.pods import Image
from reactor.model.quantity import bytes_text
from reactor.model.settings import ImageGcSettings
from reactor.model.signals import Filesystem
from reactor.model.thresholds import Observation
from reactor.plain import from_plain, to_plain
from reactor.policy.images import images_to_collect, images_too_old, unused_images, wanted_bytes
from reactor.reclaim.reclaims import LATE, MOST_SECONDS, ReclaimReport, shortened, tried
from reactor.threads import in_thread

_LOG: Final = logging.getLogger("reactor.reclaim")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """When an image was first seen, and last in use (None: never), by the Unix clock."""

    first_unix_seconds: float
    used_unix_seconds: float | None = None


class ImageHistory(KeptFile[Mapping[str, Seen]]):
    """Remembers images at `path`. Nothing raises: what can't be read or written is a `problem`."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            path,
            lambda seen: {"images": to_plain(seen)},
            lambda document: {uid: from_plain(Seen, one) for uid, one in document["images"].items()},
            "images: not saved; after a restart they count as new",
            _LOG,
        )
        self._seen: Mapping[str, Seen] = {}

    def restore(self) -> None:
        """Take over what an earlier run left. Blocks on the disk."""
        self._seen = self.load() or {}

    def take(self, images: Iterable[Image], now_unix_seconds: float) -> tuple[Image, ...]:
        """Note what is there now, and return it; images that are gone are forgotten."""
        found = []
        seen = {}
        for image in images:
            before = self._seen.get(image.id, Seen(first_unix_seconds=now_unix_seconds))
            # A clock that was set back must not make an image younger than it is, or last used in the future.
            first = min(before.first_unix_seconds, now_unix_seconds)
            used = now_unix_seconds if image.in_use else before.used_unix_seconds
            used = None if used is None else min(used, now_unix_seconds)
            seen[image.id] = Seen(first_unix_seconds=first, used_unix_seconds=used)
            found.append(replace(image, first_detected_seconds=first, last_used_seconds=used))
        self._seen = seen
        return tuple(found)

    def keep(self) -> None:
        self.save(self._seen)


class RemovedFor(StrEnum):
    """Why an image was removed, in the words of the kubelet's metric."""

    SPACE = "space"
    AGE = "age"


RemovedImages = Counter[RemovedFor]


class ImageStore(Protocol):
    """A store of images: a container runtime, podman."""

    async def images(self) -> tuple[Image, ...]:
        """List what is there; an image is `in_use` where a container is of it. Raises ReactorError."""

    async def remove(self, image_id: str) -> None:
        """Remove an image that was listed, unless it is in use by now. Raises ReactorError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What regular collection was to free and did, by the images' sizes; no report where it did nothing."""

    wanted_bytes: int
    freed_bytes: int
    report: ReclaimReport | None


@dataclass(eq=False)
class ImageReclaim:
    """Removes unused images, and counts them in `counted`."""

    store: ImageStore
    history: ImageHistory
    gc: ImageGcSettings
    counted: RemovedImages = field(default_factory=RemovedImages)

    def __post_init__(self) -> None:
        self._watched_since = time.time()

    async def refresh(self) -> tuple[Image, ...]:
        """Return the images on the node, and remember them. Raises ReactorError."""
        found = self.history.take(await self.store.images(), time.time())
        await in_thread(following(self.history.keep))
        return found

    async def run(self, filesystems: Collection[Filesystem]) -> ReclaimReport | None:  # noqa: ARG002 - all of them
        """Remove every image that may go; see NodeReclaim.run."""
        chosen = unused_images(await self.refresh(), self.gc, time.time())
        removed, problems = await self._remove(chosen)
        self.counted[RemovedFor.SPACE] += len(removed)
        return _report(chosen, removed, problems)

    async def collect(self, image_filesystem: Observation | None) -> Collected:
        """Remove what regular garbage collection does, by watermarks and age."""
        images, now = await self.refresh(), time.time()
        old = images_too_old(images, self.gc, now, self._watched_since)
        chosen = images_to_collect(
            images, self.gc, image_filesystem, now, watched_since_seconds=self._watched_since
        )
        removed, problems = await self._remove(chosen)
        for image in removed:
            self.counted[RemovedFor.AGE if image in old else RemovedFor.SPACE] += 1
        return Collected(
            wanted_bytes=wanted_bytes(self.gc, image_filesystem),
            freed_bytes=sum(one.size_bytes for one in removed),
            report=_report(chosen, removed, problems),
        )

    async def _remove(self, images: Sequence[Image]) -> tuple[list[Image], list[str]]:
        """Return which of the images were removed, and what went wrong with the others."""
        removed, problems = list[Image](), list[str]()
        with trio.move_on_after(MOST_SECONDS) as scope:
            for one in images:
                if await tried(self.store.remove(one.id), problems):
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
