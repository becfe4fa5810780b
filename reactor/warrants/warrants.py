"""Warrants: near a hard memory threshold the kernel is given the decision, and kills at the crossing itself.

The programs (bpf/warrant.bpf.c) decide nothing. A warrant is given only where it is certain which pod the
crossing would evict (certainty.py), and for which crossing it is, within which bounds of every pod
and until when. What is outside of that voids it, in the kernel, at the charge that leads outside.

    early levels        ─► bounds of all other pods, as a draft ─► all read again ─► certain? ─► armed
    a pass that acts    ─► withdrawn first; one that was served is followed by the eviction of that pod
    every 100 ms        ─► renewed; it expires after 250 ms, also where the guard is stopped or dead

At the farther early level all other pods may take what is left until the crossing, so that only a victim far
ahead of them is certain; but an allocator at full speed leaves no time for a warrant at the nearer one. Hence
one that stands is left standing by passes that do nothing and leave the state as it was decided on.

The order matters. Bounds are in force from the draft on, and usage is read after it: a pod that outgrows its
bound is seen by one of the two.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

import trio

from reactor.errors import BpfError, ReactorError
from reactor.kernel.bpf.loaders import open_warrant_probe
from reactor.kernel.bpf.records import UNUSED, CounterAddresses, WarrantOutcome, WarrantRecord
from reactor.kernel.bpf.warrants import PLACES, SPARED, ClaimState, Result, Terms, WarrantProbe
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.files import PAGE_BYTES
from reactor.link.documents import attributes
from reactor.model.decisions import Decision, Inputs, PolicyState, Snapshot
from reactor.model.kills import WarrantEnd
from reactor.model.pods import Pod
from reactor.model.settings import EbpfLoader, EvictionSettings
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.model.wakes import SourceHealth, SourceState, Wake, WakeKind
from reactor.observe.pods import PodObserver
from reactor.policy.decide import decide
from reactor.policy.forecast import Forecast, ahead_bytes, is_unchanged
from reactor.policy.holds import least_worth_bytes, may_be_due
from reactor.policy.rank import memory_outside_pods
from reactor.sources.catalogue import SourceBoard
from reactor.sources.chain import keep_trying
from reactor.sources.ebpf_watch import of_probe, opened, take_records
from reactor.sources.levels import DRIFT_BYTES, MemoryLevel, memory_level
from reactor.warrants.certainty import (
    REACH_SHARE,
    Ahead,
    CertainVictim,
    UsageRange,
    certain_victim,
    settled_until_seconds,
    without_reclaim,
)

_LOG: Final = logging.getLogger("reactor.warrants")
NAME: Final = "warrant"
EXPIRY_SECONDS: Final = 0.25
RENEWAL_SECONDS: Final = 0.1
# From afar, where what is in the way ends by itself: an eviction is judged, a reclaim is over.
RETRIAL_SECONDS: Final = 1.0
_SETTLED_SECONDS: Final = 0.001  # so long before a grace period ends a warrant has expired
_FOLLOWED_NS: Final = 5_000_000_000  # a reload takes less
# memcg charges 64 pages at a time for each CPU: bounds that are closer would be passed by nothing.
_LEAST_MARGIN_BYTES: Final = 1 << 20
_REACH_BYTES: Final = 1 << 20
_AT_ONCE: Final = 32
_MACHINE: Final = "/"


class NoWarrantError(ReactorError):
    """No warrant is given, for this reason."""


class NotKnownYetError(NoWarrantError):
    """No warrant is armed, until a cgroup has been found."""


@dataclass(slots=True, kw_only=True)
class _Mark:
    """What was read before the pods were listed."""

    arrivals: int
    cache_pages: int


class _Crossing(NamedTuple):
    """A crossing that is near: `working_set_bytes` at it, and how much is left until then.

    `near_bytes` is how far ahead of it the nearer early level lies.
    """

    level: MemoryLevel
    working_set_bytes: int
    left_bytes: int
    near_bytes: int


class _Outside(NamedTuple):
    """The cgroup that holds all pods and what may be reclaimed beside them, and the signal that has it."""

    cgroup: str
    signal: Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """What a warrant is decided on is read by these, of the configuration that is served.

    `holds` returns whether a kill of the pod is prepared, which of what is never killed it never is. `memory`
    observes the node, and `refresh_pods` lists the pods, which lie below `parents`. `notify` wakes the loop,
    and `leave` does so inside a pass: by then no other may begin.
    """

    usages: PodObserver
    holds: Callable[[Pod], bool]
    memory: Callable[[], Mapping[Signal, Observation]]
    refresh_pods: Callable[[], None]
    notify: Callable[..., None]
    leave: Callable[..., None]
    parents: Sequence[str]


@dataclass(slots=True, kw_only=True)
class ArmedWarrant:
    """A warrant that was armed: for whom, and on what it was decided.

    `level_bytes` is the working set at which the kernel sees the crossing. `read` returns its result, which
    is read anew each time until `keep`: the program that kills takes the claim first and writes all else
    after it, so a guard on another CPU may follow before that is there.
    """

    generation: int
    victim: CertainVictim
    level_bytes: int
    armed_ns: int
    expires_ns: int
    inputs: Inputs
    read: Callable[[], Result]

    def keep(self) -> None:
        """Have the result stay what it is: another warrant is about to take its place."""
        result = self.read()
        self.read = lambda: result

    def decision(self) -> Decision:
        """Return the decision that the warrant carries: that of the crossing, as the pods stood then."""
        settings, state, _, pods, decided_seconds = self.inputs
        snapshot = self.at_crossing(Snapshot())
        return decide(without_reclaim(settings), state, snapshot, pods, decided_seconds)[1]

    def at_crossing(self, snapshot: Snapshot) -> Snapshot:
        """Return what was observed after the crossing with what was so at it.

        The victim is dying, or gone, and its memory coming back: the node was short of it all the same, and
        the kill is judged by what pods held when it was decided on.
        """
        signals = {**snapshot.signals, self.victim.threshold.signal: self.victim.crossing}
        return Snapshot(signals=signals, pods={**snapshot.pods, **self.inputs.snapshot.pods})

    def crossed_ns(self) -> int | None:
        return self.read().crossed_ns

    def signalled_ns(self) -> int | None:
        """Return when the kernel sent SIGKILL, None where it refused to."""
        result = self.read()
        return None if result.error else result.signalled_ns or time.monotonic_ns()

    def document(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        result = self.read()
        used_bytes = (result.value_pages - result.inactive_pages) * PAGE_BYTES
        return {
            **attributes(self, "generation", "armed_ns", "level_bytes"),
            "crossed_ns": result.crossed_ns,
            "signalled_ns": result.signalled_ns,
            "working_set_bytes": None if result.crossed_ns is None else used_bytes,
            "pid": result.pid or None,
            "comm": result.comm or None,
            "refused": os.strerror(-result.error) if result.error else None,
        }


class PlacedPod(NamedTuple):
    """A pod as the kernel knows it once it has a place: where its counters are, and what is spared of it.

    What is spared is by cgroup id and level.
    """

    pod: Pod
    addresses: CounterAddresses
    spared: tuple[tuple[int, int], ...]
    place: int = -1


@dataclass(slots=True)
class KernelPods:
    """The pods that are placed, by uid. A place is an index into the kernel's bounds."""

    tree: CgroupTree
    placed: dict[str, PlacedPod] = field(default_factory=dict)
    _uids: dict[int, str] = field(default_factory=dict)  # by the address of the pod's counter
    _free: list[int] = field(default_factory=lambda: list(range(PLACES - 1, -1, -1)))

    def is_missing(self, pod: Pod) -> bool:
        """Return whether the kernel does not know a pod as it is listed."""
        known = self.placed.get(pod.uid)
        return (
            known is None
            or known.addresses.cgroup_id != pod.cgroup_inode
            or known.pod.spared_cgroups != pod.spared_cgroups
        )

    def look_up(self, probe: WarrantProbe, pods: Sequence[Pod]) -> list[PlacedPod]:
        """Return where the counters of these pods are, of those that are there as they were listed.

        For a thread: the kernel's cgroup lock may be held.
        """
        found: list[PlacedPod] = []
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
                found.append(PlacedPod(pod, addresses, spared))
        return found

    def put(self, probe: WarrantProbe, found: PlacedPod) -> None:
        """Have the kernel hold a pod to a bound. One that finds the map full stays unknown to it."""
        pod, addresses = found.pod, found.addresses
        self.remove(probe, pod.uid)
        earlier = self._uids.pop(addresses.memory, None)
        if earlier is not None:  # of a pod that is gone
            self._free.append(self.placed.pop(earlier).place)
        if not self._free:
            return
        place = self._free.pop()
        try:
            probe.place(addresses.memory, place)
        except OSError as error:
            self._free.append(place)
            _LOG.warning("pod %s is not known to the kernel: %s", pod.key, error)
            return
        self.placed[pod.uid] = found._replace(place=place)
        self._uids[addresses.memory] = pod.uid

    def remove(self, probe: WarrantProbe, uid: str) -> None:
        """Hold a pod to no bound any more, if the kernel knows it."""
        placed = self.placed.pop(uid, None)
        if placed is not None:
            del self._uids[placed.addresses.memory]
            probe.displace(placed.addresses.memory)
            self._free.append(placed.place)

    def are_spared_others(self, placed: PlacedPod) -> bool:
        """Return whether a spared cgroup of a pod is another by now, or gone."""
        try:
            found = [os.stat(self.tree.path(cgroup)).st_ino for cgroup in placed.pod.spared_cgroups]
        except OSError:
            return True
        return found != [cgroup_id for cgroup_id, _ in placed.spared]


@dataclass(slots=True)
class Warrants:
    """Holds the programs while `run`; everything else is called by the loop, and neither waits nor raises.

    Cgroups that have come are listed as pods within `newcomer_seconds`, so that they are known before a
    crossing is near. `counted` is what has become of warrants so far, by their outcome.
    """

    reads_all: ClassVar[bool] = True
    tree: CgroupTree
    loader: EbpfLoader = EbpfLoader.AUTO
    reads: Reads = field(init=False)  # by `connect`
    newcomer_seconds: float = 1.0
    open_probe: Callable[[], WarrantProbe] | None = None
    clock_ns: Callable[[], int] = time.monotonic_ns
    counted: Counter[WarrantEnd] = field(default_factory=Counter)
    why_none: str | None = None
    _probe: WarrantProbe | None = None
    _board: SourceBoard = field(default_factory=lambda: SourceBoard(_report))
    _known: KernelPods = field(init=False)
    _watched: dict[str, CounterAddresses] = field(default_factory=dict)
    _pods: Sequence[Pod] = ()
    _levels: Sequence[MemoryLevel] = ()
    _changed: trio.Event = field(default_factory=trio.Event)
    _generation: int = 0
    _mark: _Mark | None = None
    _last: ArmedWarrant | None = None
    _given: ArmedWarrant | None = None
    _served: ArmedWarrant | None = None
    _ended: WarrantEnd | None = None
    _again_seconds: float | None = None
    _is_waiting_for_pods: bool = False

    def __post_init__(self) -> None:
        self._known = KernelPods(self.tree)

    @property
    def problem(self) -> str | None:
        """Return why there are no warrants though they are asked for, None where there may be."""
        state = self._board.state(NAME)
        return state.detail if state.health is SourceHealth.FAILED else None

    @property
    def is_unused(self) -> bool:
        """Return whether the kernel has never been given one."""
        return self._generation == 0 and self._probe is None

    def document(self) -> dict[str, Any]:
        """Return the state of the warrants, as plain JSON values."""
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
                    nursery.start_soon(self._keep_pods_listed, probe)
                    nursery.start_soon(
                        take_records, probe, self._on_records, lambda _: self.reads.notify(_wake())
                    )
            finally:
                self.far()
                if self._last is not None:  # the next configuration may report it
                    self._last.keep()
                self._probe = None
                self._known = KernelPods(self.tree)
                self._watched.clear()

    def _on_records(self, records: Sequence[WarrantRecord]) -> None:
        """Wake the loop for a warrant that was served; of one that is void a pass would learn nothing."""
        if any(one.outcome in {WarrantOutcome.SERVED, WarrantOutcome.REFUSED} for one in records):
            self.reads.notify(_wake())

    # --- which pods the kernel knows ---

    def pods(self, pods: Sequence[Pod]) -> None:
        """Have these pods, and no others, known to the kernel soon."""
        self._pods = pods
        self._changed.set()

    def connect(self, reads: Reads) -> None:
        """Serve a configuration."""
        self.reads = reads
        self._changed.set()

    def levels(self, levels: Sequence[MemoryLevel]) -> None:
        """Take over where the crossings of hard thresholds are now."""
        if {level.cgroup for level in levels} != {level.cgroup for level in self._levels}:
            self._changed.set()
        self._levels = levels

    async def _keep_placed(self, probe: WarrantProbe, armed: Callable[[str], None]) -> None:
        while True:
            self._changed = trio.Event()
            present = {pod.uid for pod in self._pods}
            gone = [uid for uid in self._known.placed if uid not in present]
            missing = [pod for pod in self._pods if self._known.is_missing(pod)]
            if gone or missing:
                self._withdraw()  # bounds are about to move
            for uid in gone:
                self._known.remove(probe, uid)
            are_more_known = False
            for start in range(0, len(missing), _AT_ONCE):
                some = missing[start : start + _AT_ONCE]
                for found in await of_probe(probe, partial(self._known.look_up, probe, some)):
                    if found.pod.uid in self._known.placed:
                        self._withdraw()
                    self._known.put(probe, found)
                    are_more_known = True
            are_more_known |= await self._find_watched(probe)
            armed(f"{len(self._known.placed)} of {len(self._pods)} pods known to the kernel")
            if are_more_known and self._is_waiting_for_pods:
                self._is_waiting_for_pods = False
                self.reads.notify(_wake())
            await self._changed.wait()

    async def _keep_pods_listed(self, probe: WarrantProbe) -> None:
        """Have the pods listed where cgroups have come: far from a crossing no pass asks for long."""
        known = probe.arrivals()
        while True:
            await trio.sleep(self.newcomer_seconds)
            if (arrivals := probe.arrivals()) != known:
                known = arrivals
                self.reads.refresh_pods()

    async def _find_watched(self, probe: WarrantProbe) -> bool:
        """Look up the cgroups whose usage crosses; return whether one was another before."""
        before = dict(self._watched)
        for cgroup in {*self.reads.parents, *(level.cgroup for level in self._levels)} - {_MACHINE}:
            try:
                path = self.tree.path(cgroup)
                self._watched[cgroup] = await of_probe(probe, partial(probe.counters, path))
            except (OSError, ReactorError):
                self._watched.pop(cgroup, None)
        return not self._watched.items() <= before.items()

    # --- the warrant ---

    def begin(self) -> None:
        """Record what stands before the pods are listed and observed for a warrant."""
        self._mark = None
        if self._probe is not None:
            try:
                arrivals = self._probe.arrivals()
                self._mark = _Mark(arrivals=arrivals, cache_pages=self._probe.page_cache().pages)
            except ReactorError as error:
                self.why_none = str(error)

    def near(self, forecast: Forecast, *_: object) -> None:
        """Arm a warrant if the decision of the next crossing is certain; `begin` was called before."""
        snapshot = forecast.inputs.snapshot._replace(signals=self.reads.memory())
        self.give(replace(forecast, inputs=forecast.inputs._replace(snapshot=snapshot)))

    def give(self, forecast: Forecast) -> None:
        """Do as `near`, by a forecast whose memory was read after its pods."""
        if self._probe is None or self._mark is None:
            return
        if self._stands(self._probe, forecast):
            return  # by what it was given on: a rehearsal does not take it away
        self._withdraw(renewed=True)
        if self._served is not None:
            return  # the loop follows it before anything else
        self._ended = None
        try:
            self._is_waiting_for_pods = False
            self._give(self._probe, self._mark, forecast)
            self.why_none = None
        except (OSError, ReactorError) as error:
            self._is_waiting_for_pods = isinstance(error, NotKnownYetError)
            self.why_none = str(error)
            self._take_claim()  # of a draft

    def _stands(self, probe: WarrantProbe, forecast: Forecast) -> bool:
        """Return whether there is a warrant, not due for renewal, that has the crossing where it is now."""
        given = self._given
        if given is None or not probe.is_live():
            return False
        with suppress(NoWarrantError):
            _, level_bytes, left_bytes, _ = self._nearest(forecast)
            # At the crossing none is due: it serves the victim's next charge, unless a pass comes first.
            is_due = left_bytes > 0 and forecast.now_seconds >= self.retry_seconds()
            return not is_due and level_bytes == given.level_bytes
        return False

    def retry_seconds(self) -> float:
        """Return when a warrant is to be given or renewed: a crossing is as near as that."""
        return math.inf if self._again_seconds is None else self._again_seconds

    def far(self) -> None:
        """Have nothing armed until the next `near`. A warrant that was served is left to the next pass."""
        self._is_waiting_for_pods = False
        self._again_seconds = None
        self._withdraw()

    def _withdraw(self, *, renewed: bool = False) -> None:
        """Withdraw; a warrant that was served is left to the next pass, and this one goes on to its end."""
        self._served = self.withdraw(renewed=renewed)
        if self._served is not None:
            self.reads.leave(_wake())

    def served(self) -> ArmedWarrant | None:
        """Return the warrant that was served, if one was; for the beginning of a pass.

        One that stands is left standing: `withdraw` before anything is done.
        """
        if self._served is None and self._given is not None and self._probe is not None:
            with suppress(ReactorError):
                if self._probe.is_live():
                    return None
        return self.withdraw()

    def why_not_served(self) -> str | None:
        """Return why the kernel has not killed at the crossing that a pass has acted on.

        None where there are no warrants. Of one that was given it is its end, as it is counted.
        """
        if self._probe is None:
            return self.problem
        return self.why_none if self._ended is None else f"a warrant was given: {self._ended}"

    def stand_down(
        self, settings: EvictionSettings, state: PolicyState, pods: Sequence[Pod], decision: Decision
    ) -> bool:
        """Withdraw, unless the pass that decided so leaves all as it was when the warrant was given.

        Return whether it was served meanwhile: then the pass has observed the victim's end.
        """
        given = self._given
        if (
            given is None
            or (decision.evictions or decision.reclaim or decision.memory_reclaim)
            or decision.acted_on is not None
            or given.inputs.settings is not settings
            or not is_unchanged(given.inputs.state, state)
            or given.inputs.pods != pods
        ):
            self._served = self.withdraw()
        return self._served is not None

    def withdraw(self, *, renewed: bool = False) -> ArmedWarrant | None:
        """Take the claim back before anything is done; return the warrant that was served, if one was.

        Costs nothing where none was given.
        """
        served, self._served = self._served, None
        given, self._given = self._given, None
        if served is not None or given is None:
            return self._in_time(served)
        state = self._take_claim()
        result = given.read()
        if state is ClaimState.SERVED:
            is_refused = result.outcome is WarrantOutcome.REFUSED
            self.counted[WarrantEnd.REFUSED if is_refused else WarrantEnd.SERVED] += 1
            return self._in_time(given)
        if state is not ClaimState.LIVE:
            self._ended = _end(result.outcome)
        elif result.crossed_ns is not None:
            self._ended = WarrantEnd.OTHER_CROSSED
        else:
            self._ended = WarrantEnd.RENEWED if renewed else WarrantEnd.WITHDRAWN
        self.counted[self._ended] += 1
        return None

    def _in_time(self, served: ArmedWarrant | None) -> ArmedWarrant | None:
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

    def _give(self, probe: WarrantProbe, mark: _Mark, forecast: Forecast) -> None:
        """Draft a warrant, observe again, and arm it. Raises NoWarrantError with the reason where none is."""
        self._again_seconds = None
        usages = self.reads.usages
        _, state, _, pods, now_seconds = forecast.inputs
        level, level_bytes, left_bytes, near_bytes = self._nearest(forecast)
        # Also where there is none: soon it may be certain.
        again_seconds = RENEWAL_SECONDS if left_bytes <= near_bytes else RETRIAL_SECONDS
        self._again_seconds = now_seconds + again_seconds
        placed = self._placed_victim(probe, next(iter(forecast.prepared), None))
        margin_bytes = max(left_bytes, _LEAST_MARGIN_BYTES)
        # Of the victim, and of page cache, no more than at the nearer level: a reader crosses so much early.
        own_margin_bytes = min(margin_bytes, max(near_bytes, _LEAST_MARGIN_BYTES))
        bounds = self._bound(probe, placed, margin_bytes, {pod.uid for pod in forecast.asleep})
        uid = placed.pod.uid
        held_bytes = usages.charged_bytes([uid]).get(uid)
        if held_bytes is None:  # it could shrink to nothing without voiding the warrant
            raise NoWarrantError(f"what is charged to {placed.pod.key} can't be read")
        settled_seconds = settled_until_seconds(state) - _SETTLED_SECONDS
        expires_ns = int(min(self.clock_ns() + EXPIRY_SECONDS * 1e9, settled_seconds * 1e9))
        horizon_seconds = max(_SETTLED_SECONDS, min(EXPIRY_SECONDS, settled_seconds - now_seconds))
        outside = self._outside(level, forecast)
        active_pages = 0 if outside is None else probe.page_cache().active
        self._generation += 1
        terms = Terms(
            victim=placed.addresses.cgroup_id,
            victim_level=placed.addresses.level,
            victim_counter=placed.addresses.memory,
            victim_least=max(0, held_bytes - own_margin_bytes) // PAGE_BYTES,
            watched_counter=self._counter_of(level.cgroup),
            level=level_bytes // PAGE_BYTES + 1,
            cache_most=mark.cache_pages + own_margin_bytes // PAGE_BYTES,
            expires_ns=expires_ns,
            outside_counter=0 if outside is None else self._counter_of(outside.cgroup),
            spared=placed.spared,
        )
        if self._last is not None:
            self._last.keep()
        if not probe.draft(self._generation, terms):
            raise NoWarrantError("another warrant stands there")
        # From here on the bounds are in force: what is read now is within them, or is found out.
        least_bytes = _least_bytes(usages, uid, 2 * own_margin_bytes)
        all_pods = (*pods, *forecast.asleep)
        charged = usages.charged_bytes([pod.uid for pod in all_pods])
        for pod in all_pods:
            if pod.uid not in bounds:
                raise NotKnownYetError(f"{pod.key} is not known to the kernel yet")
            if charged.get(pod.uid, UNUSED) > bounds[pod.uid]:
                raise NoWarrantError(f"{pod.key} grows too fast")
        # The kernel counts from what was charged before: what has come since, it lets go again.
        least_bytes = max(0, least_bytes - max(0, charged.get(uid, UNUSED) - held_bytes))
        outside_bytes = None if outside is None else self._outside_bytes(outside, pods)
        ranges = {uid: UsageRange(least_bytes=0, most_bytes=most_bytes) for uid, most_bytes in bounds.items()}
        ranges[uid] = UsageRange(least_bytes=least_bytes, most_bytes=least_bytes)
        value = int(level.threshold.value.of(forecast.inputs.seen(level.threshold).capacity))
        ahead = Ahead(
            ranges=ranges,
            horizon_seconds=horizon_seconds,
            reach_bytes=min(_REACH_BYTES, value // REACH_SHARE),
            outside_bytes=outside_bytes,
        )
        victim = self._certain(forecast, level.threshold, placed.pod, ahead)
        active_most = 0
        if outside_bytes is not None:  # idle page cache out there that is used again would count, too
            room_bytes = least_worth_bytes(level.threshold, victim.crossing) - outside_bytes
            active_most = active_pages + room_bytes // PAGE_BYTES
        self._last = self._given = ArmedWarrant(
            generation=self._generation,
            victim=victim,
            level_bytes=level_bytes,
            armed_ns=self.clock_ns(),
            expires_ns=expires_ns,
            inputs=forecast.inputs,
            read=probe.result,
        )
        if not probe.arm(self._generation, mark.arrivals, active_most=active_most):
            self._given = None
            self.counted[_end(probe.result().outcome)] += 1
            raise NoWarrantError("a pod has outgrown its bound, or a cgroup has come, meanwhile")
        self._again_seconds = now_seconds + RENEWAL_SECONDS

    def _placed_victim(self, probe: WarrantProbe, victim: Pod | None) -> PlacedPod:
        """Return the victim as the kernel knows it, with what is spared of it. Raises NoWarrantError."""
        if victim is None:
            raise NoWarrantError("no pod may be evicted")
        if victim.process_victim is not None:
            raise NoWarrantError(f"of {victim.key} one process is killed, not the pod")
        placed = self._known.placed.get(victim.uid)
        if placed is not None and self._known.are_spared_others(placed):
            self._known.remove(probe, victim.uid)
            self._changed.set()  # looked up again
            placed = None
        if placed is None or self._known.is_missing(victim):
            raise NotKnownYetError(f"{victim.key} is not known to the kernel yet")
        if not self.reads.holds(placed.pod):
            raise NoWarrantError(f"{placed.pod.key} is not prepared to be killed")
        return placed

    @staticmethod
    def _certain(forecast: Forecast, threshold: Threshold, expected: Pod, ahead: Ahead) -> CertainVictim:
        """Return the victim of the crossing. Raises NoWarrantError where that is not certainly this pod."""
        awake = forecast.inputs.pods
        # Those that are asleep may live again.
        for pods in ((*awake, *forecast.asleep), awake) if forecast.asleep else (awake,):
            found = certain_victim(forecast.inputs._replace(pods=pods), threshold, ahead)
            if isinstance(found, str):
                raise NoWarrantError(found)
            if found.pod.uid != expected.uid:
                raise NoWarrantError(f"{found.pod.key} may come before {expected.key} by then")
            victim = found
        return victim

    def _nearest(self, forecast: Forecast) -> _Crossing:
        """Return the crossing that is near.

        Of several parents each is given all that is left, which is no crossing yet. At the farther level no
        other crossing may be half as near. Raises NoWarrantError for none.
        """
        memory = forecast.inputs.snapshot.signals
        close: list[_Crossing] = []
        distant: list[_Crossing] = []
        alongside = 0
        for level in self._levels:
            seen = memory.get(level.signal)
            if seen is None or seen.absurdity is not None:
                continue
            wanted_bytes = int(level.threshold.value.of(seen.capacity))
            left_bytes = seen.available - wanted_bytes
            farthest_bytes, *_, near_bytes = ahead_bytes(seen.capacity)
            alongside += left_bytes <= 2 * farthest_bytes
            crossing = _Crossing(level, seen.capacity - wanted_bytes, left_bytes, near_bytes)
            if left_bytes <= near_bytes:
                close.append(crossing)
            elif left_bytes <= farthest_bytes:
                distant.append(crossing)
        found = close or (distant if alongside == 1 else [])
        if len(found) != 1:
            raise NoWarrantError(f"{'more than one' if found else 'no'} crossing is near")
        crossing = found[0]
        level, seen = crossing.level, memory[crossing.level.signal]
        usage_bytes = memory_level(level.threshold, seen)
        if level.working_set_bytes is None:
            raise NoWarrantError("no one counter tells of the crossing that is near")
        if crossing.left_bytes <= 0 and self._given is None:
            raise NoWarrantError(f"{level.threshold} is crossed already")
        if usage_bytes is None or usage_bytes >= seen.capacity - DRIFT_BYTES:
            raise NoWarrantError("page cache has lifted the crossing to the capacity")
        return crossing

    def _outside(self, level: MemoryLevel, forecast: Forecast) -> _Outside | None:
        """Return what bounds memory that may be reclaimed first, None where there is no reclaim or no bound.

        The policy goes by all parents of pods, where they have a signal of their own. Of one cgroup below
        that of the crossing the kernel can count what comes to it.
        """
        settings, state, snapshot, _, now_seconds = forecast.inputs
        may_reclaim = may_be_due(settings, state, now_seconds, now_seconds + EXPIRY_SECONDS)
        parents = Signal.ALLOCATABLE_MEMORY_AVAILABLE
        cgroup, signal = level.cgroup, level.signal
        if parents in snapshot.signals:
            cgroup, signal = self.reads.parents[0] if len(self.reads.parents) == 1 else _MACHINE, parents
        is_counted = CgroupTree.holds(level.cgroup, cgroup)
        if not may_reclaim or cgroup == _MACHINE or not is_counted:
            return None
        return _Outside(cgroup, signal)

    def _outside_bytes(self, outside: _Outside, pods: Sequence[Pod]) -> int | None:
        """Return the working set that no pod holds, as the policy will see it; None where it is not known.

        The pods are read first: what they take until the node is read makes it no smaller.
        """
        used = self.reads.usages.of([pod.uid for pod in pods])
        seen = self.reads.memory().get(outside.signal)
        return None if seen is None else memory_outside_pods(seen, pods, used)

    def _counter_of(self, cgroup: str) -> int:
        """Return the address of a cgroup's counter, 0 for the machine. Raises NoWarrantError."""
        if cgroup == _MACHINE:
            return 0
        known = self._watched.get(cgroup)
        if known is None or known.cgroup_id != os.stat(self.tree.path(cgroup)).st_ino:
            self._changed.set()  # looked up again
            raise NotKnownYetError(f"{cgroup} is not known to the kernel yet")
        return known.memory

    def _bound(
        self, probe: WarrantProbe, victim: PlacedPod, margin_bytes: int, asleep: Collection[str]
    ) -> dict[str, int]:
        """Bound every pod that the kernel knows; return the bounds in bytes, by uid. The victim has none.

        What those that are asleep hold belongs to no pod: it may not grow at all.
        """
        charged = self.reads.usages.charged_bytes(self._known.placed)
        bounds: dict[str, int] = {}
        for uid, placed in self._known.placed.items():
            most_bytes = charged.get(uid, 0) + (0 if uid in asleep else margin_bytes)
            pages = UNUSED if placed is victim else most_bytes // PAGE_BYTES
            bounds[uid] = pages * PAGE_BYTES
            probe.bound(placed.place, pages)
        return bounds


def _least_bytes(usages: PodObserver, uid: str, margin_bytes: int) -> int:
    """Return what a pod's working set is at least for as long as its usage holds: page cache may grow old."""
    used = usages.of([uid]).get(uid)
    cached_bytes = usages.active_file_bytes(uid)
    if used is None or used.memory_working_set_bytes is None or cached_bytes is None:
        return 0
    return max(0, used.memory_working_set_bytes - cached_bytes - margin_bytes)


def _end(of_void: WarrantOutcome) -> WarrantEnd:
    return WarrantEnd.__members__.get(of_void.name, WarrantEnd.UNKNOWN)


def _wake() -> Wake:
    return Wake(source=NAME, kind=WakeKind.MEMORY, at_ns=time.monotonic_ns())


def _report(state: SourceState) -> None:
    level = logging.WARNING if state.health is SourceHealth.FAILED else logging.INFO
    _LOG.log(level, "warrants: %s%s", state.health, f": {state.detail}" if state.detail else "")
