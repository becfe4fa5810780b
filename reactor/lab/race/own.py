"""The reactor by each of its sources, and what shows the limits: pollers and the floors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from reactor.kernel.cgroup_files import CgroupVersion
from reactor.lab.by_source import Contender, contenders
from reactor.lab.crossing import LEVEL_BYTES, THRESHOLDS
from reactor.lab.daemon_process import DaemonProcess
from reactor.lab.floor import Wait, floor, preferred_wait
from reactor.lab.race.contestant import Contestant, Entrant, Role
from reactor.lab.race.course import STEP, Course
from reactor.lab.race.heat import Ready, Track
from reactor.lab.tool import Record
from reactor.sources.catalogue import PSI, TICKER

FLOOR: Final = "c-floor"
KERNEL: Final = "kernel-oom"
_BRAKED: Final = Wait(mode="events")  # memory.high, the event that slows the allocator down
_BESIDE: Final = ("brake", "kernelKill", "unhelpfulEvictionPause")
_ARMED_SECONDS: Final = 300.0  # BCC compiles, which takes long under emulation
_NO_EVENT: Final = "pressure comes of reclaim, which allocators below every limit do not cause"
_SLOW_TO_START: Final = "compiles for minutes where the machine is slow; --full has it"


def reactors(version: CgroupVersion, *, everybody: bool) -> tuple[list[Contestant], dict[str, str]]:
    """Return the reactor by each source that this kernel has, and who is left out and why."""
    events = [contender for contender in contenders(version) if contender.source != TICKER]
    left_out = {"reactor-psi": _NO_EVENT}
    taken = [contender for contender in events if contender.source != PSI]
    if not everybody:
        left_out |= {
            f"reactor-{one.name}": _SLOW_TO_START for one in taken if one.section.get("ebpf") is not None
        }
        taken = [one for one in taken if f"reactor-{one.name}" not in left_out]
    return [_reactor(contender) for contender in taken], left_out


def limits(version: CgroupVersion) -> list[Contestant]:
    """Return the pollers and the floors."""
    wait = preferred_wait(version)
    others = [_BRAKED] if version is CgroupVersion.V2 and wait != _BRAKED else []
    return [
        _floor(FLOOR, Role.FLOOR, wait, f"C: waits for the event ({wait.mode}) and kills"),
        *(
            _floor(f"{FLOOR}-memory-high", Role.FLOOR, other, "C: the same by memory.events")
            for other in others
        ),
        Contestant(
            name=KERNEL,
            role=Role.FLOOR,
            settings="no daemon at work: the node's limit is where the others have their threshold",
            enter=_kernel,
            # It would give the cache back instead of killing, and there is no crossing to count from.
            runs=lambda course: not course.has_cache,
        ),
        _poller("100ms", 100),
        # On one course: each of its heats takes five seconds on average, to tell the same every time.
        replace(_poller("10s", 10_000), runs=lambda course: course == Course(pace=STEP)),
    ]


def _reactor(contender: Contender) -> Contestant:
    @contextmanager
    def enter(track: Track) -> Iterator[Entrant]:
        with DaemonProcess(
            track.tool, track.directory, track.node.cgroup, THRESHOLDS, contender.section
        ) as daemon:
            daemon.wait_armed(contender.source, _ARMED_SECONDS)
            yield at_its_post(daemon)

    beside = "".join(f", {name}: {contender.section[name]}" for name in _BESIDE if name in contender.section)
    return Contestant(
        name=f"reactor-{contender.name}",
        role=Role.REACTOR,
        settings=f"evictionHard memory.available<{THRESHOLDS['evictionHard']['memory.available']}, "
        f"sources: {contender.source} alone{beside}",
        enter=enter,
    )


def at_its_post(daemon: DaemonProcess) -> Entrant:
    """Return the reactor as a contestant that is at its post."""
    return Entrant(
        pid=daemon.pid,
        problem=lambda: None if daemon.is_running() else daemon.log()[-500:],
        decisions=daemon.evictions,
    )


def _poller(interval: str, interval_ms: int) -> Contestant:
    wait = Wait(mode="poll", interval_ms=interval_ms)
    return _floor(f"poll-{interval}", Role.POLLER, wait, f"C: reads the usage every {interval} and kills")


def _floor(name: str, role: Role, wait: Wait, settings: str) -> Contestant:
    @contextmanager
    def enter(track: Track) -> Iterator[Entrant]:
        @contextmanager
        def armed(ready: Ready) -> Iterator[None]:
            with (
                Record(track.directory, "floor") as record,
                floor(track.node, ready.cgroup, wait, ready.level_bytes, ready.pids, record),
            ):
                yield

        yield Entrant(arm=armed)

    return Contestant(name=name, role=role, settings=settings, enter=enter, runs=_has_no_cache_trap(wait))


def _has_no_cache_trap(wait: Wait) -> Callable[[Course], bool]:
    # memory.high at the level would have the cache reclaimed from the first page on.
    return lambda course: not (course.has_cache and wait.mode == "events")


@contextmanager
def _kernel(track: Track) -> Iterator[Entrant]:
    track.node.tree.set_memory_limit(track.node.cgroup, LEVEL_BYTES)
    try:
        yield Entrant()
    finally:
        track.node.tree.set_memory_limit(track.node.cgroup, track.node.memory_bytes)
