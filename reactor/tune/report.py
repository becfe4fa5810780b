"""The recommendation and what it follows from: in the terminal, as a part of a configuration, as a report."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from reactor.config.settings import settings_from_text
from reactor.report import Bars, Distribution, Lines, Report, Section, Table, numeric_columns
from reactor.svg import Level, Mark, Picture, draw
from reactor.tables import Column, Screen, Styled
from reactor.tables import Table as ScreenTable
from reactor.text import printable
from reactor.tune.history import History
from reactor.tune.latency import Tail
from reactor.tune.measured import AS_CONFIGURED, Growth, Measured
from reactor.tune.model import (
    Recommendation,
    Verdict,
    amount,
    covered_rate_bytes,
    duration,
    milliseconds,
    quantity,
    rate,
)

_SIGNAL: Final = "memory.available"

_MIB = 2**20

# Of the latencies' columns; the first ones say of which row they are.
_OF = ("way", "load")
_LATENCY_PARTS: Final = (
    (*_OF, "woken by", "n", "to wake, ms", "overshoot"),
    (*_OF, "to kill, ms", "p99.9 at most", "kill to memory back, ms"),
)


def snippet(
    measured: Measured, found: Recommendation, existing: Mapping[str, Any], reserved: str = ""
) -> str:
    """Return YAML that `reactor config check` accepts.

    `existing` are the keys of the operator's own file: what it says of other signals is kept, since a key of
    evictionHard drops the defaults of all others. Those are for disks, and only a Kubernetes node has them.
    `reserved` is what the Node keeps from the scheduler, and should; "" where it is unknown.
    """
    text = "".join(f"{line}\n" for line in _lines(measured, found, existing, reserved))
    settings_from_text(text, "the recommended configuration")
    return text


def headline(found: Recommendation) -> str:
    """Return the hard threshold with what it is for and its sum: what is asked for may be more."""
    if found.is_enough:
        hard = f"{quantity(found.hard_bytes)} for {found.chosen.name}"
        return f"{hard}; {reasoning(found)}, rounded up to 10Mi."
    asked = f"{quantity(found.chosen.needed_bytes)} for {found.chosen.name} ({reasoning(found)})"
    is_half = 2 * found.hard_bytes <= found.node.capacity_bytes
    share = "half of this node" if is_half else "the reserve alone"
    most = f"{quantity(found.hard_bytes)}, {share}, serves up to {rate(found.covered_rate_bytes)}"
    return f"{most}. It would take {asked}: limit what pods may use, or how fast."


def reasoning(found: Recommendation) -> str:
    """Return the hard threshold's sum in one line."""
    terms = found.terms
    return (
        f"{rate(found.chosen.rate_bytes)} x ({duration(terms.reaction_seconds)} reaction + "
        f"{duration(terms.freeing_seconds)} freeing) + {amount(terms.reserve_bytes)} reserve = "
        f"{amount(found.chosen.needed_bytes)}"
    )


def _lines(
    measured: Measured, found: Recommendation, existing: Mapping[str, Any], reserved: str
) -> Iterator[str]:
    about, soft = measured.about, found.soft
    where = f"{about['kernel']}, {about['cpus']} CPUs"
    yield f"# By reactor tune, {about['date']}, measured for {measured.seconds:.0f} s on {where}."
    yield f"# Hard: {headline(found)}"
    if reserved:
        yield f"# {printable(reserved)}"
    elif _of(existing.get("reactor")).get("kubernetes") is not None:
        yield "# The scheduler has to leave as much free: reactor doctor compares it with the Node and prints"
        yield "# what to add to the kubelet's systemReserved."
    kept = existing.get("evictionHard")
    yield from _mapping("evictionHard", {**_of(kept), _SIGNAL: quantity(found.hard_bytes)})
    if not kept or existing.get("mergeDefaultEvictionSettings"):
        yield "mergeDefaultEvictionSettings: true  # a key given would drop the other signals' defaults"
    yield f"# Soft: {rate(soft.rate_bytes)} for {soft.grace_seconds} + {soft.pod_grace_seconds} s above it."
    yield from _mapping(
        "evictionSoft", {**_of(existing.get("evictionSoft")), _SIGNAL: quantity(soft.threshold_bytes)}
    )
    graces = {**_of(existing.get("evictionSoftGracePeriod")), _SIGNAL: f"{soft.grace_seconds}s"}
    yield from _mapping("evictionSoftGracePeriod", graces)
    yield f"evictionMaxPodGracePeriod: {soft.pod_grace_seconds}"


def _mapping(key: str, values: Mapping[str, Any]) -> Iterator[str]:
    yield f"{key}:"
    for name, value in values.items():
        yield f"  {json.dumps(name)}: {json.dumps(value, default=str)}"


def _of(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def growth_table(growths: Sequence[Growth]) -> Table:
    """Return how fast memory was allocated and freed: the fastest and the slowest of each kind of run."""
    kinds: dict[tuple[bool, int, int], list[Growth]] = {}
    for growth in growths:
        kinds.setdefault((growth.huge_pages, growth.allocators, growth.size_bytes), []).append(growth)
    rows = [
        [
            f"{allocators} x {amount(size_bytes)}{', huge pages' if huge else ''}",
            str(len(runs)),
            rate(max(run.rate_bytes for run in runs)),
            rate(min(run.rate_bytes for run in runs)),
            milliseconds(max(run.freed_seconds for run in runs)),
            f"{max(run.freed_seconds for run in runs) * 1e3 / (allocators * size_bytes / 2**20):.3f}",
        ]
        for (huge, allocators, size_bytes), runs in sorted(kinds.items())
    ]
    return Table(
        columns=("allocators", "n", "fastest", "slowest", "freed at most, ms", "ms/MiB"),
        rows=rows,
        caption="Allocated at full speed, then killed",
    )


def latency_table(found: Recommendation) -> Table:
    """Return the latencies of each way of watching."""
    rows = [
        [
            latency.way,
            latency.load,
            latency.source,
            str(latency.kill.n),
            _spread(latency.wake),
            _spread(latency.kill),
            milliseconds(latency.kill.bound),
            _spread(latency.freed),
            amount(latency.overshoot_bytes),
        ]
        for latency in found.latencies
    ]
    return Table(
        columns=(
            "way",
            "load",
            "woken by",
            "n",
            "to wake, ms",
            "to kill, ms",
            "p99.9 at most",
            "kill to memory back, ms",
            "overshoot",
        ),
        rows=rows,
        caption="Crossings at full speed: p50 / p99 / max",
    )


def case_table(found: Recommendation) -> Table:
    """Return the hard threshold that each assumption asks for; the one that is taken has a star."""
    rows = [
        [
            f"{one.name}{' *' if one is found.chosen else ''}",
            rate(one.rate_bytes),
            quantity(one.needed_bytes),
            quantity(one.alone_bytes),
        ]
        for one in found.cases
    ]
    return Table(
        columns=("allocator", "rate", "threshold", "if it is the victim"),
        rows=rows,
        caption="The hard threshold by allocator (* chosen)",
    )


def threshold_lines(found: Recommendation, reserved: str = "") -> Iterator[str]:
    """Yield the recommendation in sentences, each number with where it comes from."""
    terms, soft = found.terms, found.soft
    yield from at_once_lines(found) if found.evicts_at_once else ()
    yield f"evictionHard memory.available: {headline(found)}"
    yield f"Reaction {duration(terms.reaction_seconds)}, bound of the p99.9; {found.reaction_why}."
    yield (
        f"Freeing {duration(terms.freeing_seconds)}, for a victim of {amount(found.victim_bytes)} "
        f"({found.victim_why}); usual are {duration(found.freeing.usual_seconds(found.victim_bytes))}, and "
        f"1 of 1000 takes up to {found.freeing.ratio.bound:.1f} times as long."
    )
    yield from _reserve(found)
    yield (
        f"evictionSoft memory.available: {quantity(soft.threshold_bytes)}, for {soft.grace_seconds} s "
        f"({soft.grace_why}); evictionMaxPodGracePeriod: {soft.pod_grace_seconds} ({soft.pod_grace_why}); "
        f"serves allocators of up to {rate(soft.rate_bytes)} ({soft.rate_why})."
    )
    if reserved:
        yield f"{reserved}."


def at_once_lines(found: Recommendation) -> Iterator[str]:
    """Yield which thresholds would be crossed as soon as they are in force, and what would be practicable."""
    available_bytes = found.node.available_bytes
    for key, bytes_ in (("evictionHard", found.hard_bytes), ("evictionSoft", found.soft.threshold_bytes)):
        if available_bytes is not None and bytes_ >= available_bytes:
            before = f"the {amount(available_bytes)} that were available before the measurement"
            yield (
                f"Warning: {key} is not below {before}: pods would be evicted at once. Make room on "
                "the node first, or ask for less (--assume seen, --victim, --reserve)."
            )
    reserve_bytes, practicable_bytes = found.terms.reserve_bytes, found.practicable_bytes
    if practicable_bytes is None:
        yield f"Nothing is recommended, and no smaller value serves: the reserve is {amount(reserve_bytes)}."
    else:
        safe = rate(covered_rate_bytes(practicable_bytes, found.seconds, reserve_bytes))
        which = f"{quantity(practicable_bytes)}, half of what was available"
        yield f"Nothing is recommended. With {which}: safe up to {safe}."


def history_lines(history: History) -> Iterator[str]:
    """Yield what the journals show; if nothing is known, say so."""
    if not history.decisions:
        yield "No journal was read: rates, grace periods and victims are what was measured, or assumed."
        return
    dry = f", {history.dry_runs} of them in a dry run" if history.dry_runs else ""
    yield (
        f"{history.decisions} decisions from {history.first} to {history.last}; {len(history.crossings)} "
        f"evictions for memory{dry}, the rate before {len(history.rates_bytes)} of them known."
    )
    if history.fastest_bytes is not None:
        fastest = rate(history.fastest_bytes)
        yield f"The fastest growth from a first threshold to an eviction: {fastest}."
    if history.lowest_available_bytes is not None:
        yield f"The least that was available at a decision: {amount(history.lowest_available_bytes)}."
    yield f"The kernel's OOM killer was faster {history.missed} times."
    if history.unread:
        yield f"{history.unread} lines were not of a journal, and were skipped."


def trust_lines(measured: Measured, found: Recommendation) -> Iterator[str]:
    """Yield how far to believe the bounds."""
    fewest = min(found.latencies, key=lambda latency: latency.kill.n)
    yield (
        f"{fewest.kill.n} crossings ({fewest.way}, {fewest.load}) can't show a delay of one in a thousand: "
        f"with {100 * fewest.kill.max_is_below_probability:.0f} % probability all of them were shorter. "
        "So the bound is an estimate; measure longer for a better one."
    )
    yield (
        "All of it was measured in a virtual node below the root, with a daemon of its own. On the machine "
        "itself cgroup v2 has no counter, and what kernel threads and the page cache do comes on top."
    )
    if measured.node.swap_bytes:
        size, free = amount(measured.node.swap_bytes), amount(measured.node.swap_free_bytes)
        yield (
            f"The machine has {size} of swap, {free} of it free. memory.available does not count it: while "
            "the kernel swaps, a threshold is crossed later than by these rates, and a victim's swapped "
            "memory brings nothing back."
        )
    load, cpus = measured.about.get("load average before", 0), measured.node.cpus
    if load > cpus:
        yield (
            f"The machine had other work: a load average of {load} on {cpus} CPUs before the run. A quiet "
            "machine would be faster; if the node is always that busy, these are the numbers to plan with."
        )
    if measured.interrupted:
        yield f"The run was interrupted after {measured.seconds:.0f} s."
    for way, count in measured.missed.items():
        yield f"{way}: {count} crossings were not answered."
    for problem in measured.problems:
        yield f"Problem: {problem.splitlines()[0]}"


def _reserve(found: Recommendation) -> Iterator[str]:
    reserve = found.node.reserve
    if found.terms.reserve_bytes != reserve.total_bytes:
        yield f"Reserve {amount(found.terms.reserve_bytes)}, as asked for."
        return
    kernel = f", {amount(reserve.kernel_bytes)} that the kernel itself holds" if reserve.kernel_bytes else ""
    yield (
        f"Reserve {amount(reserve.total_bytes)}: {amount(reserve.watermark_bytes)} below which the kernel "
        f"reclaims (the zones' high watermarks), {amount(reserve.batch_bytes)} that CPUs may have taken "
        f"uncounted{kernel}, {amount(reserve.daemon_bytes)} for the daemon."
    )


def _spread(tail: Tail) -> str:
    return " / ".join(milliseconds(value) for value in (tail.p50, tail.p99, tail.max))


def report_of(
    measured: Measured,
    history: History,
    found: Recommendation,
    verdict: Verdict | None,
    yaml: str | None,
    present_bytes: int | None = None,
    reserved: str = "",
) -> Report:
    """Return the report; `verdict` is on the operator's configuration, None where there is none.

    `yaml` is None where nothing is recommended. `present_bytes` is the hard memory threshold in force,
    `reserved` as for `snippet`.
    """
    return Report(
        title="reactor tune: thresholds for this node",
        facts={
            **measured.about,
            "node": amount(found.node.capacity_bytes),
            "huge pages": found.node.huge_pages,
            "measured for": f"{measured.seconds:.0f} s",
        },
        picture=draw(survived(history, found, present_bytes)),
        summary=tuple(_summary(history, found, present_bytes)),
        sections=tuple(_sections(measured, history, found, verdict, yaml, reserved)),
    )


def survived(history: History, found: Recommendation, present_bytes: int | None) -> Picture:
    """Return which allocator each threshold survives, with the node's own rates and thresholds marked."""
    reserve_bytes, capacity_bytes = found.terms.reserve_bytes, found.node.capacity_bytes
    thresholds = [one for one in (present_bytes, found.hard_bytes) if one is not None]
    rates = {one.name: one.rate_bytes for one in found.cases if one.rate_bytes >= _MIB}
    if history.fastest_bytes is not None and history.fastest_bytes >= _MIB:
        rates["fastest in the journal"] = history.fastest_bytes
    wanted = [reserve_bytes + round(one * found.seconds) for one in rates.values()]
    last = min(capacity_bytes, max([*thresholds, *wanted, reserve_bytes + 2 * _MIB]) * 13 // 10)
    steps = [reserve_bytes + (last - reserve_bytes) * step / 100 for step in range(101)]
    curve = [(at, covered_rate_bytes(round(at), found.seconds, reserve_bytes)) for at in steps]
    marks: list[Mark] = []
    if present_bytes is not None:
        marks.append(Mark(at=present_bytes, text=f"present: {quantity(present_bytes)}"))
    if not found.evicts_at_once:
        marks.append(Mark(at=found.hard_bytes, text=f"recommended: {quantity(found.hard_bytes)}"))
    return Picture(
        title="the fastest allocator that a hard threshold survives",
        first=0.0,
        last=float(last),
        lowest=float(_MIB),
        highest=2.0 * max([*rates.values(), *(rate_bytes for _, rate_bytes in curve), 10.0 * _MIB]),
        x_text=lambda value: quantity(round(value)),
        y_text=rate,
        lines={"survived": [one for one in curve if one[1] >= _MIB]},
        levels=[Level(value=value, text=f"{name}: {rate(value)}") for name, value in rates.items()],
        marks=marks,
        log_y=True,
        steps=False,
        binary_x=True,
        height=280,
    )


def _summary(history: History, found: Recommendation, present_bytes: int | None) -> Iterator[str]:
    """Yield five lines: what to set, what is in force, what the node has seen, how far to believe it."""
    soft = found.soft
    if found.evicts_at_once:
        *_, last = at_once_lines(found)
        yield last
    else:
        yield f"evictionHard memory.available: {headline(found)}"
        where = f"evictionSoft memory.available: {quantity(soft.threshold_bytes)}"
        yield f"{where} for {soft.grace_seconds} s, evictionMaxPodGracePeriod: {soft.pod_grace_seconds}."
    if present_bytes is not None:
        covered = rate(covered_rate_bytes(present_bytes, found.seconds, found.terms.reserve_bytes))
        yield f"The present threshold, {quantity(present_bytes)}, survives allocators of up to {covered}."
    seen = "no eviction is in its journal" if history.fastest_bytes is None else rate(history.fastest_bytes)
    yield f"The fastest growth before an eviction on this node: {seen}."
    fewest = min((latency.kill.n for latency in found.latencies), default=0)
    yield f"Bounds are of 1 in 1000 crossings, from {fewest} at least: measure longer for tighter ones."


def _sections(
    measured: Measured,
    history: History,
    found: Recommendation,
    verdict: Verdict | None,
    yaml: str | None,
    reserved: str,
) -> Iterator[Section]:
    yield Section(
        heading="Why these numbers",
        paragraphs=tuple(threshold_lines(found, reserved)),
        tables=(case_table(found),),
        figures=(_needed(found),),
    )
    if verdict is not None:
        yield Section(
            heading="The present configuration",
            paragraphs=(
                *(f"Covers: {line}." for line in verdict.covers or ("no allocator at all",)),
                *(f"Misses: {line}." for line in verdict.misses or ("nothing that was measured",)),
            ),
        )
    yield Section(
        heading="How soon a crossing is answered",
        tables=(latency_table(found),),
        figures=tuple(_distributions(measured)),
    )
    yield Section(
        heading="How fast memory is allocated and freed",
        tables=(growth_table(measured.growths),),
        figures=(_freeing(measured, found),),
    )
    yield Section(heading="The node's history", paragraphs=tuple(history_lines(history)))
    yield Section(heading="How reliable this is", paragraphs=tuple(trust_lines(measured, found)))
    if yaml is not None:
        yield Section(heading="The configuration", listing=yaml)


def _needed(found: Recommendation) -> Bars:
    """Show what of the threshold is the reserve, and what the allocator takes until when."""
    reserve_bytes = found.terms.reserve_bytes
    parts = {
        "reserve": {one.name: reserve_bytes / _MIB for one in found.cases},
        "until the kill": {one.name: (one.alone_bytes - reserve_bytes) / _MIB for one in found.cases},
        "until memory is back": {
            one.name: (one.needed_bytes - one.alone_bytes) / _MIB for one in found.cases
        },
    }
    return Bars(title="What the hard threshold is made of, by allocator", y_label="MiB", series=parts)


def _distributions(measured: Measured) -> Iterator[Distribution]:
    kills: dict[str, list[float]] = {}
    for reaction in measured.reactions:
        kills.setdefault(f"{reaction.way}, {reaction.load}", []).append(reaction.kill_seconds * 1e3)
    if kills:
        yield Distribution(title="Crossing to kill", x_label="ms", series=kills)


def _freeing(measured: Measured, found: Recommendation) -> Lines:
    """Show the victims that were seen, the line through them, and its bound."""
    single = [one for one in measured.growths if one.allocators == 1 and not one.huge_pages]
    killed = sorted({(one.size_bytes, one.freed_seconds) for one in single})
    evicted = sorted(
        (one.victim_bytes, one.freed_seconds) for one in measured.reactions if one.way == AS_CONFIGURED
    )
    largest = max([found.victim_bytes, *(size for size, _ in (*killed, *evicted))])
    sizes = [largest * step // 20 for step in range(21)]
    lines = {
        "usual": [(size / _MIB, found.freeing.usual_seconds(size) * 1e3) for size in sizes],
        "bound of the p99.9": [(size / _MIB, found.freeing.bound_seconds(size) * 1e3) for size in sizes],
        "slowest seen": _slowest([*killed, *evicted]),
    }
    return Lines(
        title="SIGKILL to memory back, by the victim's size",
        x_label="MiB",
        y_label="ms",
        series=lines,
        dots=("slowest seen",),
    )


def _slowest(seen: list[tuple[int, float]]) -> list[tuple[float, float]]:
    """Return the slowest victim of each size, in steps of 32 MiB."""
    slowest: dict[int, float] = {}
    for size, seconds in seen:
        step = size // (32 * _MIB)
        slowest[step] = max(slowest.get(step, 0.0), seconds)
    return [(step * 32.0, seconds * 1e3) for step, seconds in sorted(slowest.items())]


def show(
    measured: Measured,
    history: History,
    found: Recommendation,
    verdict: Verdict | None,
    reserved: str = "",
    screen: Screen | None = None,
) -> None:
    """Print measurements, recommendation and verdict."""
    screen = screen or Screen()
    latencies = latency_table(found)
    for table in (
        growth_table(measured.growths),
        *(_part(latencies, names) for names in _LATENCY_PARTS),
        case_table(found),
    ):
        screen.print(_shown(table), "")
    heading = "Nothing to recommend" if found.evicts_at_once else "Recommended"
    _say(screen, heading, threshold_lines(found, reserved))
    if verdict is not None:
        _say(screen, "The present configuration covers", verdict.covers or ("no allocator at all",))
        _say(screen, "It misses", verdict.misses or ("nothing that was measured",))
    _say(screen, "History", history_lines(history))
    _say(screen, "How reliable this is", trust_lines(measured, found))


def _part(table: Table, names: Collection[str]) -> Table:
    """Return some columns of a table: all of them are wider than a screen."""
    kept = [index for index, name in enumerate(table.columns) if name in names]
    return dataclasses.replace(
        table,
        columns=tuple(table.columns[index] for index in kept),
        rows=[[row[index] for index in kept] for row in table.rows],
    )


def _say(screen: Screen, heading: str, lines: Iterable[str]) -> None:
    screen.print(Styled(heading, "bold"))
    for line in lines:
        screen.say(f"- {line}")
    screen.print()


def _shown(table: Table) -> ScreenTable:
    numeric = numeric_columns(table)
    return ScreenTable(
        title=table.caption,
        columns=[
            Column(title=name, right=is_numeric, whole=index == 0)
            for index, (name, is_numeric) in enumerate(zip(table.columns, numeric, strict=True))
        ],
        rows=list(table.rows),
        indented=False,
    )
