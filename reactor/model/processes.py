"""Processes: what one of them holds of memory, and who it is in a record."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """What a process holds, in bytes, and what it calls itself: `name` is its own choice.

    What it has mapped of files is left out: the kernel takes that back without it.
    """

    pid: int
    name: str
    anonymous_bytes: int
    shared_bytes: int
    swap_bytes: int

    @property
    def resident_bytes(self) -> int:
        """Return what of it is in memory: as much as its end may bring back there."""
        return self.anonymous_bytes + self.shared_bytes

    @property
    def held_bytes(self) -> int:
        """Return all that it holds, in memory and in swap: what it is chosen by."""
        return self.resident_bytes + self.swap_bytes
