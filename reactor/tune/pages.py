"""The report: recommendation first, then what it follows from."""

from __future__ import annotations

from collections.abc import Iterator

from reactor.report import Bars, Distribution, Lines, Report, Section
from reactor.tune.history import History
from reactor.tune.measured import AS_CONFIGURED, Measured
from reactor.tune.missed import Verdict
from reactor.tune.model import Recommendation
from reactor.tune.snippet import headline
from reactor.tune.tables import (
    at_once_lines,
    case_table,
    growth_table,
    history_lines,
    latency_table,
    threshold_lines,
    trust_lines,
)
from reactor.tune.words import amount, quantity

_MIB = 2**20


def report_of(
    measured: Measured, history: History, found: Recommendation, verdict: Verdict | None, yaml: str | None
) -> Report:
    """Return the report; `verdict` is on the operator's configuration, None where there is none.

    `yaml` is None where nothing is recommended.
    """
    return Report(
        title="reactor tune: thresholds for this node",
        facts={
            **measured.about,
            "node": amount(found.node.capacity_bytes),
            "huge pages": found.node.huge_pages,
            "measured for": f"{measured.seconds:.0f} s",
        },
        summary=tuple(_summary(found)),
        sections=tuple(_sections(measured, history, found, verdict, yaml)),
    )


def _summary(found: Recommendation) -> Iterator[str]:
    if found.evicts_at_once:
        yield from at_once_lines(found)
        return
    soft = found.soft
    yield f"evictionHard memory.available: {headline(found)}"
    where = f"evictionSoft memory.available: {quantity(soft.threshold_bytes)}"
    yield f"{where} for {soft.grace_seconds} s, evictionMaxPodGracePeriod: {soft.pod_grace_seconds}."


def _sections(
    measured: Measured, history: History, found: Recommendation, verdict: Verdict | None, yaml: str | None
) -> Iterator[Section]:
    yield Section(
        heading="Why these numbers",
        paragraphs=tuple(threshold_lines(found)),
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
