"""What systemd's units say of being killed: ManagedOOMSwap=, ManagedOOMMemoryPressure=, OOMRules=.

Terms: systemd.resource-control(5), oomd.conf(5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final

LONGEST_RULE_NAME_BYTES: Final = 128


class ManagedOomKind(IntEnum):
    """Which of a unit's properties says `kill`."""

    SWAP = 1
    MEMORY_PRESSURE = 2
    RULES = 3


class OomAction(StrEnum):
    """What a rule file's Action= says: kill all of the unit, or the worst below it."""

    KILL_ALL = "kill-all"
    KILL_BY_PGSCAN = "kill-by-pgscan"
    KILL_BY_SWAP = "kill-by-swap"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedOomUnit:
    """One property of a unit that says `kill`; `cgroup` is the unit's, `/` that of the root slice.

    `uid` is of the user whose service manager says so, None for the system's. `limit_percent` and
    `duration_seconds` are of memory pressure, None for the default. `rules` are the names of rule files.
    """

    kind: ManagedOomKind
    cgroup: str
    uid: int | None = None
    limit_percent: float | None = None
    duration_seconds: float | None = None
    rules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OomRuleset:
    """One rule file. A condition that is None does not count; those that do hold for `seconds`."""

    name: str
    action: OomAction
    pressure_percent: float | None = None
    swap_percent: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OomdDefaults:
    """What oomd.conf(5) says, and without it systemd-oomd's own; the rule files by their names."""

    swap_used_percent: float = 90.0
    pressure_percent: float = 60.0
    pressure_seconds: float = 30.0
    rulesets: Mapping[str, OomRuleset] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedOomReport:
    """What is known of the units: `problem` says why it may be out of date, empty where it is not.

    `left_out` counts what was too much, or could not be. `reloads` changes if oomd.conf is to be read again.
    """

    units: tuple[ManagedOomUnit, ...] = ()
    problem: str = ""
    left_out: int = 0
    reloads: int = 0


def rule_name_problem(name: str) -> str | None:
    """Return why a rule file can't have this name, None if it can: with the accepted form."""
    is_name = bool(name) and name.isprintable() and "/" not in name
    if not is_name or len(name.encode(errors="replace")) > LONGEST_RULE_NAME_BYTES:
        return f"got name {name!r:.80}; accepted: up to {LONGEST_RULE_NAME_BYTES} printable bytes without /"
    return None
