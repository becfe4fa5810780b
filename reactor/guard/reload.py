"""One configuration after the other: a reload begins the next, and so does what the node turns out to be."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from reactor.act.kill_path import KillPath
from reactor.act.protect import expect_garbage
from reactor.errors import NoDaemonError, split_failure
from reactor.guard.build import Features, evictor_of, loop_of, reclaims_of
from reactor.guard.evictor import Evictor
from reactor.guard.loop import Loop
from reactor.guard.node import Node
from reactor.guard.record import EvictionAttempt, PassRecord
from reactor.guard.steward_link import StewardLink
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.memory_control import BorrowedHighs
from reactor.model.decisions import Claim, ClaimKind
from reactor.model.kills import OomKill
from reactor.model.settings import Settings
from reactor.model.signals import Layout
from reactor.model.wakes import SourceState
from reactor.supervisor import Nursery, Supervisor

if TYPE_CHECKING:
    from reactor.guard.kubernetes import KubernetesNode

_LOG: Final = logging.getLogger("reactor.daemon")


class Reloads:
    """Runs a loop for each configuration; `settings` are those in force, `present` is the loop that runs.

    `kill_path_problem` says what the first one found wrong with killing, None if that works. `on_refused` is
    called with why settings could not be guarded by; those before them stay in force. All else outlives every
    configuration, as the evictions under way do.
    """

    def __init__(  # noqa: PLR0913 - what one configuration leaves to the next
        self,
        settings: Settings,
        *,
        tree: CgroupTree,
        known: Node,
        features: Features,
        highs: BorrowedHighs,
        kills: KillPath,
        cluster: KubernetesNode | None,
        steward: StewardLink,
        supervisor: Supervisor,
        on_oom_kill: Callable[[OomKill], None],
        on_resumed: Callable[[EvictionAttempt, Nursery], None],
        on_refused: Callable[[Exception], None],
        on_source: Callable[[SourceState], None] = lambda _: None,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.present: Loop | None = None
        self.kill_path_problem: str | None = None
        self._tree = tree
        self._known = known
        self._features = features
        self._highs = highs
        self._kills = kills
        self._cluster = cluster
        self._steward = steward
        self._supervisor = supervisor
        self._clock_seconds = clock_seconds
        self._on_oom_kill = on_oom_kill
        self._on_source = on_source
        self._on_resumed = on_resumed
        self._on_refused = on_refused
        self._next: Settings | None = None

    def running(self) -> Loop:
        """Return the loop that runs. Raises NoDaemonError before there is one."""
        if self.present is None:
            raise NoDaemonError("the daemon is starting: ask again")
        return self.present

    async def run(
        self,
        nursery: trio.Nursery,
        on_pass: Callable[[PassRecord], None],
        on_begun: Callable[[], None],
    ) -> None:
        """Run one loop after the other, until cancelled; each calls `on_begun` once it guards.

        Evictions run in `nursery`, which outlives every loop.
        """
        self._exercise()
        evictor = evictor_of(
            self.settings,
            known=self._known,
            kills=self._kills,
            cluster=self._cluster,
            steward=self._steward,
            jobs=self._supervisor.jobs(nursery, "evictions"),
            loop=self.running,
        )
        proven: Settings | None = None  # those that a loop has guarded by
        while True:
            if self._next is not None:
                self.settings, self._next = self._next, None
            failure = await self._guard(evictor, nursery, on_pass, on_begun)
            if failure is None:
                proven = self.settings
                if self._next is None:
                    return
            elif proven is None or proven is self.settings:
                raise failure
            else:
                self._on_refused(failure)
                self._next = self._next or proven

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
            claims = self._known.state.claims
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
        self._next = settings
        if self.present is not None:
            self.present.stop()

    def refresh_pods(self) -> None:
        """Bring the known pods up to date, at once."""
        if self.present is not None:
            self.present.passes.observations.refresh_pods()

    def list_pods(self) -> None:
        """Have the loop's pods listed again soon."""
        if self.present is not None:
            self.present.housekeeping.due()

    def _adopt_layout(self, layout: Layout) -> None:
        """Go on with the settings for the layout that the devices show."""
        _LOG.warning("layout: %s by the devices, %s before", layout, self.settings.eviction.layout)
        settings = self._next or self.settings
        self.begin(dataclasses.replace(settings, eviction=settings.by_layout[layout]))

    def _loop(self, evictor: Evictor) -> Loop:
        settings, cluster = self.settings, self._cluster
        self._kills.guard(settings.pod_parents)
        deadline_seconds = settings.eviction.in_flight_deadline_seconds
        for uid in evictor.adopt(deadline_seconds, dry_run=settings.dry_run):
            self._known.called_off(uid)
        loop = loop_of(
            settings,
            self._tree,
            known=self._known,
            evictor=evictor,
            features=self._features,
            highs=self._highs,
            supervisor=self._supervisor,
            steward=self._steward,
            on_layout=self._adopt_layout,
            on_oom_kill=self._on_oom_kill,
            on_source=self._on_source,
            pods=None if cluster is None else cluster.pod_list(settings),
            reclaims=reclaims_of(settings, self._steward, in_cluster=cluster is not None),
            clock_seconds=self._clock_seconds,
        )
        self._kills.on_struck = loop.on_struck
        return loop

    def _exercise(self) -> None:
        if self.settings.dry_run:
            return
        self.kill_path_problem = self._kills.exercise()
        if self.kill_path_problem is not None:
            _LOG.error("kill path: %s", self.kill_path_problem)

    def _resume(self, evictor: Evictor, claims: tuple[Claim, ...], nursery: trio.Nursery) -> None:
        """Take up the evictions that an earlier run ordered, but for those ordered again by this one."""
        if self.settings.dry_run:
            return
        known, cluster, supervisor = self._known, self._cluster, self._supervisor
        records = supervisor.jobs(nursery, "records")
        pods = {pod.uid: pod for pod in known.pods}
        now_seconds = self._clock_seconds()
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
