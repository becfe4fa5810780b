"""What the process in systemd-oomd's place reports to the guard: a file of one fixed form.

    the head     what it is, the version, how many units follow, were left out, bytes of a problem, reloads
    the problem  up to 400 bytes of text, which is shown and nothing else
    each unit    18 bytes, its cgroup's path, and the names of its rules

The file is replaced as a whole, so that its reader never finds half of it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final, NamedTuple

from reactor.forms import U16, U32, Field, Form, FormError, choice, number, text, texts
from reactor.threads import without_pause

PATH: Final = "/run/reactor-managed-oom/units"
MAGIC: Final = b"reactor managed oom\0"
VERSION: Final = 3
MOST_UNITS: Final = 1_024
_AT_ONCE: Final = 16  # units, which take 0.25 ms at the most
LONGEST_CGROUP_BYTES: Final = 1_024
LONGEST_BYTES: Final = 256 << 10
LONGEST_SECONDS: Final = 86_400.0
MOST_RULES: Final = 8  # of one unit
LONGEST_RULE_NAME_BYTES: Final = 128
_RULES_BYTES: Final = MOST_RULES * (LONGEST_RULE_NAME_BYTES + 1)
_TEXT_BYTES: Final = 400
_MOST_LEFT_OUT: Final = 2**32 - 1
_PATTERN_SIGNS: Final = frozenset("*?[")
_NO_NAMES: Final = frozenset(("", ".", ".."))


def _in_parts(of_one: int) -> Field:
    """Return a number in so many parts of one."""
    return Field("I", lambda parts: parts / of_one, lambda value: round(value * of_one))


class _Head(NamedTuple):
    version: U16
    units: Annotated[int, number("H", MOST_UNITS)]
    left_out: U32
    problem: Annotated[str, text(_TEXT_BYTES, "H2x")]
    reloads: U32


class ManagedOomKind(IntEnum):
    """Which of a unit's properties says `kill`."""

    SWAP = 1
    MEMORY_PRESSURE = 2
    RULES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedOomUnit:
    """One property of a unit that says `kill`; `cgroup` is the unit's, `/` that of the root slice.

    `uid` is of the user whose service manager says so, None for the system's. `limit_percent` and
    `duration_seconds` are of memory pressure, None for the default. `rules` are the names of rule files.
    """

    kind: Annotated[ManagedOomKind, choice(ManagedOomKind, "Bx")]
    cgroup: Annotated[str, text(LONGEST_CGROUP_BYTES, errors="strict")]
    uid: U32 | None = None
    limit_percent: Annotated[float, _in_parts(100)] | None = None
    duration_seconds: Annotated[float, _in_parts(1000)] | None = None
    rules: Annotated[tuple[str, ...], texts(MOST_RULES, _RULES_BYTES, end="\n", errors="strict")] = ()


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


def unit_problem(unit: ManagedOomUnit) -> str | None:
    """Return why a unit can't be reported, None where it can: with the accepted form."""
    problem = _cgroup_problem(unit.cgroup)
    if problem is not None:
        return problem
    if unit.uid is not None and not unit.cgroup.startswith(f"/user.slice/user-{unit.uid}.slice/"):
        return f"got cgroup {unit.cgroup!r:.80} of user {unit.uid}; accepted: one below that user's slice"
    if unit.limit_percent is not None and not 1 <= unit.limit_percent <= 100:
        return f"got limit {unit.limit_percent:g} %; accepted: 1 to 100 %"
    seconds = unit.duration_seconds
    if seconds is not None and not 1 <= seconds <= LONGEST_SECONDS:
        return f"got duration {seconds:g} s; accepted: 1 to {LONGEST_SECONDS:g} s"
    if (unit.kind is ManagedOomKind.RULES) != bool(unit.rules) or len(unit.rules) > MOST_RULES:
        return f"got {len(unit.rules)} rules; accepted: 1 to {MOST_RULES} of OOMRules=, none of others"
    return next((problem for problem in map(rule_name_problem, unit.rules) if problem is not None), None)


def _cgroup_problem(cgroup: str) -> str | None:
    names = [] if cgroup == "/" else cgroup.removeprefix("/").split("/")
    is_path = cgroup.startswith("/") and cgroup.isprintable() and _NO_NAMES.isdisjoint(names)
    if not is_path or len(cgroup.encode(errors="replace")) > LONGEST_CGROUP_BYTES:
        return f"got cgroup {cgroup!r:.80}; accepted: a path of {LONGEST_CGROUP_BYTES} bytes without . and .."
    if not _PATTERN_SIGNS.isdisjoint(cgroup):
        return f"got cgroup {cgroup!r:.80}; accepted: a path without *, ? and ["
    return None


_HEAD: Final = Form(_Head, prefix=MAGIC)
_UNIT: Final = Form(ManagedOomUnit, check=unit_problem)


def write_report(report: ManagedOomReport) -> bytes:
    """Return the file; a text that is too long is cut, and what is too much is left out."""
    written: list[bytes] = []
    left_out, size = report.left_out, _HEAD.most_bytes
    for unit in report.units:
        raw = _UNIT.write(unit) if unit_problem(unit) is None else b""
        if not raw or len(written) >= MOST_UNITS or size + len(raw) > LONGEST_BYTES:
            left_out += 1
            continue
        written.append(raw)
        size += len(raw)
    head = _Head(VERSION, len(written), min(left_out, _MOST_LEFT_OUT), report.problem, report.reloads)
    return b"".join((_HEAD.write(head), *written))


def read_report(raw: bytes) -> Generator[None, None, ManagedOomReport]:
    """Return what the file says; yield after each unit. Raises FormError with the accepted form."""
    if len(raw) > LONGEST_BYTES:
        raise FormError(f"got {len(raw)} bytes; accepted: up to {LONGEST_BYTES}")
    head, at = _HEAD.read_at(raw, 0)
    if head.version != VERSION:
        raise FormError(f"got version {head.version}; accepted: {VERSION}")
    units = []
    for _ in range(head.units):
        unit, at = _UNIT.read_at(raw, at)
        units.append(unit)
        yield
    if at != len(raw):
        raise FormError(f"got {len(raw)} bytes; accepted: {at} with {head.units} units")
    return ManagedOomReport(
        units=tuple(units), problem=head.problem, left_out=head.left_out, reloads=head.reloads
    )


def read_report_at_once(raw: bytes) -> ManagedOomReport:
    return without_pause(read_report(raw))


def sorted_units(units: Iterable[ManagedOomUnit]) -> list[ManagedOomUnit]:
    """Return units in the order in which they are kept where there are too many: the system's first."""
    return sorted(units, key=lambda one: (one.uid is not None, one.uid or 0, one.cgroup, one.kind))
