"""What the process in systemd-oomd's place reports to the guard: a file of one fixed form.

    the head     what it is, the version, and how many units follow, were left out, and bytes of a problem
    the problem  up to 400 bytes of text, which is shown and nothing else
    each unit    16 bytes, and its cgroup's path

The file is replaced as a whole, so that its reader never finds half of it.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable
from typing import Final

from reactor.model.managed_oom import ManagedOomKind, ManagedOomReport, ManagedOomUnit
from reactor.threads import without_pause

PATH: Final = "/run/reactor-managed-oom/units"
MAGIC: Final = b"reactor managed oom\0"
VERSION: Final = 1
MOST_UNITS: Final = 1_024
_AT_ONCE: Final = 16  # units, which take 0.25 ms at the most
LONGEST_CGROUP_BYTES: Final = 1_024
LONGEST_BYTES: Final = 256 << 10
LONGEST_SECONDS: Final = 86_400.0
_HEAD: Final = struct.Struct("=20sHHIH2x")
_UNIT: Final = struct.Struct("=BxHIII")
_TEXT_BYTES: Final = 400
_OF_SYSTEM: Final = 2**32 - 1
_MOST_LEFT_OUT: Final = 2**32 - 1
_PER_PERCENT: Final = 100
_PATTERN_SIGNS: Final = frozenset("*?[")
_NO_NAMES: Final = frozenset(("", ".", ".."))


class ManagedOomError(ValueError):
    """The file is not of the fixed form, or says what can't be."""


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
    return None


def _cgroup_problem(cgroup: str) -> str | None:
    names = [] if cgroup == "/" else cgroup.removeprefix("/").split("/")
    is_path = cgroup.startswith("/") and cgroup.isprintable() and _NO_NAMES.isdisjoint(names)
    if not is_path or len(cgroup.encode(errors="replace")) > LONGEST_CGROUP_BYTES:
        return f"got cgroup {cgroup!r:.80}; accepted: a path of {LONGEST_CGROUP_BYTES} bytes without . and .."
    if not _PATTERN_SIGNS.isdisjoint(cgroup):
        return f"got cgroup {cgroup!r:.80}; accepted: a path without *, ? and ["
    return None


def write_report(report: ManagedOomReport) -> bytes:
    """Return the file; a text that is too long is cut, and what is too much is left out."""
    written: list[bytes] = []
    left_out, size = report.left_out, _HEAD.size + _TEXT_BYTES
    for unit in report.units:
        raw = _write_unit(unit) if unit_problem(unit) is None else b""
        if not raw or len(written) >= MOST_UNITS or size + len(raw) > LONGEST_BYTES:
            left_out += 1
            continue
        written.append(raw)
        size += len(raw)
    text = report.problem.encode(errors="replace")[:_TEXT_BYTES]
    head = _HEAD.pack(MAGIC, VERSION, len(written), min(left_out, _MOST_LEFT_OUT), len(text))
    return b"".join((head, text, *written))


def read_report(raw: bytes) -> Generator[None, None, ManagedOomReport]:
    """Return what the file says; yield after a few units. Raises ManagedOomError with the accepted form."""
    if not _HEAD.size <= len(raw) <= LONGEST_BYTES:
        raise ManagedOomError(f"got {len(raw)} bytes; accepted: {_HEAD.size} to {LONGEST_BYTES}")
    magic, version, count, left_out, text_bytes = _HEAD.unpack_from(raw)
    if magic != MAGIC or version != VERSION:
        raise ManagedOomError(f"got {magic!r} version {version}; accepted: {MAGIC!r} version {VERSION}")
    if count > MOST_UNITS or text_bytes > _TEXT_BYTES:
        accepted = f"at most {MOST_UNITS} and {_TEXT_BYTES}"
        raise ManagedOomError(f"got {count} units and {text_bytes} bytes of text; accepted: {accepted}")
    at = _HEAD.size + text_bytes
    problem = raw[_HEAD.size : at].decode(errors="replace")
    units = []
    for number in range(count):
        unit, at = _read_unit(raw, at)
        units.append(unit)
        if number % _AT_ONCE == _AT_ONCE - 1:
            yield
    if at != len(raw):
        raise ManagedOomError(f"got {len(raw)} bytes; accepted: {at} with {count} units")
    return ManagedOomReport(units=tuple(units), problem=problem, left_out=left_out)


def read_report_at_once(raw: bytes) -> ManagedOomReport:
    """Return what the file says. Raises ManagedOomError with the accepted form."""
    return without_pause(read_report(raw))


def sorted_units(units: Iterable[ManagedOomUnit]) -> list[ManagedOomUnit]:
    """Return units in the order in which they are kept where there are too many: the system's first."""
    return sorted(units, key=lambda one: (one.uid is not None, one.uid or 0, one.cgroup, one.kind))


def _write_unit(unit: ManagedOomUnit) -> bytes:
    path = unit.cgroup.encode()
    percent, seconds = unit.limit_percent or 0.0, unit.duration_seconds or 0.0
    uid = _OF_SYSTEM if unit.uid is None else unit.uid
    return _UNIT.pack(unit.kind, len(path), uid, round(percent * _PER_PERCENT), round(seconds * 1000)) + path


def _read_unit(raw: bytes, at: int) -> tuple[ManagedOomUnit, int]:
    """Return the unit that begins there, and where the next one does. Raises ManagedOomError."""
    start = at + _UNIT.size
    if start > len(raw):
        raise ManagedOomError("got the beginning of a unit; accepted: as many units as the head says")
    kind, path_bytes, uid, limit, milliseconds = _UNIT.unpack_from(raw, at)
    end = start + path_bytes
    if end > len(raw):
        raise ManagedOomError("got the beginning of a path; accepted: as many bytes as are announced")
    if kind not in _KINDS:
        raise ManagedOomError(f"got kind {kind}; accepted: {min(_KINDS):d} to {max(_KINDS):d}")
    try:
        cgroup = raw[start:end].decode()
    except UnicodeDecodeError as error:
        raise ManagedOomError(f"got {raw[start:end]!r:.80}; accepted: UTF-8") from error
    unit = ManagedOomUnit(
        kind=ManagedOomKind(kind),
        cgroup=cgroup,
        uid=None if uid == _OF_SYSTEM else uid,
        limit_percent=limit / _PER_PERCENT if limit else None,
        duration_seconds=milliseconds / 1000 if milliseconds else None,
    )
    problem = unit_problem(unit)
    if problem is not None:
        raise ManagedOomError(problem)
    return unit, end


_KINDS: Final = frozenset(ManagedOomKind)
