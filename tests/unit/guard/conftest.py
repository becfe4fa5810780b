"""A node of plain values for the loop: what it shows is set by the test, what is ended is noted down."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
import trio

from reactor.act.kill_path import KillPath
from reactor.act.one_process import Chosen, NoProcessError, OneProcess
from reactor.act.reap import KillReport, ReapReport
from reactor.guard.ahead import NoKernelKills
from reactor.guard.build import Features, Lasting
from reactor.guard.evictor import Evictor
from reactor.guard.node import Node
from reactor.guard.observations import Observations
from reactor.guard.outbox import RecordQueue
from reactor.guard.pass_ import Passes
from reactor.guard.record import EvictionAttempt, PassRecord
from reactor.guard.recorder import Recorder, Tally
from reactor.guard.reports import Report, Reports
from reactor.guard.steward_link import StewardLink
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.memory_control import BorrowedHighs
from reactor.model.decisions import Eviction
from reactor.model.kills import OomKill, OomScope
from reactor.model.pods import Pod, PodUsage
from reactor.model.rules import Firing
from reactor.model.settings import EvictionSettings, KernelKill, OomOrderMode, Settings, SystemdOomd
from reactor.model.signals import Filesystem, Reclaim, Signal
from reactor.model.thresholds import Observation, Observed, Threshold
from reactor.model.wakes import SourceState, Wake, WakeKind
from reactor.oom_scores.order import OomOrder, _Wanted
from reactor.policy.events import ProcessOver
from reactor.policy.forecast import Ahead
from reactor.reclaim.reclaims import ReclaimReport, Reclaims
from reactor.sources.levels import MemoryLevel
from reactor.supervisor import Supervisor
from reactor.warrants.warrants import Warrants
from tests.support.builders import make_observation, make_pod, make_threshold

MIB = 1 << 20
WAKE = Wake(source="memcg-eventfd", kind=WakeKind.MEMORY, at_ns=1)


class FakeNode:
    """Shows the observations in `memory_seen` and `processes_seen`."""

    def __init__(self) -> None:
        self.memory_seen = {Signal.MEMORY_AVAILABLE: make_observation(400 * MIB)}
        self.processes_seen: dict[Signal, Observation] = {}
        self.swap_seen: dict[Signal, Observation] = {}
        self.swap_reads = 0
        self.has_swap = True
        self.problems: dict[str, str] = {}

    def memory(self) -> Mapping[Signal, Observation]:
        return self.memory_seen

    def processes(self) -> Mapping[Signal, Observation]:
        return self.processes_seen

    def swap(self) -> Mapping[Signal, Observation]:
        self.swap_reads += 1
        return self.swap_seen


class FakeUsages:
    """Shows `seen`; counts how often it was asked for it, and calls `meanwhile` when it is.

    Of what has ended nothing is seen any more, but for the uids in `stays`.
    """

    def __init__(self) -> None:
        self.meanwhile: Callable[[], None] = lambda: None
        self.seen: dict[str, PodUsage] = {}
        self.tracked: tuple[Pod, ...] = ()
        self.shared: dict[str, int] = {}
        self.cached: dict[str, int] = {}
        self.stays: set[str] = set()
        self.vanished: frozenset[str] = frozenset()
        self.unseen: set[str] = set()
        self.memory_reads = 0
        self.bound_reads = 0
        self.wide_reads = 0
        self.one_by_one: list[str] = []  # that were read before a decision
        self.swap_notes = 0
        self.full_reads = 0
        self.processes_asked = False

    def track(self, pods: Sequence[Pod]) -> None:
        self.tracked = tuple(pods)

    def memory(self, between: Callable[[], object] = bool) -> Mapping[str, PodUsage]:
        self.memory_reads += 1
        self.meanwhile()
        between()
        return self.seen

    def full(self) -> Mapping[str, PodUsage]:
        self.full_reads += 1
        return self.seen

    def of(
        self, uids: Iterable[str], *, with_processes: bool = False, with_containers: bool = False
    ) -> Mapping[str, PodUsage]:
        self.meanwhile()
        self.processes_asked = with_processes
        if with_containers:
            uids = tuple(uids)
            self.one_by_one += uids
        return {uid: self.seen[uid] for uid in uids if uid in self.seen}

    def bounds(self, between: Callable[[], object] = bool) -> tuple[dict[str, int], dict[str, PodUsage]]:
        self.bound_reads += 1
        between()
        bounds = {
            uid: (one.memory_working_set_bytes or 0) + self.cached.get(uid, 0)
            for uid, one in self.seen.items()
            if not one.unreadable
        }
        return bounds, {uid: one for uid, one in self.seen.items() if one.unreadable}

    def wide_bounds(
        self, uids: Iterable[str]
    ) -> tuple[dict[str, int], dict[str, PodUsage], AbstractSet[str]] | None:
        self.wide_reads += 1
        bounds, used = self.bounds()
        self.bound_reads -= 1
        if used:
            return None
        first = set(uids)
        left = sum(charged for uid, charged in bounds.items() if uid not in first)
        wide = {uid: charged if uid in first else left for uid, charged in bounds.items()}
        return wide, {}, first & wide.keys()

    def note_swap(self, *, has_swap: bool) -> None:
        del has_swap
        self.swap_notes += 1

    def charged_bytes(self, uids: Iterable[str]) -> Mapping[str, int]:
        found = {uid: self.seen[uid].memory_working_set_bytes for uid in uids if uid in self.seen}
        return {uid: held for uid, held in found.items() if held is not None}

    def shared_memory_bytes(self, uid: str) -> int | None:
        return self.shared.get(uid)

    def active_file_bytes(self, uid: str) -> int | None:
        return self.cached.get(uid)


class FakePods:
    """Lists `present`."""

    def __init__(self) -> None:
        self.present: tuple[Pod, ...] = ()
        self.problems: dict[str, str] = {}

    async def listed(self) -> tuple[Pod, ...]:
        return self.present

    def refresh(self) -> tuple[Pod, ...]:
        return self.present


class NoProcesses:
    """Finds no process that is killed alone."""

    def prepare(self, pods: Sequence[Pod], gives_way: Callable[[], bool]) -> None: ...

    def choose(self, pod: Pod, used_bytes: int | None, **_: object) -> Chosen:
        raise NoProcessError(f"{pod.key}: none among {used_bytes} bytes")

    kill_first = choose


class FakeKills:
    """Notes who was killed and terminated; `fails_with` is raised instead, `reaped` releases reap.

    No process is in the pods in `empty`.

    `meanwhile` is what happens while a pod is being killed.
    """

    def __init__(self) -> None:
        self.killed: list[str] = []
        self.ready: list[str] = []
        self.terminated: list[tuple[str, float]] = []
        self.fails_with: Exception | None = None
        self.reaped = trio.Event()
        self.ends_by_itself = False
        self.is_gone = False
        self.empty: set[str] = set()
        self.meanwhile: Callable[[], None] = lambda: None
        self.one_process: Any = NoProcesses()

    def prepare(self, pods: Sequence[Pod]) -> None:
        self.ready = [pod.name for pod in pods]

    def holds(self, pod: Pod) -> bool:
        return pod.name in self.ready

    def kill_now(self, pod: Pod) -> KillReport:
        self.meanwhile()
        if self.fails_with is not None:
            raise self.fails_with
        self.killed.append(pod.name)
        return KillReport(
            killed_ns=time.monotonic_ns(),
            processes=0 if self.is_gone or pod.name in self.empty else 3,
            is_gone=self.is_gone,
            is_empty=pod.name in self.empty,
        )

    async def reap(self, _: Pod, deadline_seconds: float = 10.0) -> ReapReport:
        with trio.move_on_after(deadline_seconds):
            await self.reaped.wait()
            return ReapReport(freed_ns=time.monotonic_ns())
        return ReapReport(freed_ns=None, problems=("still there",))

    async def terminate(
        self, pod: Pod, grace_period_seconds: float, still_wanted: Callable[[], bool] = lambda: True
    ) -> KillReport | None:
        self.terminated.append((pod.name, grace_period_seconds))
        await trio.sleep(grace_period_seconds)
        return None if self.ends_by_itself or not still_wanted() else self.kill_now(pod)


class FakeReclaim:
    """Notes for which filesystems it was asked, calls `then`, and reports `did` and `problems`."""

    def __init__(self, then: Callable[[], None] = lambda: None, did: str = "vacuumed") -> None:
        self.then = then
        self.did: tuple[str, ...] = (did,)
        self.problems: tuple[str, ...] = ()
        self.asked: list[tuple[Filesystem, ...]] = []

    async def run(self, filesystems: Collection[Filesystem]) -> ReclaimReport | None:
        self.asked.append(tuple(filesystems))
        self.then()
        return ReclaimReport(did=self.did, problems=self.problems)


class RecordedOrder(OomOrder):
    """Records which pod is to go first by the OOM killer, None for none."""

    def __init__(self, ordered: list[str | None]) -> None:
        self._ordered = ordered

    def _want(self, wanted: _Wanted | None) -> None:
        self._ordered.append(None if wanted is None else wanted.first.name)


class Nothing:
    """Neither asks nor does anything about an eviction after its order: a pod that has ended is gone."""

    def is_wanted(self, eviction: Eviction) -> bool:
        return bool(eviction)

    def pod_ended(self, uid: str) -> bool:
        return bool(uid)

    async def before_soft(self, _: Eviction) -> tuple[str, ...] | None:
        return None

    async def remove_files(self, _: Pod) -> tuple[str, ...]:
        return ()

    def files_removed(self) -> None: ...

    def process_over(self, uid: str) -> None: ...

    def measure_result(self, attempt: EvictionAttempt) -> None: ...


class FakeOomSource:
    """Reports the kills in `oom_kills`."""

    def __init__(self, loop: FakeLoop) -> None:
        self._loop = loop

    def take_now(self) -> Sequence[OomKill]:
        return self._loop.oom_kills()


class FakeOomKills:
    """Shows in which pods the kernel has killed, and counts how often it was to count afresh."""

    def __init__(self, loop: FakeLoop) -> None:
        self._loop = loop

    def recount(self, _: Sequence[Pod]) -> None:
        self._loop.recounts += 1

    def struck(self, _: Sequence[Pod]) -> Sequence[str]:
        return self._loop.oom_struck

    def most_of_one_process(self, _: Pod, held_bytes: int) -> int:
        return held_bytes


class FakeLoop(Nothing):
    """The loop's passes over a node of plain values, with a clock that the test sets."""

    def __init__(
        self,
        nursery: trio.Nursery,
        thresholds: Sequence[Threshold],
        *,
        dry_run: bool,
        max_pod_grace_period_seconds: int,
        commands_for: Collection[Filesystem] = (),
        reclaims_memory: bool = False,
        soft_reclaim_seconds: float = 0.0,
        unhelpful_eviction_pause_seconds: float = 0.0,
        warrants: Warrants | None = None,
        one_process: OneProcess | None = None,
    ) -> None:
        self.now_seconds = 1000.0
        self.node, self.usages, self.pods, self.kills = FakeNode(), FakeUsages(), FakePods(), FakeKills()
        self.reclaims: dict[Reclaim, FakeReclaim] = {}
        self.armed: list[Mapping[Signal, Observation]] = []
        self.gone: list[str] = []
        self.populated: set[str] = set()
        self.oom_kills: Callable[[], Sequence[OomKill]] = tuple
        self.oom_struck: tuple[str, ...] = ()
        self.recounts = 0
        self.ordered: list[str | None] = []  # who was to go first by the OOM killer, at each call
        self.features: Sequence[Ahead] = (RecordedOrder(self.ordered),)
        self.known = Node(observed=Observed(stale_seconds=35.0), clock_seconds=lambda: self.now_seconds)
        if one_process is not None:
            self.kills.one_process = one_process
        self.evictor = Evictor(
            self.kills,
            nursery,
            self.known,
            lambda: self,
            deadline_seconds=10.0,
            dry_run=dry_run,
        )
        self.on_pass: Callable[[PassRecord], None] = lambda _: None
        self.passes = self.passes_by(
            EvictionSettings(
                thresholds=tuple(thresholds),
                max_pod_grace_period_seconds=max_pod_grace_period_seconds,
                commands_for=frozenset(commands_for),
                reclaims_memory=reclaims_memory,
                soft_reclaim_seconds=soft_reclaim_seconds,
                unhelpful_eviction_pause_seconds=unhelpful_eviction_pause_seconds,
            ),
            kernel=warrants,
            dry_run=dry_run,
        )
        if warrants is not None:
            warrants.reads = replace(
                warrants.reads,
                usages=self.usages,
                holds=self.evictor.holds,
                memory=self.node.memory,
                refresh_pods=self.passes.observations.refresh_pods,
            )

    def passes_by(
        self, settings: EvictionSettings, *, kernel: Warrants | None = None, dry_run: bool = False
    ) -> Passes:
        """Return passes over the node by these settings."""
        kills = kernel or NoKernelKills()
        self.known.settings = settings
        seen = Observations(
            node=self.known,
            observer=self.node,
            usages=self.usages,
            pod_list=self.pods,
            is_populated=lambda pod: pod.uid in self.populated,
            oom_source=FakeOomSource(self),
            oom_kills=FakeOomKills(self),
            ahead=(self.evictor, *self.features, kills),
            kernel=kills,
        )
        seen.report_pods()
        return Passes(
            observations=seen,
            evictor=self.evictor,
            reclaims=Reclaims(self.reclaims),
            arm_memory=self._arm,
            dry_run=dry_run,
        )

    def _arm(self, memory: Mapping[Signal, Observation]) -> Sequence[MemoryLevel]:
        """Note what is armed by; where the crossings are a test of warrants says itself."""
        self.armed.append(memory)
        kernel = self.passes.observations.kernel
        return kernel._levels if isinstance(kernel, Warrants) else ()

    def pass_time(self) -> None:
        """Let a moment pass."""
        self.now_seconds += 0.001

    @property
    def wake_passes(self) -> Self:
        return self

    def run_pass(self, wakes: Sequence[Wake], *, firing: Firing) -> PassRecord:
        """Make a pass for a rule, and record it."""
        record = self.passes.make(wakes, firing)
        for one in (*self.passes.take_earlier(), record):
            self.on_pass(one)
        return record

    def have(self, *pods: Pod, working_set_bytes: int = 50 * MIB) -> None:
        """Put these pods on the node."""
        self.pods.present = pods
        self.passes.observations.set_pods(pods)
        self.usages.seen = {
            pod.uid: PodUsage(memory_working_set_bytes=working_set_bytes, process_count=1) for pod in pods
        }

    def is_wanted(self, eviction: Eviction) -> bool:
        return self.passes.results.confirm(eviction)

    def process_over(self, uid: str) -> None:
        self.known.apply(ProcessOver(uid=uid))

    def measure_result(self, attempt: EvictionAttempt) -> None:
        uid = attempt.eviction.pod.uid
        if uid not in self.usages.stays:
            self.usages.seen = {other: used for other, used in self.usages.seen.items() if other != uid}
        self.passes.results.measure_result(attempt)

    def pod_ended(self, uid: str) -> bool:
        gone = self.passes.results.pod_ended(uid)
        if gone:
            self.gone.append(uid)
        return gone


def lasting(tree: CgroupTree, settings: Settings, kills: KillPath, **more: Any) -> Lasting:
    """Return what outlives the configurations of a daemon that has just started, with no steward."""
    found: dict[str, Any] = {
        "known": Node(observed=Observed(stale_seconds=35.0)),
        "features": Features(tree, Path("/nonexistent/state.json")),
        "highs": BorrowedHighs(),
        "steward": StewardLink(RecordQueue("now/1"), {}, settings, lambda _: None),
        "supervisor": Supervisor(),
    }
    return Lasting(tree=tree, kills=kills, **{**found, **more})


class FakeFilesystems:
    """A node whose filesystems the steward observes."""

    def document(self):
        return {"layout": "single", "layout_by_devices": "single", "filesystems": []}


@pytest.fixture(name="observation")
def _observation():
    return make_observation


@pytest.fixture(name="make_threshold")
def _make_threshold():
    return make_threshold


@pytest.fixture(name="make_pod")
def _make_pod():
    return make_pod


@pytest.fixture
def make_loop(nursery):
    def make(
        *thresholds: Threshold,
        dry_run: bool = False,
        max_pod_grace_period_seconds: int = 0,
        commands_for: Collection[Filesystem] = (),
        reclaims_memory: bool = False,
        soft_reclaim_seconds: float = 0.0,
        unhelpful_eviction_pause_seconds: float = 0.0,
        warrants: Warrants | None = None,
        one_process: OneProcess | None = None,
    ) -> FakeLoop:
        return FakeLoop(
            nursery,
            thresholds or [make_threshold(100 * MIB)],
            dry_run=dry_run,
            max_pod_grace_period_seconds=max_pod_grace_period_seconds,
            commands_for=commands_for,
            reclaims_memory=reclaims_memory,
            soft_reclaim_seconds=soft_reclaim_seconds,
            unhelpful_eviction_pause_seconds=unhelpful_eviction_pause_seconds,
            warrants=warrants,
            one_process=one_process,
        )

    return make


@pytest.fixture
def make_reclaim():
    return FakeReclaim


@pytest.fixture
def fake_kills():
    return FakeKills()


# What else there is to report, of a daemon in which nothing of it is configured.
NOTHING_MORE: dict[str, Any] = {
    "oom_order": {"mode": OomOrderMode.LEAVE},
    "kernel_kill": {"mode": KernelKill.OFF},
    "rules": [],
    "systemd_oomd": {"mode": SystemdOomd.IGNORE},
    "oom_kills": {"counted": dict.fromkeys(OomScope, 0)},
    "parts": [],
    "processes": {},
    "shutdown": {},
    "health": {},
}


@pytest.fixture
def make_view(make_loop, make_threshold, nursery):
    """A view of a loop, and the loop."""

    def make(*sources: SourceState):
        thresholds = (make_threshold(100 * MIB), make_threshold(200 * MIB, grace_period_seconds=30))
        loop = make_loop(*thresholds)
        recorder = Recorder(RecordQueue("now"), Tally(), patience_seconds=10)

        settings = Settings(eviction=EvictionSettings(thresholds=thresholds), node_cgroup="/node")

        def view() -> Reports:
            others = (
                Report(document=FakeFilesystems().document),
                Report(document=lambda: NOTHING_MORE, explanation=lambda: {"rules": []}),
                Report(problems=lambda: {"journal": "full"}),
            )
            return Reports(settings=settings, known=loop.known, others=others, sources=sources)

        def make_pass() -> None:
            recorder.record(loop.passes.make([WAKE]), nursery)

        return loop, view, make_pass

    return make
