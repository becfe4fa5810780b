"""What wakes the loop for processes: a chain, as for memory.

ebpf-pids    v2   at the fork that crosses a threshold on pid.available
processes         forks by the process connector, sampled in the kernel
ticker            whatever else fails (its own source)
"""

from __future__ import annotations

import errno
import math
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from reactor.errors import KernelInterfaceError
from reactor.kernel.bpf.loaders import open_tasks_probe
from reactor.kernel.bpf.records import Level
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.proc_events import (
    MAXIMUM_SAMPLE,
    NO_SAMPLE,
    Acknowledgement,
    decode_events,
    open_socket,
    request,
    sample_forks,
)
from reactor.kernel.procfs import read_task_count
from reactor.model.settings import SourceSettings
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.model.wakes import WakeKind
from reactor.sources.catalogue import EBPF_PIDS, PROCESSES, switched_on
from reactor.sources.chain import Chain, Step
from reactor.sources.ebpf_watch import MACHINE, Crossing, EbpfSource, EbpfWatch, of_probe
from reactor.sources.wakes import Wakes

if TYPE_CHECKING:
    from reactor.kernel.bpf.bcc_probes import BccTasksProbe
    from reactor.kernel.bpf.probes import TasksProbe

    _Probe = TasksProbe | BccTasksProbe

_NO_THRESHOLD: Final = f"no threshold on {Signal.PID_AVAILABLE}"
# A fork bomb at 20,000 a second makes 400 processes meanwhile; a pass each time takes a few percent.
_PAUSE_SECONDS: Final = 0.02
# Forks that arrive faster than this many in a pause say no more than fewer would: sample less.
_CROWD: Final = 8
_READS: Final = 64  # in a row at most; each costs about 30 us
_QUIET_SECONDS: Final = 0.5
_LOOKS_PER_MARGIN: Final = 8
_ANSWER_SECONDS: Final = 2.0
_READ_BYTES: Final = 4096  # one event is 76 bytes; netlink gives one a read
_KERNEL_ADDRESS: Final = (0, 0)

# On the way from a threshold to the limit the loop is woken at doubling distances from this share on.
_STEPS_TO_LIMIT: Final = 16


# How many tasks there may be before a threshold on pid.available is crossed.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLevels:
    """The thresholds on pid.available, and the number of tasks (threads included) to compare with them.

    `cgroup` is the one whose tasks are counted, "/" the machine; `used` is the last observation of their
    number, `limit` the most there can be.
    """

    cgroup: str
    limit: int
    used: int
    thresholds: tuple[Threshold, ...]

    def fire(self, threshold: Threshold) -> int:
        """Return the smallest number of tasks that leaves less than the threshold."""
        return max(0, math.floor(self.limit - threshold.value.of(self.limit)) + 1)

    @property
    def margin(self) -> int | None:
        """Return how many more there may be before the nearest threshold is met; None without thresholds."""
        return min((max(0, self.fire(one) - 1 - self.used) for one in self.thresholds), default=None)


# Forks wake the loop, so that a fork bomb meets the pid thresholds at once and not at the next tick.
#
# A node may fork tens of thousands of times a second all day long without ever holding many processes. So the
# kernel samples (`kernel.proc_events`): one fork in N, N an eighth of what is left to the nearest threshold,
# which gives eight observations on the way there, however fast. Between two wakes the socket is not read.


def sample_for(margin: int | None, crowding: int = 1) -> int:
    """Return N, of one fork in N to be reported: a power of two, 1 to MAXIMUM_SAMPLE.

    `margin` is how many more processes there may be before the nearest threshold (None: no threshold).
    `crowding` is a factor for forks that come too fast to be read.
    """
    if margin is None:
        return MAXIMUM_SAMPLE
    wanted = max(1, margin // _LOOKS_PER_MARGIN) * crowding
    return min(MAXIMUM_SAMPLE, 1 << (wanted.bit_length() - 1))


ProcessChain = Chain[ProcessLevels | None]


class ProcConnector(Step[ProcessLevels | None]):
    """Wakes the loop for forks. Each pass arms it with the distance to the threshold."""

    name = PROCESSES

    def __init__(self, wakes: Wakes) -> None:
        self._wakes = wakes
        self._margin: int | None = None
        self._is_wanted = True
        self._crowding = 1
        self._one_in = MAXIMUM_SAMPLE
        self._events: socket.socket | None = None
        self._armed: Callable[[str], None] = lambda _: None

    def arm(self, levels: ProcessLevels | None) -> None:
        """Record how far the nearest pid threshold is. If there is none, forks wake nothing."""
        self._margin = None if levels is None else levels.margin
        self._is_wanted = levels is None or bool(levels.thresholds)
        if self._resample():
            self._armed(self._detail())

    async def watch(self, armed: Callable[[str], None]) -> None:
        """Listen until the kernel refuses or fails (OSError)."""
        self._armed = armed
        self._one_in = sample_for(self._margin, self._crowding) if self._is_wanted else NO_SAMPLE
        token = int.from_bytes(os.urandom(3), "big")
        with open_socket(one_in=self._one_in) as events:
            try:
                events.sendto(request(listen=True, token=token), _KERNEL_ADDRESS)
                with trio.move_on_after(_ANSWER_SECONDS) as patience:
                    await _granted(events, token)
                if patience.cancelled_caught:
                    raise OSError(
                        errno.EOPNOTSUPP,
                        "the process connector does not answer: it needs CONFIG_PROC_EVENTS and the"
                        " initial pid and user namespaces",
                    )
                sample_forks(events, one_in=self._one_in)  # from here on without the answers to others
                self._events = events
                armed(self._detail())
                self._wake()  # for what was forked while the socket was closed
                await self._keep_waiting(events)
            finally:
                self._events = None
                events.sendto(request(listen=False, token=token), _KERNEL_ADDRESS)

    async def _keep_waiting(self, events: socket.socket) -> None:
        while True:
            count = 0
            with trio.move_on_after(_QUIET_SECONDS if self._crowding > 1 else math.inf):
                await trio.lowlevel.wait_readable(events)
                count = self._drain(events)
            if count and self._is_wanted:
                self._wake()
            # Forks that come faster than they can be read are thinned out further, but only as long
            # as they do.
            if count > _CROWD:
                self._crowding = min(self._crowding * 2, MAXIMUM_SAMPLE)
            elif count <= 1:
                self._crowding = max(self._crowding // 2, 1)
            if self._resample():
                self._armed(self._detail())
            await trio.sleep(_PAUSE_SECONDS)

    def _drain(self, events: socket.socket) -> int:
        """Read all that is queued; return the number of forks in it, at least one where some were lost."""
        count = 0
        while count < _READS:
            try:
                count += len(decode_events(events.recv(_READ_BYTES)))
            except BlockingIOError:
                return count
            except KernelInterfaceError:
                count += 1  # a message that can't be read still is an event
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._wakes.board.count_lost(PROCESSES)
                count += _CROWD + 1
        return count

    def _resample(self) -> bool:
        """Put the filter right where the sample is no longer what the margin asks for."""
        one_in = sample_for(self._margin, self._crowding) if self._is_wanted else NO_SAMPLE
        if one_in == self._one_in or self._events is None:
            return False
        sample_forks(self._events, one_in=one_in)
        self._one_in = one_in
        return True

    def _detail(self) -> str:
        return f"one fork in {self._one_in}" if self._is_wanted else _NO_THRESHOLD

    def _wake(self) -> None:
        self._wakes.wake(PROCESSES, WakeKind.PROCESSES, Signal.PID_AVAILABLE)


async def _granted(events: socket.socket, token: int) -> None:
    """Return once the kernel has granted the request. Raises OSError with its reason where it did not."""
    while True:
        await trio.lowlevel.wait_readable(events)
        try:
            answers = decode_events(events.recv(_READ_BYTES))
        except (BlockingIOError, KernelInterfaceError):
            continue
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            continue
        for answer in answers:
            if isinstance(answer, Acknowledgement) and answer.token == token:
                if answer.error_number:
                    number = answer.error_number
                    raise OSError(number, os.strerror(number), "process connector")
                return


def process_chain(tree: CgroupTree, settings: SourceSettings, wakes: Wakes) -> ProcessChain:
    """Return what wakes the loop when forks cross, or come near, a threshold on pid.available.

    It is armed after each pass with the thresholds and how near they are (None: not known).
    """
    steps = (EbpfPids(tree, wakes, loader=settings.ebpf_loader), ProcConnector(wakes))
    return Chain(steps, switched_on(settings), wakes, kind=WakeKind.PROCESSES)


# Thresholds on pid.available by eBPF: the kernel compares the number of tasks with them at each fork.
#
# Counted are the tasks of the node's cgroup where that has a limit, by the pids controller's own counter,
# else those of the machine. Forks below the thresholds cost one read of a map, and wake nothing.


class EbpfPids(EbpfSource["_Probe", ProcessLevels]):
    """Wakes the loop at the fork that crosses a threshold.

    Nothing is loaded while there is no threshold to watch.
    """

    name = EBPF_PIDS
    kind = WakeKind.PROCESSES
    bpf_object = "processes"
    load = staticmethod(open_tasks_probe)
    on_v1 = "the memory controller is on cgroup v1: eBPF would be loaded for this alone"
    any_signal = Signal.PID_AVAILABLE
    without_levels = _NO_THRESHOLD

    def arm(self, levels: ProcessLevels | None) -> None:
        """Watch at these thresholds. Returns at once; what is not known leaves the watch as it is."""
        if levels is not None:
            self._want({levels.cgroup: levels} if levels.thresholds else {})

    async def watch(self, armed: Callable[[str], None]) -> None:
        """Watch as every such source; load nothing before there is a threshold."""
        await self._is_wanted_known.wait()
        if not self._wanted:
            armed(_NO_THRESHOLD)
        while not self._wanted:
            self._moved = trio.Event()
            await self._moved.wait()
        await super().watch(armed)

    async def _begin(self, probe: _Probe, cgroup: str, watch_id: int) -> EbpfWatch[ProcessLevels]:
        address = 0
        if cgroup != MACHINE:
            directory = self.tree.path(cgroup, "pids")
            address = (await of_probe(probe, partial(probe.counters, directory))).tasks
            if not address:
                raise OSError(errno.ENODEV, "the cgroup has no pids controller", str(directory))
        return EbpfWatch(cgroup, watch_id, address, partial(self._count, cgroup))

    def _crossings(self, cgroup: str, wanted: ProcessLevels) -> list[Crossing]:  # noqa: ARG002 - its own
        fires = [wanted.fire(one) for one in wanted.thresholds]
        step = max(1, (wanted.limit - min(fires, default=0)) // _STEPS_TO_LIMIT)
        return [
            Crossing(fire=fire, rearm=fire, step=step, key=one, signal=Signal.PID_AVAILABLE, seen=wanted.used)
            for one, fire in zip(wanted.thresholds, fires, strict=True)
        ]

    def _has_moved(self, armed: Crossing, wanted: Crossing, *, is_reported: bool) -> bool:
        return armed.fire != wanted.fire or (is_reported and (wanted.seen or 0) < wanted.fire)

    def _watch_machine(self, probe: _Probe, watch_id: int, levels: Sequence[Level]) -> None:
        probe.watch_node(watch_id, levels)

    def _described(self, watches: Sequence[EbpfWatch[ProcessLevels]]) -> str:
        return ", ".join(
            f"{watch.cgroup} {one.key} at {one.fire} tasks" for watch in watches for one in watch.crossings
        )

    def _count(self, cgroup: str) -> int:
        if cgroup == MACHINE:
            return read_task_count(self.proc)
        count = self.tree.pids_current(cgroup)
        if count is None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), f"{cgroup}/pids.current")
        return count


def process_levels(
    seen: Observation | None, thresholds: Iterable[Threshold], cgroup: str
) -> ProcessLevels | None:
    """Return where a number of tasks crosses the thresholds on pid.available; None where it is not known.

    `cgroup` is whose tasks were counted.
    """
    if seen is None or seen.absurdity is not None:
        return None
    return ProcessLevels(
        cgroup=cgroup,
        limit=seen.capacity,
        used=seen.capacity - seen.available,
        thresholds=tuple(
            one
            for one in thresholds
            if one.signal is Signal.PID_AVAILABLE and not one.is_absurd_at(seen.capacity)
        ),
    )
