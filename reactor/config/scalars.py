"""Single values of documents: numbers, spans, instants, quantities, each with the form that is accepted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NewType

from reactor.config import duration
from reactor.errors import Refused
from reactor.model import quantity
from reactor.model.pods import QosClass
from reactor.model.quantity import Quantity, parse_quantity
from reactor.model.settings import (
    EbpfLoader,
    KernelKill,
    MemoryAvailable,
    OomOrderMode,
    PodOrigin,
    Ranking,
    Role,
    SoftEviction,
    SystemdOomd,
    TaintedBy,
)
from reactor.model.signals import Filesystem, Layout, Reclaim, Signal
from reactor.text import did_you_mean

Count = NewType("Count", int)
"""A number of bytes, inodes or processes: whole, from 0 to 2^64-1."""
Seconds = NewType("Seconds", float)
"""A span that is not negative, written as a duration."""
Instant = NewType("Instant", float)
"""An instant relative to a start, written as a duration; may be negative."""
Timestamp = NewType("Timestamp", float)
"""A point in time as metav1.Time writes it, in seconds since 1970."""
Percent = NewType("Percent", int)
"""A whole number from 0 to 100."""
GracePeriod = NewType("GracePeriod", int)
"""A pod's seconds to end in; what is negative counts as 1, as upstream has it."""
Priority = NewType("Priority", int)
"""A pod's priority; what does not fit into 32 bits counts as the nearest number that does."""
Int32 = NewType("Int32", int)
"""A whole number of 32 bits, as the kubelet's own documents have it."""


def _string(raw: Any, _: type) -> str:
    if isinstance(raw, (int, float)) and not isinstance(raw, bool):
        return str(raw)  # a uid such as 7120 or 7e20 that was not quoted
    if not isinstance(raw, str):
        raise Refused(raw, "a string")
    return raw


def _boolean(raw: Any, _: type) -> bool:
    if not isinstance(raw, bool):
        raise Refused(raw, "true or false")
    return raw


def _whole(least: int, most: int, accepted: str) -> Callable[[Any, type], int]:
    """Return what reads a whole number of a range."""

    def read(raw: Any, _: type) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int) or not least <= raw <= most:
            raise Refused(raw, accepted)
        return raw

    return read


_integer: Final = _whole(-(2**63), 2**63 - 1, "a whole number")


def _grace_period(raw: Any, cls: type) -> GracePeriod:
    seconds = _integer(int(raw) if isinstance(raw, float) and raw.is_integer() else raw, cls)
    return GracePeriod(1 if seconds < 0 else seconds)


def _priority(raw: Any, cls: type) -> Priority:
    return Priority(min(max(_integer(raw, cls), -(2**31)), 2**31 - 1))


def _count(raw: Any, _: type) -> Count:
    whole = int(raw) if isinstance(raw, float) and raw.is_integer() else raw
    if isinstance(whole, bool) or not isinstance(whole, int) or not 0 <= whole < 2**64:
        raise Refused(raw, "a whole number from 0 to 2^64-1")
    return Count(whole)


def _instant(raw: Any, _: type) -> Instant:
    text = str(raw) if raw == 0 and isinstance(raw, int) and not isinstance(raw, bool) else raw
    if not isinstance(text, str):
        raise Refused(raw, duration.ACCEPTED)
    try:
        return Instant(duration.parse_duration(text))
    except ValueError as error:
        raise Refused(raw, str(error)) from None


def _seconds(raw: Any, cls: type) -> Seconds:
    seconds = _instant(raw, cls)
    if seconds < 0:
        raise Refused(raw, f"{duration.ACCEPTED}, not negative")
    return Seconds(seconds)


def _timestamp(raw: Any, _: type) -> Timestamp:
    try:
        moment = datetime.fromisoformat(raw)
    except (TypeError, ValueError):
        raise Refused(raw, "a time such as 2026-01-31T12:00:00Z") from None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return Timestamp(aware.timestamp())


def as_quantity(raw: object) -> Quantity:
    """Return a quantity from a string or a number, not negative. Raises Refused."""
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
        raise Refused(raw, quantity.ACCEPTED)
    try:
        found = parse_quantity(str(raw))
    except ValueError:
        raise Refused(raw, quantity.ACCEPTED) from None
    if found.amount < 0:
        raise Refused(raw, f"{quantity.ACCEPTED}, not negative")
    return found


def enumeration(cls: type[StrEnum]) -> Callable[[Any, Any], StrEnum]:
    """Return what reads a value of an enumeration."""

    def read(raw: Any, _: Any) -> StrEnum:
        try:
            return cls("off" if raw is False else raw)  # what YAML 1.1 makes of off
        except ValueError:
            raise Refused(raw, f"one of {', '.join(cls)}", hint=did_you_mean(raw, cls)) from None

    return read


HOOKS: Final[tuple[tuple[Any, Callable[[Any, Any], Any]], ...]] = (
    *(
        (one, enumeration(one))
        for one in (
            Signal,
            Filesystem,
            Layout,
            Reclaim,
            QosClass,
            Role,
            TaintedBy,
            PodOrigin,
            EbpfLoader,
            MemoryAvailable,
            Ranking,
            SoftEviction,
            OomOrderMode,
            KernelKill,
            SystemdOomd,
        )
    ),
    (Quantity, lambda raw, _: as_quantity(raw)),
    (str, _string),
    (bool, _boolean),
    (int, _integer),
    (Count, _count),
    (Percent, _whole(0, 100, "a whole number from 0 to 100")),
    (GracePeriod, _grace_period),
    (Priority, _priority),
    (Int32, _whole(-(2**31), 2**31 - 1, "a whole number of 32 bits")),
    (Seconds, _seconds),
    (Instant, _instant),
    (Timestamp, _timestamp),
)
