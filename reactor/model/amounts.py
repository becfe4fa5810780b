"""Amounts and durations as people read them."""

from __future__ import annotations

from typing import Final

from reactor.model.quantity import format_bytes
from reactor.model.signals import IN_BYTES, Resource

UNKNOWN: Final = "unknown"
_LENGTHS: Final = ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))


def amount_text(amount: int | None, resource: Resource | None) -> str:
    """Return an amount: bytes with one decimal and a binary suffix, counts as they are."""
    if amount is None:
        return UNKNOWN
    return bytes_text(amount) if resource in IN_BYTES else str(amount)


def bytes_text(amount_bytes: int) -> str:
    """Return bytes with a binary suffix, and one decimal where the largest suffix leaves a rest."""
    for suffix, power in (("Gi", 3), ("Mi", 2), ("Ki", 1)):
        if abs(amount_bytes) >= 1024**power:
            whole = format_bytes(amount_bytes)
            return whole if whole.endswith(suffix) else f"{amount_bytes / 1024**power:.1f}{suffix}"
    return str(amount_bytes)


def duration_text(seconds: float | None) -> str:
    """Return a time in its two largest units (`4s`, `1m20s`, `3h05m`), `-` where there is none."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    for size, unit, smaller_size, smaller in _LENGTHS:
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size}{unit}{rest:02d}{smaller}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"
