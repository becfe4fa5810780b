"""Whether the node's own kubelet ends its pods at a shutdown: then that is not done twice.

Three keys are read here, and not by what reads a whole configuration, which takes 3 MiB more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from reactor.config.documents import load_document
from reactor.config.duration import parse_duration
from reactor.errors import ConfigError

_LARGEST_BYTES: Final = 4 << 20


def ends_pods_itself(path: Path) -> bool:
    """Return whether the kubelet's configuration says so; one that can't be had, or is wrong, does not."""
    try:
        with path.open("rb") as file:
            document = load_document(file.read(_LARGEST_BYTES).decode(), str(path))
    except (ConfigError, OSError, UnicodeDecodeError):
        return False
    if not isinstance(document, dict):
        return False
    items = document.get("shutdownGracePeriodByPodPriority")
    # That of the critical pods is a part of the other one.
    return _is_span(document.get("shutdownGracePeriod")) or (
        isinstance(items, list) and any(map(_waits, items))
    )


def _is_span(raw: object) -> bool:
    try:
        return isinstance(raw, str) and parse_duration(raw) >= 1
    except ValueError:
        return False


def _waits(item: object) -> bool:
    seconds = item.get("shutdownGracePeriodSeconds") if isinstance(item, dict) else None
    return isinstance(seconds, int) and seconds > 0
