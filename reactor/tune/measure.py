"""The measuring: in virtual nodes, until the time is over, and what there is at any moment."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from reactor.errors import ReactorError, RefusedError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.cgroup_memory import MemoryCounters
from reactor.kernel.files import PAGE_BYTES, read_file
from reactor.kernel.procfs import parse_swap, read_kernel_memory
from reactor.model.settings import MemoryAvailable, Settings
from reactor.model.signals import Signal
from reactor.observe.memory import NodeMemory
from reactor.testbed.allocator import MIB
from reactor.testbed.crossing import CAPACITY_BYTES, about, check_machine
from reactor.tune.experiments import Reactions, Way, growth_node, growth_plans
from reactor.tune.measured import Growth, Measured, NodeFacts, Reaction, Reserve
from reactor.workloads.search import matches_of

# A CPU takes pages from a cgroup's counter 64 at a time (MEMCG_CHARGE_BATCH, mm/memcontrol.c).
_BATCH_BYTES: Final = 64 * PAGE_BYTES
_DAEMON_BYTES: Final = 45 * MIB
_HUGE_PAGES: Final = Path("sys/kernel/mm/transparent_hugepage/enabled")

_GROWTH_SHARE: Final = 0.2  # of the time
_RUNS: Final = 5  # crossings in one session
_MOST_FAILURES: Final = 3  # of one way, before it is left alone

Say = Callable[[str, float], None]


def facts(tree: CgroupTree, settings: Settings, root: Path = Path("/")) -> NodeFacts:
    """Return the facts of the node that the settings are for. Raises OSError, ReactorError."""
    with closing(NodeMemory(tree, settings, root / "proc")) as memory:
        seen = memory.node().observation()
    cpus = len(os.sched_getaffinity(0))
    is_machine = settings.node_cgroup is None
    # MemAvailable is without what the kernel holds and keeps.
    holds_back = is_machine and settings.memory_available is MemoryAvailable.WORKING_SET
    watermark_bytes = watermarks_bytes(read_file(root / "proc/zoneinfo")) if holds_back else 0
    swap_bytes, swap_free_bytes = parse_swap(read_file(root / "proc/meminfo")) if is_machine else (0, 0)
    return NodeFacts(
        capacity_bytes=seen.capacity,
        available_bytes=seen.available,
        swap_bytes=swap_bytes,
        swap_free_bytes=swap_free_bytes,
        cpus=cpus,
        huge_pages=huge_pages(root),
        reserve=Reserve(
            watermark_bytes=watermark_bytes,
            batch_bytes=cpus * _BATCH_BYTES,
            daemon_bytes=_DAEMON_BYTES,
            kernel_bytes=read_kernel_memory(root / "proc") if holds_back else 0,
        ),
        largest_pod_bytes=_largest_pod_bytes(tree, settings),
    )


def watermarks_bytes(zoneinfo: bytes) -> int:
    """Return the sum of all zones' high watermarks, at which the kernel's own reclaim stops.

    From /proc/zoneinfo, whose lines `high N` (in pages) stand among each zone's `pages free`; the per-CPU
    lists have lines `high: N`. A temporary boost of a zone's watermarks (vm.watermark_boost_factor) is part
    of them and has a line of its own: it is subtracted.
    """
    pages = {
        name: sum(map(int, re.findall(rb"^ +%s +([0-9]+)$" % name, zoneinfo, re.MULTILINE)))
        for name in (b"high", b"boost")
    }
    return max(0, pages[b"high"] - pages[b"boost"]) * PAGE_BYTES


def huge_pages(root: Path = Path("/")) -> str:
    """Return who is given huge pages: `always`, `madvise` or `never` (also where the kernel has none)."""
    try:
        chosen = re.search(r"\[(\w+)\]", (root / _HUGE_PAGES).read_text())
    except OSError:
        return "never"
    return chosen[1] if chosen else "never"


def check_calm(tree: CgroupTree, settings: Settings, proc: Path = Path("/proc")) -> None:
    """Raise RefusedError where this node has no room for a virtual one, or is in pressure already.

    What the virtual node takes counts on the real one: at its fullest it must cross no threshold there.
    """
    check_machine(proc)
    _check_thresholds(tree, settings, proc)


def _check_thresholds(tree: CgroupTree, settings: Settings, proc: Path) -> None:
    if settings.node_cgroup is not None:
        return  # what is measured beside it takes nothing from it
    with closing(NodeMemory(tree, settings, proc)) as memory:
        seen = memory.node().observation()
    for threshold in settings.eviction.thresholds:
        if threshold.signal is not Signal.MEMORY_AVAILABLE:
            continue
        wanted = threshold.value.of(seen.capacity)
        if seen.available - CAPACITY_BYTES < wanted:
            raise RefusedError(
                f"{threshold}: {seen.available // MIB} MiB are available on this node, and a virtual node of "
                f"{CAPACITY_BYTES // MIB} MiB would cross it: real pods would be evicted"
            )


def _largest_pod_bytes(tree: CgroupTree, settings: Settings) -> int | None:
    found = []
    for parent in matches_of(tree, settings.pod_parents):
        with suppress(OSError, ReactorError):
            for child in tree.children(parent):
                with closing(MemoryCounters(tree, f"{parent.rstrip('/')}/{child}")) as counters:
                    found.append(counters.working_set_bytes())
    return max(found, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be measured, in `seconds` at the most (and what is under way then)."""

    seconds: float
    ways: Sequence[Way]
    loads: Sequence[str]
    pods: int


@dataclass(slots=True, kw_only=True)
class _Found:
    growths: list[Growth] = field(default_factory=list)
    reactions: list[Reaction] = field(default_factory=list)
    missed: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


class Measuring:
    """Measures when it is `run`; `measured` is what there is so far.

    Whatever ends a run, also a KeyboardInterrupt, leaves no cgroup and no process of it.
    """

    def __init__(self, tree: CgroupTree, settings: Settings, facts: NodeFacts, plan: Plan) -> None:
        self._tree = tree
        self._settings = settings
        self._plan = plan
        self._say: Say = lambda *_: None
        self._found = _Found()
        self._began = time.monotonic()
        self._nothing = Measured(about=_about(tree.version, plan), node=facts)

    def measured(self, *, interrupted: bool = False) -> Measured:
        """Return what has been measured so far."""
        found = self._found
        return replace(
            self._nothing,
            growths=tuple(found.growths),
            reactions=tuple(found.reactions),
            missed=dict(found.missed),
            problems=tuple(dict.fromkeys(found.problems)),
            seconds=round(self._elapsed(), 1),
            interrupted=interrupted,
        )

    def run(self, tool: Path, directory: Path, say: Say) -> None:
        """Measure until the time is over, or the machine comes under pressure, which is noted as a problem.

        `say` is called with the present step, and the number of seconds gone.
        """
        self._say = say
        self._began = time.monotonic()
        try:
            self._grow(tool, directory)
            self._react(Reactions(self._tree, tool, directory, self._plan.pods))
        except _UnderPressureError as error:
            self._found.problems.append(f"stopped after {self._elapsed():.0f} s: {error}")

    def _grow(self, tool: Path, directory: Path) -> None:
        """Measure rates and freeing: one whole round, and more for as long as their share of time lasts."""
        facts, found = self._nothing.node, self._found
        until = self._plan.seconds * _GROWTH_SHARE
        with growth_node(self._tree, f"reactor-tune-{os.getpid()}") as node:
            while self._goes_on():
                for run in growth_plans(facts.cpus, facts.huge_pages):
                    if not self._goes_on() or (found.growths and self._elapsed() > until):
                        break
                    self._report(f"memory allocated at full speed: {len(found.growths)} runs")
                    with _noted(found.problems):
                        found.growths.append(run(node, tool, directory))
                if self._elapsed() > until:
                    break

    def _react(self, reactions: Reactions) -> None:
        """Have hogs answered, each way and load in its turn."""
        while self._goes_on():
            turns = [
                (way, load)
                for load in self._plan.loads
                for way in self._plan.ways
                if self._found.failures[way.name] < _MOST_FAILURES
            ]
            if not turns:
                return
            for way, load in turns:
                if self._goes_on():
                    self._session(reactions, way, load)

    def _session(self, reactions: Reactions, way: Way, load: str) -> None:
        found = self._found
        self._report(f"crossings {way.name}, {load}: {len(found.reactions)} in all")
        try:
            with closing(reactions.session(way, load, _RUNS, self._goes_on)) as session:
                for reaction in session:
                    if reaction is None:
                        found.missed[way.name] += 1
                    else:
                        found.reactions.append(reaction)
                    self._report(f"crossings {way.name}, {load}: {len(found.reactions)} in all")
        except _UnderPressureError:
            raise
        except (ReactorError, OSError) as error:
            found.failures[way.name] += 1
            found.problems.append(f"{way.name}, {load}: {error}")

    def _goes_on(self) -> bool:
        """Return whether there is time left. Raises where the machine has come under pressure."""
        if self._elapsed() >= self._plan.seconds:
            return False
        try:
            check_calm(self._tree, self._settings)
        except RefusedError as error:
            raise _UnderPressureError(str(error)) from error
        return True

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _report(self, what: str) -> None:
        self._say(what, self._elapsed())


class _UnderPressureError(RefusedError):
    """The machine has come under pressure while it was measured."""


@contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
    """Add what goes wrong in the block to the problems, and go on after it."""
    try:
        yield
    except _UnderPressureError:
        raise
    except (ReactorError, OSError) as error:
        problems.append(str(error))


def _about(version: CgroupVersion, plan: Plan) -> Mapping[str, Any]:
    return {
        **about(version),
        "minutes": round(plan.seconds / 60, 2),
        "pods": plan.pods,
        "load average before": round(os.getloadavg()[0], 1),
    }
