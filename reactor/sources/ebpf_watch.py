"""Watches on the kernel's counters by eBPF: what those on memory and those on process ids have in common.

One watch a cgroup, with all its levels. The kernel reports a crossing at the crossing itself, and again at
doubling distances while the counter goes on rising; and the cgroup's removal. The machine ("/") has no
counters of a cgroup: it is watched by the kernel's own counters.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar

import trio

from reactor.backoff import Pace
from reactor.errors import ReactorError, failure_text
from reactor.kernel.bpf.loaders import absent_because
from reactor.kernel.bpf.probes import Probe, WatchProbe
from reactor.kernel.bpf.records import Level, RecordKind, WatchRecord
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.procfs import PROC
from reactor.model.settings import EbpfLoader
from reactor.model.signals import Signal
from reactor.model.wakes import Wake, WakeKind
from reactor.sources.catalogue import NO_LEVELS
from reactor.sources.chain import Step
from reactor.sources.wakes import Wakes
from reactor.threads import in_thread

_ONE_AT_A_TIME: Final = trio.CapacityLimiter(1)
_Answer = TypeVar("_Answer")
_Record = TypeVar("_Record")

MACHINE: Final = "/"

_Wanted = TypeVar("_Wanted")


# A probe as the eBPF sources use it: opened and closed in a worker thread, its records taken as they come.
#
# libbpf is not to be called from two threads, and each load takes some megabytes: one at a time. BCC takes
# turns at compiling only: what it has made is used by plain system calls, and must not wait for the next
# compilation.


_Probe = TypeVar("_Probe", bound=Probe[Any])


@asynccontextmanager
async def opened(open_probe: Callable[[], _Probe]) -> AsyncIterator[_Probe]:
    """Open a probe, and close it at the end, come what may. Raises BpfError and OSError."""
    probe = await _in_loader(open_probe)
    try:
        yield probe
    finally:
        with trio.CancelScope(shield=True):  # detaching waits for RCU grace periods
            await of_probe(probe, probe.close)


async def of_probe(probe: Probe[Any], call: Callable[[], _Answer]) -> _Answer:
    return await (in_thread(call) if probe.made_by else _in_loader(call))


async def take_records(
    probe: Probe[_Record], on_records: Callable[[Sequence[_Record]], None], lost: Callable[[int], None]
) -> None:
    """Give records to `on_records` as they come, the number of newly lost ones to `lost`, until cancelled."""
    # Each record is a pass: 32 in a row go on at once, 100 a second in the long run.
    pace = Pace(burst=32, per_second=100)
    lost_before = 0
    while True:
        await trio.lowlevel.wait_readable(probe.fd)
        on_records(probe.take())
        lost_by_now = probe.lost()
        if lost_by_now != lost_before:
            lost(lost_by_now - lost_before)
            lost_before = lost_by_now
        await pace.turn()


async def _in_loader(call: Callable[[], _Answer]) -> _Answer:
    # Not abandoned on cancellation: what the thread has loaded always reaches its owner.
    return await in_thread(call, limiter=_ONE_AT_A_TIME)


_WatchedProbe = TypeVar("_WatchedProbe", bound=WatchProbe)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A level in the counter's unit, and what is crossed there. `key` stays when the level moves.

    The kernel reports it from `fire` on, in steps, and again once the counter was at `rearm`. `seen` is the
    counter as it was observed for it, None if that is not known.
    """

    fire: int
    rearm: int
    step: int
    key: Hashable
    signal: Signal
    seen: int | None = None


@dataclass(eq=False)
class EbpfWatch(Generic[_Wanted]):
    """One cgroup's watch in the kernel, or the machine's (address 0).

    `count` reads the counter; it raises OSError, ENODEV, once the cgroup is gone. `crossed_by_reclaim`
    returns a signal that is newly crossed though the counter stands still. `crossings` are armed in the
    kernel for `wanted`; `reported` are the keys of those that the counter was past then, or has passed since.
    """

    cgroup: str
    watch_id: int
    address: int
    count: Callable[[], int]
    crossed_by_reclaim: Callable[[], Signal | None] = lambda: None
    close: Callable[[], None] = lambda: None
    wanted: _Wanted | None = None
    crossings: Sequence[Crossing] = ()
    reported: set[Hashable] = field(default_factory=set)


@dataclass(eq=False)
class EbpfStep(Step[Any], Generic[_Probe]):
    """A source by eBPF: `load` makes the programs of `bpf_object`, in a worker thread.

    Where there is an `open_probe`, it loads others in their place.
    """

    bpf_object: ClassVar[str]
    load: ClassVar[Callable[..., Any]]
    on_v1: ClassVar[str]

    tree: CgroupTree
    wakes: Wakes
    _: KW_ONLY
    loader: EbpfLoader = EbpfLoader.AUTO
    open_probe: Callable[[], _Probe] | None = None
    proc: Path = PROC

    def unavailable_because(self) -> str | None:
        """Return why this node can't have it, None where it can be tried."""
        if self.tree.version is CgroupVersion.V1:
            return self.on_v1
        return absent_because(self.bpf_object, self.loader) if self.open_probe is None else None

    def opened(self) -> AbstractAsyncContextManager[_Probe]:
        """Open the probe; see `opened`. The compiler of BCC is killed when the daemon ends or is reloaded."""
        interrupt = trio.from_thread.check_cancelled
        return opened(self.open_probe or partial(self.load, self.loader, interrupt=interrupt))


@dataclass(eq=False)
class EbpfSource(EbpfStep[_WatchedProbe], Generic[_WatchedProbe, _Wanted]):
    """Wakes the loop when a counter crosses a level upwards; a wake's time is that of the crossing itself."""

    kind: ClassVar[WakeKind]
    any_signal: ClassVar[Signal | None] = None
    without_levels: ClassVar[str] = NO_LEVELS

    def __post_init__(self) -> None:
        self._wanted: Mapping[str, _Wanted] = {}
        self._is_wanted_known = trio.Event()
        self._watches: dict[str, EbpfWatch[_Wanted]] = {}
        self._refused: dict[str, str] = {}
        self._next_id = 1
        self._moved = trio.Event()

    @abstractmethod
    async def _begin(self, probe: _WatchedProbe, cgroup: str, watch_id: int) -> EbpfWatch[_Wanted]:
        """Return a watch on a cgroup or the machine, not armed yet. Raises OSError and BpfError."""

    @abstractmethod
    def _watch_machine(self, probe: _WatchedProbe, watch_id: int, levels: Sequence[Level]) -> None:
        """Watch the machine at these levels; without any, no more."""

    @abstractmethod
    def _crossings(self, cgroup: str, wanted: _Wanted) -> Sequence[Crossing]:
        """Return what is to be armed in a cgroup."""

    @abstractmethod
    def _has_moved(self, armed: Crossing, wanted: Crossing, *, is_reported: bool) -> bool:
        """Return whether what is armed will not do for what is wanted."""

    @abstractmethod
    def _described(self, watches: Sequence[EbpfWatch[_Wanted]]) -> str:
        """Return what is armed as one line for an operator."""

    def _want(self, wanted: Mapping[str, _Wanted]) -> None:
        """Watch what is wanted of each cgroup and no others. Returns at once; arming goes on behind it."""
        self._wanted = wanted
        self._is_wanted_known.set()
        if self._is_stale():
            self._moved.set()

    async def watch(self, armed: Callable[[str], None]) -> None:
        """Watch until a cgroup or the probe fails (OSError, BpfError); call `armed` at each re-arming."""
        self._refused = {}
        async with self.opened() as probe:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep_armed, probe, armed)
                    nursery.start_soon(take_records, probe, self._on_records, self._count_lost)
            finally:
                while self._watches:
                    self._watches.popitem()[1].close()

    async def _keep_armed(self, probe: _WatchedProbe, armed: Callable[[str], None]) -> None:
        while True:
            self._moved = trio.Event()
            for cgroup in self._watches.keys() - self._wanted.keys():
                self._drop(probe, self._watches.pop(cgroup))
            for cgroup in tuple(self._wanted):
                if cgroup in self._wanted and not self._is_armed(cgroup):
                    await self._arm_or_refuse(probe, cgroup)
            armed(self._detail(probe.made_by))
            if not self._is_stale():
                await self._moved.wait()

    def _is_stale(self) -> bool:
        return bool(self._watches.keys() - self._wanted.keys()) or not all(map(self._is_armed, self._wanted))

    def _is_armed(self, cgroup: str) -> bool:
        if cgroup in self._refused:
            return True
        watch, wanted = self._watches.get(cgroup), self._wanted[cgroup]
        if watch is None or watch.wanted is wanted:
            return watch is not None
        crossings = self._crossings(cgroup, wanted)
        return [one.key for one in watch.crossings] == [one.key for one in crossings] and not any(
            self._has_moved(before, one, is_reported=before.key in watch.reported)
            for before, one in zip(watch.crossings, crossings, strict=True)
        )

    async def _arm_or_refuse(self, probe: _WatchedProbe, cgroup: str) -> None:
        """Arm a cgroup. What is refused for the machine alone leaves the others watched."""
        try:
            watch = self._watches.get(cgroup)
            if watch is None:
                watch_id, self._next_id = self._next_id, self._next_id + 1
                watch = self._watches[cgroup] = await self._begin(probe, cgroup, watch_id)
            wanted = self._wanted.get(cgroup)  # by now
            if wanted is not None:
                self._arm(probe, watch, wanted)
        except ReactorError as error:
            if cgroup != MACHINE or len(self._wanted) == 1:
                raise
            self._refused[cgroup] = failure_text(error)

    def _arm(self, probe: _WatchedProbe, watch: EbpfWatch[_Wanted], wanted: _Wanted) -> None:
        """Give the kernel the levels, and wake the loop if the counter is past one already."""
        crossings = self._crossings(watch.cgroup, wanted)
        below = {one.key for one in crossings if one.seen is not None and one.seen < one.fire}
        known, used = watch.reported - below, watch.count()
        levels = [
            Level(fire=one.fire, rearm=one.rearm, step=one.step, reported=used if used >= one.fire else None)
            for one in crossings
        ]
        if watch.cgroup == MACHINE:
            self._watch_machine(probe, watch.watch_id, levels)
        else:
            probe.watch(watch.address, watch.watch_id, levels)
            try:
                watch.count()
            except OSError:
                # The cgroup went before the watch was made, so the kernel did not take the watch with it,
                # and its counter's memory may become another's.
                self._drop(probe, self._watches.pop(watch.cgroup))
                raise
        watch.wanted, watch.crossings = wanted, crossings
        past = [one for one in crossings if used >= one.fire]
        watch.reported = {one.key for one in past}
        newly = [one for one in past if one.key not in known]
        if newly:
            self.wakes.report(self._wake(newly[0].signal, time.monotonic_ns()))

    def _on_records(self, records: Sequence[WatchRecord]) -> None:
        by_id = {watch.watch_id: watch for watch in self._watches.values()}
        wakes = [
            self._on_record(watch, record)
            for record in records
            if (watch := by_id.get(record.watch_id)) is not None
        ]
        self.wakes.report(*(wake for wake in wakes if wake is not None))

    def _on_record(self, watch: EbpfWatch[_Wanted], record: WatchRecord) -> Wake | None:
        if record.kind is RecordKind.REMOVED:
            self._forget(watch)
            return self._wake(self.any_signal, record.at_ns)
        if record.kind is RecordKind.RECLAIM:
            signal = watch.crossed_by_reclaim()
            return None if signal is None else self._wake(signal, record.at_ns)
        if record.level < len(watch.crossings):
            crossing = watch.crossings[record.level]
            watch.reported.add(crossing.key)
            return self._wake(crossing.signal, record.at_ns)
        return None

    def _count_lost(self, lost: int) -> None:
        self.wakes.board.count_lost(self.name, lost)
        for watch in tuple(self._watches.values()):
            try:
                watch.count()
            except (OSError, ReactorError):
                self._forget(watch)  # its removal may have been among them
        # Whatever else they said, it is there to be observed.
        self.wakes.report(self._wake(self.any_signal, time.monotonic_ns()))

    def _forget(self, watch: EbpfWatch[_Wanted]) -> None:
        """Let go of a watch that the kernel has removed; a new cgroup of that path is watched again."""
        if self._watches.get(watch.cgroup) is watch:
            del self._watches[watch.cgroup]
            watch.close()
        self._moved.set()

    def _drop(self, probe: _WatchedProbe, watch: EbpfWatch[_Wanted]) -> None:
        watch.close()
        if watch.cgroup == MACHINE:
            self._watch_machine(probe, watch.watch_id, [])
        else:
            probe.unwatch(watch.address)

    def _detail(self, made_by: str) -> str:
        described = self._described(tuple(self._watches.values())) or self.without_levels
        refused = [f"not {cgroup}: {why}" for cgroup, why in self._refused.items()]
        return "; ".join([described, *([made_by] if made_by else []), *refused])

    def _wake(self, signal: Signal | None, at_ns: int) -> Wake:
        return Wake(source=self.name, kind=self.kind, at_ns=at_ns, signal=signal)
