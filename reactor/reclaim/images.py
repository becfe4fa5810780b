"""Which images are on the node, since when, and when each was last in use: as observed, over restarts too.

The runtime reports neither. So an image is detected when it is first seen, and was used whenever a container,
dead ones included, was of it. Source: image_gc_manager.go, detectImages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from reactor.kernel.small_file import KeptFile, document_of
from reactor.model.pods import Image

_LOG: Final = logging.getLogger("reactor.reclaim")
_VERSION: Final = 1
_MAX_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedImage:
    """An image as its store lists it; `in_use` where a container is of it, `pinned` where it must stay."""

    id: str
    size_bytes: int
    in_use: bool = False
    pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """When an image was first seen, and last in use (None: never), by the Unix clock."""

    first_unix_seconds: float
    used_unix_seconds: float | None = None


class ImageHistory(KeptFile[Mapping[str, Seen]]):
    """Remembers images at `path`. Nothing raises: what can't be read or written is a `problem`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, _document, "images: not saved; after a restart they count as new", _LOG)
        self._seen: Mapping[str, Seen] = {}

    def load(self) -> None:
        """Take over what an earlier run left. Blocks on the disk."""
        self._seen = self._restore(_MAX_BYTES, _parsed) or {}

    def take(self, images: Iterable[ListedImage], now_unix_seconds: float) -> tuple[Image, ...]:
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
            found.append(
                Image(
                    id=image.id,
                    size_bytes=image.size_bytes,
                    first_detected_seconds=first,
                    last_used_seconds=used,
                    in_use=image.in_use,
                    pinned=image.pinned,
                )
            )
        self._seen = seen
        return tuple(found)

    def keep(self) -> None:
        """Save what is known. Blocks on the disk."""
        self.save(self._seen)


def _document(seen: Mapping[str, Seen]) -> object:
    return {"version": _VERSION, "images": {uid: asdict(one) for uid, one in seen.items()}}


def _parsed(content: bytes) -> dict[str, Seen]:
    document = document_of(content, version=_VERSION, max_bytes=_MAX_BYTES)
    return {
        str(uid): Seen(
            first_unix_seconds=float(one["first_unix_seconds"]),
            used_unix_seconds=None if one["used_unix_seconds"] is None else float(one["used_unix_seconds"]),
        )
        for uid, one in document["images"].items()
    }
