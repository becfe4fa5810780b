"""One generation after the other: a reload begins the next, and so does what the node turns out to be."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import trio

from reactor.act.kill import KillPath
from reactor.errors import split_failure
from reactor.guard.evictor import Evictor
from reactor.guard.filesystem_facts import StewardEmptying, StewardReclaim
from reactor.guard.generation import Generation
from reactor.guard.node import Node
from reactor.guard.record import EvictionAttempt, PassRecord
from reactor.guard.steward_link import StewardLink
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.memory_high import BorrowedHighs
from reactor.model.decisions import Claim, ClaimKind, Eviction
from reactor.model.kills import OomKill
from reactor.model.pods import Pod
from reactor.model.settings import Settings
from reactor.model.signals import Layout, Reclaim
from reactor.model.wakes import SourceState
from reactor.oom_scores.order import OomOrder
from reactor.reclaim.reclaims import MOST_SECONDS, NodeReclaim
from reactor.supervisor import Nursery, Supervisor
from reactor.warrants.warrants import Warrants

if TYPE_CHECKING:
    from reactor.guard.kubernetes import KubernetesNode

_LOG: Final = logging.getLogger("reactor.daemon")


class GenerationSupervisor:
    """Runs generations; `settings` are those in force, `present` is the one that runs.

    `kill_path_problem` says what the first one found wrong with killing, None where that works. `on_refused`
    is told why settings could not be guarded by; those before them stay in force. All else that it is given
    outlives every generation, as the evictions under way and the `warrants` do.
    """

    def __init__(  # noqa: PLR0913 - what one generation leaves to the next
        self,
        settings: Settings,
        *,
        tree: CgroupTree,
        known: Node,
        highs: BorrowedHighs,
        kills: KillPath,
        cluster: KubernetesNode | None,
        steward: StewardLink,
        supervisor: Supervisor,
        on_oom_kill: Callable[[OomKill], None],
        on_resumed: Callable[[EvictionAttempt, Nursery], None],
        on_refused: Callable[[Exception], None],
        on_source: Callable[[SourceState], None] = lambda _: None,
        oom_order: OomOrder | None = None,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.present: Generation | None = None
        self.kill_path_problem: str | None = None
        self._tree = tree
        self._known = known
        self._highs = highs
        self._kills = kills
        self._cluster = cluster
        self._steward = steward
        self._supervisor = supervisor
        self._clock_seconds = clock_seconds
        self._on_oom_kill = on_oom_kill
        self._on_source = on_source
        self._oom_order = oom_order
        self._on_resumed = on_resumed
        self._on_refused = on_refused
        self._next: Settings | None = None
        self.warrants = Warrants(tree)

    async def run(
        self,
        nursery: trio.Nursery,
        on_pass: Callable[[PassRecord], None],
        on_begun: Callable[[], None],
    ) -> None:
        """Run one generation after the other, until cancelled; each calls `on_begun` once it guards.

        Evictions run in `nursery`, which outlives every generation.
        """
        self._exercise()
        evictor = self._evictor(nursery)
        proven: Settings | None = None  # those that a generation has guarded by
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
        """Run one generation; return what kept it from guarding, None where it has guarded."""
        begun = False
        try:
            generation = self._generation(evictor)
            first, self.present = self.present is None, generation
            claims = self._known.state.claims
            try:
                async with trio.open_nursery() as inner:
                    await inner.start(generation.run, on_pass)
                    begun = True
                    if first:
                        self._resume(evictor, claims, nursery)
                    on_begun()
            finally:
                generation.close()
        except BaseException as raised:
            failure, rest = split_failure(raised)
            if begun or rest is not None:
                raise
            return failure
        return None

    def begin(self, settings: Settings) -> None:
        """Go on with other settings: what is known and under way stays."""
        self._next = settings
        if self.present is not None:
            self.present.stop()

    def glance_at_pods(self) -> None:
        """Bring the known pods up to date, at once."""
        if self.present is not None:
            self.present.passes.refresh_pods()

    def look_at_pods(self) -> None:
        """Have the pods listed again, soon."""
        if self.present is not None:
            self.present.housekeeping.due()

    def _adopt_layout(self, layout: Layout) -> None:
        """Go on with the settings for the layout that the devices show."""
        _LOG.warning("layout: %s by the devices, %s before", layout, self.settings.eviction.layout)
        settings = self._next or self.settings
        self.begin(dataclasses.replace(settings, eviction=settings.by_layout[layout]))

    def _evictor(self, nursery: trio.Nursery) -> Evictor:
        kills, cluster = self._kills, self._cluster
        return Evictor(
            kills if cluster is None else cluster.kills,
            self._supervisor.jobs(nursery, "evictions"),
            self._gone,
            deadline_seconds=self.settings.eviction.in_flight_deadline_seconds,
            dry_run=self.settings.dry_run,
            empty=self._empty,
            confirm=self._confirm,
            on_ended=self._ended,
            one_process=kills.one_process if cluster is None else None,
            on_process_killed=self._known.process_killed,
            on_process_over=self._process_over,
        )

    def _confirm(self, eviction: Eviction) -> bool:
        """Return whether a pod that has outlived its grace period is still to be killed.

        In Kubernetes always: the API server knows that it is evicted, its owner starts another in its place,
        and the kubelet kills it at the end of the grace period in any case.
        """
        if self._cluster is not None or self.present is None:
            return True
        return self.present.passes.confirm(eviction)

    def _generation(self, evictor: Evictor) -> Generation:
        settings = self.settings
        self.warrants.loader = settings.sources.ebpf_loader
        self._kills.guard(settings.pod_parents)
        deadline_seconds = settings.eviction.in_flight_deadline_seconds
        for uid in evictor.adopt(deadline_seconds, dry_run=settings.dry_run):
            self._known.called_off(uid)
        return Generation(
            settings,
            self._tree,
            known=self._known,
            evictor=evictor,
            highs=self._highs,
            supervisor=self._supervisor,
            steward=self._steward,
            on_layout=self._adopt_layout,
            on_oom_kill=self._on_oom_kill,
            on_source=self._on_source,
            pods=None if self._cluster is None else self._cluster.pod_list(settings),
            oom_order=self._oom_order,
            reclaims=self._reclaims(settings),
            warrants=self.warrants,
            clock_seconds=self._clock_seconds,
        )

    def _reclaims(self, settings: Settings) -> Mapping[Reclaim, NodeReclaim]:
        """Return what this node can give back: by commands, and by what keeps its images and containers."""
        link, cluster = self._steward, self._cluster
        found: dict[Reclaim, NodeReclaim] = {}
        commands = sum(map(len, settings.reclaim.commands.values()))
        if commands:
            most_seconds = MOST_SECONDS + commands * settings.reclaim.timeout_seconds
            found[Reclaim.COMMANDS] = StewardReclaim(link, Reclaim.COMMANDS, most_seconds=most_seconds)
        kinds: tuple[Reclaim, ...] = (Reclaim.IMAGES,) if settings.podman else ()
        for kind in kinds if cluster is None else (Reclaim.CONTAINERS, Reclaim.IMAGES):
            found[kind] = StewardReclaim(link, kind, most_seconds=2 * MOST_SECONDS)
        return found

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

    async def _empty(self, pod: Pod) -> tuple[str, ...]:
        """Remove the files that end with a pod, and return what went wrong."""
        storage = self._known.storage
        storage.hold(pod.uid)
        try:
            return await StewardEmptying(self._steward).empty(pod)
        finally:
            storage.release(pod.uid)
            if self.present is not None:
                self.present.emptied()

    def _ended(self, attempt: EvictionAttempt) -> None:
        if self.present is not None:
            self.present.passes.measure_result(attempt)

    def _process_over(self, uid: str) -> None:
        if self.present is not None:
            self.present.process_over(uid)

    def _gone(self, uid: str) -> bool:
        return self.present is None or self.present.gone(uid)
