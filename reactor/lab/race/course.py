"""What is run: how fast the allocators grow, how many they are, and what else the node has to do."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Final

from reactor.lab.crossing import LEVEL_BYTES
from reactor.lab.hog import MIB

STEP: Final = "step"
# How an allocator reaches the level: at full speed from nothing, or from shortly before it at so many MiB/s.
PACES: Final = (STEP, "100", "1000", "max")
_RAMP_MIB: Final = {STEP: LEVEL_BYTES // MIB, "100": 20, "1000": 60, "max": 60}
_SEVERAL: Final = 4
_CACHE_BYTES: Final = 192 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One kind of heat.

    `pace` is one of PACES; several allocators are in one pod and share the pace. With `is_busy` every CPU
    has something else to do, with `has_cache` a pod of the node holds page cache, which is available memory.
    """

    pace: str
    allocators: int = 1
    is_busy: bool = False
    has_cache: bool = False

    @property
    def name(self) -> str:
        """Return what it is called in tables and on the command line, such as "step-busy"."""
        pace = self.pace if self.pace == STEP else f"ramp-{self.pace}"
        several = f"-{self.allocators}-allocators" if self.allocators > 1 else ""
        return f"{pace}{several}{'-busy' if self.is_busy else ''}{'-cache' if self.has_cache else ''}"

    @property
    def description(self) -> str:
        """Return what it is, in words."""
        paces = {
            STEP: "at full speed from an idle node",
            "max": "at full speed from shortly before the level",
        }
        pace = paces.get(self.pace, f"at {self.pace} MiB/s from shortly before the level")
        who = "one allocator" if self.allocators == 1 else f"{self.allocators} allocators in one pod"
        busy = ", every CPU busy" if self.is_busy else ""
        cache = f", {self.cache_bytes // MIB} MiB of page cache in the node" if self.has_cache else ""
        return f"{who} {pace}{busy}{cache}"

    @property
    def cache_bytes(self) -> int:
        """Return how much page cache there is to be."""
        return _CACHE_BYTES if self.has_cache else 0

    @property
    def rate_bytes(self) -> int:
        """Return how fast each allocator is to grow, in bytes a second; 0 is as fast as it goes."""
        return 0 if self.pace in {STEP, "max"} else int(self.pace) * MIB // self.allocators

    @property
    def prefill_bytes(self) -> int:
        """Return what each allocator takes beforehand."""
        return (LEVEL_BYTES - _RAMP_MIB[self.pace] * MIB) // self.allocators


DEFAULT: Final = (
    Course(pace=STEP),
    Course(pace="100"),
    Course(pace="1000"),
    Course(pace="max"),
    Course(pace=STEP, is_busy=True),
    Course(pace=STEP, allocators=_SEVERAL),
    Course(pace=STEP, has_cache=True),
)
FULL: Final = tuple(
    Course(pace=pace, allocators=allocators, is_busy=is_busy, has_cache=has_cache)
    for has_cache, is_busy, allocators, pace in product((False, True), (False, True), (1, _SEVERAL), PACES)
)
