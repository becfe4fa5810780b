"""The daemon: one nursery, in which the sources wake the loop and the loop makes its passes.

What guards memory and process ids runs in the open, and takes the daemon down with it. Everything else runs
under one supervisor, which restarts what fails.

run
  signals            SIGHUP reloads, SIGTERM and SIGINT end
  steward            the process that reports (journal, status, metrics), restarted where it ends
  state, watchdog    keep the state file true; report to the service manager
  node shutdown      ends the pods in their order while logind waits
  a loop             one for each configuration (Reloads): sources, housekeeping, passes
evictions under way and journal lines that wait for them outlive a loop, and so does what is known
"""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

import reactor
from reactor.act import cgroup_changes
from reactor.act.kill_path import KillPath
from reactor.act.protect import expect_garbage, gc_paused, protect_self
from reactor.act.reap import may_be_populated
from reactor.errors import ConfigError, NoDaemonError, failure_text, split_failure
from reactor.guard.build import Features, Lasting, kubernetes_node_of, loop_of, reclaims_of
from reactor.guard.evictor import Evictor
from reactor.guard.incidents import Befell, NoVictims, OomKills, Slowdowns, SourceLosses
from reactor.guard.loop import Loop
from reactor.guard.node import Node
from reactor.guard.node_shutdown import NodeShutdown, shutdown_file
from reactor.guard.observations import Observations
from reactor.guard.outbox import RecordQueue
from reactor.guard.own_cgroups import OwnCgroups
from reactor.guard.pass_ import RULES
from reactor.guard.record import EvictionAttempt, PassRecord
from reactor.guard.recorder import Recorder, Tally
from reactor.guard.reports import EvictionOrder, Report, Reports, memory_held, problem
from reactor.guard.single_instance import NodeLock, is_stood_by, listen
from reactor.guard.state import StateFile, restore
from reactor.guard.steward_link import Answer, StewardLink
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.memory_control import BorrowedHighs
from reactor.kernel.scheduling import following
from reactor.kernel.small_file import KeptFile
from reactor.link.documents import CONFIGURATION, instant
from reactor.link.requests import Request, RequestKind
from reactor.model.decisions import Claim, ClaimKind
from reactor.model.kills import OomKill
from reactor.model.pods import Pod
from reactor.model.quantity import amount_text, bytes_text
from reactor.model.settings import Settings
from reactor.model.signals import RESOURCE, Layout, NodeCondition, Signal
from reactor.model.thresholds import Observation, Observed
from reactor.model.wakes import SourceState, WakeKind
from reactor.policy.events import without_evictions
from reactor.supervisor import Faults, Nursery, Part, Supervisor
from reactor.text import counted, printable
from reactor.threads import NameLookups, in_thread

_LOG: Final = logging.getLogger("reactor.daemon")
_SILENCE_SECONDS: Final = 5.0
_AT_START_ONLY: Final = {
    "metrics_address": "reactor.metrics",
    "socket_path": "reactor.socket",
    "state_path": "reactor.stateFile",
    "journal": "reactor.journal",
    "realtime": "reactor.realtime",
    "kubernetes": "reactor.kubernetes",
}
_RESTART: Final = "restart"
_LONGEST_STEWARD_PAUSE_SECONDS: Final = 5.0
_LEAVING_SECONDS: Final = 6.0  # a pod has 10 s to end, as the manifests have it
_LEAVING_IN_SERVICE_SECONDS: Final = 15.0
_ENDING_SECONDS: Final = 10.0  # for what comes after that: the last lines of the journal, the steward's end


class Reloads:
    """Runs a loop for each configuration: `present` by the `settings` in force, the next by those `upcoming`.

    `kill_path_problem` says what the first one that kills found wrong with that, None if it works.
    `on_refused` is called with why settings could not be guarded by; those before them stay in force. All
    else outlives every configuration, as the evictions under way do.
    """

    def __init__(
        self,
        settings: Settings,
        kept: Lasting,
        *,
        on_resumed: Callable[[EvictionAttempt, Nursery], None],
        on_refused: Callable[[Exception], None],
    ) -> None:
        self.settings = settings
        self.present: Loop | None = None
        self.kill_path_problem: str | None = None
        self._is_exercised = False
        self._kept = kept
        self._on_resumed = on_resumed
        self._on_refused = on_refused
        self.upcoming: Settings | None = None

    def running(self) -> Loop:
        """Return the loop that runs. Raises NoDaemonError before there is one."""
        if self.present is None:
            raise NoDaemonError("the daemon is starting: ask again")
        return self.present

    async def run(
        self, nursery: trio.Nursery, on_pass: Callable[[PassRecord], None], on_begun: Callable[[], None]
    ) -> None:
        """Run one loop after the other, until cancelled; each calls `on_begun` once it guards.

        Evictions run in `nursery`, which outlives every loop.
        """
        kept = self._kept
        evictor = Evictor(
            kept.kills,
            kept.supervisor.jobs(nursery, "evictions"),
            kept.known,
            self.running,
            deadline_seconds=self.settings.eviction.in_flight_deadline_seconds,
            is_always_killed=kept.cluster is not None,
        )
        proven: Settings | None = None  # those that a loop has guarded by
        while True:
            if self.upcoming is not None:
                self.settings, self.upcoming = self.upcoming, None
            failure = await self._guard(evictor, nursery, on_pass, on_begun)
            if failure is None:
                proven = self.settings
                if self.upcoming is None:
                    return
            elif proven is None or proven is self.settings:
                raise failure
            else:
                self._on_refused(failure)
                self.upcoming = self.upcoming or proven

    async def _guard(
        self,
        evictor: Evictor,
        nursery: trio.Nursery,
        on_pass: Callable[[PassRecord], None],
        on_begun: Callable[[], None],
    ) -> Exception | None:
        """Run one loop; return what kept it from guarding, None where it has guarded."""
        begun = False
        try:
            loop = self._loop(evictor)
            first, self.present = self.present is None, loop
            claims = self._kept.known.state.claims
            try:
                async with trio.open_nursery() as inner:
                    await inner.start(loop.run, on_pass)
                    begun = True
                    if first:
                        self._resume(evictor, claims, nursery)
                    on_begun()
            finally:
                loop.close()
                expect_garbage()
        except BaseException as raised:
            failure, others = split_failure(raised)
            if begun or others is not None:
                raise
            return failure
        return None

    def begin(self, settings: Settings) -> None:
        """Go on with other settings: what is known and under way stays."""
        if self.present is None:
            self.settings = settings  # also of a daemon that stands by
        else:
            self.upcoming = settings
            self.present.stop()

    def refresh_pods(self) -> Sequence[Pod]:
        """Bring the known pods up to date, at once, and return them."""
        if self.present is not None:
            self.present.passes.observations.refresh_pods()
        return self._kept.known.pods

    def list_pods(self) -> None:
        """Have the loop's pods listed again soon."""
        if self.present is not None:
            self.present.housekeeping.due()

    def _adopt_layout(self, layout: Layout) -> None:
        _LOG.warning("layout: %s by the devices, %s before", layout, self.settings.eviction.layout)
        settings = self.upcoming or self.settings
        self.begin(dataclasses.replace(settings, eviction=settings.by_layout[layout]))

    def _loop(self, evictor: Evictor) -> Loop:
        settings, kept = self.settings, self._kept
        kept.kills.guard(settings.pod_parents)
        if not (settings.dry_run or self._is_exercised):
            self._is_exercised, self.kill_path_problem = True, kept.kills.exercise()
            if self.kill_path_problem is not None:
                _LOG.error("kill path: %s", self.kill_path_problem)
        evictor.adopt(settings.eviction.in_flight_deadline_seconds, dry_run=settings.dry_run)
        return loop_of(
            settings,
            kept,
            evictor,
            on_layout=self._adopt_layout,
            pods=None if kept.cluster is None else kept.cluster.pod_list(settings),
            reclaims=reclaims_of(settings, kept.steward, in_cluster=kept.cluster is not None),
        )

    def _resume(self, evictor: Evictor, claims: tuple[Claim, ...], nursery: trio.Nursery) -> None:
        """Take up the evictions that an earlier run ordered, but for those ordered again by this one."""
        if self.settings.dry_run:
            return
        known, cluster, supervisor = self._kept.known, self._kept.cluster, self._kept.supervisor
        records = supervisor.jobs(nursery, "records")
        pods = {pod.uid: pod for pod in known.pods}
        now_seconds = known.clock_seconds()
        for claim in claims:
            if claim not in known.state.claims or claim.kind is not ClaimKind.POD:
                continue
            if claim.uid in pods:
                attempt = evictor.resume(pods[claim.uid], claim, now_seconds)
                if cluster is not None:
                    with supervisor.hook("kubernetes notes").guard():
                        cluster.evicted(attempt, supervisor.jobs(nursery, "kubernetes evictions"))
                self._on_resumed(attempt, records)
            elif claim.pod is not None:
                self._on_resumed(evictor.await_files(claim.pod, claim), records)


class Liveness:
    """Whether the loop makes its passes. Records of what is done beside it don't show that it runs."""

    def __init__(self, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self._clock_seconds = clock_seconds
        self._last_pass_seconds = clock_seconds()

    def passed(self, record: PassRecord) -> None:
        """Note when the last pass was that the loop made."""
        if not record.wakes or any(wake.source != RULES for wake in record.wakes):
            self._last_pass_seconds = self._clock_seconds()

    def is_alive(self, housekeeping_interval_seconds: float) -> bool:
        """Return whether the last pass is not longer ago than three intervals and a little more."""
        silence_seconds = self._clock_seconds() - self._last_pass_seconds
        return silence_seconds < 3 * housekeeping_interval_seconds + _SILENCE_SECONDS


class Daemon:
    """What lives as long as the process: the state, what is known, the journal, the metrics, the socket."""

    def __init__(
        self,
        settings: Settings,
        tree: CgroupTree,
        last_good: KeptFile[str] | None = None,
        end_of_dry_run: str = "reactor.dryRun: false",
        faults: Faults | None = None,
    ) -> None:
        """`end_of_dry_run` says what an operator has to do for pods to be evicted.

        `faults` are what a test lets happen to the parts.
        """
        self.supervisor = Supervisor(faults)
        self._tree = tree
        self._started_unix_seconds = time.time()
        self._liveness = Liveness()
        self._known = Node(observed=Observed(stale_seconds=0.0))
        self._tally = Tally()
        self._lines = RecordQueue(f"{instant(self._started_unix_seconds)}/{os.getpid()}")
        self._losses = SourceLosses(self._lines.write)
        self._keeper = StateFile(Path(settings.state_path))
        self._last_good = last_good
        self._end_of_dry_run = end_of_dry_run
        self._highs = BorrowedHighs()
        self._notice = ServiceNotice()
        self.recorder = Recorder(
            self._lines,
            self._tally,
            patience_seconds=settings.eviction.in_flight_deadline_seconds,
        )
        self._order = EvictionOrder()
        self._listener: socket.socket | None = None
        self._problems: dict[str, str] = {}
        self._conditions_reported: tuple[NodeCondition, ...] = ()
        self._unobserved_reported: str | None = None
        self._is_started = False
        self.not_ready_because: str | None = None
        self.node_lock = NodeLock(tree)
        self._records = self.supervisor.hook("records")
        self._state_notes = self.supervisor.hook("state notes")
        self._oom_record = self.supervisor.hook("oom record")
        self._cluster_notes = self.supervisor.hook("kubernetes notes")
        self._answering = self.supervisor.hook("answers")
        self._ends = self.supervisor.hook("end")
        self._steward = StewardLink(self._lines, self._answers(), settings, self._answering.failed)
        self._steward.storage = self._known.storage
        self._cluster = kubernetes_node_of(
            settings, tree, self._steward, self.supervisor, lambda: self._known.pods
        )
        self._kills = KillPath(tree, settings.pod_parents) if self._cluster is None else self._cluster.kills
        self._own_cgroups = OwnCgroups(tree, settings.pod_parents)
        self._steward.cgroups = self._own_cgroups
        self._features = Features(tree, Path(settings.state_path), self._lines.write)
        self._steward.feeds = self._features.feeds
        befell: Befell = (lambda *_: None) if self._cluster is None else self._cluster.befell
        self._slowdowns = Slowdowns(befell)
        self._no_victims = NoVictims(self._lines.write, befell)
        self._reloads = Reloads(
            settings,
            Lasting(
                tree=tree,
                known=self._known,
                features=self._features,
                highs=self._highs,
                kills=self._kills,
                cluster=self._cluster,
                steward=self._steward,
                supervisor=self.supervisor,
                on_oom_kill=self._oom_killed,
                on_source=self._source_changed,
            ),
            on_resumed=self._resumed,
            on_refused=self.refuse_reload,
        )
        if self._cluster is not None:
            self._cluster.own_score = self._features.own_score
            self._features.on_marks = self._cluster.reports.marks
        self._shutdown = NodeShutdown(
            settings=settings,
            kills=self._kills,
            pods=self._reloads.refresh_pods,
            may_be_populated=partial(may_be_populated, tree),
            write=self._lines.write,
            wait_written=self._lines.wait_empty,
            file=shutdown_file(Path(settings.journal.path)),
            reporter=self._cluster,
        )
        self._oom = OomKills(self._known, self._lines.write, self._reloads.refresh_pods)
        self._own_reports = tuple(self._lasting_reports())

    @property
    def settings(self) -> Settings:
        return self._reloads.settings

    @property
    def reports(self) -> Reports:
        """Return all that there is to report now."""
        loop = self._reloads.present
        return Reports(
            settings=self.settings,
            known=self._known,
            others=(*self._own_reports, *(() if loop is None else loop.reports)),
            sources=() if loop is None else loop.wakes.board.states(),
            started_unix_seconds=self._started_unix_seconds,
        )

    def _lasting_reports(self) -> Iterator[Report]:
        yield Report(problems=lambda: self._problems)
        cluster, last_good = self._cluster, self._last_good
        if cluster is not None:
            yield Report(
                problems=lambda: cluster.problems,
                document=lambda: {"kubernetes": cluster.document()},
            )
        if last_good is not None:
            yield Report(problems=problem("last good configuration", lambda: last_good.problem))
        yield Report(
            problems=problem("journal", lambda: self._lines.problem),
            counts=lambda: {"journal": {"written": self._lines.written, "lost": self._lines.lost}},
        )
        yield Report(
            problems=problem("steward", lambda: self._steward.problem),
            document=lambda: {
                "processes": {"guard": {"pid": os.getpid()}, "steward": self._steward.document()}
            },
        )
        yield Report(
            problems=problem("state", lambda: self._keeper.problem),
            counts=lambda: {"state_failures": self._keeper.failures},
        )
        yield Report(problems=problem("kill path", lambda: self._reloads.kill_path_problem))
        yield Report(problems=problem("evictions", lambda: self._slowdowns.problem))
        yield Report(
            problems=problem("no evictable pod", lambda: self._no_victims.problem),
            counts=lambda: {"no_victims": self._no_victims.by_signal(self.settings.eviction.thresholds)},
        )
        yield Report(document=lambda: {"oom_kills": {"counted": dict(self._oom.counted)}})
        yield Report(
            problems=lambda: self.supervisor.problems,
            document=lambda: {"parts": [part.document() for part in self.supervisor.states]},
        )
        yield Report(
            problems=lambda: self._shutdown.problems,
            document=lambda: {"shutdown": self._shutdown.document(), "health": self._health()},
            counts=lambda: {"shutdown_times": self._shutdown.times(), "tally": self._tally.document()},
        )
        yield from self._features.reports(lambda: self.settings)

    def reload(self, settings: Settings) -> None:
        """Go on with another configuration: what is known and under way stays. Raises ConfigError."""
        self.node_lock.change(settings)
        kept = {name: getattr(self.settings, name) for name in _AT_START_ONLY}
        waiting = [_AT_START_ONLY[name] for name, value in kept.items() if value != getattr(settings, name)]
        for key in waiting:
            _LOG.warning("reload: %s has changed: that needs a restart", key)
        self._problems.pop(_RESTART, None)
        if waiting:
            changed = f"changed in the file, in force after a restart only: {', '.join(waiting)}"
            self._problems[_RESTART] = changed
        self._tally.count_reload(taken=True)
        self._problems.pop(CONFIGURATION, None)
        self.not_ready_because = None
        self._notice.reloading()
        self._reloads.begin(dataclasses.replace(settings, **kept))

    def stand_by(self) -> None:
        self._notice.status("standing by: another daemon guards this node")

    def refuse_reload(self, error: Exception) -> None:
        """Keep the present configuration, and report that."""
        self._tally.count_reload(taken=False)
        self._refuse("reload", error, "the configuration in force stays")

    def refuse_at_start(self, error: ConfigError) -> None:
        """Report that the file is refused, and that the last good configuration is in force in its place.

        A daemon that starts so is not ready until a reload is taken: an update of its pods goes no further.
        """
        self._refuse("configuration", error, "the last good configuration is in force")
        self.not_ready_because = f"configuration: {self._problems[CONFIGURATION]}"

    def _refuse(self, what: str, error: Exception, instead: str) -> None:
        first, *others = error.problems if isinstance(error, ConfigError) else [failure_text(error)]
        if isinstance(error, ConfigError):
            for refused in error.problems:
                _LOG.error("%s refused: %s", what, refused)
        else:
            _LOG.error("%s refused: internal error: %s", what, first, exc_info=error)
        _LOG.error("%s refused: %s", what, instead)
        more = f" (and {len(others)} more)" if others else ""
        self._problems[CONFIGURATION] = f"the file is refused: {first}{more}; {instead}"
        if self._is_started:
            self._report_ready()

    async def leave(self) -> None:
        """Have the journal written, and removed what is set on the cluster's node unless a successor comes.

        Never raises. The guard goes on meanwhile. At a shutdown of the node the next start is the successor.
        A service manager is asked for the time that a starved node needs; a pod has its grace period.
        """
        if not self._is_started:
            return
        if self._cluster is not None and not self._shutdown.is_under_way:
            with self._ends.guard():
                may_take_longer = self._notice.extend(_LEAVING_IN_SERVICE_SECONDS + _ENDING_SECONDS)
                await self._cluster.leave(
                    stands_by=is_stood_by(Path(self.settings.state_path)),
                    seconds=_LEAVING_IN_SERVICE_SECONDS if may_take_longer else _LEAVING_SECONDS,
                )
        with self._ends.guard():
            await self._steward.finish()

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Have the process inside the block as it is to be while it guards.

        A successor is that already while it stands by: at ordinary priority, on two CPUs with a load of 18,
        it took 0.2 s longer to its first pass, half of it for a full garbage collection.
        """
        with gc_paused():
            for refused in protect_self(self.settings.realtime):
                what, _, why = refused.partition(": ")
                self._problems[what] = why
            yield

    async def run(self, task_status: trio.TaskStatus[Daemon]) -> None:
        """Guard the node until cancelled; inside the block of `prepared`."""
        trio.socket.set_custom_hostname_resolver(NameLookups())
        self._listen()
        with self.supervisor.hook("restoring the state").guard():
            self._restore()
        with self.supervisor.hook("giving back the OOM killer's order").guard():
            self._features.resume()
        if not self.settings.pod_parents:
            self._problems["pods"] = "pods.parents is empty: no pod can be evicted"
        for what, why in self._problems.items():
            _LOG.warning("%s: %s", what, why)
        try:
            async with self._steward_beside(), trio.open_nursery() as nursery:
                if self._cluster is not None:
                    nursery.start_soon(self._cluster.run, self._reloads.list_pods)
                    await self._cluster.wait_pods()
                self._start_parts(nursery)
                begun = partial(self._begun, task_status)
                await self._reloads.run(nursery, partial(self._on_pass, nursery), begun)
        finally:
            self._end()

    def _end(self) -> None:
        """Close everything and save what is to survive; one that fails does not keep the others from it."""
        ends: list[Callable[[], object]] = [self._notice.stopping, self._notice.close, self._kills.close]
        ends += [self._known.victims.close, self.node_lock.keep]
        ends += [self._keeper.flush, self._own_cgroups.remove, self._shutdown.file.flush]
        if self._last_good is not None:
            ends.append(self._last_good.flush)
        if self._cluster is not None:
            ends.append(self._cluster.close)
        if self._listener is not None:
            ends += [self._listener.close, partial(Path(self.settings.socket_path).unlink, missing_ok=True)]
        for end in ends:
            with self._ends.guard():
                end()
        _LOG.info("ended after %d passes", self._known.passes)

    async def _restore_left(self, restore: Callable[[], Sequence[str]]) -> None:
        for line in await in_thread(following(restore), abandon_on_cancel=True):
            _LOG.warning("%s", line)

    def _listen(self) -> None:
        try:
            self._listener = listen(Path(self.settings.socket_path))
        except OSError as error:
            self._problems["socket"] = f"status socket unavailable: {error}"

    def _restore(self) -> None:
        refused = restore(self._keeper, self._known)
        if refused is not None:
            self._problems["state file"] = refused
        self._keeper.show(self._known.state)
        if self._cluster is not None:  # by now: while this one stood by another has guarded the node
            self._cluster.restore(self._known)

    def _start_parts(self, nursery: trio.Nursery) -> None:
        def keep(name: str, part: Part, *, ends: bool = False) -> None:
            nursery.start_soon(partial(self.supervisor.keep, name, part, ends=ends))

        is_v2 = self._tree.version is CgroupVersion.V2
        highs = partial(self._highs.restore_abandoned, self._tree.memory_root) if is_v2 else list[str]
        kills = partial(cgroup_changes.restore, self._tree)  # what was written amid a kill
        keep("abandoned memory.high", partial(self._restore_left, highs), ends=True)
        keep("abandoned kills", partial(self._restore_left, kills), ends=True)
        keep("state file", self._keeper.run)
        for name, part in self._features.parts.items():
            keep(name, part)
        keep("shutdown times", self._shutdown.file.run)
        keep("node shutdown", partial(self._shutdown.run, self.supervisor.jobs(nursery, "pods at shutdown")))
        if self._last_good is not None:
            keep("last good configuration", self._last_good.run)
        keep("watchdog", partial(self._notice.watchdog, self._is_alive), ends=True)

    @asynccontextmanager
    async def _steward_beside(self) -> AsyncIterator[None]:
        """Keep a steward inside the block, and after it until that has taken the last lines."""
        self._steward.listener = self._listener
        scope = trio.CancelScope(shield=True)

        async def keep() -> None:
            with scope:
                await self.supervisor.keep(
                    "steward", self._steward.run, longest_pause_seconds=_LONGEST_STEWARD_PAUSE_SECONDS
                )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep)
            try:
                yield
            finally:
                with self._ends.guard():
                    self._features.restore()  # its line is to be in the journal
                with trio.CancelScope(shield=True):
                    await self._steward.finish()
                scope.cancel()

    def _begun(self, task_status: trio.TaskStatus[Daemon]) -> None:
        if not self._is_started:
            self._is_started = True
            task_status.started(self)
        self.node_lock.keep(self.settings, self._reloads.upcoming)
        self._shutdown.order(self.settings)
        self._report_ready()
        observed = self._known.observed.at(time.monotonic())
        _LOG.info("%s", guarding(self.settings, len(self._known.pods), observed))

    def _oom_killed(self, kill: OomKill) -> None:
        """Record a kill by the kernel. Nothing here fails the source that reports it."""
        with self._oom_record.guard():
            self._oom.record(kill)
        if self._cluster is not None:
            with self._cluster_notes.guard():
                self._cluster.oom_killed(kill)

    def _source_changed(self, state: SourceState) -> None:
        with self._records.guard():
            self._losses.changed(state)

    def _answers(self) -> Mapping[RequestKind, Answer]:
        def running() -> Observations:
            return self._reloads.running().passes.observations

        async def status(_: Request) -> Mapping[str, Any]:
            # The node, then its pods, both afresh: what ended since the last pass would be memory of no pod.
            memory = running().observer.memory()
            held = await self._held(running(), memory.get(Signal.MEMORY_AVAILABLE))
            return {"held": held, "status": self.reports.status(memory)}

        async def top(request: Request) -> Mapping[str, Any]:
            seen = running()
            return await self.reports.top(self._order, seen.usages, seen.observer.memory(), request.places)

        return {
            RequestKind.STATUS: status,
            RequestKind.EXPLAIN: lambda _: self.reports.explain(running().usages),
            RequestKind.TOP: top,
            RequestKind.SCRAPE: lambda _: self.reports.reading(),
            RequestKind.HEALTH: lambda _: self._health(),
        }

    async def _held(self, seen: Observations, memory: Observation | None) -> Mapping[str, Any] | None:
        """Return how much of the node's memory the pods hold, None where that is not known."""
        ended = frozenset(seen.ended_cgroups())
        pods = [pod for pod in self._known.pods if pod.cgroup not in ended]
        return await memory_held(memory, pods, seen.usages)

    def _resumed(self, attempt: EvictionAttempt, nursery: Nursery) -> None:
        with self._records.guard():
            record = PassRecord.of_resumed(attempt, self._known.passes, time.monotonic())
            self.recorder.resume(record, nursery)

    def _on_pass(self, nursery: trio.Nursery, record: PassRecord) -> None:
        """Record a pass. Nothing here fails the pass, or keeps the others from their records."""
        self._liveness.passed(record)
        if self._cluster is not None:
            with self._cluster_notes.guard():
                self._cluster.passed(record, self.supervisor.jobs(nursery, "kubernetes evictions"))
        with self._records.guard():
            self.recorder.record(record, self.supervisor.jobs(nursery, "records"))
            self._slowdowns.passed(record.decision.slowdowns)
            self._no_victims.passed(record)
        with self._state_notes.guard():
            self._show_state(record)

    def _show_state(self, record: PassRecord) -> None:
        state = self._known.state
        if self.settings.dry_run:
            state = without_evictions(state)
        ticked = any(wake.kind is WakeKind.HOUSEKEEPING for wake in record.wakes)
        self._keeper.show(state, in_any_case=ticked and bool(state.condition_last_observed))
        if record.decision.conditions != self._conditions_reported or (
            ticked and self._unobserved() != self._unobserved_reported
        ):
            self._report_ready()

    def _report_ready(self) -> None:
        self._conditions_reported = self._known.state.conditions
        self._unobserved_reported = self._unobserved()
        pressure = ", ".join(self._conditions_reported) or "no pressure"
        if self._unobserved_reported is not None:
            pressure = f"{Signal.MEMORY_AVAILABLE} is not known: {self._unobserved_reported}"
        refused = "; the configuration file is refused" if CONFIGURATION in self._problems else ""
        text = f"{len(self._known.pods)} pods, {pressure}{refused}"
        if self.settings.dry_run:
            text = f"dry run: {text}; {in_dry_run(self.settings, self._end_of_dry_run)}"
        self._notice.ready(text)

    def _unobserved(self) -> str | None:
        """Return why the node's memory can't be observed, None where it is: without it nothing is guarded."""
        loop = self._reloads.present
        problems = {} if loop is None else loop.passes.observations.observer.problems
        return problems.get(Signal.MEMORY_AVAILABLE)

    def _health(self) -> Mapping[str, Any]:
        return {"alive": self._is_alive(), "not_ready_because": self.not_ready_because}

    def _is_alive(self) -> bool:
        return self._liveness.is_alive(self.settings.housekeeping_interval_seconds)


def guarding(settings: Settings, pods: int, observed: Mapping[Signal, Observation]) -> str:
    """Return what a daemon guards from now on, in a line: its version, the node, the pods, each threshold."""
    node = settings.node_cgroup or "this machine"
    capacity = observed.get(Signal.MEMORY_AVAILABLE)
    size = "" if capacity is None else f" of {bytes_text(capacity.capacity)}"
    thresholds = []
    for one in settings.eviction.thresholds:
        seen = observed.get(one.signal)
        if one.value.percent is None or seen is None:
            thresholds.append(str(one))
        else:
            amount = amount_text(int(one.value.of(seen.capacity)), RESOURCE[one.signal])
            thresholds.append(f"{one} ({amount})")
    parents = ", ".join(map(printable, settings.pod_parents)) or "nowhere (pods.parents is empty)"
    who = f"reactor {reactor.__version__}{', dry run' if settings.dry_run else ''}"
    at = ", ".join(thresholds) or "no threshold"
    return f"{who}: guards {node}{size} at {at}; {counted(pods, 'pod')} now, from {parents}"


def in_dry_run(settings: Settings, how_to_end: str) -> str:
    """Return what a dry run would do and how it is ended, for `systemctl status`."""
    parents = ", ".join(map(printable, settings.pod_parents))
    thresholds = ", ".join(map(str, settings.eviction.thresholds))
    would = f"would evict from {parents or 'nowhere (pods.parents is empty)'}"
    return f"no pod is evicted; {would} at {thresholds or 'no threshold'}. To evict: {how_to_end}"


# sd_notify: ready, reloading, stopping, alive, and a line for `systemctl status`.
#
# The protocol is one datagram a message. Source: sd_notify(3).

_NOTICES: Final = logging.getLogger("reactor.notify")


class ServiceNotice:
    """Sends states to the service manager; without one, or where it refuses, each call does nothing.

    `watchdog_seconds` is how often it wants to hear WATCHDOG=1, None: never.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self.watchdog_seconds = _watchdog_seconds(environment)
        address = environment.get("NOTIFY_SOCKET", "")
        # "@" stands for the zero byte of a name in the abstract namespace.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        # Held open: a daemon that has no descriptor left must not lose its watchdog for that.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if address else None
        self._logged: str | None = None

    def ready(self, status: str) -> None:
        self._say(f"READY=1\nSTATUS={status}")

    def status(self, text: str) -> None:
        self._say(f"STATUS={text}")

    def reloading(self) -> None:
        """Report that the configuration is being read again; ready follows."""
        # Type=notify-reload wants the moment, to know that this answers its own request.
        self._say(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._say("STOPPING=1")

    def extend(self, seconds: float) -> bool:
        """Ask for so much time from now on for what is under way; return whether there is a manager to ask.

        It never shortens what the unit grants (TimeoutStopSec while the daemon ends).
        """
        self._say(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")
        return self._socket is not None

    def close(self) -> None:
        """Say no more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def watchdog(self, is_alive: Callable[[], bool]) -> None:
        """Report at half the interval that the daemon lives, for as long as `is_alive` says so."""
        if self._socket is None or self.watchdog_seconds is None:
            return
        while True:
            if is_alive():
                self._say("WATCHDOG=1")
            await trio.sleep(self.watchdog_seconds / 2)

    def _say(self, text: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(text.encode(errors="replace"), socket.MSG_DONTWAIT, self._address)
        except BlockingIOError:
            self._warn(f"sd_notify failed: the service manager is too busy: {text!r}")
        except OSError as error:
            self._warn(f"sd_notify failed: {error}")
        else:
            self._logged = None

    def _warn(self, problem: str) -> None:
        if problem != self._logged:
            _NOTICES.warning("%s", problem)
        self._logged = problem


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    microseconds = environment.get("WATCHDOG_USEC", "")
    return (
        int(microseconds) / 1e6
        if microseconds.isascii() and microseconds.isdigit() and int(microseconds)
        else None
    )
