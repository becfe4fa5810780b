"""Spans of time in Go's syntax (`1h30m`, `1.5s`, `-20h`), which Kubernetes' documents use."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

ACCEPTED: Final = "a duration such as 30s, 1m30s or 1.5h"

_UNIT_SECONDS: Final = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "μs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
}
_PART: Final = re.compile(r"([0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_WHOLE: Final = re.compile(rf"[+-]?(?:{_PART.pattern})+", re.ASCII)
_LONGEST_SECONDS: Final = Fraction(2**63, 10**9)  # Go keeps nanoseconds in 64 bits


def parse_duration(text: str) -> float:
    """Return the span in seconds. Raises ValueError with the accepted form.

    Source: Go's time.ParseDuration.
    """
    if text in {"0", "+0", "-0"}:
        return 0.0
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(ACCEPTED)
    seconds = sum(
        (Fraction(number) * _UNIT_SECONDS[unit] for number, unit in _PART.findall(text)), Fraction(0)
    )
    if seconds >= _LONGEST_SECONDS:
        raise ValueError(f"{ACCEPTED}, less than 292 years")
    return float(-seconds if text.startswith("-") else seconds)
