"""How soon a crossing is answered on this node: by way of watching, idle and with its CPUs busy."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reactor.errors import ConfigError, Problem
from reactor.kernel.bpf.objects import absent_because
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.model.settings import Settings
from reactor.sources.catalogue import EBPF, MEMORY_HIGH, Watched, steps_of
from reactor.testbed.crossing import LEVEL_BYTES, THRESHOLDS, Crossings, Run, bench_node, busy_cpus
from reactor.testbed.daemon_process import DaemonProcess
from reactor.tune.measured import AS_CONFIGURED, Reaction

IDLE: Final = "idle"
BUSY: Final = "busy CPUs"
MEMORY_HIGH_ALONE: Final = "memory.high alone"
_FULL_SPEED: Final = 0
_TAKEN_OVER: Final = ("sources", "ebpf", "realtime", "housekeepingInterval")
_ARMED_SECONDS: Final = 120.0
_SEEN_SECONDS: Final = 30.0  # the hog takes its first 460 MiB in it, too


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
