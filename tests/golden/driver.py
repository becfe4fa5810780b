"""A seeded node of plain values on a virtual clock, through the policy's passes and events.

Pods grow, fork, fill disks and are restarted, something outside leaks, the kernel kills, reclaims come to
something or not, and what is evicted takes its time to end. All amounts and instants are exact in binary, and
each choice comes from the seed, so that equal policies give equal lines.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from fractions import Fraction
from multiprocessing import get_context
from typing import Any, Final

from reactor.model.decisions import Decision, Eviction, Snapshot
from reactor.model.kills import OomKill, OomScope, ProcessMemory
from reactor.model.pod_lists import Preference, ProcessVictim
from reactor.model.pods import ContainerUsage, FilesystemUsage, Pod, PodUsage, QosClass, Volume
from reactor.model.quantity import parse_quantity
from reactor.model.rules import Condition, Firing, Measure, Metric, RankedBy, Rule, RuleAction, RuleInput
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Filesystem, Resource, Signal
from reactor.model.thresholds import Observation, Threshold, ThresholdValue
from tests.golden.core import Core
from tests.golden.decisions import decision_document
from tests.golden.files import line

SEEDS: Final = 200
STEPS: Final = 200
WHOLE: Final = 6  # seeds of which each line is recorded; of the others a digest

MIB: Final = 1 << 20
_MEMORY: Final = 1024 * MIB
_SWAP: Final = 512 * MIB
_PIDS: Final = 1000
_DISK: Final = 4096 * MIB
_INODES: Final = 4000
_TICKS: Final = (1, 1, 2, 6, 16, 64, 64, 320, 2000)  # of 1/64 s
_MOST_PODS: Final = 9
_RULE: Final = Condition(Metric(Measure.PRESSURE, "memory full avg10"), 40.0)
COVERED: Final = {
    "evictions": '"grace":',
    "soft": '"softReclaim":',
    "reclaimed": '"memoryReclaim":',
    "reclaims": '"reclaim":',
    "unhelpful": '"unhelpful":',
    "no victim": '"noVictim":',
    "absurd": '"absurd":',
    "deferred": '"deferredBecause":',
    "dying": "still to be freed by golden/",
    "files": "files in memory are not removed yet",
    "process": "still to be freed by process",
    "struck": "killed by the kernel's OOM killer",
    "nameless": "the kernel's OOM killer has killed a process",
    "not counted": "frees is not known yet",
    "outside": "outside-pods:",
    "in vain": "evicting does not help",
    "of hard": "evictions for hard memory thresholds in the last minute",
    "rate": "rate: ",
    "no holder": "no pod is evicted for it",
    "reclaim awaited": "that belong to no pod are being reclaimed first",
    "soft awaited": "are being reclaimed from the pods first",
    "rule waits": "thresholds evict first",
    "rule in flight": "the memory of an earlier victim is still being freed",
    "rule slowed": "evictions are slowed down",
    "rule reclaims": "is being reclaimed by a rule",
    "rule no pod": "that is not being evicted already",
    "rule never": "no pod there may be evicted",
    "called off": "is called off",
}


def lines_of(seed: int, steps: int = STEPS) -> list[str]:
    """Return what a seed's passes decided, a line each, after what has happened before it."""
    return [line(one) for one in _Node(seed).run(steps)]


def whole() -> list[str]:
    """Return the lines of those seeds that are recorded line by line."""
    return [line({"seed": seed, **one}) for seed in range(WHOLE) for one in _Node(seed).run(STEPS)]


def digest_of(seed: int, steps: int = STEPS) -> dict[str, Any]:
    """Return a digest of a seed's lines, and how often it has each of what the seeds are to cover."""
    lines = lines_of(seed, steps)
    joined = "\n".join(lines)
    return {
        "seed": seed,
        "sha256": hashlib.sha256(joined.encode("utf-8")).hexdigest()[:32],
        "passes": len(lines),
        **{what: count for what, text in COVERED.items() if (count := joined.count(text))},
    }


def digests(seeds: Sequence[int] = range(SEEDS)) -> list[dict[str, Any]]:
    """Return the seeds' digests, made by as many new processes as there are CPUs: none counts coverage."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as processes:
        return list(processes.map(digest_of, seeds, chunksize=10))


@dataclass(slots=True)
class _Pod:
    """A pod and what it uses; `dying` once it was killed, `kill_at_seconds` while in its grace period."""

    pod: Pod
    held: int
    files: int = 0  # of what it holds: in tmpfs, which outlives it
    swap: int = 0
    processes: int = 1
    disk: int = 0
    inodes: int = 0
    is_counted: bool = True
    dying: bool = False
    sticky: bool = False
    kill_at_seconds: float | None = None
    process: ProcessMemory | None = None
    spared_until_seconds: float | None = None

    def usage(self, *, counts_swap: bool, counts_disk: bool) -> PodUsage:
        layer = FilesystemUsage(used_bytes=self.disk, inodes_used=self.inodes)
        disk: dict[str, Any] = {}
        if counts_disk:
            disk = {
                "containers": (ContainerUsage(name="main", rootfs=layer, logs=FilesystemUsage()),),
                "ephemeral_storage_bytes": self.disk,
                "volumes": {"scratch": FilesystemUsage(used_bytes=self.disk // 4, inodes_used=2)},
            }
        return PodUsage(
            memory_working_set_bytes=self.held,
            process_count=self.processes,
            swap_bytes=self.swap if counts_swap else None,
            **disk,
        )


def _value(draw: random.Random, *amounts: int) -> ThresholdValue:
    amount = draw.choice(amounts)
    return ThresholdValue(text=str(amount), amount=Fraction(amount))


def _settings(draw: random.Random) -> EvictionSettings:
    thresholds = [_memory(draw, Signal.MEMORY_AVAILABLE)] if draw.random() < 0.8 else []
    if draw.random() < 0.4:
        thresholds.append(_memory(draw, Signal.ALLOCATABLE_MEMORY_AVAILABLE))
    if draw.random() < 0.6:
        soft = _value(draw, 160 * MIB, 200 * MIB, 320 * MIB)
        thresholds.append(
            Threshold(
                signal=Signal.MEMORY_AVAILABLE, value=soft, grace_period_seconds=draw.choice((5.0, 30.0))
            )
        )
    others = {
        Signal.PID_AVAILABLE: (100, 200),
        Signal.SWAP_AVAILABLE: (64 * MIB, 128 * MIB),
        Signal.NODEFS_AVAILABLE: (400 * MIB, 1024 * MIB),
        Signal.NODEFS_INODES_FREE: (400, 1000),
    }
    for signal, amounts in others.items():
        if draw.random() < 0.35:
            grace_seconds = draw.choice((0.0, 0.0, 10.0))
            thresholds.append(
                Threshold(signal=signal, value=_value(draw, *amounts), grace_period_seconds=grace_seconds)
            )
    return EvictionSettings(
        thresholds=tuple(thresholds),
        pressure_transition_period_seconds=draw.choice((0.0, 30.0, 300.0)),
        max_pod_grace_period_seconds=draw.choice((-1, 0, 5)),
        local_storage_capacity_isolation=draw.random() < 0.5,
        evictions_per_minute=draw.choice((None, None, 1, 3)),
        hard_memory_evictions_per_minute=draw.choice((None, None, None, 3, 8)),
        unhelpful_eviction_pause_seconds=draw.choice((0.0, 10.0, 10.0)),
        minimum_victim=draw.choice((None, None, _value(draw, 8 * MIB, 32 * MIB))),
        in_flight_deadline_seconds=draw.choice((2.0, 10.0)),
        reclaims_memory=draw.random() < 0.5,
        soft_reclaim_seconds=draw.choice((0.0, 2.5)),
        ranks_swap=draw.random() < 0.2,
        commands_for=frozenset({Filesystem.NODEFS}) if draw.random() < 0.2 else frozenset(),
        evicts_holders_only=draw.random() < 0.3,
        rechecks_disks=draw.random() < 0.3,
    )


def _memory(draw: random.Random, signal: Signal) -> Threshold:
    reclaim = draw.choice((None, None, _value(draw, 16 * MIB, 64 * MIB)))
    value = _value(draw, 64 * MIB, 100 * MIB, 150 * MIB)
    return Threshold(signal=signal, value=value, minimum_reclaim=reclaim)


@dataclass(slots=True)
class _Reclaims:
    """When reclaims of memory that are under way are over; None: none is."""

    memory_until: float | None = None
    soft_until: float | None = None
    rule_until: float | None = None


@dataclass(slots=True)
class _Node:
    seed: int
    draw: random.Random = field(init=False)
    core: Core = field(init=False)
    signals: set[Signal] = field(init=False)
    now_seconds: float = 1000.0
    pods: dict[str, _Pod] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)  # charged to cgroups of pods that are gone, by uid
    outside: int = 100 * MIB
    image_bytes: int = 1024 * MIB
    made: int = 0
    last_pid: int = 100
    pids: set[int] = field(default_factory=set)  # of killed processes that have not exited
    is_nameless: bool = False
    disk_seen_at: float = 1000.0
    disk_seen: dict[Signal, Observation] = field(default_factory=dict)
    reclaims: _Reclaims = field(default_factory=_Reclaims)
    before: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draw = random.Random(f"golden {self.seed}")
        self.core = Core(_settings(self.draw))
        self.signals = {one.signal for one in self.core.settings.thresholds}
        for _ in range(self.draw.randrange(2, 7)):
            self._new_pod()

    def run(self, steps: int) -> Iterator[dict[str, Any]]:
        for _ in range(steps):
            self.now_seconds += self.draw.choice(_TICKS) / 64
            self._go_on()
            for _ in range(self.draw.randrange(1, 4)):
                self._happen()
            for decision in self._pass():
                yield self._report(decision)
            if self.draw.random() < 0.08:
                yield self._report(self._fire())

    def _report(self, decision: Decision) -> dict[str, Any]:
        happened, self.before = self.before, []
        return {"before": happened, **decision_document(decision)}

    # What happens by itself.

    def _new_pod(self) -> None:
        draw, name = self.draw, f"pod-{self.made}"
        self.made += 1
        request = draw.choice((0, 0, 32, 128)) * MIB
        pod = Pod(
            name=name,
            namespace="golden",
            uid=f"u{self.made - 1}",
            priority=draw.choice((0, 0, 0, -5, 100)),
            qos_class=QosClass.BURSTABLE if request else QosClass.BEST_EFFORT,
            critical_because="static pod" if draw.random() < 0.1 else None,
            preference=draw.choice((Preference.NONE,) * 6 + tuple(Preference)),
            process_victim=ProcessVictim(entry="unit session") if draw.random() < 0.15 else None,
            termination_grace_period_seconds=draw.choice((0, 1, 30)),
            requests={Resource.MEMORY: request} if request else {},
            ephemeral_storage_limit=parse_quantity("1Gi") if draw.random() < 0.1 else None,
            volumes=(Volume(name="scratch", is_empty_dir=True),),
            cgroup=f"/node/{name}",
        )
        held = draw.randrange(1, 120) * MIB
        self.pods[pod.uid] = _Pod(
            pod=pod, held=held, disk=draw.randrange(200) * MIB, inodes=draw.randrange(1, 300)
        )

    def _some(self) -> _Pod | None:
        living = [one for one in self.pods.values() if not one.dying]
        return self.draw.choice(living) if living else None

    def _happen(self) -> None:
        happen, some = self.draw.choice(_HAPPENINGS), self._some()
        if some is not None:
            happen(self, some)
        elif len(self.pods) < _MOST_PODS:
            self._new_pod()

    def _grow(self, some: _Pod) -> None:
        growth = self.draw.choice((1, 4, 16, 64, 128)) * MIB
        growth = min(growth, self._free())
        some.held += growth
        if self.draw.random() < 0.2:
            some.files += growth // 2
        if self.draw.random() < 0.3:
            some.swap += min(16 * MIB, _SWAP - sum(one.swap for one in self.pods.values()))

    def _shrink(self, some: _Pod) -> None:
        some.held -= some.held // self.draw.choice((2, 4, 16))
        some.files = min(some.files, some.held)
        some.swap //= 2

    def _join(self, _: _Pod) -> None:
        if len(self.pods) < _MOST_PODS:
            self._new_pod()

    def _leak(self, _: _Pod) -> None:
        self.outside += min(self.draw.choice((1, 8, 32, 128)) * MIB, self._free())

    def _mend(self, _: _Pod) -> None:
        self.outside -= self.outside // self.draw.choice((2, 3, 8))

    def _fork(self, some: _Pod) -> None:
        free = _PIDS - sum(one.processes for one in self.pods.values())
        some.processes += max(0, min(self.draw.choice((1, 10, 100, 400)), free - 20))

    def _write(self, some: _Pod) -> None:
        some.disk += max(0, min(self.draw.choice((10, 100, 800)) * MIB, self._disk_free() - 64 * MIB))
        some.inodes += self.draw.choice((1, 50, 400))
        some.is_counted = self.draw.random() < 0.8

    def _exit(self, some: _Pod) -> None:
        del self.pods[some.pod.uid]
        self.before.append(f"{some.pod.uid} exits")

    def _cannot_be_ended(self, some: _Pod) -> None:
        if some.pod.critical_because is None:
            self._spare(some)

    def _spare(self, some: _Pod) -> None:
        some.pod = replace(some.pod, critical_because="its eviction failed", could_not_be_ended=True)
        some.spared_until_seconds = self.now_seconds + 30
        self.before.append(f"{some.pod.uid} can't be evicted")

    def _kernel_kills(self, some: _Pod) -> None:
        draw = self.draw
        scope = draw.choice((OomScope.NODE, OomScope.NODE, OomScope.UNKNOWN, OomScope.OWN_LIMIT))
        taken = some.held // draw.choice((1, 2, 4))
        is_named = draw.random() < 0.5
        pid = self._pid() if is_named else None
        kill = OomKill(
            source="golden",
            scope=scope,
            at_ns=1,
            pid=pid,
            victim_bytes=taken if draw.random() < 0.8 else None,
        )
        self.core.kernel_killed(kill, some.pod.uid if is_named else None, self.now_seconds)
        self.is_nameless = self.is_nameless or not is_named
        self.before.append(f"kernel kills in {some.pod.uid}, {scope}, pid {pid}")
        if draw.random() < 0.8:
            some.held -= taken
            some.files = min(some.files, some.held)

    def _pid(self) -> int:
        self.last_pid += 1
        self.pids.add(self.last_pid)
        return self.last_pid

    def _free(self) -> int:
        return max(
            0, _MEMORY - self.outside - sum(one.held for one in self.pods.values()) - sum(self.left.values())
        )

    def _disk_free(self) -> int:
        return _DISK - self.image_bytes - sum(one.disk for one in self.pods.values())

    # What goes on from before.

    def _go_on(self) -> None:
        draw, now_seconds = self.draw, self.now_seconds
        for uid, one in list(self.pods.items()):
            if one.spared_until_seconds is not None and now_seconds >= one.spared_until_seconds:
                one.pod = replace(one.pod, critical_because=None, could_not_be_ended=False)
                one.spared_until_seconds = None
            if one.kill_at_seconds is not None:
                self._in_grace(one)
            if one.dying and draw.random() < (0.1 if one.sticky else 0.7):
                self._die(uid, one)
        self._exit_processes()
        for uid in list(self.left):
            if draw.random() < 0.1:
                self.left[uid] //= 2
                if self.left[uid] < MIB:
                    del self.left[uid]
        if self.left and draw.random() < 0.3:
            self.core.files_observed(self.left)
        self._end_reclaims()
        self._find_struck()

    def _exit_processes(self) -> None:
        for pid in sorted(self.pids):
            if self.draw.random() < 0.4:
                self.pids.discard(pid)
                self.core.processes_exited({pid})
                self.before.append(f"process {pid} has exited")

    def _in_grace(self, one: _Pod) -> None:
        uid, over = one.pod.uid, self.now_seconds >= (one.kill_at_seconds or 0.0)
        if not over and self.draw.random() >= 0.1:
            return
        one.kill_at_seconds = None
        if not over and self.draw.random() < 0.5:
            self.core.eviction_called_off(uid)
            self.before.append(f"{uid} is called off")
            one.process = None
        elif one.process is None:
            one.dying = True
        elif over:
            self.core.process_killed(one.pod, one.process, self.now_seconds)
            self._lose(one)
        else:
            self.core.process_over(uid)
            self._lose(one)

    def _lose(self, one: _Pod) -> None:
        if one.process is not None:
            self.before.append(f"process {one.process.pid} of {one.pod.uid} is killed")
            one.held -= min(one.held, one.process.resident_bytes)
            one.files = min(one.files, one.held)
            one.process = None

    def _die(self, uid: str, one: _Pod) -> None:
        """Have a pod end a little more, or at last."""
        if one.held - one.files > 2 * MIB and self.draw.random() < 0.6:
            one.held = one.files + (one.held - one.files) // 2
            one.processes = max(1, one.processes // 2)
            return
        files = one.files if one.files >= MIB else 0
        charged = files + self.draw.choice((0, 0, 1, 12)) * MIB
        self.core.pod_ended(uid, files, self.draw.choice((None, charged, charged)))
        self.before.append(f"{uid} has ended, leaves {files} of {charged}")
        if charged:
            self.left[uid] = charged
        if self.draw.random() < 0.35:  # started again, as a service of systemd's is
            self.pods[uid] = _Pod(
                pod=one.pod, held=self.draw.randrange(1, 40) * MIB, disk=one.disk, inodes=one.inodes
            )
            self.left.pop(uid, None)
        else:
            del self.pods[uid]

    def _end_reclaims(self) -> None:
        until, now_seconds = self.reclaims, self.now_seconds
        if until.memory_until is not None and now_seconds >= until.memory_until:
            until.memory_until = None
            self.outside -= self.outside // self.draw.choice((2, 4, 64))
            self.core.memory_reclaim_over()
            self.before.append("memory reclaim is over")
        if until.soft_until is not None and (now_seconds >= until.soft_until or self.core.is_dying):
            until.soft_until = None
            for one in self.pods.values():
                one.held -= one.held // 8
                one.files = min(one.files, one.held)
            self.core.soft_reclaim_over()
            self.before.append("soft reclaim is over")
        if until.rule_until is not None and now_seconds >= until.rule_until - self.draw.choice((0, 2)):
            until.rule_until = None
            self.core.rule_reclaim_over()
            self.before.append("reclaim by a rule is over")

    def _find_struck(self) -> None:
        """Find the pods in which the kernel has killed without a name, as each pass does."""
        draw = self.draw
        if (self.is_nameless or self.core.expects_a_victim_without_name) and draw.random() < 0.6:
            self.is_nameless = False
            struck = [uid for uid in self.pods if draw.random() < 0.4]
            if struck:
                held = {uid: self.pods[uid].held for uid in struck}
                largest = {uid: amount // draw.choice((1, 2)) for uid, amount in held.items()}
                self.core.pods_struck(held, self.now_seconds, largest)
                self.before.append(f"struck: {','.join(struck)}")
            return
        struck_before = self.core.struck
        if struck_before:
            known = {uid: self.pods[uid].held if uid in self.pods else 0 for uid in struck_before}
            self.core.struck_pods_observed(known, self.now_seconds)

    # Passes.

    def _snapshot(self, *, all_signals: bool = False) -> Snapshot:
        signals: dict[Signal, Observation] = {}
        pods_bytes = sum(one.held for one in self.pods.values()) + sum(self.left.values())
        self._show(signals, Signal.MEMORY_AVAILABLE, _MEMORY - self.outside - pods_bytes, _MEMORY)
        self._show(
            signals, Signal.ALLOCATABLE_MEMORY_AVAILABLE, _MEMORY * 7 // 8 - pods_bytes, _MEMORY * 7 // 8
        )
        self._show(
            signals, Signal.PID_AVAILABLE, _PIDS - sum(one.processes for one in self.pods.values()), _PIDS
        )
        self._show(signals, Signal.SWAP_AVAILABLE, _SWAP - sum(one.swap for one in self.pods.values()), _SWAP)
        if not self.disk_seen or all_signals or self.draw.random() < 0.2:
            self.disk_seen_at, self.disk_seen = self.now_seconds, {}
            self._show(self.disk_seen, Signal.NODEFS_AVAILABLE, self._disk_free(), _DISK)
            inodes = _INODES - sum(one.inodes for one in self.pods.values())
            self._show(self.disk_seen, Signal.NODEFS_INODES_FREE, inodes, _INODES)
        signals |= self.disk_seen
        counts_swap = Signal.SWAP_AVAILABLE in self.signals or self.core.settings.ranks_swap
        used = {
            uid: one.usage(counts_swap=counts_swap, counts_disk=bool(self.disk_seen) and one.is_counted)
            for uid, one in self.pods.items()
            if self.draw.random() >= 0.005
        }
        used |= {uid: PodUsage(memory_working_set_bytes=charged) for uid, charged in self.left.items()}
        return Snapshot(signals=signals, pods=used)

    def _show(
        self, signals: dict[Signal, Observation], signal: Signal, available: int, capacity: int
    ) -> None:
        if signal in self.signals:
            if self.draw.random() < 0.003:
                available = capacity + 1  # absurd
            signals[signal] = Observation(
                available=max(0, available), capacity=capacity, taken_at_seconds=self.now_seconds
            )

    def _listed(self) -> tuple[Pod, ...]:
        return tuple(one.pod for one in self.pods.values())

    def _pass(self) -> Iterator[Decision]:
        draw, pods = self.draw, self._listed()
        snapshot = None if draw.random() < 0.01 else self._snapshot()
        decision = self.core.decide(snapshot, pods, self.now_seconds)
        yield decision
        if snapshot is None:
            return
        if decision.memory_reclaim is not None:
            self.reclaims.memory_until = self.now_seconds + draw.choice((16, 32, 64)) / 64
        if decision.soft_reclaim is not None:
            self.reclaims.soft_until = self.now_seconds + draw.choice((32, 160, 640)) / 64
        if decision.reclaim:
            before = snapshot
            self.now_seconds += draw.choice((1, 64, 640)) / 64
            if draw.random() < 0.4:
                self.image_bytes -= self.image_bytes // draw.choice((2, 8))
            if draw.random() < 0.3:
                self._happen()
            pods = self._listed()
            after = None if draw.random() < 0.05 else self._snapshot(all_signals=True)
            if draw.random() < 0.8:
                before = before._replace(pods={**before.pods, **self._snapshot().pods})
            decision = self.core.after_reclaim(decision, before, after, pods, self.now_seconds)
            yield decision
            snapshot = before
        for eviction in decision.evictions:
            self._order(eviction, snapshot, pods)

    def _order(self, eviction: Eviction, snapshot: Snapshot, pods: Sequence[Pod]) -> None:
        draw, one = self.draw, self.pods.get(eviction.pod.uid)
        if one is None:
            return
        if draw.random() < 0.05:
            self._spare(one)
            return
        if eviction.is_of_one_process and draw.random() < 0.7:
            share = draw.choice((1, 2, 4))
            process = ProcessMemory(
                pid=self._pid(),
                name="x",
                anonymous_bytes=(one.held - one.files) // share,
                shared_bytes=0,
                swap_bytes=0,
            )
            self.core.process_eviction_ordered(eviction, process, self.now_seconds, snapshot, pods)
            one.process = process
            if eviction.grace_period_seconds:
                one.kill_at_seconds = self.now_seconds + eviction.grace_period_seconds
            else:
                self._lose(one)
            return
        held = draw.choice((None, one.held, one.held + 8 * MIB))
        self.core.eviction_ordered(eviction, self.now_seconds, snapshot, pods, held)
        self.before.append(f"{eviction.pod.uid} is evicted")
        one.sticky, one.process = draw.random() < 0.1, None
        if eviction.grace_period_seconds:
            one.kill_at_seconds = self.now_seconds + eviction.grace_period_seconds
        else:
            one.dying, one.kill_at_seconds = True, None

    def _fire(self) -> Decision:
        draw = self.draw
        action = draw.choice(_ACTIONS)
        rule = Rule(
            name=f"rule-{action}",
            cgroups=("/node",),
            conditions=(_RULE,),
            for_seconds=10,
            action=action,
            by=draw.choice(tuple(RankedBy)),
            reclaim_seconds=5.0,
        )
        firing = Firing(
            rule=rule,
            cgroup=draw.choice(("/node", *(pod.cgroup or "/" for pod in self._listed()))),
            since_seconds=self.now_seconds - 20,
            at_seconds=self.now_seconds,
            inputs=(RuleInput(_RULE, 50.0, 40.0, 60.0),),
        )
        snapshot, pods = self._snapshot(), self._listed()
        amounts: Mapping[str, int] = {pod.uid: draw.randrange(1000) for pod in pods if draw.random() < 0.8}
        decision = self.core.fire(firing, snapshot, pods, amounts)
        if action is RuleAction.RECLAIM and not decision.waits:
            self.reclaims.rule_until = self.now_seconds + rule.reclaim_seconds
        for eviction in decision.evictions:
            self._order(eviction, snapshot, pods)
        return decision


# One more would draw everything anew: a mark decides nothing about pods (tests/unit/rules/test_watch.py).
_ACTIONS: Final = (RuleAction.REPORT, RuleAction.EVICT, RuleAction.EVICT_WORST, RuleAction.RECLAIM)
_HAPPENINGS: Final = (
    *(_Node._grow,) * 10,
    *(_Node._shrink,) * 2,
    *(_Node._leak,) * 3,
    *(_Node._mend,) * 1,
    *(_Node._fork,) * 3,
    *(_Node._write,) * 3,
    *(_Node._join,) * 4,
    _Node._exit,
    _Node._kernel_kills,
    _Node._cannot_be_ended,
)
