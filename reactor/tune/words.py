"""Amounts as an operator reads them."""

from __future__ import annotations

from reactor.testbed.allocator import MIB

_GIB = 1024 * MIB


def amount(size_bytes: float) -> str:
    """Return bytes with three digits: `0.41 MiB`, `212 MiB`, `1.5 GiB`."""
    if abs(size_bytes) >= 1000 * MIB:
        return f"{_three(size_bytes / _GIB)} GiB"
    return f"{_three(size_bytes / MIB)} MiB"


def rate(rate_bytes: float) -> str:
    """Return bytes a second with three digits."""
    return f"{amount(rate_bytes)}/s"


def duration(seconds: float) -> str:
    """Return a time with three digits: `0.41 ms`, `12 s`, `3.5 min`."""
    if seconds < 1:
        return f"{_three(seconds * 1e3)} ms"
    return f"{_three(seconds)} s" if seconds < 120 else f"{_three(seconds / 60)} min"


def quantity(size_bytes: int) -> str:
    """Return bytes as a threshold is written, in whole Mi: rounded up."""
    return f"{-(-size_bytes // MIB)}Mi"


def milliseconds(seconds: float) -> str:
    """Return a time in ms, for a column of them."""
    return _three(seconds * 1e3)


def _three(number: float) -> str:
    if number and abs(number) < 0.01:
        return f"{number:.2g}"
    digits = 0 if abs(number) >= 100 else 1 if abs(number) >= 10 else 2
    text = f"{number:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
