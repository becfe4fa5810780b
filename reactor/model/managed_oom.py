"""What systemd's units say of being killed: ManagedOOMSwap=, ManagedOOMMemoryPressure=, its limit and time.

Terms: systemd.resource-control(5), oomd.conf(5).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class ManagedOomKind(IntEnum):
    """Which of a unit's properties says `kill`."""

    SWAP = 1
    MEMORY_PRESSURE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedOomUnit:
    """One property of a unit that says `kill`; `cgroup` is the unit's, `/` that of the root slice.

    `uid` is of the user whose service manager says so, None for the system's. `limit_percent` and
    `duration_seconds` are of memory pressure, None for the default.
    """

    kind: ManagedOomKind
    cgroup: str
    uid: int | None = None
    limit_percent: float | None = None
    duration_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OomdDefaults:
    """What oomd.conf(5) says, and without it systemd-oomd's own."""

    swap_used_percent: float = 90.0
    pressure_percent: float = 60.0
    pressure_seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedOomReport:
    """What is known of the units: `problem` says why it may be out of date, empty where it is not.

    `left_out` counts what was too much, or could not be.
    """

    units: tuple[ManagedOomUnit, ...] = ()
    problem: str = ""
    left_out: int = 0
