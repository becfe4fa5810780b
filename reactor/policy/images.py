"""Which unused images go, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reactor.model.pods import Image
from reactor.model.settings import ImageGcSettings
from reactor.model.thresholds import Observation
from reactor.policy.thresholds import elapsed_seconds


def unused_images(images: Iterable[Image], gc: ImageGcSettings, now_seconds: float) -> tuple[Image, ...]:
    """Return every image that eviction's node-level reclaim removes, in order of removal.

    Images in use or pinned stay, and so do those younger than the minimum age, which are about to be used.
    """
    return tuple(
        image
        for image in _in_removal_order(images)
        if _or_never(image.last_used_seconds) < now_seconds
        if elapsed_seconds(_or_never(image.first_detected_seconds), now_seconds) >= gc.minimum_age_seconds
    )


def images_to_collect(
    images: Sequence[Image],
    gc: ImageGcSettings,
    image_filesystem: Observation | None,
    now_seconds: float,
    *,
    watched_since_seconds: float,
) -> tuple[Image, ...]:
    """Return the images that regular garbage collection removes, in order of removal.

    First those unused for longer than the maximum age; the time before `watched_since_seconds` doesn't
    count, since what was used then is not known. Then, where the image filesystem is used at or above the
    high watermark, as many more as bring it down to the low one.
    Source: image_gc_manager.go, freeOldImages and GarbageCollect.
    """
    chosen = [*images_too_old(images, gc, now_seconds, watched_since_seconds)]
    left_bytes = wanted_bytes(gc, image_filesystem) - sum(image.size_bytes for image in chosen)
    for image in unused_images(images, gc, now_seconds):
        if left_bytes > 0 and image not in chosen:
            chosen.append(image)
            left_bytes -= image.size_bytes
    return tuple(chosen)


def wanted_bytes(gc: ImageGcSettings, filesystem: Observation | None) -> int:
    """Return how much of the images' filesystem regular collection is to free; 0 where it is not triggered.

    It is triggered at the high watermark, and asks for a byte at least: one image goes even where the low
    watermark is met already. Source: GarbageCollect, in whole numbers as there.
    """
    if filesystem is None or filesystem.absurdity is not None:
        return 0
    available, capacity = filesystem.available, filesystem.capacity
    if 100 - 100 * available // capacity < gc.high_threshold_percent:
        return 0
    return max(1, capacity * (100 - gc.low_threshold_percent) // 100 - available)


def images_too_old(
    images: Sequence[Image], gc: ImageGcSettings, now_seconds: float, watched_since_seconds: float
) -> tuple[Image, ...]:
    """Return the images that go for their age alone, in order of removal; see `images_to_collect`."""
    if not gc.maximum_age_seconds:
        return ()

    def unused_seconds(image: Image) -> float:
        # One that was never used is unused since it came.
        used, came = _or_never(image.last_used_seconds), _or_never(image.first_detected_seconds)
        return elapsed_seconds(max(watched_since_seconds, used, came), now_seconds)

    return tuple(
        image for image in _in_removal_order(images) if unused_seconds(image) > gc.maximum_age_seconds
    )


def _in_removal_order(images: Iterable[Image]) -> list[Image]:
    """Return the images that nothing holds: never used first, then least recently used, then oldest."""
    return sorted(
        (image for image in images if not image.in_use and not image.pinned),
        key=lambda image: (_or_never(image.last_used_seconds), _or_never(image.first_detected_seconds)),
    )


def _or_never(instant_seconds: float | None) -> float:
    return float("-inf") if instant_seconds is None else instant_seconds
