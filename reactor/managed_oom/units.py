"""What a message of a service manager says of units: which say `kill`, and which do no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from reactor.link.managed_oom import unit_problem
from reactor.managed_oom.varlink import VarlinkError
from reactor.model.managed_oom import ManagedOomKind, ManagedOomUnit

Key = tuple[ManagedOomKind, str]
Units = dict[Key, ManagedOomUnit]

_KINDS: Final = {
    "ManagedOOMSwap": ManagedOomKind.SWAP,
    "ManagedOOMMemoryPressure": ManagedOomKind.MEMORY_PRESSURE,
}
_KILL: Final = "kill"
_MODES: Final = (_KILL, "auto")
_WHOLE: Final = 2**32 - 1
_PERMYRIAD: Final = 10_000
_LEAST_PERCENT: Final = 1.0
_SHORTEST_SECONDS: Final = 1.0
_INFINITY: Final = 2**64 - 1


class Changes(NamedTuple):
    """What a message says: `units` by kind and cgroup, None of one that does not say `kill` any more.

    `refused` counts what can't be; what is of another version of systemd, and known to be none of ours, is no
    part of it.
    """

    units: Mapping[Key, ManagedOomUnit | None]
    refused: int


def changes_in(parameters: Any, uid: int | None) -> Changes:
    """Return what the parameters of a message say. `uid` as in ManagedOomUnit. Raises VarlinkError."""
    cgroups = parameters.get("cgroups") if isinstance(parameters, Mapping) else None
    if not isinstance(cgroups, Sequence) or isinstance(cgroups, str):
        raise VarlinkError(f"got {parameters!r:.80}; accepted: an object with a list of cgroups")
    found: dict[Key, ManagedOomUnit | None] = {}
    refused = 0
    for one in cgroups:
        key = _key(one)
        if key is None:
            refused += not _is_another_property(one)
            continue
        unit = _unit(one, key, uid) if one["mode"] == _KILL else None
        if unit is not None and unit_problem(unit) is not None:
            refused += 1
            unit = None
        found[key] = unit
    return Changes(found, refused)


def _key(one: Any) -> Key | None:
    """Return of which property of which unit an element speaks, None where that can't be had."""
    if not isinstance(one, Mapping) or one.get("mode") not in _MODES:
        return None
    kind, path = one.get("property"), one.get("path")
    if not isinstance(kind, str) or kind not in _KINDS or not isinstance(path, str):
        return None
    return _KINDS[kind], path or "/"


def _is_another_property(one: Any) -> bool:
    """Return whether an element is well formed, and of a property that is not ours, such as OOMRules."""
    kind = one.get("property") if isinstance(one, Mapping) else None
    return isinstance(kind, str) and kind not in _KINDS


def _unit(one: Mapping[str, Any], key: Key, uid: int | None) -> ManagedOomUnit:
    kind, cgroup = key
    if kind is ManagedOomKind.SWAP:
        return ManagedOomUnit(kind=kind, cgroup=cgroup, uid=uid)
    return ManagedOomUnit(
        kind=kind,
        cgroup=cgroup,
        uid=uid,
        limit_percent=_percent(one.get("limit")),
        duration_seconds=_seconds(one.get("duration")),
    )


def _percent(limit: Any) -> float | None:
    """Return a share of 2^32 - 1 in percent with two decimals, 1 at least; None for 0 and what is none."""
    if not isinstance(limit, int) or isinstance(limit, bool) or not 0 < limit <= _WHOLE:
        return None
    permyriad = (limit * _PERMYRIAD + _WHOLE // 2) // _WHOLE
    return max(_LEAST_PERCENT, permyriad / 100)


def _seconds(microseconds: Any) -> float | None:
    """Return a time, one second at least; None for 0, for infinity, and what is none."""
    if not isinstance(microseconds, int) or isinstance(microseconds, bool):
        return None
    if not 0 < microseconds < _INFINITY:
        return None
    return max(_SHORTEST_SECONDS, microseconds / 1_000_000)
