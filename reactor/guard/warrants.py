"""Warrants: near a hard memory threshold the kernel is given the decision, and kills at the crossing itself.

The programs (bpf/warrant.bpf.c) decide nothing. A warrant is given only where it is certain which pod the
crossing would evict (policy/certainty.py), and it says for which crossing, within which bounds of every pod
and until when. What is outside of that voids it, in the kernel, at the charge that leads outside.

    nearest early level ─► bounds of all other pods, as a draft ─► all read again ─► certain? ─► armed
    every pass          ─► withdrawn first; one that was served is followed by the eviction of that pod
    every 100 ms        ─► renewed; it expires after 250 ms, also where the guard is stopped or dead

The order matters. Bounds are heeded from the draft on, and usage is read after it: a pod that outgrows its
bound is seen by one of the two.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from reactor.errors import BpfError, ReactorError
from reactor.guard.parts import PodUsages
from reactor.guard.readiness import ahead_bytes
from reactor.kernel.bpf.loaders import open_warrant_probe
from reactor.kernel.bpf.records import UNUSED, CounterAddresses, WarrantOutcome, WarrantRecord
from reactor.kernel.bpf.warrants import PLACES, SPARED, ClaimState, Result, Terms
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.model.decisions import Decision, PolicyState, Snapshot
from reactor.model.pods import Pod, PodUsage
from reactor.model.settings import EbpfLoader, EvictionSettings
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation
from reactor.model.wakes import SourceHealth, SourceState, Wake, WakeKind
from reactor.model.warrants import WarrantEnd
from reactor.policy import decide, memory_level
from reactor.policy.certainty import Ahead, CertainVictim, UsageRange, certain_victim
from reactor.sources.attempts import keep_trying
from reactor.sources.ebpf_probe import PAGE_BYTES, Probe, of_probe, opened, take_records
from reactor.sources.levels import DRIFT_BYTES, MemoryLevel
from reactor.sources.wakes import SourceBoard

_LOG: Final = logging.getLogger("reactor.warrants")
NAME: Final = "warrant"
EXPIRY_SECONDS: Final = 0.25
RENEWAL_SECONDS: Final = 0.1
_FOLLOWED_NS: Final = 5_000_000_000  # a reload takes less
# memcg charges 64 pages at a time for each CPU: bounds that are closer would be passed by nothing.
_LEAST_MARGIN_BYTES: Final = 1 << 20
_REACH_BYTES: Final = 1 << 20
_REACH_SHARE: Final = 8  # of the threshold, as certainty.py has it
_AT_ONCE: Final = 32
_MACHINE: Final = "/"

_VOID: Final = {
    WarrantOutcome.EXPIRED: WarrantEnd.EXPIRED,
    WarrantOutcome.SHRUNK: WarrantEnd.SHRANK,
    WarrantOutcome.GROWN: WarrantEnd.OTHER_GREW,
    WarrantOutcome.CACHE: WarrantEnd.CACHE_GREW,
    WarrantOutcome.NEWCOMER: WarrantEnd.NEW_CGROUP,
    WarrantOutcome.GONE: WarrantEnd.REMOVED,
}


class NoWarrantError(ReactorError):
    """No warrant is given, for this reason."""


class WarrantProbe(Probe[WarrantRecord], Protocol):
    """The programs, see kernel/bpf/warrants.py."""

    def counters(self, directory: Path) -> CounterAddresses:
        """Return where the kernel keeps a cgroup's counters."""

    def place(self, address: int, place: int) -> None:
        """Have the pod with this counter held to the bound at `place`."""

    def displace(self, address: int) -> bool:
        """Hold a pod to no bound any more."""

    def bound(self, place: int, pages: int) -> None:
        """Let the pod at `place` have so many pages."""

    def arrivals(self) -> int:
        """Return how many cgroups have come so far."""

    def cache_pages(self) -> int:
        """Return the machine's page cache."""

    def is_claimed(self) -> bool:
        """Return whether a draft or a warrant stands there, or one that was served."""

    def draft(self, generation: int, terms: Terms) -> bool:
        """Write a warrant, whose bounds are heeded from then on."""

    def arm(self, generation: int, arrivals: int) -> bool:
        """Have the draft served."""

    def withdraw(self) -> ClaimState | None:
        """Take the claim."""

    def result(self) -> Result:
        """Return what has come of the last warrant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A pod as the kernel knows it."""

    pod: Pod
    place: int
    addresses: CounterAddresses
    spared: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A warrant that was armed: for whom, and on what it was decided. `result` says what came of it."""

    generation: int
    victim: CertainVictim
    armed_ns: int
    expires_ns: int
    settings: EvictionSettings
    state: PolicyState
    pods: Sequence[Pod]
    used: Mapping[str, PodUsage]
    decided_seconds: float
    result: Callable[[], Result]

    def decision(self) -> Decision:
        """Return the decision that the warrant carries: that of the crossing, as the pods stood then."""
        crossed = self.at_crossing(Snapshot())
        return decide(self.settings, self.state, crossed, self.pods, self.decided_seconds)[1]

    def at_crossing(self, snapshot: Snapshot) -> Snapshot:
        """Return what was observed after the crossing with what was so at it.

        The victim is dying, or gone, and its memory coming back: the node was short of it all the same, and
        the kill is judged by what pods held when it was decided on.
        """
        signals = {**snapshot.signals, self.victim.threshold.signal: self.victim.crossing}
        return Snapshot(signals=signals, pods={**snapshot.pods, **self.used})

    def in_place_of(self, decision: Decision) -> Decision:
        """Return a decision that was made after the crossing with the one that the kernel has carried out."""
        carried_out = self.decision()
        return replace(
            decision,
            acted_on=carried_out.acted_on,
            ranking=carried_out.ranking,
            evictions=carried_out.evictions,
            reclaim=(),
            deferred_because=None,
        )

    def crossed_ns(self) -> int | None:
        """Return when the level was crossed, None where that is not written yet."""
        return self.result().crossed_ns

    def signalled_ns(self) -> int | None:
        """Return when the kernel sent SIGKILL, None where it refused to."""
        result = self.result()
        return None if result.error else result.signalled_ns or time.monotonic_ns()

    def document(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        result = self.result()
        return {
            "generation": self.generation,
            "armed_ns": self.armed_ns,
            "crossed_ns": result.crossed_ns,
            "signalled_ns": result.signalled_ns,
            "pid": result.pid or None,
            "comm": result.comm or None,
            "refused": os.strerror(-result.error) if result.error else None,
        }


@dataclass(slots=True, kw_only=True)
class _Mark:
    """What was read before the pods were listed."""

    arrivals: int
    cache_pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a warrant is decided on: the policy's inputs, as observed just now."""

    settings: EvictionSettings
    state: PolicyState
    memory: Mapping[Signal, Observation]
    pods: Sequence[Pod]
    used: Mapping[str, PodUsage]
    first: Pod | None
    now_seconds: float


@dataclass(slots=True)
class Warrants:
    """Holds the programs while `run`; everything else is called by the loop, and neither waits nor raises.

    `notify` wakes the loop. `counted` is what has become of warrants so far, by their outcome.
    """

    tree: CgroupTree
    loader: EbpfLoader = EbpfLoader.AUTO
    notify: Callable[..., None] = lambda *_: None
    open_probe: Callable[[], WarrantProbe] | None = None
    clock_ns: Callable[[], int] = time.monotonic_ns
    counted: Counter[WarrantEnd] = field(default_factory=Counter)
    why_none: str | None = None
    _probe: WarrantProbe | None = None
    _board: SourceBoard = field(default_factory=lambda: SourceBoard(_report))
    _placed: dict[str, _Placed] = field(default_factory=dict)
    _watched: dict[str, CounterAddresses] = field(default_factory=dict)
    _pods: Sequence[Pod] = ()
    _levels: Sequence[MemoryLevel] = ()
    _changed: trio.Event = field(default_factory=trio.Event)
    _free: list[int] = field(default_factory=lambda: list(range(PLACES - 1, -1, -1)))
    _generation: int = 0
    _mark: _Mark | None = None
    _given: Given | None = None
    _served: Given | None = None
    _again_seconds: float | None = None

    @property
    def problem(self) -> str | None:
        """Return why there are no warrants though they are asked for, None where there may be."""
        state = self._board.state(NAME)
        return state.detail if state.health is SourceHealth.FAILED else None

    def document(self) -> dict[str, Any]:
        """Return how they stand as plain JSON values."""
        state = self._board.state(NAME)
        return {
            "state": state.health,
            "detail": state.detail,
            "armed_for": None if self._given is None else self._given.victim.pod.key,
            "why_none": self.why_none,
            "counted": dict(self.counted),
        }

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the programs in the kernel until cancelled. Never raises."""
        try:
            await keep_trying(NAME, self._board, self._serve, task_status=task_status)
        finally:
            self._board.set(NAME, SourceHealth.OFF, "not asked for")

    async def _serve(self, armed: Callable[[str], None]) -> None:
        if self.tree.version is CgroupVersion.V1:
            raise BpfError("warrants", "the memory controller is on cgroup v1; the kernel kills on v2 alone")
        open_probe: Callable[[], WarrantProbe] = self.open_probe or partial(open_warrant_probe, self.loader)
        async with opened(open_probe) as probe:
            self._probe = probe
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep_placed, probe, armed)
                    nursery.start_soon(take_records, probe, self._heed, lambda _: self._wake())
            finally:
                self.rest()
                if self._served is not None:  # it may be for the next generation
                    result = self._served.result()
                    self._served = replace(self._served, result=lambda: result)
                self._probe = None
                self._forget_all()

    def _heed(self, records: Sequence[WarrantRecord]) -> None:
        """Wake the loop for a warrant that was served; of one that is void a pass would learn nothing."""
        if any(one.outcome in {WarrantOutcome.SERVED, WarrantOutcome.REFUSED} for one in records):
            self._wake()

    def _wake(self) -> None:
        self.notify(Wake(source=NAME, kind=WakeKind.MEMORY, at_ns=time.monotonic_ns()))

    # --- which pods the kernel knows ---

    def track(self, pods: Sequence[Pod]) -> None:
        """Have these pods, and no others, known to the kernel soon."""
        self._pods = pods
        self._changed.set()

    def levels(self, levels: Sequence[MemoryLevel]) -> None:
        """Take note of where the crossings of hard thresholds are now."""
        if {level.cgroup for level in levels} != {level.cgroup for level in self._levels}:
            self._changed.set()
        self._levels = levels

    async def _keep_placed(self, probe: WarrantProbe, armed: Callable[[str], None]) -> None:
        while True:
            self._changed = trio.Event()
            present = {pod.uid for pod in self._pods}
            gone = [uid for uid in self._placed if uid not in present]
            missing = [pod for pod in self._pods if self._is_missing(pod)]
            if gone or missing:
                self._lay_down()  # bounds are about to move
            for uid in gone:
                self._displace(probe, self._placed.pop(uid))
            for start in range(0, len(missing), _AT_ONCE):
                some = missing[start : start + _AT_ONCE]
                found = await of_probe(probe, partial(self._look_up, probe, some))
                for pod, addresses, spared in found:
                    self._put(probe, pod, addresses, spared)
            await self._find_watched(probe)
            armed(f"{len(self._placed)} of {len(self._pods)} pods known to the kernel")
            await self._changed.wait()

    def _is_missing(self, pod: Pod) -> bool:
        known = self._placed.get(pod.uid)
        return (
            known is None
            or known.addresses.cgroup_id != pod.cgroup_inode
            or known.pod.spared_cgroups != pod.spared_cgroups
        )

    def _look_up(
        self, probe: WarrantProbe, pods: Sequence[Pod]
    ) -> list[tuple[Pod, CounterAddresses, tuple[tuple[int, int], ...]]]:
        """Return where the counters of these pods are, of those that are there as they were listed."""
        found = []
        for pod in pods:
            if pod.cgroup is None or pod.cgroup_inode is None or len(pod.spared_cgroups) > SPARED:
                continue
            try:
                addresses = probe.counters(self.tree.path(pod.cgroup))
                spared = tuple(
                    (one.cgroup_id, one.level)
                    for one in (probe.counters(self.tree.path(cgroup)) for cgroup in pod.spared_cgroups)
                )
            except (OSError, ReactorError):
                continue  # gone, or being made: listed again soon
            if addresses.memory and addresses.cgroup_id == pod.cgroup_inode:
                found.append((pod, addresses, spared))
        return found

    def _put(
        self,
        probe: WarrantProbe,
        pod: Pod,
        addresses: CounterAddresses,
        spared: tuple[tuple[int, int], ...],
    ) -> None:
        """Have the kernel hold a pod to a bound. One that finds the map full stays unknown to it."""
        before = self._placed.pop(pod.uid, None)
        if before is not None:
            self._lay_down()
            self._displace(probe, before)
        for uid, other in list(self._placed.items()):
            if other.addresses.memory == addresses.memory:  # of a pod that is gone
                self._free.append(self._placed.pop(uid).place)
        if not self._free:
            return
        place = self._free.pop()
        try:
            probe.place(addresses.memory, place)
        except OSError as error:
            self._free.append(place)
            _LOG.warning("pod %s is not known to the kernel: %s", pod.key, error)
            return
        self._placed[pod.uid] = _Placed(pod=pod, place=place, addresses=addresses, spared=spared)

    def _displace(self, probe: WarrantProbe, placed: _Placed) -> None:
        probe.displace(placed.addresses.memory)
        self._free.append(placed.place)

    def _forget_all(self) -> None:
        self._placed.clear()
        self._watched.clear()
        self._free = list(range(PLACES - 1, -1, -1))

    async def _find_watched(self, probe: WarrantProbe) -> None:
        for cgroup in {level.cgroup for level in self._levels} - {_MACHINE}:
            try:
                path = self.tree.path(cgroup)
                self._watched[cgroup] = await of_probe(probe, partial(probe.counters, path))
            except (OSError, ReactorError):
                self._watched.pop(cgroup, None)

    # --- the warrant ---

    def begin(self) -> None:
        """Take note of what stands before the pods are listed and observed for a warrant."""
        self._mark = None
        if self._probe is not None:
            try:
                self._mark = _Mark(arrivals=self._probe.arrivals(), cache_pages=self._probe.cache_pages())
            except ReactorError as error:
                self.why_none = str(error)

    def give(self, outlook: Outlook, usages: PodUsages, *, holds: Callable[[Pod], bool]) -> None:
        """Arm a warrant where the decision of the next crossing is certain; `begin` was called before.

        `holds` tells whether a kill of the pod is prepared, which of what is never killed it never is.
        """
        if self._probe is None or self._mark is None:
            return
        if self._given is not None and self._probe.is_claimed() and not self.is_due(outlook.now_seconds):
            return  # it stands by what it was given on: a rehearsal does not take it away
        self._served = self.withdraw(renewed=True)
        if self._served is not None:
            self._wake()  # the loop follows it before anything else
            return
        try:
            self._give(self._probe, self._mark, outlook, usages, holds)
            self.why_none = None
        except (OSError, ReactorError) as error:
            self.why_none = str(error)
            self._take_claim()  # of a draft

    def is_due(self, now_seconds: float) -> bool:
        """Return whether a warrant is to be given or renewed: a crossing is as near as that."""
        return self._again_seconds is not None and now_seconds >= self._again_seconds

    def rest(self) -> None:
        """Have nothing armed until the next `give`. A warrant that was served is left to the next pass."""
        self._again_seconds = None
        self._lay_down()

    def _lay_down(self) -> None:
        """Withdraw; a warrant that was served is left to the next pass."""
        self._served = self.withdraw()
        if self._served is not None:
            self._wake()

    def withdraw(self, *, renewed: bool = False) -> Given | None:
        """Take the claim back before anything else is done; return the warrant that was served, if one was.

        Costs nothing where none was given.
        """
        served, self._served = self._served, None
        given, self._given = self._given, None
        if served is not None or given is None:
            return self._in_time(served)
        state = self._take_claim()
        result = given.result()
        if state is ClaimState.SERVED:
            is_refused = result.outcome is WarrantOutcome.REFUSED
            self.counted[WarrantEnd.REFUSED if is_refused else WarrantEnd.SERVED] += 1
            return self._in_time(given)
        if state is not ClaimState.LIVE:
            self.counted[_VOID.get(result.outcome, WarrantEnd.UNKNOWN)] += 1
        elif result.crossed_ns is not None:
            self.counted[WarrantEnd.OTHER_CROSSED] += 1
        else:
            self.counted[WarrantEnd.RENEWED if renewed else WarrantEnd.WITHDRAWN] += 1
        return None

    def _in_time(self, served: Given | None) -> Given | None:
        """Return the warrant where it can be followed: whatever lives in its pod later was not meant."""
        if served is None or self.clock_ns() <= served.expires_ns + _FOLLOWED_NS:
            return served
        _LOG.warning(
            "pod %s: killed by the kernel under warrant %d, and noticed too late to evict it",
            served.victim.pod.key,
            served.generation,
        )
        return None

    def _take_claim(self) -> ClaimState | None:
        return None if self._probe is None else self._probe.withdraw()

    def _give(
        self,
        probe: WarrantProbe,
        mark: _Mark,
        outlook: Outlook,
        usages: PodUsages,
        holds: Callable[[Pod], bool],
    ) -> None:
        """Draft a warrant, observe again, and arm it. Raises NoWarrantError with the reason where none is."""
        self._again_seconds = None
        level, left_bytes = self._nearest(outlook)
        self._again_seconds = outlook.now_seconds + RENEWAL_SECONDS
        placed = self._placed_victim(outlook.first)
        if not holds(placed.pod):
            raise NoWarrantError(f"{placed.pod.key} is not prepared to be killed")
        margin_bytes = max(left_bytes, _LEAST_MARGIN_BYTES)
        bounds = self._bound(probe, usages, placed, margin_bytes)
        held_bytes = usages.charged_bytes([placed.pod.uid]).get(placed.pod.uid, 0)
        expires_ns = self.clock_ns() + int(EXPIRY_SECONDS * 1e9)
        self._generation += 1
        terms = Terms(
            victim=placed.addresses.cgroup_id,
            victim_level=placed.addresses.level,
            victim_counter=placed.addresses.memory,
            victim_least=max(0, held_bytes - margin_bytes) // PAGE_BYTES,
            watched_counter=self._watched_address(level.cgroup),
            fire=_fire_bytes(level) // PAGE_BYTES + 1,
            cache_most=mark.cache_pages + margin_bytes // PAGE_BYTES,
            expires_ns=expires_ns,
            spared=placed.spared,
        )
        if not probe.draft(self._generation, terms):
            raise NoWarrantError("another warrant stands there")
        # From here on the kernel heeds the bounds: what is read now is within them, or is found out.
        charged = usages.charged_bytes([pod.uid for pod in outlook.pods])
        for pod in outlook.pods:
            if pod.uid not in bounds or charged.get(pod.uid, UNUSED) > bounds[pod.uid]:
                raise NoWarrantError(f"{pod.key} is not known to the kernel yet, or grows too fast")
        least_bytes = _least_bytes(usages, placed.pod.uid, 2 * margin_bytes)
        victim = self._certain(level, outlook, bounds, placed.pod, least_bytes)
        self._given = Given(
            generation=self._generation,
            victim=victim,
            armed_ns=self.clock_ns(),
            expires_ns=expires_ns,
            settings=outlook.settings,
            state=outlook.state,
            pods=outlook.pods,
            used=outlook.used,
            decided_seconds=outlook.now_seconds,
            result=probe.result,
        )
        if not probe.arm(self._generation, mark.arrivals):
            self._given = None
            self.counted[_VOID.get(probe.result().outcome, WarrantEnd.UNKNOWN)] += 1
            raise NoWarrantError("a pod has outgrown its bound, or a cgroup has come, meanwhile")

    def _placed_victim(self, victim: Pod | None) -> _Placed:
        if victim is None:
            raise NoWarrantError("no pod may be evicted")
        placed = self._placed.get(victim.uid)
        if placed is None or placed.addresses.cgroup_id != victim.cgroup_inode:
            raise NoWarrantError(f"{victim.key} is not known to the kernel yet")
        return placed

    @staticmethod
    def _certain(
        level: MemoryLevel, outlook: Outlook, bounds: Mapping[str, int], expected: Pod, least_bytes: int
    ) -> CertainVictim:
        """Return the victim of the crossing. Raises NoWarrantError where that is not certainly this pod."""
        ranges = {pod.uid: UsageRange(least_bytes=0, most_bytes=bounds[pod.uid]) for pod in outlook.pods} | {
            expected.uid: UsageRange(least_bytes=least_bytes, most_bytes=least_bytes)
        }
        ahead = Ahead(
            signals=outlook.memory,
            ranges=ranges,
            horizon_seconds=EXPIRY_SECONDS,
            reach_bytes=_reach_bytes(level, outlook.memory),
        )
        found = certain_victim(
            outlook.settings, outlook.state, level.threshold, ahead, outlook.pods, outlook.now_seconds
        )
        if isinstance(found, str):
            raise NoWarrantError(found)
        if found.pod.uid != expected.uid:
            raise NoWarrantError(f"{found.pod.key} may come before {expected.key} by then")
        return found

    def _nearest(self, outlook: Outlook) -> tuple[MemoryLevel, int]:
        """Return the crossing that is near and how much is left until it. Raises NoWarrantError for none.

        Of several parents each is given all that is left, which is no crossing yet.
        """
        found = []
        for level in self._levels:
            seen = outlook.memory.get(level.signal)
            if seen is None or seen.absurdity is not None:
                continue
            left_bytes = seen.available - int(level.threshold.value.of(seen.capacity))
            if left_bytes <= ahead_bytes(seen.capacity)[-1]:
                found.append((level, left_bytes))
        if not found:
            raise NoWarrantError("no crossing is near")
        level, left_bytes = found[0]
        seen = outlook.memory[level.signal]
        level_bytes = memory_level(level.threshold, seen)
        if len(found) > 1 or left_bytes <= 0 or level.working_set_bytes is None:
            raise NoWarrantError("more than one crossing is near, or no one counter tells of it")
        if level_bytes is None or level_bytes >= seen.capacity - DRIFT_BYTES:
            raise NoWarrantError("page cache has lifted the crossing to the capacity")
        return replace(level, level_bytes=level_bytes), left_bytes

    def _watched_address(self, cgroup: str) -> int:
        """Return the address of the counter whose usage crosses, 0 for the machine. Raises NoWarrantError."""
        if cgroup == _MACHINE:
            return 0
        known = self._watched.get(cgroup)
        if known is None or known.cgroup_id != os.stat(self.tree.path(cgroup)).st_ino:
            self._changed.set()  # looked up again
            raise NoWarrantError(f"{cgroup} is not known to the kernel")
        return known.memory

    def _bound(
        self, probe: WarrantProbe, usages: PodUsages, victim: _Placed, margin_bytes: int
    ) -> dict[str, int]:
        """Bound every pod that the kernel knows; return the bounds in bytes, by uid. The victim has none."""
        charged = usages.charged_bytes(self._placed)
        bounds: dict[str, int] = {}
        for uid, placed in self._placed.items():
            pages = UNUSED if placed is victim else (charged.get(uid, 0) + margin_bytes) // PAGE_BYTES
            bounds[uid] = pages * PAGE_BYTES
            probe.bound(placed.place, pages)
        return bounds


def _fire_bytes(level: MemoryLevel) -> int:
    """Return what is used at the crossing: the cgroup's usage, or the machine's working set."""
    if level.cgroup == _MACHINE and level.working_set_bytes is not None:
        return level.working_set_bytes
    return level.level_bytes


def _least_bytes(usages: PodUsages, uid: str, margin_bytes: int) -> int:
    """Return what a pod's working set is at least for as long as its usage holds: page cache may grow old."""
    used = usages.of([uid]).get(uid)
    cached_bytes = usages.active_file_bytes(uid)
    if used is None or used.memory_working_set_bytes is None or cached_bytes is None:
        return 0
    return max(0, used.memory_working_set_bytes - cached_bytes - margin_bytes)


def _reach_bytes(level: MemoryLevel, memory: Mapping[Signal, Observation]) -> int:
    value = int(level.threshold.value.of(memory[level.signal].capacity))
    return min(_REACH_BYTES, value // _REACH_SHARE)


def _report(state: SourceState) -> None:
    level = logging.WARNING if state.health is SourceHealth.FAILED else logging.INFO
    _LOG.log(level, "warrants: %s%s", state.health, f": {state.detail}" if state.detail else "")
