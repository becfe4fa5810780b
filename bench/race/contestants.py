"""The contestants: the reactor by each of its sources, pollers, floors, and the daemons people would pick.

Each peer runs in the enclosure, where the node is the machine. All of them send SIGKILL at the threshold, as
for a hard eviction: a SIGTERM first would only be slower.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from bench.by_source import Contender, contenders
from bench.floor import Wait, floor, preferred_wait
from bench.race.heat import STEP, Arm, Course, Ready, Track
from bench.race.pressed import PressedCourse
from reactor.errors import RefusedError
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.sources.catalogue import PSI, TICKER
from reactor.testbed.allocator import MIB, Record
from reactor.testbed.crossing import CAPACITY_BYTES, LEVEL_BYTES, THRESHOLD_BYTES, THRESHOLDS
from reactor.testbed.daemon_process import DaemonProcess

AnyCourse = Course | PressedCourse


class Role(StrEnum):
    """What a contestant's figures are to be compared as."""

    REACTOR = "reactor"
    PEER = "peer"
    POLLER = "poller"
    FLOOR = "floor"


def _nothing(_: Ready) -> AbstractContextManager[object]:
    return nullcontext()


def _never_ended() -> str | None:
    return None


def _nothing_told() -> Sequence[Mapping[str, Any]]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A contestant that is at its post.

    `arm` is for those that have to be told of each heat's allocators; `pid` for those whose cost at rest can
    be measured. `problem` says why it is not at its post any more, None as long as it is. `decisions` are
    its own records of whom it killed and why, those since the last call; only the reactor's are read.
    """

    arm: Arm = _nothing
    pid: int | None = None
    problem: Callable[[], str | None] = _never_ended
    decisions: Callable[[], Sequence[Mapping[str, Any]]] = _nothing_told


def runs_anything(_: Course) -> bool:
    """Tell that a contestant takes part in every course about a threshold."""
    return True


def _the_root() -> AbstractContextManager[str]:
    return nullcontext("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """The node that a contestant guards: its memory, its swap (None: no limit), the cgroup it lies in.

    By its memory it is for the courses about a threshold, or for those under pressure with as much.
    """

    memory_bytes: int = CAPACITY_BYTES
    swap_bytes: int | None = None
    within: Callable[[], AbstractContextManager[str]] = _the_root

    @property
    def is_plain(self) -> bool:
        """Tell whether it is for courses about a threshold."""
        return self.memory_bytes == CAPACITY_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """`enter` has it guard the track's node; `settings` are what it was told, in its own words.

    `runs` says which courses about a threshold it runs; those under pressure are for who guards a node with
    as much memory.
    """

    name: str
    role: Role
    settings: str
    enter: Callable[[Track], AbstractContextManager[Entrant]]
    runs: Callable[[Course], bool] = runs_anything
    ground: Ground = Ground()

    def takes_part(self, course: AnyCourse) -> bool:
        """Tell whether it runs this course."""
        if isinstance(course, PressedCourse):
            return self.ground.memory_bytes == course.memory_bytes
        return self.ground.is_plain and self.runs(course)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Who takes part, and who does not and why."""

    contestants: tuple[Contestant, ...]
    left_out: dict[str, str]


FLOOR: Final = "c-floor"
KERNEL: Final = "kernel-oom"
_THROTTLED: Final = Wait(mode="events")  # memory.high, the event that slows the allocator down
_BESIDE: Final = ("kernelKill", "unhelpfulEvictionPause", "blackBox")
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
    if everybody and taken:
        first, key = taken[0], "blackBox"
        taken.append(replace(first, name=f"{first.name}-black-box", section={**first.section, key: True}))
    return [_reactor(contender) for contender in taken], left_out


def limits(version: CgroupVersion) -> list[Contestant]:
    """Return the pollers and the floors."""
    wait = preferred_wait(version)
    others = [_THROTTLED] if version is CgroupVersion.V2 and wait != _THROTTLED else []
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


_START_SECONDS: Final = 2.0  # nohang reads its configuration; natively 0.3 s
FETCH: Final = "make race fetches Debian's package without installing it; or install {}"
_NO_UNIT: Final = (
    "has no threshold of memory: it acts when a unit of systemd's has stalled for a second or more, "
    "and allocators below every limit do not stall"
)
# The comments in nohang.conf give the range of each key: for min_sleep 0.01 s is the least.
_NOHANG: Final = {
    "soft_threshold_min_mem": f"{THRESHOLD_BYTES // MIB} M",
    "hard_threshold_min_mem": f"{THRESHOLD_BYTES // MIB} M",
    # Both memory and swap have to be below their thresholds: with all of the swap it is the memory alone.
    "soft_threshold_min_swap": "100 %",
    "hard_threshold_min_swap": "100 %",
}
# -M kills at so many KiB available; the same number twice is SIGKILL at once. -s 100,100: however much swap
# is free. -r 0: no reports. -p: niceness -20. Its shortest sleep, 100 ms, is built in. earlyoom(1).
_KIB: Final = THRESHOLD_BYTES // 1024
_EARLYOOM: Final = ("-M", f"{_KIB},{_KIB}", "-s", "100,100", "-r", "0", "-p")
_OOMD_SETTINGS: Final = f"memory_above threshold_anon {LEVEL_BYTES // MIB}M for 0 s, no delay after an action"
_PLAIN: Final = Ground()
NOHANG_FASTEST: Final = {"min_sleep": "0.01", "max_sleep": "0.01"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Where the peers' programs are: unpacked packages in `directory`, else what is installed."""

    directory: Path | None = None

    def find(self, name: str) -> Path | None:
        """Return the program, None where there is none."""
        for place in ("usr/bin", "usr/sbin"):
            if self.directory and (program := self.directory / place / name).exists():
                return program.resolve()
        found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        return Path(found) if found else None

    def libraries(self) -> str:
        """Return what LD_LIBRARY_PATH has to be for programs of unpacked packages."""
        found = self.directory.resolve().glob("usr/lib/*-linux-gnu") if self.directory else ()
        return ":".join(map(str, found))


def peers(version: CgroupVersion, programs: Programs) -> tuple[list[Contestant], dict[str, str]]:
    """Return the peers that can take part here, and those that can't, with the reason."""
    taken: list[Contestant] = []
    left_out = {"systemd-oomd": _NO_UNIT}
    if program := programs.find("earlyoom"):
        taken.append(earlyoom("earlyoom", program, _EARLYOOM))
    else:
        left_out["earlyoom"] = FETCH.format("earlyoom")
    if program := programs.find("nohang"):
        taken += [
            nohang("nohang", program, _NOHANG),
            nohang("nohang-10ms", program, {**_NOHANG, **NOHANG_FASTEST}),
        ]
    else:
        left_out["nohang"] = FETCH.format("nohang")
    if version is CgroupVersion.V1:
        left_out["oomd"] = "reads memory.current and memory.stat of cgroup v2; this machine's memory is on v1"
    elif program := programs.find("oomd"):
        taken.append(oomd("oomd", program, programs.libraries(), oomd_config, _OOMD_SETTINGS))
    else:
        left_out["oomd"] = FETCH.format("oomd")
    return taken, left_out


def earlyoom(name: str, program: Path, options: Sequence[str], ground: Ground = _PLAIN) -> Contestant:
    """Return earlyoom with these options."""

    @contextmanager
    def enter(track: Track) -> Iterator[Entrant]:
        with _running(track, [str(program), *options]) as entrant:
            yield entrant

    settings = " ".join(("earlyoom", *options))
    return Contestant(name=name, role=Role.PEER, settings=settings, enter=enter, ground=ground)


def nohang(name: str, program: Path, changes: Mapping[str, str], ground: Ground = _PLAIN) -> Contestant:
    """Return nohang with these changes of its configuration; "{node}" in them is the node's directory."""

    @contextmanager
    def enter(track: Track) -> Iterator[Entrant]:
        config = track.directory / f"{name}.conf"
        node = str(track.node.tree.path(track.node.cgroup))
        told = {key: value.format(node=node) for key, value in changes.items()}
        config.write_text(nohang_config(_shipped(program).read_text(encoding="utf-8"), told))
        # The interpreter of the system: the packaged program has modules of it, not ours.
        python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
        with _running(track, [python, str(program), "--monitor", "--config", str(config)]) as entrant:
            yield entrant

    told = ", ".join(f"{key} = {value}" for key, value in changes.items())
    settings = f"nohang.conf with {told}" if told else "nohang.conf"
    return Contestant(name=name, role=Role.PEER, settings=settings, enter=enter, ground=ground)


def _shipped(program: Path) -> Path:
    """Return the configuration with the defaults, which lies beside the program in its package."""
    return program.parent.parent / "share/nohang/nohang.conf"


def nohang_config(shipped: str, changes: Mapping[str, str]) -> str:
    """Return nohang's configuration with some values changed. Raises RefusedError for a key that it lacks."""
    text = shipped
    for key, value in changes.items():
        text, count = re.subn(rf"^{re.escape(key)}\s*=.*$", f"{key} = {value}", text, flags=re.MULTILINE)
        if count != 1:
            raise RefusedError(f"nohang.conf: {count} lines of {key!r}; expected one to change")
    return text


def oomd(
    name: str,
    program: Path,
    libraries: str,
    rulesets: Callable[[str], Mapping[str, object]],
    settings: str,
    ground: Ground = _PLAIN,
) -> Contestant:
    """Return oomd with the configuration that `rulesets` makes of the node's path without its first "/"."""

    @contextmanager
    def enter(track: Track) -> Iterator[Entrant]:
        config, kmsg = track.directory / "oomd.json", track.directory / "kmsg"
        config.write_text(json.dumps(rulesets(track.node.cgroup.lstrip("/")), indent=2))
        kmsg.touch()
        # -i 1: it looks once a second, its shortest interval. The state directory is in the enclosure's /run.
        command = [str(program), "-i", "1", "-f", str(track.node.tree.memory_root), "-C", str(config)]
        command += ["-D", "/run/oomd", "--kmsg-override", str(kmsg)]
        if libraries:
            command = ["/usr/bin/env", f"LD_LIBRARY_PATH={libraries}", *command]
        with _running(track, command) as entrant:
            yield entrant

    return Contestant(
        name=name, role=Role.PEER, settings=f"oomd -i 1, {settings}", enter=enter, ground=ground
    )


def oomd_config(node: str) -> Mapping[str, object]:
    """Return a ruleset that names nothing but the node, a cgroup's path without its leading "/"."""
    above = {"cgroup": node, "threshold_anon": f"{LEVEL_BYTES // MIB}M", "duration": "0"}
    kill = {"cgroup": f"{node}/*", "post_action_delay": "0"}
    return {
        "rulesets": [
            {
                "name": "the node's threshold",
                "detectors": [["above it", {"name": "memory_above", "args": above}]],
                "actions": [{"name": "kill_by_memory_size_or_growth", "args": kill}],
                "post_action_delay": "0",
            }
        ]
    }


@contextmanager
def _running(track: Track, command: Sequence[str]) -> Iterator[Entrant]:
    """Start a peer in the enclosure. Raises RefusedError where it ends before the first heat."""
    log = track.directory / "peer.log"
    process = track.enclosure.start(command, log)

    def problem() -> str | None:
        if process.poll() is None:
            return None
        return f"{Path(command[0]).name} ended ({process.returncode}): {_end_of(log)}"

    try:
        time.sleep(_START_SECONDS)
        if ended := problem():
            raise RefusedError(ended)
        yield Entrant(pid=process.pid, problem=problem)
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _end_of(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace").strip()[-500:]
