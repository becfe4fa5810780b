"""`reactor bench race`: measure or render, print, store; every reason to refuse in one line."""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.race.contestants import AnyCourse, Contestant, Field, Programs, limits, peers, reactors
from bench.race.heat import DEFAULT, FULL
from bench.race.meeting import Meeting, Seen
from bench.race.pressed import PRESSED, REPLAYS, PressedCourse
from bench.race.pressed_contestants import pressed_field, replay_field
from bench.race.results import Found, plot, report, table, usage_plot
from reactor.errors import ReactorError, RefusedError, what_failed
from reactor.kernel.cgroup import CgroupTree
from reactor.plain import read_regular
from reactor.report import write, write_figure
from reactor.testbed.allocator import MIB, compiled_tool
from reactor.testbed.crossing import CAPACITY_BYTES, LEVEL_BYTES, THRESHOLD_BYTES, about, check_machine
from reactor.testbed.virtual_node import ended_by_signals

_LARGEST_BYTES: Final = 1 << 30
_KEYS: Final = ("about", "courses", "contestants", "left_out", "heats", "traces")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the command line asks for; an empty list of names is all of them."""

    results: Path
    rounds: int
    heats_a_turn: int
    full: bool = False
    courses: Sequence[str] = ()
    only: Sequence[str] = ()
    skip: Sequence[str] = ()
    peers: Path | None = None
    seed: int | None = None


def race(wanted: Wanted) -> int:
    """Have the race; return the exit status.

    0 when it was had, 1 where it broke down, 2 where this machine or the arguments don't allow it, 130 when
    interrupted: what was measured until then is printed and stored all the same.
    """
    try:
        tree, tool = _prepared()
        courses = _courses(wanted)
        field = _only(_field(tree, courses, wanted), wanted)
        wanted.results.mkdir(parents=True, exist_ok=True)
    except (ReactorError, OSError) as error:
        return _told(error, 2)
    try:
        with ended_by_signals(), tempfile.TemporaryDirectory(prefix="reactor-race-", dir="/var/tmp") as name:
            found = _raced(tree, tool, Path(name), field, courses, wanted)
        _publish(found, wanted.results)
        return _ended(found)
    except KeyboardInterrupt:
        return _told("interrupted; everything is cleaned up", 130)
    except BrokenPipeError:  # the reader of the table has closed it; all is stored
        raise
    except (ReactorError, OSError) as error:
        return _told(error, 1)


def render(
    path: Path, picture: Path | None = None, results: Path | None = None, usage: Path | None = None
) -> int:
    """Print a stored result, write its report, one plot to `picture` and one to `usage`; return the status.

    The report goes to the directory `results`, None: beside the result.
    Without the extra that draws, the table comes all the same.
    """
    try:
        found = read_result(path)
    except (ReactorError, OSError) as error:
        return _told(error, 2)
    status, page = 0, (results or path.parent) / path.with_suffix(".html").name
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        write(report(found), page)
        if picture is not None:
            write_figure(plot(found), picture)
        if usage is not None:
            write_figure(usage_plot(found), usage)
        print(f"report: {page}", file=sys.stderr)
    except (ReactorError, OSError) as error:
        status = _told(error, 2)
    print("\n".join(table(found)))
    return status


def read_result(path: Path) -> Found:
    """Return a stored result. Raises RefusedError, naming the file, for anything else."""
    try:
        found = json.loads(read_regular(path, _LARGEST_BYTES))
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"{path}: not JSON: {error}; expected a result of reactor bench race") from None
    missing = [key for key in _KEYS if not isinstance(found, dict) or key not in found]
    if missing:
        raise RefusedError(f"{path}: no {', '.join(missing)}; expected a result of reactor bench race")
    return dict(found)


def _prepared() -> tuple[CgroupTree, Path]:
    if os.geteuid() != 0:
        raise RefusedError("needs root, to make cgroups and namespaces: sudo reactor bench race")
    check_machine()
    return CgroupTree.discover(), compiled_tool()


def _field(tree: CgroupTree, courses: Sequence[AnyCourse], wanted: Wanted) -> Field:
    programs = Programs(directory=wanted.peers)
    contestants: list[Contestant] = []
    left_out: dict[str, str] = {}
    if not all(isinstance(course, PressedCourse) for course in courses):
        own, not_own = reactors(tree.version, everybody=wanted.full)
        others, not_others = peers(tree.version, programs)
        contestants += [*own, *others, *limits(tree.version)]
        left_out |= {**not_own, **not_others}
    for courses_of, field_of in ((PRESSED, pressed_field), (REPLAYS, replay_field)):
        if any(course in courses_of for course in courses):
            pressed, not_pressed = field_of(tree.version, programs)
            contestants += pressed
            left_out |= not_pressed
    return Field(contestants=tuple(contestants), left_out=left_out)


def _only(field: Field, wanted: Wanted) -> Field:
    names = [contestant.name for contestant in field.contestants]
    for option, named in (("--only", wanted.only), ("--skip", wanted.skip)):
        for name in named:
            if name not in names and name not in field.left_out:
                raise RefusedError(f"{option}: {name!r} is none of {', '.join((*names, *field.left_out))}")
    taken = tuple(
        contestant
        for contestant in field.contestants
        if (not wanted.only or contestant.name in wanted.only) and contestant.name not in wanted.skip
    )
    if not taken:
        missing = [f"{name}: {field.left_out[name]}" for name in wanted.only if name in field.left_out]
        raise RefusedError("; ".join(("--only, --skip: no contestant is left", *missing)))
    return Field(contestants=taken, left_out=field.left_out)


def _courses(wanted: Wanted) -> tuple[AnyCourse, ...]:
    every: tuple[AnyCourse, ...] = (*DEFAULT, *FULL, *PRESSED, *REPLAYS)
    known = {course.name: course for course in every}
    for name in wanted.courses:
        if name not in known:
            raise RefusedError(f"--courses: {name!r} is none of {', '.join(known)}")
    if wanted.courses:
        return tuple(known[name] for name in wanted.courses)
    return FULL if wanted.full else DEFAULT


def _raced(
    tree: CgroupTree, tool: Path, directory: Path, field: Field, courses: Sequence[AnyCourse], wanted: Wanted
) -> Found:
    seed = random.randrange(1 << 32) if wanted.seed is None else wanted.seed  # noqa: S311 - told in the result
    for name, reason in field.left_out.items():
        print(f"reactor bench race: left out: {name}: {reason}", file=sys.stderr)
    meeting = Meeting(tree, tool, directory, seed)
    facts = {**about(tree.version), "seed": seed, "rounds": wanted.rounds}
    facts |= {"load_average": list(os.getloadavg()), "capacity_mib": CAPACITY_BYTES // MIB}
    facts |= {"threshold_mib": THRESHOLD_BYTES // MIB, "level_mib": LEVEL_BYTES // MIB}
    try:
        meeting.run(field.contestants, courses, wanted.rounds, wanted.heats_a_turn)
    except (KeyboardInterrupt, BrokenPipeError):  # the latter: who read its progress has gone
        if not meeting.heats:
            raise
        facts["interrupted"] = f"after {len(meeting.heats)} of {meeting.planned} heats"
    run = {heat["course"] for heat in meeting.heats}
    ran = {heat["contestant"] for heat in meeting.heats}
    return {
        "about": facts,
        "courses": {
            one.name: one.description for one in courses if one.name in run or "interrupted" not in facts
        },
        "contestants": {
            one.name: _contestant(one, meeting.seen[one.name])
            for one in field.contestants
            if one.name in ran or "interrupted" not in facts
        },
        "left_out": field.left_out,
        "heats": meeting.heats,
        "traces": meeting.traces(),
    }


def _contestant(contestant: Contestant, seen: Seen) -> Mapping[str, Any]:
    return {
        "role": contestant.role,
        "settings": contestant.settings,
        "rss_mib": seen.rss_mib,
        "at_rest_cpu_percent": seen.at_rest_cpu_percent,
        "problems": seen.problems,
    }


def _publish(found: Found, results: Path) -> None:
    when = str(found["about"]["date"]).replace(":", "").partition("+")[0]
    path = results / f"race-{when}.json"
    path.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"stored as {path}", file=sys.stderr)
    try:
        write(report(found), path.with_suffix(".html"))
        print(f"report: {path.with_suffix('.html')}", file=sys.stderr)
    except RefusedError as error:  # without the extra that draws; the result can be rendered elsewhere
        print(f"reactor bench race: {error}; then: reactor bench race --render {path}", file=sys.stderr)
    print("\n".join(table(found)))


def _ended(found: Found) -> int:
    interrupted = found["about"].get("interrupted")
    return 0 if interrupted is None else _told(f"interrupted {interrupted}; everything is cleaned up", 130)


def _told(what: str | Exception, status: int) -> int:
    text = what if isinstance(what, str) else what_failed(what)
    print(f"reactor bench race: {text}", file=sys.stderr)
    return status
