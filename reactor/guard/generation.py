"""One generation: everything that a configuration decides, and the loop over it. A reload begins the next."""

from __future__ import annotations

import gc
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from reactor.act.target import is_seen_populated
from reactor.guard.ahead import Ahead, LastStretch
from reactor.guard.disk_check import DiskCheck
from reactor.guard.evictor import Evictor
from reactor.guard.filesystem_facts import FilesystemFacts
from reactor.guard.housekeeping import Housekeeping
from reactor.guard.node import Node
from reactor.guard.parts import Parts, PodList
from reactor.guard.pass_ import Passes
from reactor.guard.record import PassRecord
from reactor.guard.recorder import OnPass
from reactor.guard.reports import Report, problem
from reactor.guard.steward_link import StewardLink
from reactor.guard.usage_facts import StorageCounts
from reactor.kernel.cgroup import CgroupTree, CgroupVersion
from reactor.kernel.memory_high import BorrowedHighs
from reactor.kernel.swap import SWAP_EVENTS
from reactor.model.decisions import Hold
from reactor.model.kills import OomKill
from reactor.model.name_patterns import fences
from reactor.model.pods import Pod
from reactor.model.rules import Acts, Firing, RuleAction
from reactor.model.settings import (
    KernelKill,
    MemoryAvailable,
    OomOrderMode,
    Settings,
    SystemdOomd,
)
from reactor.model.signals import MEMORY_SIGNALS, Layout, Reclaim, Signal
from reactor.model.thresholds import Observation
from reactor.model.wakes import SourceHealth, SourceState, Wake, WakeKind
from reactor.observe.node import NodeObserver
from reactor.observe.oom_kills import PodOomKills
from reactor.observe.pods import PodObserver
from reactor.oom_scores.order import OomOrder
from reactor.oom_scores.pods import ManifestScores
from reactor.policy.attention import Pace, grace_period_ended, look_again_seconds
from reactor.policy.events import ProcessOver
from reactor.policy.holds import goes_on
from reactor.policy.storm import is_hard_memory, memory_slowdowns
from reactor.reclaim.memory import CgroupReclaim, PodReclaim
from reactor.reclaim.reclaims import NodeReclaim, Reclaims
from reactor.reclaim.runner import Reclaimed, ReclaimJob, ReclaimRunner
from reactor.sources.catalogue import TICKER
from reactor.sources.levels import MemoryLevel, MemoryLevels
from reactor.sources.memory import MemorySource
from reactor.sources.oom import OomSource
from reactor.sources.processes import ProcessSource, process_levels
from reactor.sources.swap import SwapWatch
from reactor.sources.ticker import Ticker
from reactor.sources.wakes import SourceBoard, Wakes
from reactor.supervisor import LONGEST_PAUSE_SECONDS, StartedPart, Supervisor
from reactor.warrants.warrants import Reads, Warrants
from reactor.workloads.pods import Workloads

if TYPE_CHECKING:
    from reactor.rules.managed import ManagedOomRules
    from reactor.rules.watch import RuleWatch

_LOG: Final = logging.getLogger("reactor.sources")
_HANGING_SECONDS: Final = 5.0
_RANKING_SECONDS: Final = 2.0  # for who takes how much of a full disk; then what is known has to do
_ARMING_SECONDS: Final = 1.0  # where nothing can be armed the ticker is left, and that is no reason to wait
_GLANCE_SECONDS: Final = 0.005  # at most, while evictions are slowed down; while no source is armed yet
# Near a hard threshold: page cache that goes while the pods grow lets cgroup v1's usage stand still, and a
# level that stays crossed tells nothing of a pod that comes and grows then.
_NEAR_GLANCE_SECONDS: Final = 0.01
_MOST_UNCOLLECTED: Final = 30  # housekeeping passes
_FEW_PODS: Final = 16  # a rehearsal takes 0.3 ms with these; with 110 it would hide the crossing for 2 ms
_EVICTION: Final = "eviction"
_GLANCE: Final = "glance"
_RECLAIM: Final = "reclaim"
_GRACE_PERIOD: Final = "grace-period"
_ARMING: Final = "arming"
_RECLAIMS, _MEMORY_RECLAIMS, _SOFT_RECLAIMS = "reclaim", "memory reclaim", "pod memory reclaim"  # jobs
_RULE_RECLAIMS: Final = "rule reclaim"


class Generation:
    """Owns its observers' descriptors until `close`. Makes its passes over what is known.

    What is known, the evictor, `highs`, the supervisor and the steward outlive it. `clock_seconds` is the
    clock of all that is known: a virtual one in tests.
    """

    def __init__(  # noqa: PLR0913 - what it is connected to
        self,
        settings: Settings,
        tree: CgroupTree,
        *,
        known: Node,
        evictor: Evictor,
        highs: BorrowedHighs,
        supervisor: Supervisor,
        steward: StewardLink,
        on_layout: Callable[[Layout], None] = lambda _: None,
        on_oom_kill: Callable[[OomKill], None] = lambda _: None,
        on_source: Callable[[SourceState], None] = lambda _: None,
        pods: PodList | None = None,
        oom_order: OomOrder | None = None,
        reclaims: Mapping[Reclaim, NodeReclaim] | None = None,
        warrants: Warrants | None = None,
        clock_seconds: Callable[[], float] = time.monotonic,
        arming_seconds: float = _ARMING_SECONDS,
    ) -> None:
        self.settings = settings
        self._arming_seconds = arming_seconds
        self._on_source = on_source
        self.board = SourceBoard(self._source_changed)
        self.wakes = Wakes()
        self._clock_seconds = clock_seconds
        self._node = NodeObserver(tree, settings)
        self._usages = PodObserver(
            tree,
            memory_available=settings.memory_available,
            counts_swap=settings.counts_swap,
            clock_seconds=self._clock_seconds,
        )
        self._levels = MemoryLevels(tree, settings, self._node)
        self._memory = MemorySource(tree, settings, self.wakes, self.board, highs)
        self._oom = OomSource(
            tree,
            settings,
            self.wakes,
            self.board,
            on_oom_kill,
            expect=self._expect_oom_victim,
        )
        self._swap = self._swap_watch(tree)
        self._processes = ProcessSource(tree, settings.sources, self.wakes, self.board)
        self._warrants = warrants  # also where there are to be none: one that was served may be left
        self._gives_warrants = (
            settings.kernel_kill is KernelKill.HARD
            and settings.memory_available is MemoryAvailable.WORKING_SET
            and not settings.dry_run
        )
        workloads: Workloads | None = None
        if pods is None:
            pods = workloads = Workloads(tree, settings)
        oom_kills = PodOomKills(tree)
        self._disk_check = DiskCheck(settings)
        self.parts = Parts(
            node=self._node,
            usages=self._usages,
            pods=pods,
            reclaims=Reclaims(reclaims),
            populated=partial(is_seen_populated, tree),
            arm_memory=self._arm,
            oom_kills=self._oom.take_now,
            oom_struck=oom_kills.struck,
            recount_oom_kills=oom_kills.recount,
            most_of_one_process=oom_kills.most_of_one_process,
            check_disk=self._disk_check.observe,
        )
        known.observed.stale_seconds = 3 * settings.housekeeping_interval_seconds + _HANGING_SECONDS
        self._pod_reclaim = PodReclaim(
            tree, counts_cache=settings.memory_available is MemoryAvailable.WORKING_SET
        )
        soft_reclaim_seconds = settings.eviction.soft_reclaim_seconds
        self._soft_reclaim_problem = (
            self._pod_reclaim.unavailable_because if soft_reclaim_seconds > 0 else None
        )
        self.passes = Passes(
            replace(
                settings.eviction,
                reclaims_memory=not settings.dry_run,
                soft_reclaim_seconds=soft_reclaim_seconds if self._soft_reclaim_problem is None else 0.0,
            ),
            self.parts,
            evictor,
            known,
            ahead=_order_for(settings, oom_order),
            kernel=self._warrants,
            dry_run=settings.dry_run,
            clock_seconds=self._clock_seconds,
        )
        if self._warrants is not None:
            reads = Reads(
                usages=self._usages,
                holds=evictor.holds,
                memory=self._node.memory,
                refresh_pods=self.passes.refresh_pods,
            )
            self._warrants.connect(
                self.wakes.notify, settings.measured_parents, reads, leave=self.wakes.leave
            )
        self._last_stretch = LastStretch(self._levels.usage_bytes, self.passes.approach.prepare)
        self._crossings: Sequence[MemoryLevel] = ()
        self._pace = Pace()
        supervisor.expect(_RECLAIMS, _MEMORY_RECLAIMS, _SOFT_RECLAIMS)
        self._reclaims_of_memory = ReclaimRunner()
        self._cgroup_reclaim = CgroupReclaim(tree, fences(settings.pod_parents))
        self.storage = StorageCounts(known, steward)
        self.filesystems = FilesystemFacts(
            steward,
            settings,
            known.observed,
            self.wakes,
            self.board,
            timeout_seconds=_HANGING_SECONDS,
            on_layout=on_layout,
            on_filling=partial(self.storage.due, urgent=True),
            clock_seconds=self._clock_seconds,
        )
        self.housekeeping = Housekeeping(
            self.parts,
            self.passes,
            self.filesystems,
            self.storage,
            self.wakes,
        )
        self._oom_scores = self._oom_scores_of(tree, workloads, known, oom_order)
        self._firings = RuleFirings(self.passes)
        self.rules = _rule_watch(tree, settings, self._firings, known.rules_acted, self.board, clock_seconds)
        self._rules_reclaim = any(rule.action is RuleAction.RECLAIM for rule in settings.rules)
        if self._rules_reclaim:
            supervisor.expect(_RULE_RECLAIMS)
        self.managed_oom = _managed_oom(settings, self.rules, clock_seconds)
        self._supervisor = supervisor
        self._scope = trio.CancelScope()
        self._reclaiming, self._uncollected = False, 0

    @property
    def reports(self) -> Iterator[Report]:
        """Yield what there is to report of what this configuration decides."""
        yield Report(problems=lambda: self.housekeeping.problems | self._disk_check.problems)
        yield Report(document=self.filesystems.document)
        soft_reclaim_problem = self._soft_reclaim_problem
        if soft_reclaim_problem is not None:
            because = f"has no effect: {soft_reclaim_problem}"
            yield Report(problems=lambda: {"reclaimBeforeSoft": because})
        scores, rules, managed = self._oom_scores, self.rules, self.managed_oom
        if scores is not None:
            yield Report(problems=problem("oom_score_adj of pods", lambda: scores.problem))
        documents = {"rules": list[dict[str, Any]]()} if rules is None else {}
        yield Report(
            problems=lambda: {} if rules is None else rules.problems,
            document=lambda: documents if rules is None else {"rules": rules.document()},
            explanation=lambda: documents if rules is None else {"rules": rules.document()},
        )
        if self._rules_reclaim and self._pod_reclaim.unavailable_because is not None:
            rules_because = f"has no effect: {self._pod_reclaim.unavailable_because}"
            yield Report(problems=lambda: {"rules: reclaim": rules_because})
        mode = {"mode": self.settings.systemd_oomd}
        yield Report(
            problems=lambda: {} if managed is None else managed.problems,
            document=lambda: {"systemd_oomd": mode if managed is None else {**mode, **managed.document()}},
        )

    def _swap_watch(self, tree: CgroupTree) -> SwapWatch | None:
        """Return what watches swap, None where no threshold is for it."""
        thresholds = [one for one in self.settings.eviction.thresholds if one.signal is Signal.SWAP_AVAILABLE]
        if not thresholds:
            return None
        node = self.settings.node_cgroup
        has_events = node is not None and tree.version is CgroupVersion.V2
        return SwapWatch(
            thresholds,
            lambda: self._node.swap().get(Signal.SWAP_AVAILABLE),
            self.wakes,
            self.board,
            events=tree.memory_root / f"{node}/{SWAP_EVENTS}".lstrip("/") if has_events else None,
            longest_seconds=self.settings.housekeeping_interval_seconds,
        )

    def _oom_scores_of(
        self,
        tree: CgroupTree,
        workloads: Workloads | None,
        known: Node,
        oom_order: OomOrder | None,
    ) -> ManifestScores | None:
        """Return what sets the scores of pods in manifests; None where there are none, or a kubelet does."""
        settings = self.settings
        wanted = settings.pod_oom_scores and settings.manifests_path is not None and not settings.dry_run
        if workloads is None or not wanted:
            return None

        def capacity_bytes() -> int | None:
            seen = known.observed.at(self._clock_seconds()).get(Signal.MEMORY_AVAILABLE)
            return None if seen is None else seen.capacity

        return ManifestScores(
            tree,
            lambda: workloads.specified(known.pods),
            capacity_bytes,
            interval_seconds=settings.housekeeping_interval_seconds,
            is_ordered=(lambda _: False) if oom_order is None else oom_order.is_ordered,
        )

    async def run(
        self,
        on_pass: OnPass,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Guard the node until cancelled; started once the sources are armed and a first pass was made.

        The sources of memory and process ids and the loop run in the open: what they raise ends this.
        Everything else is the supervisor's.
        """
        started = False
        with self._scope:
            with self._supervisor.hook("first list of pods").guard():
                await self.housekeeping.list_pods()
            async with trio.open_nursery() as nursery:
                # The first pass tells the sources which levels to arm.
                on_pass(self.passes.make(()))
                await nursery.start(self._memory.run)
                await nursery.start(self._processes.run)
                self._firings.on_pass = partial(self._by_rule, nursery, on_pass)
                self.wakes.attend_at_once(partial(self._attend, nursery, on_pass))
                nursery.start_soon(self._loop, nursery, on_pass)
                # No crossing waits for the parts: the kernel may take seconds to check one's programs.
                async with trio.open_nursery() as starting:
                    starting.start_soon(self._wait_armed, nursery, on_pass)
                    for name, part in self._parts().items():
                        await self._supervisor.start(
                            nursery, name, part, longest_pause_seconds=self._longest_pause_seconds
                        )
                started = True
                task_status.started()
        if not started:  # stopped by a reload that came before
            task_status.started()

    async def _wait_armed(self, nursery: trio.Nursery, on_pass: OnPass) -> None:
        """Wait for a moment until memory is watched, and look at it meanwhile: no source tells of it yet."""
        with trio.move_on_after(self._arming_seconds):
            while True:
                with trio.move_on_after(_GLANCE_SECONDS):
                    await self._memory.wait_armed()
                    return
                if self.passes.shortage_has_grown():
                    wake = Wake(source=_ARMING, kind=WakeKind.MEMORY, at_ns=time.monotonic_ns())
                    self._attend(nursery, on_pass, (wake,))

    def stop(self) -> None:
        """End `run`."""
        self._scope.cancel()

    async def _loop(self, nursery: trio.Nursery, on_pass: OnPass) -> None:
        while True:
            taken = await self._woken()
            if not taken:  # attended to at once: what is waited for may have changed
                continue
            self._pass(taken, nursery, on_pass)
            if any(wake.source == TICKER for wake in taken):
                self.housekeeping.due()
            if self._may_collect(taken):
                gc.collect()  # the collector is off (run)

    def _may_collect(self, taken: Sequence[Wake]) -> bool:
        """Return whether garbage may be collected: nothing is urgent after the housekeeping's own pass.

        It is where a crossing is near; there garbage is left for so many passes, but not for ever.
        """
        if any(wake.kind is not WakeKind.HOUSEKEEPING for wake in taken):
            return False
        self._uncollected = self._uncollected + 1 if self.passes.approach.is_near else 0
        if self._uncollected < _MOST_UNCOLLECTED:
            return not self.passes.approach.is_near
        self._uncollected = 0
        return True

    def _attend(
        self,
        nursery: trio.Nursery,
        on_pass: OnPass,
        taken: tuple[Wake, ...],
        reclaimed: tuple[Reclaimed, ...] = (),
    ) -> None:
        """Make a pass in the task of the source that woke; what goes wrong in it is not its fault.

        If it was an early wake, the crossing may follow at once, and is attended to here too.
        """
        try:
            self._pass(taken, nursery, on_pass, reclaimed)
            if len(self.passes.known.pods) > _FEW_PODS:
                return
            crossed = self._last_stretch.watch(self._crossings)
            if crossed is not None:
                wake = replace(taken[0], signal=crossed.signal, at_ns=time.monotonic_ns())
                self._pass((wake,), nursery, on_pass)
        except Exception as error:  # noqa: BLE001 - raised again, where it ends the generation
            nursery.start_soon(_raise, error)

    def _pass(
        self,
        taken: Sequence[Wake],
        nursery: trio.Nursery,
        on_pass: OnPass,
        reclaimed: tuple[Reclaimed, ...] = (),
    ) -> None:
        record = self.passes.make(taken)
        for followed in self.passes.take_followed():
            on_pass(followed)
        if not record.attempts:
            self._pace.passed((time.monotonic_ns() - record.times.started_ns) / 1e9)
        if reclaimed:
            record = replace(record, reclaimed=reclaimed)
        on_pass(record)
        self._expect_processes(record)
        if record.decision.reclaim and not self._reclaiming:
            self._reclaiming = True
            self._supervisor.jobs(nursery, _RECLAIMS).start_soon(self._give_back, record, on_pass)
        decision, held = record.decision, record.snapshot.pods
        if (hold := decision.memory_reclaim) is not None:
            available = partial(self._available_bytes, hold.signal)
            job = self._cgroup_reclaim.job(hold, self.passes.ended_cgroups(), available)
            jobs = self._supervisor.jobs(nursery, _MEMORY_RECLAIMS)
            jobs.start_soon(self._reclaim, hold, job, lambda: True, nursery, on_pass)
        if (hold := decision.soft_reclaim) is not None:
            available = partial(self._available_bytes, hold.signal)
            job = self._pod_reclaim.before_soft(hold, self.passes.evictable_cgroups(held), available)
            jobs = self._supervisor.jobs(nursery, _SOFT_RECLAIMS)
            jobs.start_soon(self._reclaim, hold, job, partial(self._goes_on, hold), nursery, on_pass)

    def _goes_on(self, hold: Hold) -> bool:
        return goes_on(self.passes.known.state, hold, self._clock_seconds())

    async def _reclaim(
        self,
        hold: Hold,
        job: ReclaimJob,
        may_go_on: Callable[[], bool],
        nursery: trio.Nursery,
        on_pass: OnPass,
    ) -> None:
        """Reclaim memory for which evictions wait, and make a pass when that is over."""
        reclaimed: tuple[Reclaimed, ...] = ()
        try:
            reclaimed = (await self._reclaims_of_memory.run(job, may_go_on),)
        finally:  # where a reload ends it, too
            self.passes.known.reclaim_ended(hold.kind, *reclaimed, began_seconds=hold.began_seconds)
        wake = Wake(source=_RECLAIM, kind=WakeKind.MEMORY, at_ns=time.monotonic_ns())
        self._attend(nursery, on_pass, (wake,), reclaimed)

    def _by_rule(self, nursery: trio.Nursery, on_pass: OnPass, record: PassRecord) -> None:
        """Take the record of a rule; one that reclaims has its record when that is over."""
        if not self.passes.is_to_reclaim(record.decision):
            on_pass(record)
            return
        self._supervisor.jobs(nursery, _RULE_RECLAIMS).start_soon(self._reclaim_by_rule, record, on_pass)

    async def _reclaim_by_rule(self, asked: PassRecord, on_pass: OnPass) -> None:
        reclaimed: tuple[Reclaimed, ...] = ()
        try:
            if asked.decision.rule is not None:
                job = self._pod_reclaim.by_rule(asked.decision.rule)
                reclaimed = (await self._reclaims_of_memory.run(job, self.passes.may_reclaim),)
        finally:  # where a reload ends it, too
            self.passes.known.reclaim_ended(Reclaim.RULE, *reclaimed)
            on_pass(replace(asked, reclaimed=reclaimed))

    def _available_bytes(self, signal: Signal) -> int | None:
        seen = self._node.memory().get(signal)
        return None if seen is None else seen.available

    def _expect_processes(self, record: PassRecord) -> None:
        seen = record.snapshot.signals.get(Signal.PID_AVAILABLE)
        thresholds = self.settings.eviction.thresholds
        self._processes.expect(process_levels(seen, thresholds, self._node.processes_of))

    async def _woken(self) -> Sequence[Wake]:
        """Return why to look: what the sources say, or what the loop alone can know of."""
        state = self.passes.known.state
        if self.passes.is_unfinished:
            return (Wake(source=_EVICTION, kind=WakeKind.MEMORY, at_ns=time.monotonic_ns()),)
        is_powerless = self.passes.is_powerless
        wait_seconds = look_again_seconds(
            state,
            self._clock_seconds(),
            pause_seconds=self._pace.between_passes_seconds(is_powerless=is_powerless),
            slowed_pause_seconds=self._pace.between_slowed_passes_seconds(),
        )
        until_seconds = trio.current_time() + max(0.0, wait_seconds)
        wanted_seconds, left_bytes = math.inf, 0
        if memory_slowdowns(state):
            wanted_seconds, left_bytes = _GLANCE_SECONDS, self.passes.left_bytes()
        elif self.passes.approach.is_near:
            wanted_seconds = _NEAR_GLANCE_SECONDS
        source = _EVICTION
        is_for_newcomers = is_powerless and not self.settings.dry_run and wanted_seconds < math.inf
        while True:
            glance_seconds = self._pace.between_looks_seconds(
                wanted_seconds, self._clock_seconds(), is_powerless=is_powerless, left_bytes=left_bytes
            )
            with trio.CancelScope(deadline=min(until_seconds, trio.current_time() + glance_seconds)):
                taken = await self._wakes_or_newcomer(waits=is_for_newcomers)
                if taken is not None:
                    return taken
            if trio.current_time() >= until_seconds:
                break
            began_ns = time.monotonic_ns()
            is_worth_a_pass = self.passes.is_worth_a_pass()
            self._pace.looked((time.monotonic_ns() - began_ns) / 1e9)
            if is_worth_a_pass:
                source = _GLANCE
                break
            if self.passes.approach.is_due(self._clock_seconds()):
                self.passes.approach.prepare()
        ended = grace_period_ended(state, self._clock_seconds())
        if ended - MEMORY_SIGNALS:
            self.housekeeping.due()  # they are acted on only when they have been looked at again
        source = _GRACE_PERIOD if ended else source
        return (Wake(source=source, kind=WakeKind.MEMORY, at_ns=time.monotonic_ns()),)

    async def _wakes_or_newcomer(self, *, waits: bool) -> Sequence[Wake] | None:
        """Return the wakes; None once a cgroup has come or gone, where that `waits` for a pod to evict.

        A process comes into its pod some time after the cgroup, and no event reports it. So a newcomer is
        observed often for a second.
        """
        changed_fd = self.parts.pods.changed_fd() if waits else -1
        if changed_fd < 0 or self._pace.is_hurried(self._clock_seconds()):
            return await self.wakes.wait()
        taken = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._await_newcomer, changed_fd, nursery.cancel_scope)
            taken = await self.wakes.wait()
            nursery.cancel_scope.cancel()
        return taken

    async def _await_newcomer(self, changed_fd: int, waiting: trio.CancelScope) -> None:
        await trio.lowlevel.wait_readable(changed_fd)
        self._pace.hurry(self._clock_seconds())
        waiting.cancel()

    def gone(self, uid: str) -> bool:
        """Take note that an evicted pod has ended, and look whether that was enough; see Passes.pod_ended."""
        if not self.passes.pod_ended(uid):
            if uid in self.passes.known.lingering:
                self.storage.due(urgent=True)
            return False
        self.housekeeping.due()
        self.wakes.notify(Wake(source=_EVICTION, kind=WakeKind.PROCESSES, at_ns=time.monotonic_ns()))
        return True

    def process_over(self, uid: str) -> None:
        """Take note that a process which was to end alone has, or will not; look whether that was enough."""
        self.passes.known.tell(ProcessOver(uid=uid))
        self.wakes.notify(Wake(source=_EVICTION, kind=WakeKind.MEMORY, at_ns=time.monotonic_ns()))

    def emptied(self) -> None:
        """Take note that an evicted pod's files have been removed, and look whether that was enough."""
        self.passes.ignore_older_disk_observations()
        self.storage.due(urgent=True)
        self.housekeeping.due()

    def close(self) -> None:
        """Close every descriptor."""
        self._node.close()
        self._usages.close()
        self._levels.close()

    def _source_changed(self, state: SourceState) -> None:
        _report(state)
        self._on_source(state)

    def _expect_oom_victim(self, kill: OomKill) -> None:
        self.passes.oom_killed(kill)

    def _arm(self, memory: Mapping[Signal, Observation]) -> None:
        levels = self._levels.of(memory)
        self._crossings = [level for level in levels if level.threshold.is_hard and not level.is_early]
        self._memory.arm(levels)
        if self._warrants is not None:
            self._warrants.levels(self._crossings)

    async def _give_back(self, asked: PassRecord, on_pass: OnPass) -> None:
        try:
            on_pass(await self.passes.give_back(asked, self._look_at_disks, self.filesystems.look))
        finally:
            self._reclaiming = False

    async def _look_at_disks(self) -> None:
        """Observe the filesystems again, and which pod takes how much of them: one may have to be chosen."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.filesystems.look)
            nursery.start_soon(self.storage.look, _RANKING_SECONDS)

    @property
    def _longest_pause_seconds(self) -> float:
        """Return the longest pause before a part is restarted: one turn of housekeeping may be missed."""
        return min(LONGEST_PAUSE_SECONDS, self.settings.housekeeping_interval_seconds)

    def _parts(self) -> Mapping[str, StartedPart]:
        """Return what is restarted where it fails; the ticker last, because it wakes the loop at once."""
        oom_scores = {} if self._oom_scores is None else {"oom scores": self._oom_scores.run}
        warrants = {}
        if self._warrants is not None and self._gives_warrants:
            warrants["warrants"] = self._warrants.run
        return {
            **oom_scores,
            **warrants,
            "oom kills": self._oom.run,
            **({} if self._swap is None else {"swap": self._swap.run}),
            "filesystems": self.filesystems.run,
            "storage": self.storage.run,
            "housekeeping": self.housekeeping.run,
            **({} if self.managed_oom is None else {"systemd's units": self.managed_oom.run}),
            **({} if self.rules is None else {"rules": self.rules.run}),
            "ticker": Ticker(self.settings.housekeeping_interval_seconds, self.wakes, self.board).run,
        }


class RuleFirings:
    """Has passes do what rules ask for; `on_pass` takes the records."""

    def __init__(self, passes: Passes) -> None:
        self.on_pass: OnPass = lambda _: None
        self.usage_of = passes.usage_of
        self.why_waits = passes.why_waits
        self._passes = passes

    @property
    def pods(self) -> Sequence[Pod]:
        """Return the pods of the node."""
        return self._passes.known.pods

    def fire(self, firing: Firing, amounts: Mapping[str, int]) -> bool:
        """Do it and record it; return whether the rule acted, and is not waiting for something."""
        record = self._passes.fire(firing, amounts)
        self.on_pass(record)
        return not record.decision.waits


def _rule_watch(
    tree: CgroupTree,
    settings: Settings,
    firings: RuleFirings,
    acted: dict[str, Acts],
    board: SourceBoard,
    clock_seconds: Callable[[], float],
) -> RuleWatch | None:
    """Return what observes the operator's rules, imported only where there are any: most nodes have none."""
    if not settings.rules and settings.systemd_oomd is SystemdOomd.IGNORE:
        return None
    from reactor.rules.watch import RuleWatch  # noqa: PLC0415

    triggers = None
    if settings.sources.psi:
        from reactor.rules.pressure import RulePressure  # noqa: PLC0415

        triggers = RulePressure(board)
    return RuleWatch(tree, settings.rules, firings, acted, clock_seconds=clock_seconds, triggers=triggers)


def _managed_oom(
    settings: Settings, rules: RuleWatch | None, clock_seconds: Callable[[], float]
) -> ManagedOomRules | None:
    """Return what adds the rules of systemd's units, imported only where they count."""
    if rules is None or settings.systemd_oomd is SystemdOomd.IGNORE:
        return None
    from reactor.rules.managed import ManagedOomRules  # noqa: PLC0415

    return ManagedOomRules(rules.add, settings.pod_parents, clock_seconds=clock_seconds)


def _order_for(settings: Settings, oom_order: OomOrder | None) -> Sequence[Ahead]:
    """Return what sets the OOM killer's order; restore the scores if the order is off.

    Without a hard memory threshold there is no early level, and a dry run writes nothing.
    """
    if oom_order is None:
        return ()
    is_guarded = any(is_hard_memory(threshold) for threshold in settings.eviction.thresholds)
    if settings.oom_order is OomOrderMode.LEAVE or settings.dry_run or not is_guarded:
        oom_order.far()
        return ()
    return (oom_order,)


async def _raise(error: Exception) -> None:
    raise error


def _report(state: SourceState) -> None:
    level = logging.INFO if state.health in {SourceHealth.ARMED, SourceHealth.OFF} else logging.WARNING
    _LOG.log(level, "source %s: %s%s", state.name, state.health, f": {state.detail}" if state.detail else "")
