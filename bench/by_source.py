"""`reactor bench --by-source`: the same crossings with each source of wakes alone, beside plain polling.

The sources take turns within each round, on the same kernel in the same minutes, so that what disturbs the
machine disturbs them all. A poll is the same daemon with nothing but its ticker.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from reactor.config.decode import key_of
from reactor.errors import RefusedError
from reactor.kernel.bpf.objects import absent_because
from reactor.kernel.bpf.probes import MemoryProbe
from reactor.kernel.bpf.records import Level
from reactor.kernel.bpf.warrants import ClaimState, Terms, WarrantProbe
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.model.settings import SourceSettings
from reactor.sources.catalogue import BY_NAME, EBPF, MEMCG_EVENTFD, MEMORY_HIGH, PSI, SOURCES, TICKER
from reactor.testbed.allocator import MIB, Record
from reactor.testbed.crossing import (
    RATES,
    THRESHOLDS,
    Crossings,
    Run,
    bench_node,
    cpu_percent,
    rss_mib,
    summary,
)
from reactor.testbed.daemon_process import DaemonProcess, wait_until
from reactor.testbed.virtual_node import VirtualNode

PROBE_COST: Final = "probe-cost"  # may be skipped like a contender
_KEYS: Final = {field.name: key_of(field) for field in fields(SourceSettings)}
_ALL_OFF: Final = {_KEYS[switch]: False for source in SOURCES for switch in source.switches}
_TICKER_OFF: Final = "600s"
_BCC: Final = Path("/usr/lib/python3/dist-packages/bcc")  # where Debian's python3-bpfcc has it
_PODS: Final = 3
_RUNS: Final = 3  # crossings at each rate in one turn
_ARMED_SECONDS: Final = 300.0  # BCC compiles, which takes long under emulation
_AT_REST_SECONDS: Final = 3.0
_TOLD: Final = ("to_loop_ms", "to_kill_ms", "to_freed_ms", "overshoot_mib")  # properties of a Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way of being woken: the daemon's section for it, and how long a crossing may go unseen.

    `source` is the daemon's name for what wakes it.
    `rates` are names of RATES; a slow one makes a single run of each in a round.
    """

    name: str
    source: str
    section: Mapping[str, Any]
    rates: tuple[str, ...] = ("100", "max")
    timeout_seconds: float = 15.0
    is_slow: bool = False


@dataclass(slots=True, kw_only=True)
class Seen:
    """What one contender has shown so far; `missed` crossings are those that it let be."""

    runs: dict[str, list[Run]] = field(default_factory=dict)
    armed: str = ""
    missed: int = 0
    woken_by: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)
    at_rest_cpu_percent: list[float] = field(default_factory=list)


def contenders(version: CgroupVersion) -> tuple[Contender, ...]:
    """Return what this kernel can be watched by, the preferred source first."""
    if version is CgroupVersion.V1:
        events = [_alone(MEMCG_EVENTFD)]
    else:
        events = []
        if absent_because("memory") is None:
            # A crossing follows the other: no warrant is given while the eviction before is still judged.
            warrants = {"kernelKill": "hard", "unhelpfulEvictionPause": "0s"}
            events += [
                _alone(EBPF),
                _alone(EBPF, name="ebpf-warrant", **warrants),
            ]
        if _BCC.exists():
            events += [_alone(EBPF, name="ebpf-bcc", ebpf={"loader": "bcc"})]
        events += [_alone(MEMORY_HIGH)]
    # Pressure comes of reclaim, which an allocator below every limit does not cause: nothing is expected.
    psi = replace(_alone(PSI), rates=("max",), timeout_seconds=5.0, is_slow=True)
    slow_poll = replace(_poll("poll-10s", "10s"), rates=("max",), is_slow=True)
    return (*events, psi, _poll("poll-10ms", "10ms"), slow_poll)


def _alone(source: str, *, name: str = "", **section: Any) -> Contender:
    on = {_KEYS[switch]: True for switch in BY_NAME[source].switches}
    section |= {"sources": {**_ALL_OFF, **on}, "housekeepingInterval": _TICKER_OFF}
    return Contender(name=name or source, source=source, section=section)


def _poll(name: str, interval: str) -> Contender:
    # At real-time priority it would leave no CPU of a slow machine to the others.
    section = {"sources": _ALL_OFF, "housekeepingInterval": interval, "realtime": {"fifoPriority": 0}}
    return Contender(name=name, source=TICKER, section=section)


def by_source(
    tree: CgroupTree, tool: Path, directory: Path, rounds: int, skip: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield the figures so far, after each turn of a contender, of every one but those that `skip` names.

    Raises RefusedError for a name that is none.
    """
    measured = BySource(tree, tool, directory)
    wanted = _but(contenders(tree.version), skip)
    for number in range(1, rounds + 1):
        for contender in wanted:
            print(f"reactor bench: round {number}: {contender.name}", file=sys.stderr, flush=True)
            try:
                measured.session(contender, _RUNS)
            except RefusedError as error:
                measured.fail(contender, str(error))
            for line in so_far(measured.seen[contender.name]):
                print(f"reactor bench:   {line}", file=sys.stderr, flush=True)
            yield measured.figures()


def check_skipped(skip: Sequence[str]) -> None:
    """Raise RefusedError for a name that is none on this machine, OSError if its cgroups are unknown."""
    _but(contenders(CgroupTree.discover().version), skip)


def _but(found: Sequence[Contender], skip: Sequence[str]) -> list[Contender]:
    names = [*(contender.name for contender in found), PROBE_COST]
    for name in skip:
        if name and name not in names:
            raise RefusedError(f"--skip: {name!r} is none of {', '.join(names)}")
    return [contender for contender in found if contender.name not in skip]


class BySource:
    """Measures; every session leaves the machine as it was."""

    def __init__(self, tree: CgroupTree, tool: Path, directory: Path) -> None:
        self._tree = tree
        self._tool = tool
        self._directory = directory
        self.seen: dict[str, Seen] = {}

    def fail(self, contender: Contender, why: str) -> None:
        """Note that a session came to nothing further; the others go on."""
        print(f"reactor bench: {contender.name}: {why}", file=sys.stderr, flush=True)
        self.seen.setdefault(contender.name, Seen()).failures.append(why)

    def session(self, contender: Contender, runs: int) -> None:
        """Start the daemon as the contender has it, see what it costs at rest, have hogs cross."""
        seen = self.seen.setdefault(contender.name, Seen())
        with (
            bench_node(self._tree, self._tool, _PODS) as node,
            DaemonProcess(self._tool, self._directory, node.cgroup, THRESHOLDS, contender.section) as daemon,
        ):
            seen.armed = daemon.wait_armed(contender.source, _ARMED_SECONDS)
            percent = cpu_percent(daemon.pid, lambda: time.sleep(_AT_REST_SECONDS))
            seen.at_rest_cpu_percent.append(percent)
            crossings = Crossings(node, daemon, self._tool, self._directory)
            for rate in contender.rates * (1 if contender.is_slow else runs):
                run = crossings.run_if_seen(RATES[rate], contender.timeout_seconds)
                if run is None:
                    seen.missed += 1
                else:
                    seen.runs.setdefault(rate, []).append(run)
                    seen.woken_by.update(run.woken_by)
            seen.rss_mib.append(rss_mib(daemon.pid))

    def figures(self) -> dict[str, Any]:
        """Return what was seen, by contender."""
        return {name: _figures(seen) for name, seen in self.seen.items()}


def so_far(seen: Seen) -> Iterator[str]:
    """Yield a line of medians for each rate: what is left of a run that is broken off."""
    for rate, runs in seen.runs.items():
        found = {name: statistics.median(getattr(run, name) for run in runs) for name in _TOLD}
        told = ", ".join(f"{name} {value:.3g}" for name, value in found.items())
        yield f"{rate} MiB/s, n {len(runs)}: {told}"


def _figures(seen: Seen) -> dict[str, Any]:
    return {
        "armed": seen.armed,
        "crossing_to_wake_ms": _by_rate(seen.runs, "to_loop_ms"),
        "crossing_to_kill_ms": _by_rate(seen.runs, "to_kill_ms"),
        "crossing_to_freed_ms": _by_rate(seen.runs, "to_freed_ms"),
        "overshoot_mib": _by_rate(seen.runs, "overshoot_mib"),
        "missed": seen.missed,
        "woken_by": dict(seen.woken_by),
        "failures": seen.failures,
        "rss_mib": max(seen.rss_mib, default=None),
        "at_rest_cpu_percent": summary(seen.at_rest_cpu_percent) if seen.at_rest_cpu_percent else None,
    }


def _by_rate(runs: Mapping[str, Sequence[Run]], name: str) -> dict[str, dict[str, float | int]]:
    return {rate: summary(getattr(run, name) for run in measured) for rate, measured in runs.items()}


MANY: Final = 1000
_BOUND: Final = (110, MANY)
_FAR_PAGES: Final = 1 << 50
_BLOCK_BYTES: Final = 16 * MIB
_ROUNDS_A_BLOCK: Final = 8
_TIMEOUT_SECONDS: Final = 60.0
_SETTLE_SECONDS: Final = 0.2
_NEVER: Final = [Level(fire=1 << 40, rearm=1 << 39, step=1 << 30)]
NONE: Final = "none"


def probe_cost(node: VirtualNode, tool: Path, directory: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Return what each way of watching costs, in percent (median, quartiles, n) over two or more rounds.

    "inside": the loop's cgroup is below a watched one, as a pod is below its node; "outside": it is not.
    With a warrant the loop's pod is one of those that are bound.
    Raises BpfError where the probes can't be loaded.
    """
    pod = node.add_pod("loop")
    others = [node.add_pod(f"watched-{number:04}") for number in range(MANY)]
    with _loop(node, pod, tool, directory) as block_ns:
        block_ns()  # warms up
        costs: dict[str, list[float]] = {}
        before_ns = block_ns()
        for _ in range(rounds):
            for measure in (_watched_ns, _under_warrants_ns):
                found_ns = measure(block_ns, node, pod, others)
                time.sleep(_SETTLE_SECONDS)
                after_ns = block_ns()
                without_ns = (before_ns + after_ns) / 2
                costs.setdefault(NONE, []).append(_percent(after_ns, before_ns))
                for name, with_ns in found_ns.items():
                    costs.setdefault(name, []).append(_percent(with_ns, without_ns))
                before_ns = after_ns
    return {name: _spread(percents) for name, percents in costs.items()}


def _watched_ns(
    block_ns: Callable[[], int], node: VirtualNode, _: str, others: Sequence[str]
) -> dict[str, int]:
    with MemoryProbe() as probe:
        watches = _Watches(probe, node, others)
        return {name: _settled(block_ns, partial(step, watches)) for name, step in _STEPS.items()}


def _under_warrants_ns(
    block_ns: Callable[[], int], node: VirtualNode, pod: str, others: Sequence[str]
) -> dict[str, int]:
    """Measure beside a watch on the node, as the daemon has it: the programs, then a warrant with bounds."""
    with MemoryProbe() as memory, WarrantProbe() as probe:
        memory.watch(memory.counters(node.tree.path(node.cgroup)).memory, 1, _NEVER)
        found_ns = {"1 inside, and warrants' programs": _settled(block_ns, lambda: None)}
        for count in _BOUND:
            arm = partial(_arm, probe, node, [pod, *others[1:count]], others[0])
            found_ns[f"1 inside, and a warrant with {count} pods"] = _settled(block_ns, arm)
            if probe.withdraw() is not ClaimState.LIVE:
                raise RefusedError("the warrant was void before the loop had run: a cgroup was made")
    return found_ns


def _arm(probe: WarrantProbe, node: VirtualNode, bound: Sequence[str], victim: str) -> None:
    """Arm a warrant that nothing serves or voids, with bounds for these pods that they never reach."""
    for place, pod in enumerate(bound):
        probe.place(probe.counters(node.tree.path(pod)).memory, place)
        probe.bound(place, _FAR_PAGES)
    found, watched = (probe.counters(node.tree.path(cgroup)) for cgroup in (victim, node.cgroup))
    terms = Terms(
        victim=found.cgroup_id,
        victim_level=found.level,
        victim_counter=found.memory,
        victim_least=0,
        watched_counter=watched.memory,
        level=_FAR_PAGES,
        cache_most=_FAR_PAGES,
        expires_ns=_FAR_PAGES << 12,
    )
    arrivals, generation = probe.arrivals(), len(bound)
    if not (probe.draft(generation, terms) and probe.arm(generation, arrivals)):
        raise RefusedError("a warrant can't be armed: another one stands there, or a cgroup was made")


class _Watches:
    """The watches of one round, in the order in which they are wanted."""

    def __init__(self, probe: MemoryProbe, node: VirtualNode, others: Sequence[str]) -> None:
        self._probe = probe
        self._node = probe.counters(node.tree.path(node.cgroup)).memory
        self._others = [probe.counters(node.tree.path(other)).memory for other in others]

    def one_outside(self) -> None:
        self._probe.watch(self._others[0], 1, _NEVER)

    def one_inside(self) -> None:
        self._probe.unwatch(self._others[0])
        self._probe.watch(self._node, 2, _NEVER)

    def many_inside(self) -> None:
        for number, address in enumerate(self._others[1:]):
            self._probe.watch(address, 3 + number, _NEVER)

    def many_outside(self) -> None:
        self._probe.unwatch(self._node)
        self.one_outside()

    def many_inside_and_the_machine(self) -> None:
        self._probe.unwatch(self._others[0])
        self._probe.watch(self._node, 2, _NEVER)
        self._probe.prepare_node()
        self._probe.watch_node(2 + MANY, _NEVER)


_STEPS: Final[dict[str, Callable[[_Watches], None]]] = {
    "1 outside": _Watches.one_outside,
    "1 inside": _Watches.one_inside,
    f"{MANY} inside": _Watches.many_inside,
    f"{MANY} outside": _Watches.many_outside,
    f"{MANY} inside, and the machine": _Watches.many_inside_and_the_machine,
}


def _settled(block_ns: Callable[[], int], step: Callable[[], None]) -> int:
    step()
    time.sleep(_SETTLE_SECONDS)
    return block_ns()


@contextmanager
def _loop(node: VirtualNode, pod: str, tool: Path, directory: Path) -> Iterator[Callable[[], int]]:
    """Start the loop in the pod; what is yielded has it run a block and returns its fastest round, in ns."""
    with Record(directory, "touched") as record:
        command = [str(tool), "touch", str(record.path), str(_BLOCK_BYTES), str(_ROUNDS_A_BLOCK)]
        child = node.spawn(pod, command)

        def block_ns() -> int:
            record.go()
            if not wait_until(record.is_done, _TIMEOUT_SECONDS) or child.poll() is not None:
                raise RefusedError(f"the loop that faults pages in has ended or stands still in {pod}")
            return record.words()[3]

        yield block_ns


def _percent(with_ns: float, without_ns: float) -> float:
    return (with_ns / without_ns - 1) * 100


def _spread(percents: Sequence[float]) -> dict[str, float]:
    lower, median, upper = statistics.quantiles(percents, n=4, method="inclusive")
    values = {"percent": median, "p25": lower, "p75": upper}
    return {**{name: round(value, 3) for name, value in values.items()}, "n": len(percents)}
