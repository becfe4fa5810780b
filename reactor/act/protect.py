"""What protects the daemon: it stays awake under pressure, and its interpreter out of a kill's way.

No kill reaches the cgroups of reactor and of init.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reactor.errors import ReactorError, RefusedError
from reactor.kernel import libc
from reactor.kernel.cgroup import CgroupTree, parse_own_cgroup
from reactor.kernel.cgroup_directory import walk
from reactor.kernel.files import KernelFile, write_file
from reactor.kernel.procfs import PROC
from reactor.model.settings import RealtimeSettings

_SWITCH_SECONDS: Final = 0.0005
_is_starting: Final = threading.Event()
_is_replaced: Final = threading.Event()
_is_paused: Final = threading.Event()


def protect_self(settings: RealtimeSettings, proc: Path = Path("/proc/self")) -> tuple[str, ...]:
    """Make this thread real-time, lock the process's memory, spare it from the OOM killer.

    Returns one line for each part that was refused, with the remedy; a refusal is survived. To be called
    in the thread of the loop: a scheduling policy is a thread's. Children start without it
    (SCHED_RESET_ON_FORK), and so do worker threads, which see to it themselves (`kernel.scheduling`).
    """
    problems = []
    # How long a worker thread that computes may keep the interpreter's lock from the loop; 5 ms by default.
    sys.setswitchinterval(_SWITCH_SECONDS)
    priority = settings.fifo_priority
    if priority:
        # Between a crossing and the wake: 0.4 ms median under load instead of 5-7 ms, 12 ms at most instead
        # of 264 ms. A real-time loop that spun would be held to sched_rt_runtime_us (95 %) by the kernel.
        problems += _tried(
            f"SCHED_FIFO {priority}",
            "grant CAP_SYS_NICE or LimitRTPRIO, and real-time runtime (cpu.rt_runtime_us) to its cpu cgroup",
            lambda: os.sched_setscheduler(
                0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(priority)
            ),
        )
    if settings.lock_memory:
        libc.release_free_memory()  # 0.6 MiB that the start has left; once locked it would stay
        problems += _tried(
            "mlockall",
            "grant CAP_IPC_LOCK or LimitMEMLOCK=infinity",
            lambda: libc.mlockall(libc.MCL_CURRENT | libc.MCL_FUTURE | libc.MCL_ONFAULT),
        )
    score = settings.oom_score_adj
    if score is not None:
        problems += _tried(
            f"oom_score_adj {score}",
            "grant CAP_SYS_RESOURCE, or set OOMScoreAdjust in the unit",
            lambda: write_file(proc / "oom_score_adj", str(score)),
        )
    return tuple(problems)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Keep the garbage collector from standing between a wake and a kill: the generation calls it instead.

    Afterwards the interpreter is as it was, what protect_self changed in it included.
    """
    enabled, interval_seconds = gc.isenabled(), sys.getswitchinterval()
    gc.collect()
    gc.freeze()  # what exists now stays: later collections skip it
    gc.disable()
    _is_paused.set()
    _is_starting.set()
    try:
        yield
    finally:
        for one in (_is_paused, _is_starting, _is_replaced):
            one.clear()
        sys.setswitchinterval(interval_seconds)
        gc.unfreeze()
        if enabled:
            gc.enable()


def collect_garbage() -> None:
    """Collect garbage. What is left after a start or a reload stays: later collections skip it."""
    is_starting = _is_starting.is_set()
    _is_starting.clear()
    if _is_replaced.is_set():
        _is_replaced.clear()
        gc.unfreeze()
    gc.collect()
    if is_starting:
        gc.freeze()


def expect_garbage() -> None:
    """Have the next collection free what a reload has replaced, descriptors included: nothing is skipped.

    That takes some 10 ms, once.
    """
    if _is_paused.is_set():
        _is_replaced.set()
        _is_starting.set()


def _tried(what: str, remedy: str, call: Callable[[], None]) -> list[str]:
    try:
        call()
    except (OSError, OverflowError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return [f"{what}: refused: {reason}; {remedy}"]
    return []


_INIT: Final = 1


@dataclass(slots=True)
class _Home:
    """A process's cgroup (None: not in this tree), and what /proc said when it was found there."""

    pid: int
    file: KernelFile
    said: bytes
    cgroup: str | None


class Untouchable:
    """The cgroups of reactor and of init in the memory hierarchy: one that holds either is never killed.

    A kill through v2's cgroup.kill comes before anything is listed, so a listing of the victim can't show
    this. /proc/PID/cgroup shows it in one read, but as seen from our own cgroup namespace: in a container it
    may be "/" for a cgroup deep in the tree that is mounted here. So each of the two processes is searched
    for once in the tree itself, and /proc, held open, only shows whether it has been moved since.
    """

    def __init__(self, tree: CgroupTree, proc: Path = PROC) -> None:
        self._tree = tree
        self.pids = frozenset({os.getpid(), _INIT})
        self._homes: list[_Home] = []
        for pid in dict.fromkeys((os.getpid(), _INIT)):
            with suppress(OSError):  # /proc is not to be read, or not this one
                self._homes.append(_Home(pid, KernelFile(proc / str(pid) / "cgroup"), b"", None))
        for home in self._homes:  # now, not at the first kill
            self._refresh(home)

    def refuse(self, cgroup: str) -> bool:
        """Raise RefusedError if the cgroup holds reactor or init.

        Returns whether it is certain that it does not: False if that is unknown of reactor.
        """
        is_certain = False
        for home in self._homes:
            if not self._refresh(home):
                continue
            is_certain |= home.pid == os.getpid()
            if home.cgroup is not None and f"{home.cgroup}/".startswith(f"{cgroup.rstrip('/')}/"):
                what = "init" if home.pid == _INIT else "reactor"
                raise RefusedError(f"cgroup {cgroup!r} holds process {home.pid}, {what}")
        return is_certain

    def close(self) -> None:
        """Close every descriptor. Harmless when repeated."""
        for home in self._homes:
            home.file.close()
        self._homes.clear()

    def _refresh(self, home: _Home) -> bool:
        """Bring up to date where a process is; return whether that is known."""
        try:
            said = home.file.read()
            if said != home.said:
                home.cgroup = self._found(home.pid, said)
                home.said = said
        except (OSError, ReactorError):
            return False
        return True

    def _found(self, pid: int, said: bytes) -> str | None:
        """Return where in this tree a process is, None if nowhere. Raises OSError if that is unknown."""
        reported = parse_own_cgroup(said, self._tree.version)
        if reported is not None and self._lists(reported, pid):
            return reported
        failed: list[OSError] = []
        with (
            self._tree.open("/") as root,
            closing(walk(root, lambda _, error: failed.append(error))) as directories,
        ):
            for directory in directories:
                if pid in directory.processes():
                    return directory.cgroup
        if failed:
            raise failed[0]
        return None

    def _lists(self, cgroup: str, pid: int) -> bool:
        try:
            with self._tree.open(cgroup) as directory:
                return pid in directory.processes()
        except (OSError, ReactorError):  # "/..": outside what our namespace shows
            return False
