"""The walker: a process that goes through tenants' files and says what they take, and that may die.

    python -m reactor.disks.walker PARENT_PID HEARTBEAT_SECONDS [QUOTAS]

Its standard input is a SOCK_SEQPACKET socket. QUOTAS is a descriptor on which project quotas are asked for
(`reactor.privileged`).

It has nothing of the daemon's but that socket, over which it is asked and answers (`walk_messages`): no lock
on its memory and no real-time priority; a bound on its memory; and of all that the kernel could kill for want
of memory it is missed the least. It ends with the daemon.
"""

from __future__ import annotations

import heapq
import math
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, TypeAlias

from reactor.disks.tree import DirectoryBudget, TreeUsage
from reactor.disks.walk_messages import (
    LONGEST_REQUEST,
    Add,
    Drop,
    Hurry,
    Kind,
    Report,
    Round,
    read_request,
    write_report,
)
from reactor.kernel.capabilities import keep_capabilities
from reactor.kernel.filesystem import project_of, project_usage
from reactor.kernel.libc import set_io_priority, signal_at_parents_death
from reactor.model.pods import FilesystemUsage
from reactor.privileged.quotas import ProjectQuotas

_DIRECTORIES_REMEMBERED: Final = 16_000
_DIRECTORIES_OF_A_POD: Final = 4_000
_TRUSTED_SECONDS: Final = 300.0
_WORK_SECONDS: Final = 0.005
_SHARE_AT_REST: Final = 0.1
_SHARE_URGENT: Final = 0.5
_SLICE_SECONDS: Final = 0.02
_SETTLED_SECONDS: Final = 1.0  # a pod that has had so much time in a round is no longer waited for
_REPORT_SECONDS: Final = 0.5
# Returns what a project takes on the filesystem of a descriptor. Raises OSError.
Quota: TypeAlias = Callable[[int, int], FilesystemUsage]

_ADDRESS_SPACE_BYTES: Final = 128 << 20  # 40 MiB are Python's own, of which it touches 16
_DESCRIPTORS: Final = 4096  # two for each place that takes long
_STACK_BYTES: Final = 256 << 10
_NICE: Final = 10
_IDLE_IO_CLASS: Final = 3 << 13


class GivenUpError(Exception):
    """A count was given up: its answer is not wanted any more."""


class Pace:
    """Holds a thread to a share of a CPU, in pieces of some milliseconds; once `stopped` it raises.

    `worked_seconds` is the CPU time that it has taken in all. What it waits for, a slow disk or a busy CPU,
    is no work. To be called by one thread alone. Raises GivenUpError.
    """

    def __init__(self) -> None:
        self.share = _SHARE_AT_REST
        self.stopped = False
        self.worked_seconds = 0.0
        self._began_seconds: float | None = None

    def hurry(self) -> None:
        self.share = _SHARE_URGENT

    def relax(self) -> None:
        self.share = _SHARE_AT_REST

    def __call__(self) -> float:
        """Sleep where enough has been worked; return for how long that was, in seconds."""
        if self.stopped:
            raise GivenUpError
        now_seconds = time.thread_time()
        if self._began_seconds is None:
            self._began_seconds = now_seconds
        worked_seconds = now_seconds - self._began_seconds
        if worked_seconds < _WORK_SECONDS:
            return 0.0
        self.worked_seconds += worked_seconds
        rest_seconds = worked_seconds * (1 / self.share - 1)
        time.sleep(rest_seconds)
        self._began_seconds = time.thread_time()
        return rest_seconds


class _Place:
    """What is known of one place, and what its filesystem showed before it was counted."""

    __slots__ = (
        "counted_seconds",
        "is_known",
        "number",
        "pod",
        "project",
        "reported_seconds",
        "shown",
        "steps",
        "tree",
        "usage",
    )

    def __init__(self, number: int, pod: int, tree: TreeUsage) -> None:
        self.number = number
        self.pod = pod
        self.tree = tree
        self.is_known = False
        self.usage: FilesystemUsage | None = None
        # Before the first is counted: who shares a project has no number of its own.
        self.project = _project_at(tree.path)
        self.shown: tuple[int, int, int] | None = None
        self.counted_seconds = -math.inf
        self.reported_seconds = -math.inf
        self.steps: Iterator[None] | None = None

    def size(self) -> float:
        """Return by how much to count it late: one never counted may be of any size."""
        known = self.usage
        return math.inf if known is None or known.inodes_used is None else known.inodes_used

    def stop(self) -> None:
        """Give up what is under way."""
        if self.steps is not None:
            close = getattr(self.steps, "close", None)
            if close is not None:
                close()
            self.steps = None


# The places that are counted, and whose turn it is: what runs in the walker.
#
# A round goes through all places. It asks the filesystem's project quota where a directory has one of its
# own, and counts the tree where it has none. A directory whose filesystem has not allocated or freed a
# single block or inode since is not counted again.
#
# Pods take turns in short slices, the one that has had the least time first: one with few files waits for
# no other one's millions. What takes long is continued in the time that the others leave.
class Places:
    """Counts places, each by its number; what is found goes to `report`. For one thread.

    `at` is the number of the place that a step is being made at, None between steps; the step began at
    `step_seconds` on the clock. Both may be read in another thread.
    """

    def __init__(
        self,
        report: Callable[[Report], None],
        *,
        clock_seconds: Callable[[], float] = time.monotonic,
        quota: Quota = project_usage,
    ) -> None:
        self.at: int | None = None
        self.step_seconds = 0.0
        self._report = report
        self._clock_seconds = clock_seconds
        self._quota = quota
        self._budget = DirectoryBudget(_DIRECTORIES_REMEMBERED)
        self._shares: dict[int, DirectoryBudget] = {}
        self._places: dict[int, _Place] = {}
        self._queue: list[tuple[float, float, int]] = []
        self._had_seconds: dict[int, float] = {}

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is under way."""
        return not self._queue

    @property
    def is_settled(self) -> bool:
        """Return whether nothing is under way but what takes long."""
        return not self._queue or self._queue[0][0] >= _SETTLED_SECONDS

    def add(self, number: int, pod: int, path: str) -> None:
        """Know a place from now on. It is counted from the next round on."""
        share = self._shares.setdefault(pod, self._budget.share(_DIRECTORIES_OF_A_POD))
        self.step_seconds = self._clock_seconds()
        self.at = number  # its directory is opened, which may hang as well
        try:
            self._places[number] = _Place(number, pod, TreeUsage(path, share))
        finally:
            self.at = None

    def drop(self, number: int) -> None:
        """Forget a place; what is under way there is given up."""
        place = self._places.pop(number, None)
        if place is None:
            return
        place.stop()
        place.tree.forget()
        if all(other.pod != place.pod for other in self._places.values()):
            self._shares.pop(place.pod, None)
            self._had_seconds.pop(place.pod, None)
        self._queue = [entry for entry in self._queue if entry[2] != number]
        heapq.heapify(self._queue)

    def due(self) -> None:
        """Have every place counted; those under way are continued."""
        under_way = {place.pod for place in self._places.values() if place.steps is not None}
        self._had_seconds = {pod: had for pod, had in self._had_seconds.items() if pod in under_way}
        for place in self._places.values():
            if place.steps is None:
                place.steps = self._count(place)
                had_seconds = self._had_seconds.get(place.pod, 0.0)
                heapq.heappush(self._queue, (had_seconds, place.size(), place.number))

    def turn(self, pace: Callable[[], float]) -> None:
        """Go on for a slice with the pod that has had the least; `pace` is called between steps.

        It returns for how many seconds it slept.
        """
        place = self._next()
        if place is None:
            return
        if not place.is_known:  # should it be the end of us, they know where we were
            place.is_known = True
            self._report(Report(kind=Kind.ALIVE, place=place.number))
        began_seconds = self._clock_seconds()
        slept_seconds = 0.0
        is_over = False
        try:
            while not is_over and self._clock_seconds() - began_seconds - slept_seconds < _SLICE_SECONDS:
                is_over = self._step(place)
                slept_seconds += pace()
        finally:
            had_seconds = self._had_seconds.get(place.pod, 0.0)
            had_seconds += self._clock_seconds() - began_seconds - slept_seconds
            self._had_seconds[place.pod] = had_seconds
            if place.steps is not None:
                heapq.heappush(self._queue, (had_seconds, place.size(), place.number))
        if not is_over:
            place.tree.pause()
            self._report_so_far(place)

    def report_all_so_far(self) -> None:
        """Report how far everything that is under way has come."""
        for _, _, number in self._queue:
            self._report_so_far(self._places[number], in_any_case=True)

    def _next(self) -> _Place | None:
        """Take the place off the queue whose turn it is."""
        while self._queue:
            had_seconds, size, number = heapq.heappop(self._queue)
            place = self._places[number]
            now_had_seconds = self._had_seconds.get(place.pod, 0.0)
            if had_seconds >= now_had_seconds:
                return place
            heapq.heappush(self._queue, (now_had_seconds, size, number))  # another place of its pod had more
        return None

    def _step(self, place: _Place) -> bool:
        """Make one step at a place; return whether it was the last one."""
        steps = place.steps
        if steps is None:
            return True
        self.step_seconds = self._clock_seconds()
        self.at = place.number
        try:
            next(steps)
        except StopIteration:
            place.steps = None
        finally:
            self.at = None
        return place.steps is None

    def _count(self, place: _Place) -> Iterator[None]:
        """Count one place, step by step, if that may show something new, and report it."""
        began_seconds = self._clock_seconds()
        try:
            shown = _shown(place.tree.path)
            known = place.usage is not None and place.shown == shown
            if known and began_seconds - place.counted_seconds < _TRUSTED_SECONDS:
                return
            usage = self._by_quota(place)
            if usage is None:
                yield from place.tree.steps()
                usage = place.tree.usage
        except OSError as error:
            place.usage, place.shown = None, None
            # A directory that is not there (yet) takes nothing, and is no problem.
            is_absent = isinstance(error, FileNotFoundError)
            self._report(
                Report(
                    kind=Kind.COUNTED if is_absent else Kind.FAILED,
                    place=place.number,
                    error_number=0 if is_absent else error.errno or 0,
                )
            )
        else:
            place.usage, place.shown, place.counted_seconds = usage, shown, began_seconds
            self._report(
                Report(
                    kind=Kind.COUNTED,
                    place=place.number,
                    used_bytes=0 if usage is None else usage.used_bytes or 0,
                    inodes=0 if usage is None else usage.inodes_used or 0,
                    unreadable=place.tree.unreadable,
                    error_number=place.tree.error_number,
                )
            )

    def _by_quota(self, place: _Place) -> FilesystemUsage | None:
        """Return a place's usage as its filesystem counts it, None where it doesn't, or not for itself."""
        fd = os.open(place.tree.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            place.project = project_of(fd)  # it may have been given one since
            others = [other.project for other in self._places.values() if other is not place]
            if place.project is None or place.project in others:
                return None
            return self._quota(fd, place.project)
        except OSError:  # its quotas are off
            return None
        finally:
            os.close(fd)

    def _report_so_far(self, place: _Place, *, in_any_case: bool = False) -> None:
        now_seconds = self._clock_seconds()
        if not in_any_case and now_seconds - place.reported_seconds < _REPORT_SECONDS:
            return
        place.reported_seconds = now_seconds
        so_far = place.tree.so_far
        self._report(
            Report(
                kind=Kind.SO_FAR,
                place=place.number,
                used_bytes=so_far.used_bytes or 0,
                inodes=so_far.inodes_used or 0,
                directories=place.tree.directories,
            )
        )


def _project_at(path: str) -> int | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return project_of(fd)
    finally:
        os.close(fd)


def _shown(path: str) -> tuple[int, int, int]:
    """Return what a path's filesystem shows, the same as long as nothing is allocated or freed on it."""
    found = os.statvfs(path)
    return found.f_fsid, found.f_bfree, found.f_ffree


class _Walker:
    """Answers one daemon until that closes the socket."""

    def __init__(self, daemon: socket.socket, heartbeat_seconds: float, quota: Quota) -> None:
        self._daemon = daemon
        self._heartbeat_seconds = heartbeat_seconds
        self._places = Places(self._report, quota=quota)
        self._pace = Pace()
        self._round: int | None = None
        self._worked_before_seconds = 0.0
        self._is_busy = threading.Event()

    def run(self) -> None:
        threading.stack_size(_STACK_BYTES)
        threading.Thread(target=self._beat, daemon=True).start()
        while self._take_requests():
            self._places.turn(self._pace)
            if self._round is not None and self._places.is_settled:
                self._places.report_all_so_far()
                worked_seconds = self._pace.worked_seconds - self._worked_before_seconds
                self._report(
                    Report(kind=Kind.ROUND_OVER, place=self._round, nanoseconds=int(worked_seconds * 1e9))
                )
                self._round = None
                self._pace.relax()
            if self._places.is_idle and self._is_busy.is_set():
                self._is_busy.clear()
                self._report(Report(kind=Kind.IDLE))

    def _take_requests(self) -> bool:
        """Do what is asked, and wait for it where there is nothing else to do; return False at the end."""
        timeout_seconds = None if self._places.is_idle else 0.0
        while select.select([self._daemon], [], [], timeout_seconds)[0]:
            raw = self._daemon.recv(LONGEST_REQUEST)
            if not raw:
                return False
            self._is_busy.set()  # each request may hang, at a directory to be opened or closed
            timeout_seconds = 0.0
            match read_request(raw):
                case Add(place, pod, path):
                    self._places.add(place, pod, path)
                case Drop(place):
                    self._places.drop(place)
                case Round(number):
                    self._round = number
                    self._worked_before_seconds = self._pace.worked_seconds
                    self._places.due()
                case Hurry():
                    self._pace.hurry()
        return True

    def _beat(self) -> None:
        """Say how long the present step has taken, every now and then while anything is under way."""
        while True:
            self._is_busy.wait()
            time.sleep(self._heartbeat_seconds)
            place = self._places.at
            took_seconds = 0.0 if place is None else time.monotonic() - self._places.step_seconds
            self._report(
                Report(kind=Kind.ALIVE, place=place or 0, nanoseconds=max(0, int(took_seconds * 1e9)))
            )

    def _report(self, report: Report) -> None:
        try:
            self._daemon.send(write_report(report))
        except OSError:  # the daemon is gone
            os._exit(0)


def _become_expendable(parent_pid: int) -> None:
    """Take every bound and no privilege but the rights to read; see the module's docstring."""
    signal_at_parents_death(signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's, meant for the daemon
    os.chdir("/")
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(_NICE)
    with suppress(OSError):
        set_io_priority(_IDLE_IO_CLASS)
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES, _ADDRESS_SPACE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_DESCRIPTORS, most), min(_DESCRIPTORS, most)))
    keep_capabilities({"CAP_DAC_READ_SEARCH"})


def main(arguments: list[str]) -> None:
    """Answer the daemon until it closes its end."""
    parent_pid, heartbeat_seconds = int(arguments[0]), float(arguments[1])
    _become_expendable(parent_pid)
    quota = ProjectQuotas(int(arguments[2])).usage if len(arguments) > 2 else project_usage
    with socket.socket(fileno=os.dup(0)) as daemon:
        _Walker(daemon, heartbeat_seconds, quota).run()


if __name__ == "__main__":
    main(sys.argv[1:])
