"""One case for each text of `deferred_because`: why a threshold that is met, or a rule, evicts no pod."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from reactor.model.decisions import Decision, Snapshot
from reactor.model.kills import OomKill, OomScope, ProcessMemory
from reactor.model.pods import ContainerUsage, FilesystemUsage, Pod, PodUsage
from reactor.model.rules import Condition, Firing, Measure, Metric, RankedBy, Rule, RuleAction, RuleInput
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Filesystem, Signal
from reactor.model.thresholds import Observation, Threshold
from tests.golden.core import Core
from tests.support.builders import make_observation, make_pod, make_threshold
from tests.support.processes import MIB

_CASES: Final[dict[str, Callable[[], Decision]]] = {}
_CAPACITY: Final = 512 * MIB

HARD: Final = make_threshold(100 * MIB)
SOFT: Final = make_threshold(200 * MIB, grace_period_seconds=30)
SWAP: Final = make_threshold(100 * MIB, Signal.SWAP_AVAILABLE)
PIDS: Final = make_threshold(100, Signal.PID_AVAILABLE)
NODEFS: Final = make_threshold(100 * MIB, Signal.NODEFS_AVAILABLE)
INODES: Final = make_threshold(100, Signal.NODEFS_INODES_FREE)


def texts() -> dict[str, str | None]:
    """Return the text of each case, by its name; None: it evicts, which no case should."""
    return {name: make().deferred_because for name, make in _CASES.items()}


def _case(make: Callable[[], Decision]) -> Callable[[], Decision]:
    _CASES[make.__name__.strip("_").replace("_", " ")] = make
    return make


class Scene:
    """A node of plain values, and the policy's passes over it."""

    def __init__(self, *thresholds: Threshold, **settings: Any) -> None:
        self.core = Core(EvictionSettings(thresholds=thresholds, **settings))
        self.now_seconds = 1000.0
        self.pods: dict[str, Pod] = {}
        self.used: dict[str, PodUsage] = {}
        self.signals: dict[Signal, Observation] = {}

    def pod(self, name: str, held_mib: int | None = None, *, pod: Pod | None = None, **used: Any) -> Pod:
        """Put a pod on the node, or change what it uses."""
        found = pod or self.pods.get(name) or make_pod(name)
        self.pods[name] = found
        held_bytes = None if held_mib is None else held_mib * MIB
        self.used[found.uid] = PodUsage(memory_working_set_bytes=held_bytes, **used)
        return found

    def kept(self, name: str, held_mib: int, *, could_not_be_ended: bool = False) -> Pod:
        """Put a pod on the node that can't be evicted."""
        because = "its eviction failed" if could_not_be_ended else "static pod"
        kept = replace(make_pod(name), critical_because=because, could_not_be_ended=could_not_be_ended)
        return self.pod(name, held_mib, pod=kept)

    def remove(self, name: str) -> None:
        """Take a pod off the node, with its cgroup."""
        del self.used[self.pods.pop(name).uid]

    def show(self, signal: Signal, available: int, capacity: int = _CAPACITY) -> None:
        """Have a signal show so much."""
        self.signals[signal] = make_observation(available, capacity)._replace(taken_at_seconds=None)

    def memory(self, available_mib: int) -> None:
        """Have so much memory available."""
        self.show(Signal.MEMORY_AVAILABLE, available_mib * MIB)

    @property
    def snapshot(self) -> Snapshot:
        """What is observed now."""
        return Snapshot(signals=dict(self.signals), pods=dict(self.used))

    @property
    def listed(self) -> Sequence[Pod]:
        """The pods that exist now."""
        return tuple(self.pods.values())

    def later(self, seconds: float = 0.1) -> None:
        """Let time go by."""
        self.now_seconds += seconds

    def decide(self) -> Decision:
        """Make a pass."""
        return self.core.decide(self.snapshot, self.listed, self.now_seconds)

    def evict(self) -> Pod:
        """Make a pass that evicts one pod, and order that."""
        (eviction,) = self.decide().evictions
        self.core.eviction_ordered(eviction, self.now_seconds, self.snapshot, self.listed)
        return eviction.pod

    def kill_a_process(self, pid: int, held_mib: int) -> Pod:
        """Make a pass that evicts one pod, and order that of one of its processes."""
        (eviction,) = self.decide().evictions
        process = _process(pid, held_mib)
        self.core.process_eviction_ordered(eviction, process, self.now_seconds, self.snapshot, self.listed)
        return eviction.pod

    def reclaim(self, then: Callable[[], None] = lambda: None) -> Decision:
        """Make a pass that asks for a reclaim of the node's, during which something happens."""
        asked, before = self.decide(), self.snapshot
        assert asked.reclaim
        then()
        return self.core.after_reclaim(asked, before, self.snapshot, self.listed, self.now_seconds)

    def kernel_kills(self, pid: int | None, held_mib: int | None = None) -> None:
        """Have the kernel kill a process."""
        victim_bytes = None if held_mib is None else held_mib * MIB
        kill = OomKill(source="test", scope=OomScope.NODE, at_ns=1, pid=pid, victim_bytes=victim_bytes)
        self.core.kernel_killed(kill, None, self.now_seconds)

    def fire(self, rule: Rule, cgroup: str = "/node", amounts: Mapping[str, int] | None = None) -> Decision:
        """Have a rule act."""
        (condition,) = rule.conditions
        firing = Firing(
            rule=rule,
            cgroup=cgroup,
            since_seconds=self.now_seconds - 20,
            at_seconds=self.now_seconds,
            inputs=(RuleInput(condition, 50.0, 40.0, 60.0),),
        )
        return self.core.fire(firing, self.snapshot, self.listed, amounts or {})


def _process(pid: int, held_mib: int) -> ProcessMemory:
    return ProcessMemory(
        pid=pid, name="hog", anonymous_bytes=held_mib * MIB, shared_bytes=0, swap_bytes=8 * MIB
    )


def _rule(action: RuleAction = RuleAction.EVICT_WORST, by: RankedBy = RankedBy.MEMORY) -> Rule:
    condition = Condition(Metric(Measure.PRESSURE, "memory full avg10"), 40.0)
    return Rule(
        name="stalled", cgroups=("/node",), conditions=(condition,), for_seconds=10, action=action, by=by
    )


def _short(*thresholds: Threshold, available_mib: int = 50, **settings: Any) -> Scene:
    """Return a node short of memory, with a hog and another pod."""
    scene = Scene(*(thresholds or (HARD,)), **settings)
    scene.pod("hog", 300)
    scene.pod("other", 100)
    scene.memory(available_mib)
    return scene


# A victim still holds what is missing.


@_case
def _evicted_pod_still_holds_its_memory() -> Decision:
    scene = _short()
    scene.evict()
    scene.later()
    return scene.decide()


@_case
def _two_evicted_pods_still_hold_their_memory() -> Decision:
    scene = _short()
    scene.evict()
    scene.later()
    scene.pod("hog", 10)
    scene.evict()
    scene.pod("third", 10)
    scene.later()
    return scene.decide()


@_case
def _files_in_memory_outlive_their_pod() -> Decision:
    scene = _short()
    hog = scene.evict()
    scene.later()
    scene.core.pod_ended(hog.uid, files_bytes=200 * MIB, charged_bytes=210 * MIB)
    scene.pod("hog", 210)
    return scene.decide()


@_case
def _files_in_memory_and_a_process_of_one_pod() -> Decision:
    scene = _short()
    hog = scene.evict()
    scene.core.process_killed(hog, _process(7, 50), scene.now_seconds)
    scene.later()
    scene.core.pod_ended(hog.uid, files_bytes=200 * MIB, charged_bytes=210 * MIB)
    return scene.decide()


@_case
def _process_killed_alone() -> Decision:
    scene = _short()
    scene.kill_a_process(7, 280)
    scene.later()
    return scene.decide()


@_case
def _process_in_its_grace_period() -> Decision:
    scene = _short(SOFT, available_mib=150, max_pod_grace_period_seconds=20)
    scene.decide()
    scene.later(30)
    scene.kill_a_process(7, 280)
    scene.later()
    return scene.decide()


@_case
def _pod_in_its_grace_period() -> Decision:
    scene = _short(SOFT, available_mib=150, max_pod_grace_period_seconds=20)
    scene.decide()
    scene.later(30)
    scene.evict()
    scene.later()
    return scene.decide()


@_case
def _kernel_killed_a_process_of_known_size() -> Decision:
    scene = _short()
    scene.kernel_kills(7, 280)
    return scene.decide()


@_case
def _kernel_killed_in_a_pod_without_naming_a_victim() -> Decision:
    scene = _short()
    scene.kernel_kills(None)
    scene.core.pods_struck({"uid-hog": 280 * MIB}, scene.now_seconds, {"uid-hog": 200 * MIB})
    return scene.decide()


@_case
def _kernel_killed_and_nothing_else_is_known() -> Decision:
    scene = _short()
    scene.kernel_kills(None)
    return scene.decide()


@_case
def _many_victims_of_all_kinds() -> Decision:
    scene = _short()
    scene.evict()
    scene.kernel_kills(8, 30)
    scene.core.process_killed(scene.pods["other"], _process(7, 20), scene.now_seconds)
    scene.later()
    return scene.decide()


@_case
def _evicted_pod_still_has_its_swap() -> Decision:
    scene = Scene(SWAP)
    scene.pod("hog", 300, swap_bytes=200 * MIB)
    scene.show(Signal.SWAP_AVAILABLE, 50 * MIB)
    scene.evict()
    scene.later()
    return scene.decide()


@_case
def _swap_of_a_process_killed_alone() -> Decision:
    scene = Scene(SWAP)
    scene.pod("hog", 300, swap_bytes=200 * MIB)
    scene.show(Signal.SWAP_AVAILABLE, 50 * MIB)
    scene.kill_a_process(7, 280)
    scene.core.process_killed(scene.pods["hog"], _process(9, 10), scene.now_seconds)
    scene.later()
    return scene.decide()


@_case
def _fork_bomb_still_has_its_processes() -> Decision:
    scene = Scene(PIDS)
    scene.pod("bomb", 1, process_count=400)
    scene.show(Signal.PID_AVAILABLE, 50, 1000)
    scene.evict()
    scene.later()
    return scene.decide()


@_case
def _memory_and_processes_wait_at_once() -> Decision:
    scene = _short(HARD, PIDS)
    scene.pod("other", 100, process_count=400)
    scene.evict()
    scene.show(Signal.PID_AVAILABLE, 50, 1000)
    scene.later()
    decision = scene.decide()
    scene.core.eviction_ordered(decision.evictions[0], scene.now_seconds, scene.snapshot, scene.listed)
    scene.later()
    return scene.decide()


# Filesystems.


def _disk(threshold: Threshold = NODEFS, **settings: Any) -> Scene:
    scene = Scene(threshold, **settings)
    scene.pod("writer", 1, containers=_files(300))
    scene.pod("reader", 1, containers=_files(1))
    scene.show(threshold.signal, 50 * (1 if threshold is INODES else MIB), 1000 * MIB)
    return scene


def _files(mib: int) -> tuple[ContainerUsage, ...]:
    layer = FilesystemUsage(used_bytes=mib * MIB, inodes_used=mib)
    return (ContainerUsage(name="main", rootfs=layer, logs=FilesystemUsage()),)


def _evict_for_disk(scene: Scene) -> Pod:
    (eviction,) = scene.reclaim().evictions
    scene.core.eviction_ordered(eviction, scene.now_seconds, scene.snapshot, scene.listed)
    return eviction.pod


@_case
def _evicted_pod_still_has_its_files() -> Decision:
    scene = _disk()
    _evict_for_disk(scene)
    scene.later()
    return scene.decide()


@_case
def _evicted_pod_still_has_its_inodes() -> Decision:
    scene = _disk(INODES)
    _evict_for_disk(scene)
    scene.later()
    return scene.decide()


@_case
def _files_of_an_evicted_pod_are_not_counted_yet() -> Decision:
    scene = _disk()
    _evict_for_disk(scene)
    scene.pod("writer", 1)
    scene.later()
    return scene.decide()


@_case
def _eviction_began_during_the_reclaim() -> Decision:
    scene = _disk()
    other = _disk()
    (eviction,) = other.reclaim().evictions

    def evict() -> None:
        scene.core.eviction_ordered(eviction, scene.now_seconds, scene.snapshot, scene.listed)

    return scene.reclaim(evict)


@_case
def _rate_used_up_during_the_reclaim() -> Decision:
    scene = _disk(evictions_per_minute=1)
    other = _disk()
    (eviction,) = other.reclaim().evictions

    def evict() -> None:
        scene.core.eviction_ordered(eviction, scene.now_seconds, scene.snapshot, scene.listed)
        scene.core.pod_ended(eviction.pod.uid)

    return scene.reclaim(evict)


def _in_vain(threshold: Threshold) -> Decision:
    scene = _disk(threshold, unhelpful_eviction_pause_seconds=10.0)
    _evict_for_disk(scene)
    scene.core.pod_ended("uid-writer")
    scene.remove("writer")
    scene.later(5)
    return scene.reclaim()


@_case
def _eviction_for_bytes_did_not_help() -> Decision:
    return _in_vain(NODEFS)


@_case
def _eviction_for_inodes_did_not_help() -> Decision:
    return _in_vain(INODES)


@_case
def _no_pod_holds_what_fills_the_filesystem() -> Decision:
    scene = _disk(evicts_holders_only=True)
    scene.pod("writer", 1)
    scene.pod("reader", 1)
    return scene.reclaim()


@_case
def _no_pod_holds_what_fills_the_filesystem_once_commands_were_run() -> Decision:
    scene = _disk(evicts_holders_only=True, commands_for=frozenset({Filesystem.NODEFS}))
    scene.pod("writer", 1)
    scene.pod("reader", 1)
    return scene.reclaim()


# Evicting does not help.


def _stormy(*thresholds: Threshold, available_mib: int = 50, **settings: Any) -> Scene:
    return _short(
        *thresholds,
        available_mib=available_mib,
        unhelpful_eviction_pause_seconds=10.0,
        **settings,
    )


@_case
def _processes_are_outside_the_pods() -> Decision:
    scene = Scene(PIDS, unhelpful_eviction_pause_seconds=10.0)
    scene.pod("calm", 1, process_count=3)
    scene.show(Signal.PID_AVAILABLE, 20, 1000)
    return scene.decide()


@_case
def _swap_is_used_outside_the_pods() -> Decision:
    scene = Scene(SWAP, unhelpful_eviction_pause_seconds=10.0)
    scene.pod("calm", 8, swap_bytes=0)
    scene.show(Signal.SWAP_AVAILABLE, 20 * MIB)
    return scene.decide()


@_case
def _memory_lies_outside_the_pods() -> Decision:
    scene = _leak()
    return scene.decide()


def _leak(*thresholds: Threshold) -> Scene:
    scene = _stormy(*thresholds)
    scene.pod("hog", 20)
    scene.pod("other", 10)
    return scene


@_case
def _pod_that_is_never_evicted_holds_the_memory() -> Decision:
    scene = _leak()
    scene.kept("static", 200)
    return scene.decide()


@_case
def _pod_that_could_not_be_evicted_holds_the_memory() -> Decision:
    scene = _leak()
    scene.kept("stuck", 200, could_not_be_ended=True)
    return scene.decide()


def _took_it_all(*thresholds: Threshold, times: int = 1, kept: bool | None = None) -> Scene:
    """Return a node on which something outside the pods took what evictions brought back."""
    scene = Scene(*(thresholds or (HARD,)), unhelpful_eviction_pause_seconds=10.0)
    for index in range(times + 1):
        scene.pod(f"hog{index}", 120 - index)
    if kept is not None:
        scene.kept("kept", 30, could_not_be_ended=kept)
    scene.memory(90)
    for index in range(times):
        gone = scene.evict()
        scene.core.pod_ended(gone.uid, charged_bytes=0)
        scene.remove(gone.name)
        scene.later(10.5 if index + 1 < times else 1)
    return scene


@_case
def _eviction_did_not_help() -> Decision:
    return _took_it_all().decide()


@_case
def _two_evictions_did_not_help() -> Decision:
    return _took_it_all(times=2).decide()


@_case
def _pods_came_back_under_new_names() -> Decision:
    scene = Scene(HARD, unhelpful_eviction_pause_seconds=10.0)
    for number in range(7):
        if number > 3:
            gone = scene.evict()
            scene.core.pod_ended(gone.uid, charged_bytes=0)
            scene.remove(gone.name)
        scene.pod(f"calm{number}", 30, pod=replace(make_pod(f"calm{number}"), cgroup_inode=number + 1))
        scene.memory(95)
        scene.later()
    return scene.decide()


@_case
def _eviction_did_not_help_and_a_pod_is_never_evicted() -> Decision:
    return _took_it_all(kept=False).decide()


@_case
def _eviction_did_not_help_and_a_pod_could_not_be_evicted() -> Decision:
    return _took_it_all(kept=True).decide()


@_case
def _soft_threshold_waits_where_the_hard_one_is_slowed_down() -> Decision:
    scene = _leak(HARD, SOFT)
    scene.memory(150)
    scene.decide()
    scene.later(30)
    scene.memory(50)
    return scene.decide()


@_case
def _hard_evictions_of_a_minute_are_used_up() -> Decision:
    scene = _short(hard_memory_evictions_per_minute=1)
    scene.evict()
    scene.core.pod_ended("uid-hog")
    scene.remove("hog")
    scene.later(5)
    return scene.decide()


@_case
def _evictions_of_a_minute_are_used_up() -> Decision:
    scene = Scene(PIDS, evictions_per_minute=1)
    scene.pod("bomb", 1, process_count=400)
    scene.pod("other", 1, process_count=40)
    scene.show(Signal.PID_AVAILABLE, 50, 1000)
    scene.evict()
    scene.core.pod_ended("uid-bomb")
    scene.remove("bomb")
    scene.later(5)
    return scene.decide()


# Memory is reclaimed first.


@_case
def _memory_of_no_pod_is_reclaimed_first() -> Decision:
    scene = _short(reclaims_memory=True)
    scene.evict()
    scene.core.pod_ended("uid-hog")
    scene.remove("hog")
    scene.later(1)
    return scene.decide()


@_case
def _memory_of_pods_is_reclaimed_before_a_soft_eviction() -> Decision:
    scene = _short(SOFT, available_mib=150, reclaims_memory=True, soft_reclaim_seconds=2.5)
    scene.decide()
    scene.later(30)
    return scene.decide()


@_case
def _two_soft_thresholds_wait_for_one_reclaim() -> Decision:
    allocatable = make_threshold(200 * MIB, Signal.ALLOCATABLE_MEMORY_AVAILABLE, grace_period_seconds=30)
    scene = _short(SOFT, allocatable, available_mib=150, reclaims_memory=True, soft_reclaim_seconds=2.5)
    scene.show(Signal.ALLOCATABLE_MEMORY_AVAILABLE, 120 * MIB)
    scene.decide()
    scene.later(30)
    return scene.decide()


@_case
def _soft_threshold_has_evicted_a_pod_a_moment_ago() -> Decision:
    scene = _short(SOFT, available_mib=150, unhelpful_eviction_pause_seconds=10.0)
    scene.decide()
    scene.later(30)
    scene.evict()
    scene.core.pod_ended("uid-hog")
    scene.remove("hog")
    scene.later(5)
    return scene.decide()


# Rules.


@_case
def _rule_waits_for_a_hard_threshold() -> Decision:
    scene = _short()
    scene.decide()
    return scene.fire(_rule())


@_case
def _rule_waits_for_an_evicted_pod() -> Decision:
    scene = _short()
    scene.evict()
    scene.memory(150)
    scene.decide()
    return scene.fire(_rule())


@_case
def _rule_waits_for_a_victim_of_the_kernel() -> Decision:
    scene = _short(available_mib=150)
    scene.kernel_kills(7, 280)
    return scene.fire(_rule(RuleAction.RECLAIM))


@_case
def _rule_waits_where_evictions_are_slowed_down() -> Decision:
    scene = _took_it_all()
    scene.decide()
    scene.memory(150)
    scene.decide()
    return scene.fire(_rule())


@_case
def _rule_waits_for_the_rate() -> Decision:
    scene = _short(evictions_per_minute=1)
    scene.evict()
    scene.core.pod_ended("uid-hog")
    scene.memory(150)
    scene.decide()
    return scene.fire(_rule())


@_case
def _rule_waits_for_another_rules_reclaim() -> Decision:
    scene = _short(available_mib=150)
    assert scene.fire(_rule(RuleAction.RECLAIM)).rule_reclaim
    return scene.fire(_rule(RuleAction.RECLAIM))


@_case
def _rule_has_no_pod_below_its_cgroup() -> Decision:
    return _short(available_mib=150).fire(_rule(), "/elsewhere")


@_case
def _rule_has_no_pod_at_its_cgroup() -> Decision:
    return _short(available_mib=150).fire(_rule(RuleAction.EVICT), "/elsewhere")


@_case
def _rule_has_only_pods_that_are_never_evicted() -> Decision:
    scene = Scene(HARD)
    scene.kept("static", 200)
    return scene.fire(_rule())


def _rule_has_no_pod_that_has_any(by: RankedBy) -> Callable[[], Decision]:
    def make() -> Decision:
        scene = Scene(HARD)
        scene.pod("idle", 0)
        return scene.fire(_rule(by=by))

    make.__name__ = f"_rule_has_no_pod_with_any_{by}"
    return make


for _by in RankedBy:
    _case(_rule_has_no_pod_that_has_any(_by))


@_case
def _rule_has_no_pod_with_any_pgscan_or_memory() -> Decision:
    scene = Scene(HARD)
    scene.pod("idle", 0)
    return scene.fire(replace(_rule(by=RankedBy.PGSCAN), holders_go=True), amounts={"uid-idle": 0})
