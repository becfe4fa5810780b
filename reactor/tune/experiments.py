"""The experiments in a virtual node: how fast memory can be taken, and how soon a crossing is answered."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reactor.errors import ConfigError, Problem, RefusedError
from reactor.kernel.bpf.objects import absent_because
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.model.settings import Settings
from reactor.sources.catalogue import EBPF, MEMORY_HIGH, Watched, steps_of
from reactor.testbed.allocator import MIB, Record
from reactor.testbed.crossing import (
    CAPACITY_BYTES,
    LEVEL_BYTES,
    THRESHOLDS,
    Crossings,
    Run,
    bench_node,
    busy_cpus,
)
from reactor.testbed.daemon_process import DaemonProcess, wait_until
from reactor.testbed.virtual_node import VirtualNode
from reactor.tune.measured import AS_CONFIGURED, Growth, Reaction

SIZES_BYTES: Final = (16 * MIB, 64 * MIB, 256 * MIB, 768 * MIB)
_TOGETHER_BYTES: Final = 768 * MIB  # of all allocators of a run
_MOST_ALLOCATORS: Final = 16
_POD: Final = "growth"
_SLACK_BYTES: Final = 4 * MIB
_TIMEOUT_SECONDS: Final = 60.0
_USAGE_READY, _BACK = 0, 3  # words of the observer's record
_STARTED, _DONE = 0, 3  # words of an allocator's

IDLE: Final = "idle"
BUSY: Final = "busy CPUs"
MEMORY_HIGH_ALONE: Final = "memory.high alone"
_FULL_SPEED: Final = 0
_TAKEN_OVER: Final = ("sources", "ebpf", "realtime", "housekeepingInterval")
_ARMED_SECONDS: Final = 120.0
_SEEN_SECONDS: Final = 30.0  # the hog takes its first 460 MiB in it, too


def growth_plans(cpus: int, huge_pages: str) -> Iterator[Callable[[VirtualNode, Path, Path], Growth]]:
    """Yield the runs of one round: one allocator of each size, then several, then huge pages."""
    for size_bytes in SIZES_BYTES:
        yield _plan(1, size_bytes, huge_pages=False)
    for allocators in sorted({2, min(cpus, _MOST_ALLOCATORS)} - {1}):
        yield _plan(allocators, _TOGETHER_BYTES // allocators, huge_pages=False)
    if huge_pages != "never":
        yield _plan(1, SIZES_BYTES[-1], huge_pages=True)


def _plan(
    allocators: int, size_bytes: int, *, huge_pages: bool
) -> Callable[[VirtualNode, Path, Path], Growth]:
    def run(node: VirtualNode, tool: Path, directory: Path) -> Growth:
        return grow(
            node, tool, directory, allocators=allocators, size_bytes=size_bytes, huge_pages=huge_pages
        )

    return run


@contextmanager
def growth_node(tree: CgroupTree, name: str) -> Iterator[VirtualNode]:
    """Make a virtual node that no daemon guards and that no run fills."""
    with VirtualNode(tree, CAPACITY_BYTES, name) as node:
        yield node


def grow(
    node: VirtualNode,
    tool: Path,
    directory: Path,
    *,
    allocators: int,
    size_bytes: int,
    huge_pages: bool,
) -> Growth:
    """Have allocators take `size_bytes` each, kill them, and return how fast all of that went.

    Raises RefusedError where they don't come to an end.
    """
    back_bytes = node.usage_bytes() + _SLACK_BYTES
    with ExitStack() as stack:
        fillers = stack.enter_context(
            _fillers(node, tool, directory, [size_bytes] * allocators, huge_pages=huge_pages)
        )
        observed = stack.enter_context(Record(directory, "observed"))
        first = fillers.children[0].pid
        observer = stack.enter_context(_observer(tool, observed, node, back_bytes, first))
        fillers.go()
        if not wait_until(fillers.are_done, _TIMEOUT_SECONDS):
            raise RefusedError(f"{allocators} allocators did not get {size_bytes // MIB} MiB each")
        words = [record.words() for record in fillers.records]
        killed_ns = time.monotonic_ns()
        for child in fillers.children:
            child.kill()
        observer.wait(_TIMEOUT_SECONDS)
        back_ns = observed.words()[_BACK]
    if not back_ns:
        raise RefusedError(f"the memory of {allocators} allocators was not freed")
    took_ns = max(word[_DONE] for word in words) - min(word[_STARTED] for word in words)
    return Growth(
        allocators=allocators,
        size_bytes=size_bytes,
        huge_pages=huge_pages,
        rate_bytes=allocators * size_bytes / took_ns * 1e9,
        freed_seconds=(back_ns - killed_ns) / 1e9,
    )


class _Fillers:
    """Allocators that wait for the word, each with its record."""

    def __init__(self, children: Sequence[subprocess.Popen[bytes]], records: Sequence[Record]) -> None:
        self.children = children
        self.records = records

    def go(self) -> None:
        for record in self.records:
            record.go()

    def are_done(self) -> bool:
        return all(record.is_filled() for record in self.records)


@contextmanager
def _fillers(
    node: VirtualNode, tool: Path, directory: Path, sizes_bytes: Sequence[int], *, huge_pages: bool
) -> Iterator[_Fillers]:
    """Start allocators in a new pod; at the end the pod is gone, and what was in it."""
    cgroup = node.add_pod(_POD)
    try:
        with ExitStack() as stack:
            records = [
                stack.enter_context(Record(directory, f"filled-{number}"))
                for number in range(len(sizes_bytes))
            ]
            pages = "huge" if huge_pages else "small"
            children = [
                node.spawn(cgroup, [str(tool), "fill", str(record.path), str(size_bytes), pages])
                for record, size_bytes in zip(records, sizes_bytes, strict=True)
            ]
            yield _Fillers(children, records)
    finally:
        node.remove_pod(cgroup)


@contextmanager
def _observer(
    tool: Path, record: Record, node: VirtualNode, back_bytes: int, pid: int
) -> Iterator[subprocess.Popen[bytes]]:
    """Start what watches the process's end and the node's usage, and wait until it does."""
    command = [tool, "observe", record.path, node.usage_path(), str(back_bytes)]
    observer = subprocess.Popen(
        [*map(str, command), str(int(_TIMEOUT_SECONDS * 1000)), str(pid)], stdin=subprocess.DEVNULL
    )
    try:
        if not wait_until(lambda: record.words()[_USAGE_READY] > 0, _TIMEOUT_SECONDS):
            raise RefusedError(f"the observer of the growth has not started within {_TIMEOUT_SECONDS:g} s")
        yield observer
    finally:
        observer.kill()
        observer.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way of watching: the daemon's own section for it, and the source that is to be armed first.

    `expected` None: no event is, and the ticker comes round in `interval_seconds`.
    """

    name: str
    section: Mapping[str, Any]
    expected: str | None
    interval_seconds: float = 0.0


def ways(version: CgroupVersion, settings: Settings, section: Mapping[str, Any]) -> tuple[Way, ...]:
    """Return the ways to be measured: as configured, and what else this kernel offers.

    `section` is reactor's own of the operator's configuration, of which what decides over latency is kept.
    """
    kept = {key: section[key] for key in _TAKEN_OVER if key in section}
    expected = _expected(version, settings)
    interval_seconds = settings.housekeeping_interval_seconds if expected is None else 0.0
    found = [Way(name=AS_CONFIGURED, section=kept, expected=expected, interval_seconds=interval_seconds)]
    if version is CgroupVersion.V2 and expected == EBPF:
        sources = {"ebpf": False, "psi": False, "memoryHigh": True}
        alone = {**kept, "sources": sources}
        found.append(Way(name=MEMORY_HIGH_ALONE, section=alone, expected=MEMORY_HIGH))
    return tuple(found)


def loads_named(text: str) -> tuple[str, ...]:
    """Return the loads that a command line names, such as `idle,busy`. Raises ConfigError."""
    names = {"idle": IDLE, "busy": BUSY}
    wanted = [name.strip() for name in text.split(",")]
    wrong = [name for name in wanted if name not in names]
    if wrong:
        raise ConfigError([Problem(path="--loads", got=repr(wrong[0]), accepted="idle, busy or idle,busy")])
    return tuple(dict.fromkeys(names[name] for name in wanted))


class Reactions:
    """Has hogs cross a level at full speed, on nodes of its own among `pods` pods."""

    def __init__(self, tree: CgroupTree, tool: Path, directory: Path, pods: int) -> None:
        self._tree = tree
        self._tool = tool
        self._directory = directory
        self._pods = pods

    def session(
        self, way: Way, load: str, runs: int, go_on: Callable[[], bool]
    ) -> Generator[Reaction | None, None, None]:
        """Yield up to `runs` reactions, None for a crossing that was let be, as long as `go_on` allows.

        To be closed, which ends what it has started. Raises RefusedError where the daemon doesn't come up or
        evicts another pod.
        """
        with ExitStack() as stack:
            node = stack.enter_context(bench_node(self._tree, self._tool, self._pods))
            daemon = stack.enter_context(
                DaemonProcess(self._tool, self._directory, node.cgroup, THRESHOLDS, way.section)
            )
            if way.expected is not None:
                daemon.wait_armed(way.expected, _ARMED_SECONDS)
            if load == BUSY:
                stack.enter_context(busy_cpus(self._tool))
            crossings = Crossings(node, daemon, self._tool, self._directory)
            for _ in range(runs):
                if not go_on():
                    return
                run = crossings.run_if_seen(_FULL_SPEED, _SEEN_SECONDS + way.interval_seconds)
                if run is None:  # and what the daemon may do yet would be taken for the next one's
                    yield None
                    return
                yield reaction_of(run, way.name, load)


def reaction_of(run: Run, way: str, load: str) -> Reaction:
    """Return what one run comes down to."""
    times = run.times
    return Reaction(
        way=way,
        load=load,
        source=", ".join(sorted(run.woken_by)),
        wake_seconds=max(0.0, run.to_wake_ms / 1e3),
        kill_seconds=max(0.0, run.to_kill_ms / 1e3),
        freed_seconds=max(0.0, (run.to_freed_ms - run.to_kill_ms) / 1e3),
        victim_bytes=max(0, times.peak_bytes - times.before_bytes),
        overshoot_bytes=max(0, times.peak_bytes - LEVEL_BYTES),
    )


def _expected(version: CgroupVersion, settings: Settings) -> str | None:
    for source in steps_of(Watched.MEMORY):
        is_there = source.name != EBPF or absent_because("memory") is None
        if source.version is version and source.is_allowed(settings.sources) and is_there:
            return source.name
    return None


def order(found: Sequence[Way], loads: Sequence[str]) -> list[tuple[Way, str]]:
    """Return one round: the ways take turns under each load."""
    return [(way, load) for load in loads for way in found]
