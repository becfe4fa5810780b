"""What `reactor bench` measures, part by part: each is one virtual node on which contestants take turns.

A contestant is a daemon, of this tree or of another one, or the C floor. All are measured by the code of this
tree: by the allocator's and the observer's clocks, and by what the kernel counts for a process. Only the
wake, the pass and the wakes of a source are the daemon's own figures.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.floor import FloorCrossings
from reactor.errors import RefusedError
from reactor.kernel.cgroup import CgroupTree
from reactor.sources.catalogue import FILESYSTEMS
from reactor.tell.status_socket import ask
from reactor.testbed.allocator import MIB
from reactor.testbed.crossing import (
    RATES,
    THRESHOLDS,
    Crossings,
    Run,
    bench_node,
    busy_cpus,
    cpu_ns,
    cpu_percent,
)
from reactor.testbed.daemon_process import DaemonProcess, wait_until
from reactor.testbed.virtual_node import VirtualNode

FEW, KUBELETS, MANY = 3, 110, 1000  # pods; 110 is the kubelet's own limit
FORKS_PER_SECOND: Final = 20_000
TO_WAKE: Final = "crossing to wake, ms"
TO_KILL: Final = "crossing to kill, ms"
WAKE_TO_KILL: Final = "wake to kill, ms"
TO_FREED: Final = "crossing to memory back, ms"
OVERSHOOT: Final = "overshoot, MiB"
UNMET: Final = "a pass in which nothing is met, mean, ms"
_STORM_SECONDS: Final = 10.0
_MEASURED_SECONDS: Final = 5.0
_TICKS: Final = "100ms"
_SETTLE_SECONDS: Final = 12.0  # the steward starts, and the threads of the start end
_ANSWERED_SECONDS: Final = 1.0
_EVICTIONS: Final = 3
_PATIENCE_SECONDS: Final = 120.0
REST: Final = ("at rest", "under MemoryPressure")
PROCESSES: Final = ("guard", "steward")
BOTH: Final = "both"
_STEWARD: Final = "reactor.steward"
_MEMORY: Final = "/dev/shm"  # noqa: S108 - for directories of their own; a tmpfs, as /run is on a node

Values = Mapping[str, Sequence[float]]  # what one turn has measured, by the figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """Who takes turns: a daemon, started with `environment` as well, or the C floor."""

    name: str
    is_floor: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


FLOOR: Final = Contestant(name="floor", is_floor=True)
HERE: Final = Contestant(name="reactor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long measuring takes: crossings of each contestant in a part, seconds at rest, turns at most."""

    runs: int = 30
    idle_seconds: float = 60.0
    turns: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One contestant's turn on a node; `runs` and `seconds` are its share of the effort."""

    node: VirtualNode
    tool: Path
    directory: Path
    contestant: Contestant
    runs: int
    seconds: float

    def daemon(
        self, section: Mapping[str, Any] | None = None, thresholds: Mapping[str, Any] = THRESHOLDS
    ) -> DaemonProcess:
        """Return the contestant's daemon, not started yet."""
        return DaemonProcess(
            self.tool,
            self.directory,
            self.node.cgroup,
            thresholds,
            section or {},
            environment=self.contestant.environment,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the bench: `measure` makes one turn on a node with so many pods, `text` says what it is.

    Each pod but the hog holds `held_bytes`. Without `is_default` it is measured only if it is named.
    """

    text: str
    pods: int
    measure: Callable[[Turn], Values]
    turns: int = 4
    has_floor: bool = False
    is_default: bool = True
    held_bytes: int = 0


def runs_by_turn(part: Part, effort: Effort) -> Sequence[int]:
    """Return how many crossings each turn of a contestant has in a part."""
    turns = min(part.turns, effort.turns)
    return [len(range(number, effort.runs, turns)) for number in range(turns)]


def measured(
    part: Part,
    contestants: Sequence[Contestant],
    effort: Effort,
    tree: CgroupTree,
    tool: Path,
    directory: Path,
) -> Iterator[tuple[str, Values]]:
    """Yield each turn's contestant and values. They take turns there and back (ABBA): a drift hits all."""
    taking = [one for one in contestants if part.has_floor or not one.is_floor]
    turns = runs_by_turn(part, effort)
    with bench_node(tree, tool, part.pods, part.held_bytes) as node:
        for number, runs in enumerate(turns):
            for contestant in taking if number % 2 == 0 else reversed(taking):
                turn = Turn(
                    node=node,
                    tool=tool,
                    directory=directory,
                    contestant=contestant,
                    runs=runs,
                    seconds=effort.idle_seconds / len(turns),
                )
                yield contestant.name, part.measure(turn)


def _kills(turn: Turn, *, rate_bytes: int) -> Values:
    """Have hogs cross and be killed, with every CPU kept busy by something else."""
    if not turn.runs:
        return {}
    if turn.contestant.is_floor:
        with busy_cpus(turn.tool):
            floor = FloorCrossings(turn.node, turn.tool, turn.directory)
            return _of_runs([floor.run(rate_bytes) for _ in range(turn.runs)])
    with turn.daemon() as daemon:
        # The journal is the steward's: until it has started, beside busy CPUs, no kill is seen.
        daemon.wait_armed(FILESYSTEMS, _PATIENCE_SECONDS)
        crossings = Crossings(turn.node, daemon, turn.tool, turn.directory)
        with busy_cpus(turn.tool):
            return _of_runs([crossings.run(rate_bytes) for _ in range(turn.runs)])


def _of_runs(runs: Sequence[Run]) -> Values:
    return {
        TO_WAKE: [run.to_wake_ms for run in runs],
        WAKE_TO_KILL: [run.wake_to_kill_ms for run in runs],
        TO_KILL: [run.to_kill_ms for run in runs],
        TO_FREED: [run.to_freed_ms for run in runs],
        OVERSHOOT: [run.overshoot_mib for run in runs],
    }


def _passes(turn: Turn) -> Values:
    """Have the ticker wake the loop ten times a second below every threshold."""
    address = _free_address()
    with turn.daemon({"metrics": address, "housekeepingInterval": _TICKS}) as daemon:
        before_seconds, before = _pass_durations(daemon, address)
        time.sleep(_MEASURED_SECONDS)
        after_seconds, after = _pass_durations(daemon, address)
    if after == before:
        raise RefusedError(f"no pass was made in {_MEASURED_SECONDS:g} s:\n{daemon.log()[-2000:]}")
    return {UNMET: [(after_seconds - before_seconds) / (after - before) * 1000]}


def _free_address() -> str:
    """Return an address on loopback that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def _pass_durations(daemon: DaemonProcess, address: str) -> tuple[float, float]:
    """Return how long all passes together took, in seconds, and how many there were."""
    text: list[str] = []

    def is_served() -> bool:
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://{address}/metrics", timeout=_PATIENCE_SECONDS) as answer,
        ):
            text.append(answer.read().decode())
        return bool(text)

    if not wait_until(is_served, _PATIENCE_SECONDS):
        raise RefusedError(f"no metrics after {_PATIENCE_SECONDS:g} s:\n{daemon.log()[-2000:]}")
    found = dict(re.findall(r"^reactor_pass_duration_seconds_(sum|count) (\S+)$", text[-1], re.MULTILINE))
    return float(found["sum"]), float(found["count"])


def _rest(turn: Turn) -> Values:
    """Leave guard and steward alone, as configured by default; then again after evictions.

    After them the node is under MemoryPressure, for five minutes by default. The state then is saved with
    each housekeeping: in memory, as by default; on a disk that takes a thread, and up to 200 wakes a minute.
    """
    with (
        tempfile.TemporaryDirectory(prefix="reactor-bench-", dir=_MEMORY) as memory,
        turn.daemon({"metrics": _free_address(), "stateFile": f"{memory}/state.json"}) as daemon,
    ):
        time.sleep(_SETTLE_SECONDS)
        steward = _child(daemon.pid, _STEWARD)
        pids = dict(zip(PROCESSES, (daemon.pid, steward), strict=True))
        values = {**_idle(daemon, pids, turn.seconds, REST[0]), **_memory(pids)}
        crossings = Crossings(turn.node, daemon, turn.tool, turn.directory)
        for _ in range(_EVICTIONS):
            crossings.run(RATES["max"])
        time.sleep(1)
        return values | _idle(daemon, pids, turn.seconds, REST[1])


def _idle(
    daemon: DaemonProcess, processes: Mapping[str, int], seconds: float, when: str
) -> dict[str, Sequence[float]]:
    """Return shares of a CPU, and wakes a minute by what counts them, over so many seconds."""
    by_source = _source_wakes(daemon)
    # What the question costs is not to count: it takes the steward as long as all else in half a minute.
    time.sleep(_ANSWERED_SECONDS)
    before = {name: (cpu_ns(pid), _switches(pid)) for name, pid in processes.items()}
    began_ns = time.monotonic_ns()
    time.sleep(seconds)
    took_ns = time.monotonic_ns() - began_ns
    a_minute = 60e9 / took_ns
    values: dict[str, Sequence[float]] = {}
    for name, pid in processes.items():
        used_ns, switches = before[name]
        values[f"{name} {when}, % of a CPU"] = [(cpu_ns(pid) - used_ns) / took_ns * 100]
        woken = sum(count - switches.get(task, 0) for task, count in _switches(pid).items())
        values[f"{name} {when}, wakes a minute"] = [woken * a_minute]
    values[f"{BOTH} {when}, % of a CPU"] = [
        sum(values[f"{name} {when}, % of a CPU"][0] for name in processes)
    ]
    for source, wakes in _source_wakes(daemon).items():
        values[f"wakes by {source} {when}, a minute"] = [(wakes - by_source.get(source, 0)) * a_minute]
    return values


def _source_wakes(daemon: DaemonProcess) -> dict[str, int]:
    status = ask(daemon.status_socket, {"command": "status"})
    return {one["name"]: one["wakes"] for one in status["sources"] if one["health"] != "off"}


def _switches(pid: int, proc: Path = Path("/proc")) -> dict[str, int]:
    """Return how often each present thread has gone to sleep: each time something woke it."""
    found: dict[str, int] = {}
    for task in (proc / str(pid) / "task").iterdir():
        with suppress(FileNotFoundError):  # ended meanwhile
            text = (task / "status").read_text()
            found[task.name] = int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return found


def _memory(processes: Mapping[str, int], proc: Path = Path("/proc")) -> dict[str, Sequence[float]]:
    """Return resident memory, and proportional: a page that several map is shared out among them."""
    found: dict[str, float] = {}
    for name, pid in processes.items():
        text = (proc / str(pid) / "smaps_rollup").read_text()
        for kind, kib in re.findall(r"^(Rss|Pss):\s*(\d+) kB$", text, re.MULTILINE):
            found[f"{name}, {kind.upper()}, MiB"] = int(kib) / 1024
    found[f"{BOTH}, PSS, MiB"] = sum(found[f"{name}, PSS, MiB"] for name in processes)
    return {name: [value] for name, value in found.items()}


def _child(pid: int, module: str, proc: Path = Path("/proc")) -> int:
    """Return the process's child that runs a module. Raises RefusedError if there is none."""
    for task in (proc / str(pid) / "task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            if module.encode() in (proc / str(child) / "cmdline").read_bytes().split(b"\0"):
                return child
    raise RefusedError(f"process {pid} has no child that runs {module}")


def _forks(turn: Turn) -> Values:
    """Start processes as fast as one CPU does, with a threshold on process ids."""
    thresholds = {"evictionHard": {**THRESHOLDS["evictionHard"], "pid.available": "5%"}}
    with turn.daemon(thresholds=thresholds) as daemon:
        forked: list[str] = []

        def storm() -> None:
            command = [str(turn.tool), "fork", str(FORKS_PER_SECOND), str(_STORM_SECONDS)]
            forked.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

        percent = cpu_percent(daemon.pid, storm)
    forks, took_ns = map(int, forked[0].split())
    return {"% of a CPU": [percent], "forks a second": [forks / took_ns * 1e9]}


def _kill(rate_bytes: int, pods: int, *, is_default: bool = True, held_mib: int = 0) -> Part:
    speed = f"{rate_bytes // MIB} MiB/s" if rate_bytes else "full speed"
    held = f" that hold {held_mib} MiB each" if held_mib else ""
    return Part(
        text=f"kill at {speed}, {pods} pods{held}",
        pods=pods,
        measure=partial(_kills, rate_bytes=rate_bytes),
        has_floor=True,
        is_default=is_default,
        held_bytes=held_mib * MIB,
    )


def _pass(pods: int) -> Part:
    return Part(text=f"pass, {pods} pods", pods=pods, measure=_passes)


PARTS: Final[Mapping[str, Part]] = {
    **{f"kill-{rate}": _kill(rate * MIB, FEW, is_default=False) for rate in (1, 10, 30, 300)},
    **{f"kill-{rate}": _kill(rate_bytes, FEW) for rate, rate_bytes in RATES.items()},
    f"kill-max-{KUBELETS}": _kill(RATES["max"], KUBELETS),
    # The hog is not the only one that holds much: then no parent's charge leaves out the others.
    f"kill-max-{KUBELETS}-held": _kill(RATES["max"], KUBELETS, held_mib=3),
    f"kill-max-{MANY}": _kill(RATES["max"], MANY),
    f"pass-{KUBELETS}": _pass(KUBELETS),
    f"pass-{MANY}": _pass(MANY),
    f"rest-{KUBELETS}": Part(text=f"rest, {KUBELETS} pods", pods=KUBELETS, measure=_rest, turns=2),
    "forks": Part(text=f"{FORKS_PER_SECOND:,} forks a second", pods=FEW, measure=_forks, turns=2),
}
MACHINE: Final = "kill-max"  # the part whose floor says how fast the machine was, for parts without one


def parts_named(names: Sequence[str]) -> Mapping[str, Part]:
    """Return these parts in the order of the bench, the default ones for none. Raises RefusedError."""
    for name in names:
        if name not in PARTS:
            raise RefusedError(f"--parts: got {name!r}; accepted: {', '.join(PARTS)}")
    return {name: part for name, part in PARTS.items() if name in names or (not names and part.is_default)}


def check_tree(wanted: str, root: Path) -> None:
    """Raise RefusedError for what names no other tree, before anything is measured."""
    if Path(wanted).is_dir():
        _daemon_of(Path(wanted), wanted)
    else:
        _commit(wanted, root)


@contextmanager
def tree_at(wanted: str, root: Path, directory: Path) -> Iterator[Contestant]:
    """Yield the daemon of another tree: a checkout's directory, or a commit of this one.

    A commit is unpacked below `directory`, without the eBPF objects, which are not committed. Raises
    RefusedError.
    """
    there = Path(wanted)
    if there.is_dir():
        yield _daemon_of(there.resolve(), wanted)
        return
    commit = _commit(wanted, root)
    unpacked = directory / f"tree-{commit}"
    unpacked.mkdir()
    command = ["git", "-C", str(root), "archive", commit, "reactor"]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode:
        raise RefusedError(f"--against: {wanted}: {archive.stderr.decode(errors='replace').strip()}")
    subprocess.run(["tar", "-x", "-C", str(unpacked)], input=archive.stdout, check=True)
    yield _daemon_of(unpacked, wanted if wanted == commit else f"{wanted} ({commit})")


def _commit(wanted: str, root: Path) -> str:
    """Return a commit's short name. Raises RefusedError for what is none."""
    command = ["git", "-C", str(root), "rev-parse", "--verify", "--short", f"{wanted}^{{commit}}"]
    named = subprocess.run(command, capture_output=True, text=True, check=False)
    if named.returncode:
        raise RefusedError(
            f"--against: got {wanted!r}, which is no directory and no commit of {root}; "
            "accepted: a checkout's directory, or a commit such as main or HEAD~3"
        )
    return named.stdout.strip()


def _daemon_of(tree: Path, name: str) -> Contestant:
    if not (tree / "reactor/__main__.py").exists():
        raise RefusedError(f"--against: {tree} has no reactor/__main__.py; accepted: a checkout's directory")
    # In front of the installed package, also for what the daemon itself starts.
    above = [str(tree), *filter(None, [os.environ.get("PYTHONPATH")])]
    return Contestant(name=name, environment={"PYTHONPATH": ":".join(above)})
