"""The demo's story, told in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reactor.lab.demo import CAPACITY_BYTES, HOG, LEVEL_BYTES, PODS, THRESHOLD_BYTES, Story
from reactor.lab.hog import MIB

_ABOUT = {
    "notice": "the daemon's notice",
    "hog": "the hog's clock",
    "daemon": "the daemon's journal",
    "observer": "the observer's clock",
}


def show(story: Story, console: Console | None = None) -> None:
    """Print the timeline, the ranking, who survived, and the verdict."""
    if console is None:
        console = Console(highlight=False)
        console.width = console.width if console.is_terminal else max(console.width, 110)
    console.print(
        f"\n[bold]A virtual node of {CAPACITY_BYTES // MIB}Mi[/] in the cgroup {story.node_cgroup}, "
        f"guarded by [bold]memory.available<{THRESHOLD_BYTES // MIB}Mi[/]\n"
    )
    console.print(_timeline(story))
    if story.decision is not None:
        console.print()
        console.print(_ranking(story.decision))
    console.print()
    console.print(_pods(story))
    console.print()
    for line in _verdict(story):
        console.print(line)


def events(story: Story) -> Iterator[tuple[int, str, str, str]]:
    """Yield (instant in ns, what, details, who says so) of what happened, in the order of the stages."""
    times, decision = story.times, story.decision
    yield story.armed_ns, "armed", "the kernel watches the threshold; the daemon sleeps", "notice"
    yield times.started_ns, "hog starts", f"{HOG} allocates at full speed", "hog"
    if times.crossed_ns is not None:
        yield times.crossed_ns, "crossing", f"the node's usage passes {LEVEL_BYTES // MIB} MiB", "hog"
    if decision is not None:
        yield from _stages(decision)
    if times.ended_ns is not None:
        over = (times.peak_bytes - LEVEL_BYTES) / MIB
        left = (CAPACITY_BYTES - times.peak_bytes) / MIB
        # A hog that died inside the kernel's batch of pages was never seen past the level from outside.
        where = f"{over:.1f} MiB past" if over >= 0 else f"{-over:.1f} MiB before"
        peak = f"the node peaked {where} the level, {left:.1f} MiB short of its limit"
        yield times.ended_ns, "hog gone", peak, "observer"
    if times.back_ns is not None:
        back = f"the node uses {times.back_bytes / MIB:.1f} MiB, as before the hog"
        yield times.back_ns, "memory back", back, "observer"


def _stages(decision: Mapping[str, Any]) -> Iterator[tuple[int, str, str, str]]:
    timing, threshold = decision["timing"], decision["threshold"] or {}
    woken_by = ", ".join(wake["source"] for wake in decision["wakes"])
    yield timing["woke_ns"], "woken", f"by {woken_by}", "daemon"
    seen = f"memory.available is {(threshold.get('available') or 0) / MIB:.1f} MiB"
    yield timing["observed_ns"], "observed", f"read afresh: {seen}", "daemon"
    names = ", ".join(eviction["pod"] for eviction in decision["evictions"])
    yield timing["decided_ns"], "decided", f"evict {names} for {threshold.get('threshold')}", "daemon"
    if timing["killed_ns"] is not None:
        count = sum(eviction["processes"] or 0 for eviction in decision["evictions"])
        noun = "process" if count == 1 else "processes"
        yield timing["killed_ns"], "killed", f"SIGKILL sent to {count} {noun}", "daemon"


def _timeline(story: Story) -> Table:
    table = Table(title="Timeline, in ms from the crossing", title_justify="left", box=None, pad_edge=False)
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("stage", no_wrap=True, style="bold")
    table.add_column("")
    table.add_column("measured by", no_wrap=True, style="dim")
    zero_ns = story.times.crossed_ns or story.times.started_ns
    for at_ns, what, details, who in sorted(events(story), key=lambda event: event[0]):
        table.add_row(f"{(at_ns - zero_ns) / 1e6:+.2f}", what, details, _ABOUT[who])
    return table


def _ranking(decision: Mapping[str, Any]) -> Table:
    table = Table(title="Ranking: who goes first, and why", title_justify="left", box=None, pad_edge=False)
    for name in ("", "pod", "why"):
        table.add_column(name, no_wrap=name != "why")
    for place, ranked in enumerate(decision["ranking"], 1):
        table.add_row(str(place), ranked["pod"], ranked["because"])
    return table


def _pods(story: Story) -> Table:
    table = Table(title="Pods", title_justify="left", box=None, pad_edge=False)
    for name in ("pod", "request", "limit", ""):
        table.add_column(name, no_wrap=True)
    for pod in PODS:
        lives = story.alive[pod.name]
        fate = "evicted" if pod.name in story.evicted else "ended"
        table.add_row(
            pod.name,
            f"{pod.request_bytes // MIB}Mi" if pod.request_bytes else "none",
            f"{pod.limit_bytes // MIB}Mi" if pod.limit_bytes else "none",
            Text("alive", "green") if lives else Text(fate, "red"),
        )
    return table


def _verdict(story: Story) -> Iterator[Text]:
    wrong = story.shortcomings()
    if wrong:
        yield from (Text(f"FAILED: {line}", "bold red") for line in wrong)
        return
    crossed_ns, timing = story.times.crossed_ns or 0, (story.decision or {})["timing"]
    killed_ms = (timing["killed_ns"] - crossed_ns) / 1e6
    back_ms = ((story.times.back_ns or 0) - crossed_ns) / 1e6
    yield Text(
        f"Defended: killed {killed_ms:.1f} ms after the crossing, memory back after {back_ms:.1f} ms, "
        "the other pods never noticed.",
        "bold green",
    )
