"""The loop over one configuration: what it waits for, and the reclaims that follow a pass.

The pass of a memory wake is made at once (pass_.py). The loop waits for all other wakes. It observes
unasked what no source reports: victims that free their memory, evictions that are slowed down, a crossing
that is near, the end of a grace period.

How often it does follows from what the last pass has cost (policy/attention.py).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVarTuple

import trio

from reactor.act.protect import collect_garbage
from reactor.errors import failure_text
from reactor.guard.filesystem_facts import FilesystemFacts, empty, run_hooks
from reactor.guard.pass_ import Passes, WakePasses
from reactor.guard.record import EvictionAttempt, PassRecord
from reactor.guard.recorder import OnPass
from reactor.guard.reports import Report
from reactor.guard.steward_link import StewardLink
from reactor.guard.usage_facts import StorageCounts
from reactor.link.documents import UNASKED
from reactor.model.decisions import Eviction, Hold
from reactor.model.pods import Pod
from reactor.model.settings import Settings
from reactor.model.signals import MEMORY_SIGNALS, Signal
from reactor.model.wakes import Wake, WakeKind
from reactor.policy.attention import CACHE_CHECK_SECONDS, grace_period_ended, next_pass_seconds
from reactor.policy.events import ProcessOver
from reactor.policy.holds import goes_on
from reactor.policy.storm import memory_slowdowns
from reactor.reclaim.memory import MemoryReclaim
from reactor.reclaim.runner import Reclaimed, ReclaimJob, ReclaimRunner
from reactor.sources.catalogue import TICKER
from reactor.sources.levels import MemoryChain, MemoryLevels
from reactor.sources.processes import ProcessChain, process_levels
from reactor.sources.wakes import Wakes
from reactor.supervisor import LONGEST_PAUSE_SECONDS, StartedPart, Supervisor, report_changes

_RANKING_SECONDS: Final = 2.0  # for who takes how much of a full disk; then what is known has to do
ARMING_SECONDS: Final = 1.0  # where nothing can be armed the ticker is left, and that is no reason to wait
_OBSERVE_SECONDS: Final = 0.005  # at most, while evictions are slowed down; while no source is armed yet
# Near a hard threshold: page cache that goes while the pods grow lets cgroup v1's usage stand still, and a
# level that stays crossed reports no pod that comes and grows then.
_NEAR_SECONDS: Final = 0.01
_MOST_UNCOLLECTED: Final = 30  # housekeeping passes
_EVICTION: Final = "eviction"
_RECLAIM: Final = "reclaim"
_GRACE_PERIOD: Final = "grace-period"
_ARMING: Final = "arming"
_RECLAIMS, _MEMORY_RECLAIMS, _SOFT_RECLAIMS = "reclaim", "memory reclaim", "pod memory reclaim"  # jobs

_Arguments = TypeVarTuple("_Arguments")


@dataclass(eq=False, kw_only=True)
class Loop:
    """Makes the passes of one configuration, and owns its observers' descriptors until `close`.

    What is known, the evictor, the supervisor and the steward outlive it. `parts` are restarted where they
    fail, and started in their order; `reports` are of what this configuration decides.
    """

    settings: Settings
    passes: Passes
    wakes: Wakes
    levels: MemoryLevels
    memory: MemoryChain
    processes: ProcessChain
    housekeeping: Housekeeping
    memory_reclaim: MemoryReclaim
    supervisor: Supervisor
    steward: StewardLink
    arming_seconds: float = ARMING_SECONDS
    parts: Mapping[str, StartedPart] = field(default_factory=dict)
    reports: Sequence[Report] = ()
    wake_passes: WakePasses = field(init=False)
    reclaim_runner: ReclaimRunner = field(default_factory=ReclaimRunner)
    _scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    _reclaiming: bool = False
    _uncollected: int = 0

    def __post_init__(self) -> None:
        self.wake_passes = WakePasses(self.passes, self.levels, self._begin_reclaims, self._expect_processes)
        self._pace = self.wake_passes.pace
        self._clock_seconds = self.passes.known.clock_seconds
        self.supervisor.expect(_RECLAIMS, _MEMORY_RECLAIMS, _SOFT_RECLAIMS)

    async def run(
        self, on_pass: OnPass, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Guard the node until cancelled; started once the sources are armed and a first pass was made.

        The sources of memory and process ids and the loop run in the open: what they raise ends this.
        Everything else is the supervisor's.
        """
        started = False
        # Of a part: one turn of housekeeping may be missed.
        longest_pause_seconds = min(LONGEST_PAUSE_SECONDS, self.settings.housekeeping_interval_seconds)
        with self._scope:
            with self.supervisor.hook("first list of pods").guard():
                await self.housekeeping.list_pods()
            async with trio.open_nursery() as nursery:
                # The first pass arms the levels of the sources.
                self.wake_passes.begin(nursery, on_pass)
                on_pass(self.passes.make(()))
                await nursery.start(self.memory.run)
                await nursery.start(self.processes.run)
                self.wakes.run_memory_pass_inline(self.wake_passes.on_memory_wake)
                nursery.start_soon(self._loop)
                # No crossing waits for the parts: the kernel may take seconds to check one's programs.
                async with trio.open_nursery() as starting:
                    starting.start_soon(self._wait_armed)
                    for name, part in self.parts.items():
                        await self.supervisor.start(
                            nursery, name, part, longest_pause_seconds=longest_pause_seconds
                        )
                started = True
                task_status.started()
        if not started:  # stopped by a reload that came before
            task_status.started()

    async def _wait_armed(self) -> None:
        """Wait for a moment until memory is watched, and observe it meanwhile: no source reports it yet."""
        with trio.move_on_after(self.arming_seconds):
            while True:
                with trio.move_on_after(_OBSERVE_SECONDS):
                    await self.memory.wait_armed()
                    return
                if self.passes.observations.shortage_has_grown():
                    wake = Wake(source=_ARMING, kind=WakeKind.MEMORY, at_ns=time.monotonic_ns())
                    self.wake_passes.on_memory_wake((wake,))

    def stop(self) -> None:
        self._scope.cancel()

    async def _loop(self) -> None:
        while True:
            taken = await self._next_wakes()
            if not taken:  # attended to at once: what is waited for may have changed
                continue
            if self._is_left_to_housekeeping(taken):
                self.housekeeping.due()
                continue
            self.wake_passes.run_pass(taken)
            if any(wake.source == TICKER for wake in taken):
                self.housekeeping.due()
            elif self._may_collect(taken):
                collect_garbage()

    def _is_left_to_housekeeping(self, taken: Sequence[Wake]) -> bool:
        """Return whether the pass of the housekeeping, a moment later, does for that of the ticker as well.

        At rest that is so: the kernel watches memory, of which no more is used than was seen last.
        """
        state, passes = self.passes.known.state, self.passes
        return (
            all(wake.source == TICKER for wake in taken)
            and self.memory.is_armed
            and not self.housekeeping.is_unfinished
            and not (state.claims or state.first_observed or state.slowdowns or passes.approach.is_near)
            and not passes.is_worth_a_pass()
        )

    def _may_collect(self, taken: Sequence[Wake]) -> bool:
        """Return whether garbage may be collected: after the housekeeping's pass, seldom if it is urgent."""
        if any(wake.kind is not WakeKind.HOUSEKEEPING for wake in taken):
            return False
        is_urgent = self.passes.approach.is_near or bool(self.passes.known.state.claims)
        self._uncollected = self._uncollected + 1 if is_urgent else 0
        if self._uncollected < _MOST_UNCOLLECTED:
            return not is_urgent
        self._uncollected = 0
        return True

    def _begin_reclaims(self, record: PassRecord) -> None:
        decision, held = record.decision, record.snapshot.pods
        if decision.reclaim and not self._reclaiming:
            self._reclaiming = True
            self.start(_RECLAIMS, self._reclaim_node, record)
        if (hold := decision.memory_reclaim) is not None:
            available = partial(self._available_bytes, hold.signal)
            job = self.memory_reclaim.of_no_pod(hold, self.passes.observations.ended_cgroups(), available)
            self.start(_MEMORY_RECLAIMS, self._reclaim, hold, job, lambda: True)
        if (hold := decision.soft_reclaim) is not None:
            available = partial(self._available_bytes, hold.signal)
            job = self.memory_reclaim.before_soft(
                hold, self.passes.observations.evictable_cgroups(held), available
            )
            self.start(_SOFT_RECLAIMS, self._reclaim, hold, job, partial(self._goes_on, hold))

    def _goes_on(self, hold: Hold) -> bool:
        return goes_on(self.passes.known.state, hold, self._clock_seconds())

    def start(
        self, name: str, job: Callable[[*_Arguments], Awaitable[None]], *arguments: *_Arguments
    ) -> None:
        """Start a job beside the loop, which ends with it; see supervisor.Jobs."""
        if self.wake_passes.nursery is not None:
            self.supervisor.jobs(self.wake_passes.nursery, name).start_soon(job, *arguments)

    async def _reclaim(self, hold: Hold, job: ReclaimJob, may_go_on: Callable[[], bool]) -> None:
        reclaimed: tuple[Reclaimed, ...] = ()
        try:
            reclaimed = (await self.reclaim_runner.run(job, may_go_on),)
        finally:  # where a reload ends it, too
            self.passes.known.reclaim_ended(hold, *reclaimed)
        wake = Wake(source=_RECLAIM, kind=WakeKind.MEMORY, at_ns=time.monotonic_ns())
        self.wake_passes.on_memory_wake((wake,), reclaimed)

    def _available_bytes(self, signal: Signal) -> int | None:
        seen = self.passes.observations.observer.memory().get(signal)
        return None if seen is None else seen.available

    def _expect_processes(self, record: PassRecord) -> None:
        seen = record.snapshot.signals.get(Signal.PID_AVAILABLE)
        thresholds = self.settings.eviction.thresholds
        processes_of = self.passes.observations.observer.processes_of
        self.processes.arm(process_levels(seen, thresholds, processes_of))

    async def _next_wakes(self) -> Sequence[Wake]:
        """Return why a pass is due: what the sources report, or what the loop alone can know."""
        state = self.passes.known.state
        if self.passes.is_unfinished:
            return (Wake(source=_EVICTION, kind=WakeKind.MEMORY, at_ns=time.monotonic_ns()),)
        is_powerless = self.passes.is_powerless
        pause_seconds = self._pace.between_passes_seconds(is_powerless=is_powerless)
        slowed_seconds = self._pace.between_slowed_passes_seconds()
        wait_seconds = next_pass_seconds(
            self.settings.eviction, state, self._clock_seconds(), pause_seconds, slowed_seconds
        )
        until_seconds = trio.current_time() + max(0.0, wait_seconds)
        wanted_seconds, left_bytes = math.inf, 0
        if memory_slowdowns(state):
            wanted_seconds, left_bytes = _OBSERVE_SECONDS, self.passes.observations.left_bytes()
        elif self.passes.approach.is_near:
            wanted_seconds = _NEAR_SECONDS
        source = _EVICTION
        is_for_newcomers = is_powerless and not self.settings.dry_run and wanted_seconds < math.inf
        while True:
            is_doubted = self.passes.observations.is_cache_doubted()
            next_seconds = self._pace.between_checks_seconds(
                min(wanted_seconds, CACHE_CHECK_SECONDS) if is_doubted else wanted_seconds,
                self._clock_seconds(),
                is_powerless=is_powerless,
                left_bytes=left_bytes,
            )
            with trio.CancelScope(deadline=min(until_seconds, trio.current_time() + next_seconds)):
                taken = await self._wakes_or_newcomer(waits=is_for_newcomers)
                if taken is not None:
                    return taken
            if trio.current_time() >= until_seconds:
                break
            began_seconds = self._clock_seconds()
            is_worth_a_pass = self.passes.is_worth_a_pass()
            self._pace.check_seconds = self._clock_seconds() - began_seconds
            if is_worth_a_pass:
                source = UNASKED
                break
            if self.passes.approach.is_due(self._clock_seconds()):
                self.passes.approach.prepare()
        ended = grace_period_ended(state, self._clock_seconds())
        if ended - MEMORY_SIGNALS:
            self.housekeeping.due()  # they are acted on only when they have been observed again
        source = _GRACE_PERIOD if ended else source
        return (Wake(source=source, kind=WakeKind.MEMORY, at_ns=time.monotonic_ns()),)

    async def _wakes_or_newcomer(self, *, waits: bool) -> Sequence[Wake] | None:
        """Return the wakes; None once a cgroup has come or gone, where that `waits` for a pod to evict.

        A process comes into its pod some time after the cgroup, and no event reports it. So a newcomer is
        observed often for a second.
        """
        changed_fd = self.passes.observations.pod_list.changed_fd() if waits else -1
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

    # --- what follows an eviction ---

    async def before_soft(self, eviction: Eviction) -> tuple[str, ...] | None:
        """Do what comes before a pod is asked to end; return what went wrong, None if nothing comes."""
        return await run_hooks(self.steward, self.settings.hooks, eviction)

    def is_wanted(self, eviction: Eviction) -> bool:
        return self.passes.results.confirm(eviction)

    def measure_result(self, attempt: EvictionAttempt) -> None:
        self.passes.results.measure_result(attempt)

    async def remove_files(self, pod: Pod) -> tuple[str, ...]:
        return await empty(self.steward, pod)

    def pod_ended(self, uid: str) -> bool:
        """Record that an evicted pod has ended, and make a pass; see Results.pod_ended."""
        if not self.passes.results.pod_ended(uid):
            if uid in self.passes.known.lingering:
                self.housekeeping.storage.due(urgent=True)
            return False
        self.housekeeping.due()
        self.wakes.notify(Wake(source=_EVICTION, kind=WakeKind.PROCESSES, at_ns=time.monotonic_ns()))
        return True

    def process_over(self, uid: str) -> None:
        """Record that nothing more is done to a process of the pod, and make a pass."""
        self.passes.known.apply(ProcessOver(uid=uid))
        self.wakes.notify(Wake(source=_EVICTION, kind=WakeKind.MEMORY, at_ns=time.monotonic_ns()))

    def files_removed(self) -> None:
        """Have what is observed of the disks from now on decided over, and nothing older."""
        self.passes.results.ignore_older_disk_observations()
        self.housekeeping.storage.due(urgent=True)
        self.housekeeping.due()

    def close(self) -> None:
        """Close every descriptor."""
        self.passes.observations.observer.close()
        self.passes.observations.usages.close()
        self.levels.close()

    async def _reclaim_node(self, asked: PassRecord) -> None:
        try:
            self.wake_passes.on_pass(
                await self.passes.reclaim(asked, self._observe_disks, self.housekeeping.filesystems.refresh)
            )
        finally:
            self._reclaiming = False

    async def _observe_disks(self) -> None:
        """Observe the filesystems again, and which pod takes how much of them: one may have to be chosen."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.housekeeping.filesystems.refresh)
            nursery.start_soon(self.housekeeping.storage.count_now, _RANKING_SECONDS)


# Slow observations, which may hang: the list of pods and the filesystems, refreshed beside the loop.

_LOG: Final = logging.getLogger("reactor.housekeeping")
HOUSEKEEPING: Final = "housekeeping"


@dataclass(eq=False)
class Housekeeping:
    """Refreshes both when they are `due`, and wakes the loop for a pass.

    `is_unfinished`: a turn is under way, or has failed; its pass may be long in coming.
    """

    passes: Passes
    filesystems: FilesystemFacts
    storage: StorageCounts
    wakes: Wakes

    def __post_init__(self) -> None:
        self._due = trio.Event()
        self.is_unfinished = False
        self._pods_problem: str | None = None
        self._reported: Mapping[str, str] = {}

    @property
    def problems(self) -> dict[str, str]:
        """Return what can't be read or is refused at present, and why."""
        seen = self.passes.observations
        found = {**seen.observer.problems, **seen.pod_list.problems, **self.filesystems.problems}
        found |= seen.absurd_thresholds()
        if self._pods_problem is not None:
            found["pods"] = self._pods_problem
        return found

    def due(self) -> None:
        self._due.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Refresh whenever it is due, until cancelled; a turn that failed is due again."""
        task_status.started()
        if self.is_unfinished:
            self.due()
        while True:
            await self._due.wait()
            self._due = trio.Event()
            self.is_unfinished = True
            self.storage.due()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.list_pods)
                await self.filesystems.refresh()  # the steward observes them beside
            self._reported = report_changes(_LOG, self._reported, self.problems)
            self.is_unfinished = False
            self.wakes.notify(
                Wake(source=HOUSEKEEPING, kind=WakeKind.HOUSEKEEPING, at_ns=time.monotonic_ns())
            )

    async def list_pods(self) -> None:
        """List the pods again; those known stay if that fails."""
        try:
            pods = await self.passes.observations.pod_list.listed()
        except Exception as error:  # noqa: BLE001 - the filesystems are refreshed all the same
            if self._pods_problem != failure_text(error):
                _LOG.exception("the pods could not be listed")
            self._pods_problem = failure_text(error)
            return
        self._pods_problem = None
        if pods is not None:
            self.passes.observations.set_pods(pods)
