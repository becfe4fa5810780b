"""For what the kubelet itself evicts softly: beside it, both may ask the same pod to end."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from reactor.config.decode import decode
from reactor.config.documents import load_document
from reactor.config.kubelet import KubeletConfiguration
from reactor.errors import ConfigError
from reactor.model.signals import RESOURCE, Layout, Resource

_LARGEST_BYTES: Final = 4 << 20


def soft_resources(path: str) -> frozenset[Resource]:
    """Return what the kubelet has soft thresholds on, by its configuration; none if that can't be read.

    Blocks on the disk.
    """
    try:
        with Path(path).open("rb") as file:
            text = file.read(_LARGEST_BYTES).decode()
        settings = decode(load_document(text, path) or {}, KubeletConfiguration).eviction_settings(
            Layout.SINGLE, evictions_per_minute=None, in_flight_deadline_seconds=0.0
        )
    except (OSError, UnicodeDecodeError, ConfigError):
        return frozenset()
    return frozenset(RESOURCE[one.signal] for one in settings.thresholds if not one.is_hard)
