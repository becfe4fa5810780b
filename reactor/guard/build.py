"""Everything is put together here, in order, and takes what it works with directly.

Nothing else in the guard names a feature. A feature is a room beside it (reactor/warrants, oom_scores,
rules). It has one entry in `FEATURES`, joins each configuration that wants it, and keeps in `Features` what
outlives a configuration. It prepares for crossings (`ahead`, policy/forecast.py), has the kernel kill
(`kernel`), or runs beside the loop (`parts`); what it reports is one of the `reports`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from reactor.act.kill import OnStruck
from reactor.act.kill_path import KillPath
from reactor.act.reap import Populated
from reactor.blackbox import Feed
from reactor.errors import ConfigError, Problem, extra_remedy
from reactor.guard.ahead import KernelKills
from reactor.guard.evictor import Evictor
from reactor.guard.filesystem_facts import DiskCheck, FilesystemFacts, StewardReclaim
from reactor.guard.loop import ARMING_SECONDS, Housekeeping, Loop
from reactor.guard.node import Node
from reactor.guard.observations import Observations
from reactor.guard.pass_ import RULES, Passes
from reactor.guard.record import PassRecord
from reactor.guard.recorder import OnPass
from reactor.guard.reports import Report, problem
from reactor.guard.steward_link import StewardLink
from reactor.guard.usage_facts import StorageCounts
from reactor.kernel.cgroup import CgroupTree, CgroupVersion
from reactor.kernel.memory_control import BorrowedHighs
from reactor.kernel.swap import SWAP_EVENTS
from reactor.model.decisions import Hold, TimeLeft
from reactor.model.kills import OomKill
from reactor.model.name_patterns import fences
from reactor.model.pods import Pod, working_set_bytes
from reactor.model.rules import Acts, Firing, Marked, Marks, RuleAction
from reactor.model.settings import KernelKill, MemoryAvailable, OomOrderMode, Settings, SystemdOomd
from reactor.model.signals import MEMORY_SIGNALS, Layout, Reclaim, Signal
from reactor.model.thresholds import Observation
from reactor.model.wakes import SourceHealth, SourceState, Wake, WakeKind
from reactor.observe.node import NodeObserver
from reactor.observe.oom_kills import PodOomKills
from reactor.observe.pods import PodObserver
from reactor.oom_scores.order import OomOrder
from reactor.oom_scores.pods import ManifestScores
from reactor.oom_scores.written import NAME as OOM_ORDER_FILE
from reactor.policy.forecast import Ahead
from reactor.policy.rules import before_rules, rule_holds
from reactor.policy.thresholds import is_hard_memory
from reactor.reclaim.memory import MemoryReclaim
from reactor.reclaim.reclaims import MOST_SECONDS, NodeReclaim, Reclaims
from reactor.reclaim.runner import Reclaimed
from reactor.sources.catalogue import SourceBoard
from reactor.sources.chain import NOT_ARMED_YET
from reactor.sources.levels import MemoryLevel, MemoryLevels
from reactor.sources.memory import memory_chain
from reactor.sources.oom import OomSource
from reactor.sources.processes import process_chain
from reactor.sources.swap import SwapWatch
from reactor.sources.wakes import Ticker, Wakes
from reactor.supervisor import Hook, Part, StartedPart, Supervisor
from reactor.time_left.watch import Needs
from reactor.warrants.warrants import Reads, Warrants
from reactor.workloads.cgroups import CgroupPods, PodList

if TYPE_CHECKING:
    from reactor.guard.kubernetes import KubernetesNode

_LOG: Final = logging.getLogger("reactor.sources")
_HANGING_SECONDS: Final = 5.0
_RULE_RECLAIMS: Final = "rule reclaim"  # jobs


# --- features ---


class Features:
    """What features keep for as long as the process lives.

    `write` journals. A daemon that was killed may have left something, which `resume` restores; `restore`
    does so at the end, and `parts` run from start to end.
    """

    def __init__(
        self,
        tree: CgroupTree,
        state_path: Path,
        write: Callable[[Callable[[], Mapping[str, Any]]], object] = lambda _: None,
    ) -> None:
        self.rules_acted: dict[str, Acts] = {}  # by the rules' names
        self.rules_marked: dict[str, Marked] = {}
        self.on_marks: Callable[[Marks], None] = lambda _: None  # in a cluster: reports them
        self.needs = Needs()
        self.warrants = Warrants(tree)
        self.oom_order = OomOrder(tree, state_path.with_name(OOM_ORDER_FILE), write=write)
        self.black_box = Feed()
        self.feeds = (self.black_box.send_to,)
        self.own_score = self.oom_order.own_score
        self.resume = self.oom_order.resume
        self.restore = self.oom_order.restore_now
        self.parts: Mapping[str, Part] = {"OOM killer's order": self.oom_order.run}

    def reports(self, settings: Callable[[], Settings]) -> Iterator[Report]:
        """Yield what there is to report whatever the `settings` in force are."""
        warrants, order = self.warrants, self.oom_order
        yield Report(
            problems=problem("order of the OOM killer", lambda: order.problem),
            document=lambda: {"oom_order": {"mode": settings().oom_order, **order.document()}},
        )
        yield Report(
            problems=problem("kernelKill", lambda: warrants.problem),
            document=lambda: {"kernel_kill": {"mode": settings().kernel_kill, **warrants.document()}},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lasting:
    """What each configuration finds, and leaves to the next. All goes by the clock of what is `known`."""

    tree: CgroupTree
    known: Node
    features: Features
    highs: BorrowedHighs
    kills: KillPath
    steward: StewardLink
    supervisor: Supervisor
    cluster: KubernetesNode | None = None
    on_oom_kill: Callable[[OomKill], None] = lambda _: None
    on_source: Callable[[SourceState], None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """What a feature adds to one configuration. `after_pass` gets the record of each pass once it is over,
    `on_struck` what was killed once it is killed.
    """

    ahead: Ahead | None = None
    kernel: KernelKills | None = None
    on_struck: OnStruck | None = None
    after_pass: OnPass = lambda _: None
    parts: Mapping[str, StartedPart] = field(default_factory=dict)
    reports: Sequence[Report] = ()


def _warrants(kept: Lasting, loop: Loop) -> Joined:
    """Have the kernel kill at crossings. Where it may no longer, a warrant that was served may be left."""
    warrants, settings = kept.features.warrants, loop.settings
    warrants.loader = settings.sources.ebpf_loader
    is_given = (
        settings.kernel_kill is KernelKill.HARD
        and settings.memory_available is MemoryAvailable.WORKING_SET
        and not settings.dry_run
    )
    if not is_given and warrants.is_unused:
        return Joined()
    reads = Reads(
        usages=loop.passes.observations.usages,
        holds=loop.passes.evictor.holds,
        memory=loop.passes.observations.observer.memory,
        refresh_pods=loop.passes.observations.refresh_pods,
        notify=loop.wakes.notify,
        leave=loop.wakes.leave,
        parents=settings.measured_parents,
    )
    warrants.connect(reads)
    return Joined(kernel=warrants, parts={"warrants": warrants.run} if is_given else {})


def _oom_order(kept: Lasting, loop: Loop) -> Joined:
    """Set the OOM killer's order; restore the scores if it is off.

    Without a hard memory threshold there is no early level, and a dry run writes nothing.
    """
    settings, order = loop.settings, kept.features.oom_order
    is_guarded = any(is_hard_memory(threshold) for threshold in settings.eviction.thresholds)
    if settings.oom_order is OomOrderMode.LEAVE or settings.dry_run or not is_guarded:
        order.far()
        return Joined()
    return Joined(ahead=order)


def _manifest_scores(kept: Lasting, loop: Loop) -> Joined:
    """Set the scores of pods in manifests, unless a kubelet does."""
    workloads, known, settings = loop.passes.observations.pod_list, kept.known, loop.settings
    if not isinstance(workloads, CgroupPods) or settings.manifests_path is None:
        return Joined()
    if settings.dry_run or not settings.pod_oom_scores:
        return Joined()

    def capacity_bytes() -> int | None:
        seen = known.observed.at(known.clock_seconds()).get(Signal.MEMORY_AVAILABLE)
        return None if seen is None else seen.capacity

    scores = ManifestScores(
        kept.tree,
        lambda: workloads.specified(known.pods),
        capacity_bytes,
        interval_seconds=settings.housekeeping_interval_seconds,
        is_ordered=kept.features.oom_order.is_ordered,
    )
    report = Report(problems=problem("oom_score_adj of pods", lambda: scores.problem))
    return Joined(parts={"oom scores": scores.run}, reports=(report,))


def _rules(kept: Lasting, loop: Loop) -> Joined:
    """Observe the operator's rules and systemd's units; imported if there are any: few nodes have some."""
    settings, triggers = loop.settings, None
    mode = {"mode": settings.systemd_oomd}
    units = Report(document=lambda: {"systemd_oomd": mode})
    if not settings.rules and settings.systemd_oomd is SystemdOomd.IGNORE:
        none = Report(document=lambda: {"rules": []}, explanation=lambda: {"rules": []})
        return Joined(reports=(none, units))
    from reactor.rules.watch import RuleWatch  # noqa: PLC0415

    if settings.sources.psi:
        from reactor.rules.pressure import RulePressure  # noqa: PLC0415

        triggers = RulePressure(loop.wakes.board)
    watch = RuleWatch(
        kept.tree,
        settings.rules,
        RuleFirings(loop),
        {} if settings.dry_run else kept.features.rules_acted,  # what was only thought of helps nobody
        clock_seconds=kept.known.clock_seconds,
        triggers=triggers,
        marked=kept.features.rules_marked,
        on_marks=(lambda _: None) if settings.dry_run else kept.features.on_marks,
    )
    parts: dict[str, StartedPart] = {}
    on_struck: OnStruck | None = None
    if settings.systemd_oomd is not SystemdOomd.IGNORE:
        from reactor.rules.managed import ManagedOomRules, count_kill  # noqa: PLC0415

        managed = ManagedOomRules(watch.add, settings.pod_parents, clock_seconds=kept.known.clock_seconds)
        parts["systemd's units"] = managed.run
        on_struck = count_kill if kept.tree.version is CgroupVersion.V2 else None
        units = Report(
            problems=lambda: managed.problems,
            document=lambda: {"systemd_oomd": {**mode, **managed.document()}},
        )
    rules = Report(
        problems=lambda: watch.problems,
        document=lambda: {"rules": watch.document()},
        explanation=lambda: {"rules": watch.document()},
    )
    return Joined(
        on_struck=on_struck,
        parts={**parts, "rules": watch.run},
        reports=(rules, units, *_rules_reclaim(kept, loop)),
    )


def _time_left(kept: Lasting, loop: Loop) -> Joined:
    """Estimate the time left; imported if a soft memory threshold or the configuration asks for it."""
    memory = [one for one in loop.settings.eviction.thresholds if one.signal in MEMORY_SIGNALS]
    is_asked = any(not one.is_hard for one in memory) or loop.settings.time_left_within is not None
    if not is_asked or not any(one.is_hard for one in memory):
        return Joined(reports=(Report(document=lambda: {"time_left": None}),))
    from reactor.time_left.watch import TimeLeftWatch  # noqa: PLC0415

    known, usages = kept.known, loop.passes.observations.usages

    def report(lefts: Mapping[Signal, TimeLeft]) -> None:
        known.time_left = lefts

    watch = TimeLeftWatch(
        loop.settings.eviction,
        state=lambda: known.state,
        observe=loop.passes.observations.observer.memory,
        held_bytes=lambda uid: working_set_bytes(usages.of([uid]), uid),
        report=report,
        wake=loop.wakes.notify,
        needs=kept.features.needs,
        within=loop.settings.time_left_within,
        clock_seconds=kept.known.clock_seconds,
    )

    def passed(record: PassRecord) -> None:
        ordered = () if record.dry_run else tuple(one.eviction for one in record.attempts)
        watch.passed(record.snapshot, ordered)

    return Joined(
        after_pass=passed,
        parts={"time left": watch.run},
        reports=(Report(document=lambda: {"time_left": watch.document()}),),
    )


def _rules_reclaim(kept: Lasting, loop: Loop) -> Iterator[Report]:
    if any(rule.action is RuleAction.RECLAIM for rule in loop.settings.rules):
        kept.supervisor.expect(_RULE_RECLAIMS)
        because = loop.memory_reclaim.unavailable_because
        if because is not None:
            yield Report(problems=lambda: {"rules: reclaim": f"has no effect: {because}"})


class RuleFirings:
    """Has passes do what rules ask for. The record of a rule that reclaims is there when that is over."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    @property
    def pods(self) -> Sequence[Pod]:
        """Return the pods that exist now: one that came a moment ago may be the very one."""
        passes = self._loop.passes
        passes.observations.refresh_pods()
        return passes.known.pods

    def held_bytes(self, uid: str) -> int | None:
        return working_set_bytes(self._loop.passes.observations.usages.of([uid]), uid)

    def why_waits(self, firing: Firing) -> str | None:
        """Return why a rule that is due can't act yet, None if it can."""
        known = self._loop.passes.known
        return next(rule_holds(known.settings, known.state, firing), None)

    def fire(self, firing: Firing) -> bool:
        """Make a pass for it; return whether the rule acted in it, and is not waiting for something."""
        loop = self._loop
        wake = Wake(source=RULES, kind=WakeKind.MEMORY, at_ns=time.monotonic_ns())
        record = loop.wake_passes.run_pass((wake,), firing=firing)
        hold = record.decision.rule_reclaim
        if hold is not None:
            loop.start(_RULE_RECLAIMS, self._reclaim_by_rule, hold, record, firing)
        return record.decision.rule is not None and not record.decision.waits

    async def _reclaim_by_rule(self, hold: Hold, asked: PassRecord, firing: Firing) -> None:
        loop = self._loop
        known = loop.passes.known
        reclaimed: tuple[Reclaimed, ...] = ()
        try:
            if not asked.dry_run:
                job = loop.memory_reclaim.by_rule(firing)
                reclaimed = (await loop.reclaim_runner.run(job, lambda: not any(before_rules(known.state))),)
        finally:  # where a reload ends it, too
            known.reclaim_ended(hold, *reclaimed)
            loop.wake_passes.on_pass(replace(asked, reclaimed=reclaimed))


FEATURES: Final[Sequence[Callable[[Lasting, Loop], Joined]]] = (
    _manifest_scores,
    lambda kept, _: Joined(ahead=kept.features.black_box),
    _warrants,
    _oom_order,
    _rules,
    _time_left,
)


# --- the loop of one configuration ---


def loop_of(
    settings: Settings,
    kept: Lasting,
    evictor: Evictor,
    *,
    on_layout: Callable[[Layout], None] = lambda _: None,
    pods: PodList | None = None,
    reclaims: Mapping[Reclaim, NodeReclaim] | None = None,
    arming_seconds: float = ARMING_SECONDS,
) -> Loop:
    """Return the loop over one configuration. `pods` lists the pods if not the cgroup tree shows them."""
    tree, known, steward = kept.tree, kept.known, kept.steward
    wakes = Wakes(SourceBoard(partial(_source_changed, kept.on_source)))
    observer = NodeObserver(tree, settings)
    usages = PodObserver(
        tree,
        memory_available=settings.memory_available,
        counts_swap=settings.eviction.counts_swap,
        clock_seconds=known.clock_seconds,
    )
    counts_cache = settings.memory_available is MemoryAvailable.WORKING_SET
    memory_reclaim = MemoryReclaim(tree, fences(settings.pod_parents), counts_cache=counts_cache)
    memory = memory_chain(tree, settings, wakes, kept.highs)
    oom = OomSource(
        tree,
        settings,
        wakes,
        kept.on_oom_kill,
        expect=lambda kill: observations.oom_killed(kill),  # noqa: PLW0108 - made below
    )
    swap = _swap_watch(tree, settings, observer, wakes)
    processes = process_chain(tree, settings.sources, wakes)
    levels = MemoryLevels(tree, settings, lambda: observer.watermarks)

    def arm_memory(seen: Mapping[Signal, Observation]) -> Sequence[MemoryLevel]:
        found = levels.of(seen)
        memory.arm(found)
        return [level for level in found if level.threshold.is_hard and not level.is_early]

    disk_check = DiskCheck(settings)
    known.observed.stale_seconds = 3 * settings.housekeeping_interval_seconds + _HANGING_SECONDS
    soft_problem = memory_reclaim.unavailable_because if settings.eviction.soft_reclaim_seconds > 0 else None
    known.settings = replace(
        settings.eviction,
        reclaims_memory=not settings.dry_run,
        reclaims_ended_only=tree.version is CgroupVersion.V1,
        soft_reclaim_seconds=0.0 if soft_problem else settings.eviction.soft_reclaim_seconds,
        rechecks_disks=True,
    )
    observations = Observations(
        node=known,
        observer=observer,
        usages=usages,
        pod_list=CgroupPods(tree, settings) if pods is None else pods,
        is_populated=Populated(tree),
        oom_source=oom,
        oom_kills=PodOomKills(tree),
    )
    passes = Passes(
        observations=observations,
        evictor=evictor,
        reclaims=Reclaims(reclaims),
        arm_memory=arm_memory,
        check_disk=disk_check.observe,
        dry_run=settings.dry_run,
    )
    storage = StorageCounts(known, steward)
    filesystems = FilesystemFacts(
        steward,
        settings,
        known.observed,
        wakes,
        timeout_seconds=_HANGING_SECONDS,
        on_layout=on_layout,
        on_filling=partial(storage.due, urgent=True),
        clock_seconds=known.clock_seconds,
    )
    housekeeping = Housekeeping(passes, filesystems, storage, wakes)
    loop = Loop(
        settings=settings,
        passes=passes,
        wakes=wakes,
        levels=levels,
        memory=memory,
        processes=processes,
        housekeeping=housekeeping,
        memory_reclaim=memory_reclaim,
        supervisor=kept.supervisor,
        steward=steward,
        arming_seconds=arming_seconds,
    )
    joined = [join(kept, loop) for join in FEATURES]
    observations.kernel = next((one.kernel for one in joined if one.kernel is not None), observations.kernel)
    observations.ahead = (
        evictor,
        *(one.ahead for one in joined if one.ahead is not None),
        observations.kernel,
    )
    observations.report_pods()
    loop.parts = {
        **{name: part for one in joined for name, part in one.parts.items()},
        "oom kills": oom.run,
        **swap,
        "filesystems": filesystems.run,
        "storage": storage.run,
        "housekeeping": housekeeping.run,
        # The last one, because it wakes the loop at once.
        "ticker": Ticker(settings.housekeeping_interval_seconds, wakes).run,
    }
    loop.reports = (
        Report(problems=lambda: housekeeping.problems | disk_check.problems, document=filesystems.document),
        Report(
            problems=problem("reclaimBeforeSoft", lambda: soft_problem and f"has no effect: {soft_problem}")
        ),
        *(report for one in joined for report in one.reports),
    )
    kept.kills.on_struck = next((one.on_struck for one in joined if one.on_struck is not None), None)
    hook = kept.supervisor.hook("after a pass")
    of_features = (partial(_guarded, hook, one.after_pass) for one in joined)
    loop.wake_passes.after_pass = (*of_features, *loop.wake_passes.after_pass)
    return loop


def _guarded(hook: Hook, after_pass: OnPass, record: PassRecord) -> None:
    with hook.guard():
        after_pass(record)


def _swap_watch(
    tree: CgroupTree, settings: Settings, observer: NodeObserver, wakes: Wakes
) -> dict[str, StartedPart]:
    thresholds = [one for one in settings.eviction.thresholds if one.signal is Signal.SWAP_AVAILABLE]
    if not thresholds:
        return {}
    node = settings.node_cgroup
    has_events = node is not None and tree.version is CgroupVersion.V2
    watch = SwapWatch(
        thresholds,
        lambda: observer.swap().get(Signal.SWAP_AVAILABLE),
        wakes,
        events=tree.memory_root / f"{node}/{SWAP_EVENTS}".lstrip("/") if has_events else None,
        longest_seconds=settings.housekeeping_interval_seconds,
    )
    return {"swap": watch.run}


def _source_changed(on_source: Callable[[SourceState], None], state: SourceState) -> None:
    level = logging.INFO if state.health in {SourceHealth.ARMED, SourceHealth.OFF} else logging.WARNING
    if state.health is SourceHealth.OFF and state.detail == NOT_ARMED_YET:  # for a moment, at each start
        level = logging.DEBUG
    _LOG.log(level, "source %s: %s%s", state.name, state.health, f": {state.detail}" if state.detail else "")
    on_source(state)


# --- what outlives a configuration ---


def reclaims_of(settings: Settings, link: StewardLink, *, in_cluster: bool) -> Mapping[Reclaim, NodeReclaim]:
    """Return what this node can reclaim: by commands, and by what keeps its images and containers."""
    found: dict[Reclaim, NodeReclaim] = {}
    commands = sum(map(len, settings.reclaim.commands.values()))
    if commands:
        most_seconds = MOST_SECONDS + commands * settings.reclaim.timeout_seconds
        found[Reclaim.COMMANDS] = StewardReclaim(link, Reclaim.COMMANDS, most_seconds=most_seconds)
    kinds: tuple[Reclaim, ...] = (Reclaim.IMAGES,) if settings.podman else ()
    for kind in (Reclaim.CONTAINERS, Reclaim.IMAGES) if in_cluster else kinds:
        found[kind] = StewardReclaim(link, kind, most_seconds=2 * MOST_SECONDS)
    return found


def kubernetes_node_of(
    settings: Settings,
    tree: CgroupTree,
    link: StewardLink,
    supervisor: Supervisor,
    present: Callable[[], Sequence[Pod]],
) -> KubernetesNode | None:
    """Return the guard's part on a Kubernetes node, imported only there; None on any other.

    Raises ConfigError where the steward would lack what it speaks to a cluster with.
    """
    if settings.kubernetes is None:
        return None
    if find_spec("h2") is None:
        accepted = f"nothing here unless you {extra_remedy('kubernetes')}"
        got = "No module named 'h2'"
        raise ConfigError([Problem(path="reactor.kubernetes", got=got, accepted=accepted)])
    from reactor.guard.kubernetes import KubernetesNode  # noqa: PLC0415

    return KubernetesNode(settings, tree, link, supervisor, present)
