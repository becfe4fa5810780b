"""What was measured, as it is stored, and what follows from it.

A result is a JSON object: `about` (when, on what), `courses` and `contestants` by name, `left_out` by name
with the reason, `heats` one by one (those under pressure with the reactor's own records), `traces`
(course -> contestant -> pairs of ms since the crossing and MiB used). All else is worked out of these, so
that a file that was measured elsewhere can be looked at anywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.race.contestants import FLOOR, Role
from bench.race.heat import STEP
from bench.race.pressed import INTERVAL_MS, PROBE_BYTES, PROBE_PAGES
from reactor.report import Bars, Distribution, Lines, Report, Section, Table
from reactor.testbed.allocator import MIB
from reactor.testbed.crossing import summary

Found = Mapping[str, Any]
NOISY_SPREAD: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One contestant's on one course, in ms and MiB; empty where it never killed. `n` is of all heats."""

    kill_ms: Mapping[str, float]
    back_ms: Mapping[str, float]
    overshoot_mib: Mapping[str, float]
    missed: int
    early: int
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PressedFigures:
    """One contestant's on a course under pressure, in ms; `wrong` and `lost_mib` are of all heats.

    `by_kernel` is in how many of them the kernel's OOM killer killed.
    """

    kill_ms: Mapping[str, float]
    stall_ms: Mapping[str, float]
    answers_ms: Mapping[str, float]
    missed: int
    early: int
    by_kernel: int
    wrong: int
    lost_mib: float
    n: int


def figures(found: Found, course: str, contestant: str) -> Figures | None:
    """Return the figures, None where the contestant didn't run this course."""
    heats = _heats_of(found, course, contestant)
    if not heats:
        return None
    return Figures(
        kill_ms=_summary(heats, "kill_ms"),
        back_ms=_summary(heats, "back_ms"),
        overshoot_mib=_summary(heats, "overshoot_mib"),
        missed=_missed(heats),
        early=sum(heat["early"] for heat in heats),
        n=len(heats),
    )


def is_under_pressure(found: Found, course: str) -> bool:
    """Tell whether the heats of a course have a probe that stalls."""
    return any("stall_ms" in heat for heat in found["heats"] if heat["course"] == course)


def is_a_replay(found: Found, course: str) -> bool:
    """Tell whether the heats of a course have a session of agents."""
    return any("agents" in heat for heat in found["heats"] if heat["course"] == course)


def pressed_figures(found: Found, course: str, contestant: str) -> PressedFigures | None:
    """Return the figures of a course under pressure, None where the contestant didn't run it."""
    heats = _heats_of(found, course, contestant)
    if not heats:
        return None
    return PressedFigures(
        kill_ms=_summary(heats, "kill_ms"),
        stall_ms=_summary(heats, "stall_ms"),
        answers_ms=_summary(heats, "answers_ms"),
        missed=_missed(heats),
        early=sum(heat["early"] for heat in heats),
        by_kernel=sum(heat["kernel_oom_kills"] > 0 for heat in heats),
        wrong=sum(len(heat["wrong"]) for heat in heats),
        lost_mib=sum(heat["lost_mib"] for heat in heats),
        n=len(heats),
    )


def values(found: Found, course: str, contestant: str, name: str) -> list[float]:
    """Return what was measured under a name, heat by heat, without those where there was nothing."""
    return [
        heat[name]
        for heat in found["heats"]
        if (heat["course"], heat["contestant"]) == (course, contestant) and heat[name] is not None
    ]


def named(found: Found, *roles: Role) -> list[str]:
    """Return the contestants of these roles."""
    return [name for name, about in found["contestants"].items() if about["role"] in roles]


def median(found: Found, course: str, contestant: str, name: str = "kill_ms") -> float | None:
    """Return the median of what was measured under a name, None where there is nothing."""
    measured = values(found, course, contestant, name)
    return summary(measured)["p50"] if measured else None


def fastest(found: Found, course: str, *roles: Role) -> tuple[str, float] | None:
    """Return who of these roles has the lowest median from the crossing to the kill, and that in ms."""
    medians = [(median(found, course, name), name) for name in named(found, *roles)]
    ranked = sorted((ms, name) for ms, name in medians if ms is not None)
    return (ranked[0][1], ranked[0][0]) if ranked else None


def spread_of_floor(found: Found, course: str) -> float | None:
    """Return how far apart the floor's quartiles are, as a share of its median: the machine's own noise."""
    measured = sorted(values(found, course, FLOOR, "kill_ms"))
    middle = median(found, course, FLOOR)
    if len(measured) < 4 or not middle:
        return None
    quarter = len(measured) // 4
    return (measured[-1 - quarter] - measured[quarter]) / middle


def noise(found: Found) -> list[str]:
    """Return a line for each course on which the machine was too noisy to trust small differences."""
    lines = []
    for course in found["courses"]:
        spread = spread_of_floor(found, course)
        if spread is not None and spread > NOISY_SPREAD:
            lines.append(
                f"noisy: on {course} the quartiles of the floor are {spread:.1f} times its median apart; "
                "the machine had other work, so trust no small differences"
            )
    return lines


def comparisons(found: Found) -> list[str]:
    """Return a sentence for each course: how far the reactor is from the fastest peer and from the floor."""
    lines = []
    for course in found["courses"]:
        own = fastest(found, course, Role.REACTOR)
        floor = median(found, course, FLOOR)
        peer = fastest(found, course, Role.PEER)
        if own is None:
            continue
        line = f"{course}: {own[0]} kills {number(own[1])} ms after the crossing (median)"
        if floor:
            line += f", {own[1] / floor:.1f} times the floor's {number(floor)} ms"
        if peer:
            line += (
                f"; the fastest peer, {peer[0]}, {number(peer[1])} ms, {peer[1] / own[1]:.1f} times as long"
            )
        lines.append(line)
    return lines


def order(found: Found, course: str = STEP) -> list[str]:
    """Return the contestants from the fastest to the slowest on a course, those without a kill at the end."""
    names = list(found["contestants"])

    def key(name: str) -> tuple[bool, float, int]:
        ms = median(found, course, name)
        return ms is None, ms or 0.0, names.index(name)

    return sorted(names, key=key)


def number(value: float) -> str:
    """Return three digits that matter."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _heats_of(found: Found, course: str, contestant: str) -> list[Mapping[str, Any]]:
    return [heat for heat in found["heats"] if (heat["course"], heat["contestant"]) == (course, contestant)]


def _missed(heats: Sequence[Mapping[str, Any]]) -> int:
    return sum(heat["kill_ms"] is None and not heat["early"] for heat in heats)


def _summary(heats: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, float]:
    measured = [heat[name] for heat in heats if heat[name] is not None]
    return summary(measured) if measured else {}


_COLUMNS: Final = ("contestant", "heats", "crossing to kill, ms", "to memory back, ms", "overshoot, MiB")
_PRESSED_COLUMNS: Final = (
    "contestant",
    "heats",
    "condition to kill, s",
    "longest stall of the probe, s",
    "condition to prompt answers, s",
    "wrong victims",
    "lost with them, MiB",
)
_REPLAY_COLUMNS: Final = (
    "contestant",
    "heats",
    "start of the runaway to its end, s",
    "other agents that live, of all heats",
    "their tools that live",
    "sessions that live",
    "tools of the runaway that live",
    "longest stall of the probe, s",
    "wrong victims outside the session",
)
_PRESSED_SPREAD: Final = "p50 / max"
_FACTS: Final = {
    "cgroup": "version of cgroups",
    "cpus": "CPUs",
    "cpu": "CPU",
    "load_average": "load average over 1, 5 and 15 minutes",
    "capacity_mib": "capacity of the node, MiB",
    "threshold_mib": "threshold of memory.available, MiB",
    "level_mib": "usage at the crossing, MiB",
    "seed": "seed of turns and pauses",
}
_OVERVIEW: Final = "Crossing to kill, ms, p50 / max"
_SPREAD: Final = "p50 / p99 / max"
_LINES: Final = "The usage is that of each contestant's heat that is nearest to its median."
_PRESSED: Final = f"""The probe answers every {INTERVAL_MS} ms: it writes to {PROBE_PAGES} pages of the
    {PROBE_BYTES // MIB} MiB that it holds and reads a page from the disk. Its answers are prompt again after
    the last that took 50 ms longer, and ten times as long, as was usual before. Wrong victims are the probe
    and the two pods that hold memory. Without a kill a heat ends when its time is over, and the stall is what
    was until then. "By the kernel" are heats in which the kernel's OOM killer killed: the node's memory and
    swap were full."""
_HOW: Final = (
    """Every contestant guards the same virtual node, with the same threshold, against the same C program that
    allocates; they take turns in every round, in another order each time.""",
    """The crossing is the instant before the allocator touches the page that takes the node's usage to the
    level. The kill is when the kernel tells that a thread of an allocator dies, before its memory is torn
    down. Memory is back when the node uses what it used before; with several allocators, when half of what
    one of them held is back. All by the clocks of the allocators and of an observer, never by a log.""",
    """The peers run in namespaces of processes and mounts of their own, where /proc/meminfo is the virtual
    node, renewed every millisecond. Before an allocator goes for the level it waits for a random time, so
    that a poller is met at any point of its round.""",
)


def table(found: Found) -> Iterator[str]:
    """Yield the lines of the result as Markdown, which reads well in a terminal too."""
    about = found["about"]
    yield f"{about['kernel']}, cgroup {about['cgroup']}, {about['cpus']} x {about['cpu']}, {about['date']}"
    if "interrupted" in about:
        yield f"interrupted {about['interrupted']}"
    yield ""
    yield f"{_OVERVIEW}:"
    yield ""
    yield from _markdown(_overview_table(found))
    for course, description in found["courses"].items():
        yield ""
        spread = _PRESSED_SPREAD if is_under_pressure(found, course) else _SPREAD
        yield f"{course}: {description} ({spread})"
        yield ""
        yield from _markdown(_course_table(found, course))
    yield ""
    yield from _markdown(_cost_table(found))
    for name, reason in found["left_out"].items():
        yield f"left out: {name}: {reason}"
    yield from (f"failed: {line}" for line in problems(found))
    yield from comparisons(found)
    yield from noise(found)


def problems(found: Found) -> list[str]:
    """Return who broke down, and how."""
    return [
        f"{name}: {problem}"
        for name, about in found["contestants"].items()
        for problem in dict.fromkeys(about["problems"])
    ]


def report(found: Found) -> Report:
    """Return the report on a result."""
    about = found["about"]
    sections = [_course_section(found, name, text) for name, text in found["courses"].items()]
    return Report(
        title="From the crossing of a memory threshold to the kill",
        facts=_facts(about),
        summary=[*comparisons(found), *noise(found)],
        sections=[_overview(found), *sections, _who(found), Section(heading="How", paragraphs=_HOW)],
    )


def _facts(about: Mapping[str, Any]) -> dict[str, object]:
    """Return what the race was measured with, by names for people."""
    return {
        _FACTS.get(key, key.replace("_", " ")): ", ".join(f"{one:g}" for one in value)
        if isinstance(value, list)
        else value
        for key, value in about.items()
    }


def plot(found: Found) -> Distribution:
    """Return the one figure for who sees no other: the first course, from the crossing to the kill."""
    course, description = next(iter(found["courses"].items()))
    series = {name: values(found, course, name, "kill_ms") for name in order(found, course)}
    return Distribution(
        title=f"Crossing to kill: {description}",
        x_label=f"ms, {_machine(found)}",
        series=_without_empty(series),
    )


def usage_plot(found: Found) -> Lines:
    """Return the node's usage around the crossing of the first course."""
    course, _ = next(iter(found["courses"].items()))
    return dataclasses.replace(
        _usage(found, course),
        title="The same hog, the same threshold",
        x_label=f"ms since the crossing; {_machine(found)}",
        y_label="memory in use, MiB",
    )


def _machine(found: Found) -> str:
    about = found["about"]
    kernel = str(about["kernel"]).partition("-")[0]
    return f"{about['cpus']} CPUs, kernel {kernel}, cgroup {about['cgroup']}, {str(about['date'])[:10]}"


def _overview(found: Found) -> Section:
    medians = {
        name: {
            course: figure.kill_ms["p50"]
            for course in found["courses"]
            if (figure := figures(found, course, name)) and figure.kill_ms
        }
        for name in order(found)
    }
    bars = Bars(title="Crossing to kill, median", y_label="ms", series=_without_empty(medians), log_y=True)
    table = _overview_table(found)
    return Section(heading="All courses", paragraphs=[f"{_OVERVIEW}."], tables=[table], figures=[bars])


def _overview_table(found: Found) -> Table:
    courses = list(found["courses"])
    rows = [
        [name, *(_short(figures(found, course, name)) for course in courses)]
        for name in order(found, courses[0])
    ]
    return Table(columns=("contestant", *courses), rows=rows)


def _short(figure: Figures | None) -> str:
    if figure is None:
        return "-"
    measured = f"{number(figure.kill_ms['p50'])} / {number(figure.kill_ms['max'])}" if figure.kill_ms else "-"
    return f"{measured}{_without(figure)}"


def _without(figure: Figures | PressedFigures) -> str:
    """Return how many heats have no latency, and why."""
    never = f", {figure.missed} never" if figure.missed else ""
    return f"{never}, {figure.early} early" if figure.early else never


def _course_section(found: Found, course: str, description: str) -> Section:
    if is_under_pressure(found, course):
        return _pressed_section(found, course, description)
    names = order(found, course)
    latencies = {name: values(found, course, name, "kill_ms") for name in names}
    back = {name: values(found, course, name, "back_ms") for name in names}
    return Section(
        heading=course,
        paragraphs=[f"{description[0].upper()}{description[1:]}. {_SPREAD}.", _LINES],
        tables=[_course_table(found, course)],
        figures=[
            Distribution(title="Crossing to kill", x_label="ms", series=_without_empty(latencies)),
            Distribution(title="Crossing to memory back", x_label="ms", series=_without_empty(back)),
            _usage(found, course),
        ],
    )


def _usage(found: Found, course: str) -> Lines:
    traces: Mapping[str, Any] = found["traces"].get(course, {})
    return Lines(
        title="The node's usage around the crossing",
        x_label="ms since the crossing",
        y_label="MiB",
        series={
            name: [tuple(point) for point in traces[name]] for name in order(found, course) if name in traces
        },
        levels={"threshold": found["about"]["level_mib"]} if not course.endswith("-cache") else {},
        instants={"crossing": 0.0},
    )


def _pressed_section(found: Found, course: str, description: str) -> Section:
    stalls = {name: values(found, course, name, "stall_ms") for name in order(found, course)}
    drawn = Distribution(title="Longest stall of the probe", x_label="ms", series=_without_empty(stalls))
    return Section(
        heading=course,
        paragraphs=[f"{description[0].upper()}{description[1:]}. {_PRESSED_SPREAD}.", _PRESSED],
        tables=[_course_table(found, course)],
        figures=[drawn],
    )


def _course_table(found: Found, course: str) -> Table:
    if is_a_replay(found, course):
        replayed = [(name, _heats_of(found, course, name)) for name in found["contestants"]]
        rows = [_replay_row(name, heats) for name, heats in replayed if heats]
        return Table(columns=_REPLAY_COLUMNS, rows=rows)
    if is_under_pressure(found, course):
        pressed = [(name, pressed_figures(found, course, name)) for name in order(found, course)]
        rows = [_pressed_row(name, figure) for name, figure in pressed if figure is not None]
        return Table(columns=_PRESSED_COLUMNS, rows=rows)
    ranked = [(name, figures(found, course, name)) for name in order(found, course)]
    rows = [_row(name, figure) for name, figure in ranked if figure is not None]
    return Table(columns=_COLUMNS, rows=rows)


def _row(name: str, figure: Figures) -> list[str]:
    heats = f"{figure.n}{_without(figure)}"
    spreads = (figure.kill_ms, figure.back_ms, figure.overshoot_mib)
    return [name, heats, *(_spread(values) for values in spreads)]


def _pressed_row(name: str, figure: PressedFigures) -> list[str]:
    spreads = (figure.kill_ms, figure.stall_ms, figure.answers_ms)
    seconds = [
        " / ".join(number(values[key] / 1000) for key in ("p50", "max")) if values else "-"
        for values in spreads
    ]
    by_kernel = f", {figure.by_kernel} by the kernel" if figure.by_kernel else ""
    heats = f"{figure.n}{_without(figure)}{by_kernel}"
    return [name, heats, *seconds, str(figure.wrong), number(figure.lost_mib)]


def _replay_row(name: str, heats: Sequence[Mapping[str, Any]]) -> list[str]:
    by_kernel = sum(heat["kernel_oom_kills"] > 0 for heat in heats)
    never = sum(heat["run_ms"] is None for heat in heats)
    counted = [f"{count} {what}" for count, what in ((never, "never"), (by_kernel, "by the kernel")) if count]
    seconds = [
        " / ".join(number(measured[key] / 1000) for key in ("p50", "max")) if measured else "-"
        for measured in (_summary(heats, "run_ms"), _summary(heats, "stall_ms"))
    ]

    def of_all(alive: str, there: str) -> str:
        return f"{sum(heat[alive] for heat in heats)} of {sum(heat[there] for heat in heats)}"

    return [
        name,
        ", ".join([str(len(heats)), *counted]),
        seconds[0],
        of_all("agents_alive", "agents"),
        of_all("tools_alive", "tools"),
        f"{sum(heat['session_alive'] for heat in heats)} of {len(heats)}",
        str(sum(heat["orphans"] for heat in heats)),
        seconds[1],
        str(sum(len(heat["wrong"]) for heat in heats)),
    ]


def _spread(values: Mapping[str, float]) -> str:
    return " / ".join(number(values[key]) for key in ("p50", "p99", "max")) if values else "-"


def _who(found: Found) -> Section:
    left_out = [[name, reason] for name, reason in found["left_out"].items()]
    failed = [line.split(": ", 1) for line in problems(found)]
    tables = [_cost_table(found)]
    if left_out:
        tables.append(Table(columns=("left out", "why"), rows=left_out))
    if failed:
        tables.append(Table(columns=("failed", "how"), rows=failed))
    return Section(heading="Who ran", tables=tables)


def _cost_table(found: Found) -> Table:
    rows = [
        [name, _or_dash(about["at_rest_cpu_percent"]), _or_dash(about["rss_mib"]), about["settings"]]
        for name, about in found["contestants"].items()
    ]
    return Table(columns=("contestant", "at rest, % of a CPU", "resident, MiB", "settings"), rows=rows)


def _or_dash(value: float | None) -> str:
    return "-" if value is None else number(value)


def _without_empty(series: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values for name, values in series.items() if values}


def _markdown(table: Table) -> Iterator[str]:
    yield f"| {' | '.join(table.columns)} |"
    yield f"|{'---|' * len(table.columns)}"
    for row in table.rows:
        yield f"| {' | '.join(row)} |"
