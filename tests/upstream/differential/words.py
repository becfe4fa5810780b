"""What the documents are written with: signals, quantities, instants; without the project's parsers."""

from __future__ import annotations

import datetime as dt
from fractions import Fraction
from typing import Any, Final

Json = dict[str, Any]

MEMORY: Final = "memory.available"
ALLOCATABLE: Final = "allocatableMemory.available"
PIDS: Final = "pid.available"
NODE_BYTES: Final = "nodefs.available"
NODE_INODES: Final = "nodefs.inodesFree"
IMAGE_BYTES: Final = "imagefs.available"
IMAGE_INODES: Final = "imagefs.inodesFree"

SIGNALS: Final = (MEMORY, NODE_BYTES, NODE_INODES, IMAGE_BYTES, IMAGE_INODES, PIDS)
ALL_SIGNALS: Final = (*SIGNALS, ALLOCATABLE)
IN_BYTES: Final = frozenset({MEMORY, ALLOCATABLE, NODE_BYTES, IMAGE_BYTES})
INODES: Final = frozenset({NODE_INODES, IMAGE_INODES})

# Upstream's of 1.20; newer versions watch the image filesystem's inodes as well.
OLD_DEFAULTS: Final = {MEMORY: "100Mi", NODE_BYTES: "10%", NODE_INODES: "5%", IMAGE_BYTES: "15%"}
DEFAULTS: Final = {**OLD_DEFAULTS, IMAGE_INODES: "5%"}

MIB: Final[int] = 2**20
GIB: Final[int] = 2**30
_FIRST_INSTANT_SECONDS: Final = 1_700_000_000
_SUFFIXES: Final = {
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)},
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)},
    **{letter: Fraction(1, 1000**power) for power, letter in enumerate("mun", 1)},
}


def amount(text: str) -> Fraction:
    """Return what a quantity of the plain forms (`100Mi`, `1.5k`, `500m`) stands for."""
    for suffix, scale in _SUFFIXES.items():
        if text.endswith(suffix):
            return Fraction(text[: -len(suffix)]) * scale
    return Fraction(text)


def exactly(text: str, capacity: int) -> Fraction:
    """Return what a threshold's value means at this capacity, without upstream's rounding of shares."""
    return Fraction(text[:-1]) * capacity / 100 if text.endswith("%") else amount(text)


def asked(container: Json, kind: str, resource: str) -> str | None:
    """Return a container's request (without one: its limit) or limit as written, None where it has none."""
    resources = container.get("resources", {})
    value = resources.get(kind, {}).get(resource)
    if value is None and kind == "requests":
        value = resources.get("limits", {}).get(resource)
    return None if value is None else str(value)


def stamp(seconds: int) -> str:
    """Return an instant, counted from the first one, as statistics write it."""
    instant = dt.datetime.fromtimestamp(_FIRST_INSTANT_SECONDS + seconds, tz=dt.UTC)
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")
