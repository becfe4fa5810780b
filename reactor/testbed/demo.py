"""`reactor demo`: a memory hog is evicted from a virtual node before your eyes.

The daemon runs as an operator would start it. What the timeline says of the hog comes from the C program
that is the hog, what it says of the daemon from the daemon's journal; all on one clock.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reactor.errors import ReactorError, what_failed
from reactor.kernel.cgroup import CgroupTree
from reactor.tables import Column, Screen, Styled, Table
from reactor.testbed.allocator import MIB, HogPlan, HogTimes, Record, compiled_tool, hog
from reactor.testbed.daemon_process import DaemonProcess, wait_until
from reactor.testbed.virtual_node import VirtualNode, ended_by_signals
from reactor.text import counted

CAPACITY_BYTES: Final = 512 * MIB
THRESHOLD_BYTES: Final = 100 * MIB
LEVEL_BYTES: Final = CAPACITY_BYTES - THRESHOLD_BYTES
HOG: Final = "batch-job"
_TIMEOUT_SECONDS: Final = 120.0  # an emulated machine beside other load
EXIT_OK, EXIT_FAILED, EXIT_CANNOT, EXIT_INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPod:
    """A pod of the demo: what it asks for, what it is given at most, what it takes."""

    name: str
    request_bytes: int = 0
    limit_bytes: int | None = None
    uses_bytes: int = 0


PODS: Final = (
    DemoPod(name="database", request_bytes=128 * MIB, limit_bytes=128 * MIB, uses_bytes=96 * MIB),
    DemoPod(name="web", request_bytes=64 * MIB, limit_bytes=256 * MIB, uses_bytes=112 * MIB),
    DemoPod(name=HOG),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What happened. `decision` is the journal's line; `alive` says of each pod whether it lives."""

    node_cgroup: str
    armed_ns: int
    times: HogTimes
    decision: Mapping[str, Any] | None
    alive: Mapping[str, bool]

    @property
    def evicted(self) -> tuple[str, ...]:
        """Return the names of the evicted pods."""
        found = (self.decision or {}).get("evictions", ())
        return tuple(eviction["pod"].rpartition("/")[2] for eviction in found)

    def shortcomings(self) -> list[str]:
        """Return what did not go as it should have; nothing, where the node was defended."""
        wrong = []
        if self.times.crossed_ns is None:
            wrong.append("the hog never crossed the threshold")
        if self.evicted != (HOG,):
            wrong.append(f"evicted: {', '.join(self.evicted) or 'no pod'}, instead of {HOG}")
        wrong += [
            f"{name} did not survive" for name, lives in self.alive.items() if not lives and name != HOG
        ]
        if self.alive[HOG]:
            wrong.append(f"{HOG} is still alive")
        if self.times.back_ns is None:
            wrong.append(f"the memory was not freed: {self.times.back_bytes // MIB} MiB are still in use")
        return wrong


def demo() -> int:
    """Run the demo and return its exit status.

    0 only if the right pod was evicted, the others live and the memory came back; 1 otherwise; 2 where this
    machine can't show it; 130 when interrupted. Whatever happens, no cgroup and no process is left.
    """
    if os.geteuid() != 0:
        print("reactor demo: needs root, to make cgroups: sudo reactor demo", file=sys.stderr)
        return EXIT_CANNOT
    try:
        with ended_by_signals():
            story = _run_story()
    except KeyboardInterrupt:
        print("reactor demo: interrupted; everything is cleaned up", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (ReactorError, OSError) as error:
        print(f"reactor demo: {what_failed(error)}", file=sys.stderr)
        return EXIT_CANNOT
    # Only now: rich costs 50 ms, which an error must not wait for, and the node is gone by then.

    show(story)
    return EXIT_FAILED if story.shortcomings() else EXIT_OK


def _run_story() -> Story:
    tree, tool = CgroupTree.discover(), compiled_tool()
    with (
        tempfile.TemporaryDirectory(prefix="reactor-demo-") as directory,
        VirtualNode(tree, CAPACITY_BYTES, f"reactor-demo-{os.getpid()}") as node,
    ):
        return _defend(node, tool, Path(directory))


def _defend(node: VirtualNode, tool: Path, directory: Path) -> Story:
    cgroups = {
        pod.name: node.add_pod(pod.name, request_bytes=pod.request_bytes, limit_bytes=pod.limit_bytes)
        for pod in PODS
    }
    tenants = {
        pod.name: _tenant(node, cgroups[pod.name], tool, directory, pod.uses_bytes)
        for pod in PODS
        if pod.uses_bytes
    }
    # mergeDefaultEvictionSettings is off, so this machine's disks have no say in it.
    thresholds = {"evictionHard": {"memory.available": f"{THRESHOLD_BYTES // MIB}Mi"}}
    with (
        DaemonProcess(tool, directory, node.cgroup, thresholds, {}) as daemon,
        hog(node, cgroups[HOG], tool, directory, HogPlan(level_bytes=LEVEL_BYTES)) as running,
    ):
        decision = daemon.next_eviction(_TIMEOUT_SECONDS)
        times = running.times()
        alive = {name: child.poll() is None for name, child in tenants.items()}
        return Story(
            node_cgroup=node.cgroup,
            armed_ns=daemon.armed_ns,
            times=times,
            decision=decision,
            alive={**alive, HOG: running.process.poll() is None},
        )


def _tenant(
    node: VirtualNode, cgroup: str, tool: Path, directory: Path, uses_bytes: int
) -> subprocess.Popen[bytes]:
    """Start a well-behaved process that takes `uses_bytes`, and return when it has them."""
    before_bytes = node.usage_bytes()
    with Record(directory, "tenant") as record:
        amounts: Sequence[int] = (CAPACITY_BYTES, uses_bytes, uses_bytes, 0)
        command = [str(tool), "allocate", str(record.path), str(node.usage_path()), *map(str, amounts)]
        child = node.spawn(cgroup, command)
        record.go()
        if not wait_until(lambda: record.words()[0] != 0, _TIMEOUT_SECONDS) or child.poll() is not None:
            raise OSError(f"a pod of the demo did not start in {cgroup} ({before_bytes} bytes in use)")
    return child


_ABOUT = {
    "notice": "the daemon's notice",
    "hog": "the hog's clock",
    "daemon": "the daemon's journal",
    "observer": "the observer's clock",
}


def show(story: Story, screen: Screen | None = None) -> None:
    """Print the timeline, the ranking, which pods survived, and the verdict."""
    screen = screen or Screen()
    node = f"A virtual node of {CAPACITY_BYTES // MIB}Mi in the cgroup {story.node_cgroup}"
    screen.print("", f"{node}, guarded by memory.available<{THRESHOLD_BYTES // MIB}Mi", "")
    screen.print(_timeline(story))
    if story.decision is not None:
        screen.print("", _ranking(story.decision))
    screen.print("", _pods(story), "", *_verdict(story))


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
        sent = f"SIGKILL sent to {counted(count, 'process', 'processes')}"
        yield timing["killed_ns"], "killed", sent, "daemon"


def _timeline(story: Story) -> Table:
    zero_ns = story.times.crossed_ns or story.times.started_ns
    return Table(
        title="Timeline, in ms from the crossing",
        columns=[
            Column(title="ms", right=True, whole=True),
            Column(title="stage", whole=True, style="bold"),
            Column(title=""),
            Column(title="measured by", whole=True, style="dim"),
        ],
        rows=[
            (f"{(at_ns - zero_ns) / 1e6:+.2f}", what, details, _ABOUT[who])
            for at_ns, what, details, who in sorted(events(story), key=lambda event: event[0])
        ],
        indented=False,
    )


def _ranking(decision: Mapping[str, Any]) -> Table:
    return Table(
        title="Ranking: which pod is evicted first, and why",
        columns=[Column(title=name, whole=name != "why") for name in ("", "pod", "why")],
        rows=[
            (str(place), ranked["pod"], ranked["because"])
            for place, ranked in enumerate(decision["ranking"], 1)
        ],
        indented=False,
    )


def _pods(story: Story) -> Table:
    names = ("pod", "request", "limit", "")
    table = Table(title="Pods", columns=[Column(title=name, whole=True) for name in names], indented=False)
    for pod in PODS:
        lives = story.alive[pod.name]
        fate = "evicted" if pod.name in story.evicted else "ended"
        table.rows.append(
            (
                pod.name,
                f"{pod.request_bytes // MIB}Mi" if pod.request_bytes else "none",
                f"{pod.limit_bytes // MIB}Mi" if pod.limit_bytes else "none",
                Styled("alive", "green") if lives else Styled(fate, "red"),
            )
        )
    return table


def _verdict(story: Story) -> Iterator[Styled]:
    wrong = story.shortcomings()
    if wrong:
        yield from (Styled(f"FAILED: {line}", "bold red") for line in wrong)
        return
    crossed_ns, timing = story.times.crossed_ns or 0, (story.decision or {})["timing"]
    killed_ms = (timing["killed_ns"] - crossed_ns) / 1e6
    back_ms = ((story.times.back_ns or 0) - crossed_ns) / 1e6
    yield Styled(
        f"Defended: killed {killed_ms:.1f} ms after the crossing, memory back after {back_ms:.1f} ms, "
        "the other pods never noticed.",
        "bold green",
    )
