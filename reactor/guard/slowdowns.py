"""What is said of evictions that are slowed down: a warning and an event at first, a problem meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from reactor.model.decisions import DiskEviction, HardMemoryKill, Slowdown, SlowReason
from reactor.model.signals import IN_BYTES, RESOURCE, Signal

_LOG: Final = logging.getLogger("reactor.evict")

_Kind = tuple[Signal, SlowReason]


class Slowdowns:
    """Follows the slowdowns from pass to pass; `on_slowed` is called with each that is new."""

    def __init__(self, on_slowed: Callable[[Slowdown], None] = lambda _: None) -> None:
        self._on_slowed = on_slowed
        self._in_force: dict[_Kind, Slowdown] = {}

    def passed(self, slowdowns: Iterable[Slowdown]) -> None:
        """Take over those that a pass found in force."""
        found = {(one.signal, one.reason): one for one in slowdowns}
        for kind in found.keys() - self._in_force.keys():
            _LOG.warning("evictions for %s are slowed down: %s", kind[0], found[kind].message)
            self._on_slowed(found[kind])
        for signal, reason in self._in_force.keys() - found.keys():
            _LOG.info("evictions for %s are not slowed down any more (%s)", signal, reason)
        self._in_force = found

    @property
    def problem(self) -> str | None:
        """Return what is slowed down at present and why, None where nothing is."""
        return "; ".join(dict.fromkeys(one.message for one in self._in_force.values())) or None


def slowdown_document(slowdown: Slowdown, now_seconds: float) -> dict[str, Any]:
    """Return a slowdown as plain JSON values; `now_seconds` is on the pass's clock."""
    return {
        "signal": slowdown.signal,
        "reason": slowdown.reason,
        "message": slowdown.message,
        "for_seconds": round(now_seconds - slowdown.since_seconds, 3),
        "left_seconds": round(max(0.0, slowdown.until_seconds - now_seconds), 3),
        "held_by": slowdown.held_by,
        "held_by_bytes": slowdown.held_by_bytes,
    }


def unhelpful_document(kill: HardMemoryKill | DiskEviction, now_seconds: float) -> Mapping[str, Any]:
    """Return an eviction that did not help as plain JSON values."""
    if isinstance(kill, DiskEviction):
        is_in_bytes = RESOURCE[kill.signal] in IN_BYTES
        credited = {"credited_bytes": kill.credited if is_in_bytes else None}
        credited |= {} if is_in_bytes else {"credited_inodes": kill.credited}
    else:
        credited = {"credited_bytes": kill.credited_bytes}
    return {
        "uid": kill.uid,
        "signal": kill.signal,
        **credited,
        "ago_seconds": round(now_seconds - kill.at_seconds, 3),
    }
