"""What was measured and what follows, as tables and sentences: for the terminal and for the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reactor.report import Table
from reactor.tune.history import History
from reactor.tune.measured import Growth, Measured
from reactor.tune.model import Recommendation, covered_rate_bytes
from reactor.tune.snippet import headline
from reactor.tune.tail import Tail
from reactor.tune.words import amount, duration, milliseconds, quantity, rate


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


def threshold_lines(found: Recommendation) -> Iterator[str]:
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
    """Yield what the journals tell, None known said so."""
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
        f"Of {fewest.kill.n} crossings ({fewest.way}, {fewest.load}) even the slowest is below the p99.9 "
        f"in {100 * fewest.kill.max_is_below_probability:.0f} % of all cases. So the bound is extrapolated: "
        "a generalised Pareto tail of shape 0.4 above the p80, its scale at the 95th percentile of "
        "resamplings. More minutes bring it down."
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
