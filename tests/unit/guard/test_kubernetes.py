"""The guard's part on a Kubernetes node: what it reports, whom it keeps down; and it needs no steward."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from reactor.errors import ConfigError, StewardError
from reactor.guard import build
from reactor.guard.build import kubernetes_node_of
from reactor.guard.daemon import Daemon
from reactor.guard.kubernetes import KubernetesNode, Unobserved
from reactor.guard.node import Node
from reactor.guard.node_shutdown import ShutdownTermination
from reactor.guard.outbox import NO_VICTIM as NO_EVICTABLE_POD
from reactor.guard.outbox import SLOWED_DOWN, RecordQueue
from reactor.guard.record import EvictionAttempt, PassRecord, StageTimes
from reactor.guard.state import StateFile
from reactor.guard.steward_link import StewardLink
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.link.documents import Outcome
from reactor.link.frames import FrameKind
from reactor.link.listings import pieces, spec_record
from reactor.link.requests import ReclaimOver, Section
from reactor.model.decisions import Decision, Eviction, PolicyState, Snapshot
from reactor.model.kills import OomKill, OomScope, ProcessMemory, Slowdown, SlowReason
from reactor.model.pods import Pod, PodSource
from reactor.model.rules import Mark, Rule, RuleAction
from reactor.model.settings import EvictionSettings, KubernetesSettings, Settings
from reactor.model.signals import NodeCondition, Resource, RuleSignal, Signal
from reactor.model.thresholds import Observed
from reactor.supervisor import Supervisor
from tests.support.builders import make_threshold
from tests.support.waiting import until

_RULE = Rule(
    name="r",
    cgroups=("/",),
    conditions=(),
    for_seconds=1.0,
    action=RuleAction.CONDITION,
    mark=Mark("MemoryContention", "", "rule r"),
)
POD = Pod(name="web", namespace="shop", uid="u", cgroup="/kubepods/podu")

_MEMORY, _DISK, _PID = NodeCondition
THRESHOLDS = (
    make_threshold(1),
    make_threshold(1, Signal.NODEFS_AVAILABLE),
    make_threshold(1, Signal.NODEFS_INODES_FREE),
)
ALL = {Signal.MEMORY_AVAILABLE, Signal.NODEFS_AVAILABLE, Signal.NODEFS_INODES_FREE}


def settings_in(directory, **changes) -> Settings:
    return Settings(
        kubernetes=KubernetesSettings(node_name="one"),
        state_path=str(directory / "state.json"),
        pod_parents=("/kubepods",),
        **changes,
    )


def link_of(settings: Settings) -> StewardLink:
    return StewardLink(RecordQueue("now/1"), {}, settings, lambda _: None)


def node_in(directory, **changes) -> KubernetesNode:
    settings = settings_in(directory, **changes)
    root = directory / "cgroup"
    root.mkdir(exist_ok=True)
    tree = CgroupTree(version=CgroupVersion.V2, memory_root=root)
    return KubernetesNode(settings, tree, link_of(settings), Supervisor(), lambda: ())


@pytest.fixture
def node(tmp_path):
    return node_in(tmp_path)


def attempt_of(outcome: str = "killed", grace_period_seconds: int = 0, pod: Pod = POD) -> EvictionAttempt:
    eviction = Eviction(
        pod=pod,
        signal=Signal.MEMORY_AVAILABLE,
        resource=Resource.MEMORY,
        grace_period_seconds=grace_period_seconds,
        message="The node was low on resource: memory.",
    )
    return EvictionAttempt(eviction=eviction, outcome=Outcome(outcome))


def record_of(*attempts: EvictionAttempt, conditions=(), dry_run: bool = False) -> PassRecord:
    threshold = make_threshold(1 << 20)
    return PassRecord(
        id=1,
        at_unix_seconds=0.0,
        wakes=(),
        snapshot=Snapshot(),
        decision=Decision(at_seconds=0.0, conditions=conditions, acted_on=threshold if attempts else None),
        times=StageTimes(woke_ns=0, started_ns=0, observed_ns=0, decided_ns=0, done_ns=0),
        attempts=attempts,
        dry_run=dry_run,
    )


async def reported(node: KubernetesNode) -> list[dict[str, Any]]:
    """Return what is to be sent to the steward now."""
    found: list[dict[str, Any]] = []
    while True:
        with trio.move_on_after(0) as scope:
            found.append(json.loads((await node.reports.next()).content))
        if scope.cancelled_caught:
            return found


def make_cgroup(directory) -> None:
    """Make the pod's cgroup, in which no process is left."""
    cgroup = directory / "cgroup/kubepods/podu"
    cgroup.mkdir(parents=True)
    (cgroup / "cgroup.procs").touch()
    (cgroup / "cgroup.events").write_text("populated 0\n")


async def test_a_pass_that_evicts_is_reported_with_its_conditions(node, nursery):
    node.passed(record_of(attempt_of(), conditions=(NodeCondition.MEMORY_PRESSURE,)), nursery)
    eviction, event, conditions = await reported(node)
    assert ("eviction", "u", "shop", "web", "over") == tuple(
        eviction[key] for key in ("report", "uid", "namespace", "name", "state")
    )
    assert event == {"report": "threshold met", "resource": "memory"}
    assert conditions == {"report": "conditions", "conditions": ["MemoryPressure"]}


@pytest.mark.parametrize("threshold", [None, make_threshold(1 << 20)])
async def test_only_a_pod_that_is_killed_for_the_nodes_sake_is_reported_as_disrupted(
    node, nursery, threshold
):
    """A Job that ignores disruptions would retry a pod that breaks its own limit for ever."""
    attempt = attempt_of()
    node.evicted(replace(attempt, eviction=attempt.eviction._replace(threshold=threshold)), nursery)
    [eviction] = await reported(node)
    assert eviction["disrupted"] == (threshold is not None)


async def test_a_pod_that_a_rule_evicts_is_reported_as_disrupted(node, nursery):
    """The rule is the node's: a Job that ignores disruptions runs the pod again."""
    attempt = attempt_of()
    by_rule = attempt.eviction._replace(threshold=None, signal=RuleSignal.RULE)
    node.evicted(replace(attempt, eviction=by_rule), nursery)
    [eviction] = await reported(node)
    assert eviction["disrupted"]


async def test_the_next_guard_knows_specs_and_evicted_pods_from_the_start_though_no_steward_tells_them(
    tmp_path, nursery
):
    """Also one that has been there for long, and stood by."""
    node, after = node_in(tmp_path), node_in(tmp_path)
    make_cgroup(tmp_path)
    for piece in pieces(Section.SPECS, 1, [spec_record(PodSource.API, POD) or b""]):
        node.facts.take(piece)
    attempt = attempt_of()
    node.evicted(attempt, nursery)
    attempt.end()
    await until(lambda: node.document()["held_down"], "the pod is kept down")
    node.close()

    after.restore(Node(observed=Observed(stale_seconds=35.0)))

    assert {"u": replace(POD, cgroup=None)} == after.facts.specs
    assert 1 == after.document()["held_down"]


def test_a_pod_that_is_kept_down_is_spared_by_the_next_daemon_beside_the_state_that_was_saved(
    tmp_path,
) -> None:
    settings = settings_in(tmp_path, socket_path=str(tmp_path / "reactor.sock"))
    tree = CgroupTree(version=CgroupVersion.V2, memory_root=tmp_path / "cgroup")
    make_cgroup(tmp_path)
    daemon = Daemon(settings, tree)
    earlier = node_in(tmp_path)
    earlier._evicted._pods[POD.uid] = POD
    earlier._evicted._show()
    earlier.close()
    assert StateFile(Path(settings.state_path)).save(PolicyState(evicted_at=(1.0,)))
    daemon._restore()
    assert ((1.0,), {POD.uid}) == (
        daemon._known.state.evicted_at,
        daemon._known.state.ineligible.emptied,
    )


async def test_conditions_whose_signals_are_not_observed_are_reported_as_unknown(tmp_path, nursery):
    thresholds = (make_threshold(1 << 20),)
    node = node_in(tmp_path, eviction=EvictionSettings(thresholds=thresholds))
    quiet = record_of()
    node.passed(quiet, nursery)
    assert await reported(node) == [{"report": "conditions", "conditions": []}]
    node.passed(replace(quiet, decision=Decision(at_seconds=60.0)), nursery)
    assert await reported(node) == [{"report": "conditions", "conditions": [], "unknown": ["MemoryPressure"]}]
    node.reports.restart()
    assert [one["unknown"] for one in await reported(node)] == [["MemoryPressure"]]


@pytest.mark.parametrize("was_dry", [True, False])
async def test_a_dry_run_reports_nothing(tmp_path, nursery, *, was_dry: bool):
    """Also where a reload has made it one; and where one has ended it everything is."""
    node = node_in(tmp_path, dry_run=was_dry)
    node.pod_list(settings_in(tmp_path, dry_run=True))
    node.passed(record_of(attempt_of("dry-run"), dry_run=True), nursery)
    _befall(node)
    assert await reported(node) == []
    node.pod_list(settings_in(tmp_path, rules=(_RULE,)))
    _befall(node)
    assert ["evictions slowed down", "no evictable pod", "system OOM"] == [
        one["report"] for one in await reported(node)
    ]


def _befall(node: KubernetesNode) -> None:
    node.befell(SLOWED_DOWN, slowdown().message)
    node.befell(NO_EVICTABLE_POD, NO_VICTIM)
    node.oom_killed(OomKill(source="ebpf-oom", scope=OomScope.NODE, at_ns=0, pid=7, comm="hog"))


@pytest.mark.parametrize("outcome", ["failed", "gone", "dry-run"])
async def test_an_eviction_that_came_to_nothing_is_not_reported(node, nursery, outcome):
    node.evicted(attempt_of(outcome), nursery)
    assert await reported(node) == []


async def test_a_pod_without_a_process_whose_memory_its_end_frees_is_reported(node, nursery):
    """Its containers have crashed, and its emptyDir in memory goes only with the pod."""
    attempt = attempt_of("gone")
    attempt.is_empty, attempt.credited_bytes = True, 100 << 20
    node.evicted(attempt, nursery)
    assert [one["state"] for one in await reported(node)] == ["over"]


async def test_a_soft_eviction_is_reported_when_it_is_ordered_and_when_its_pod_has_ended(node, nursery):
    attempt = attempt_of("ordered", grace_period_seconds=30)
    node.evicted(attempt, nursery)
    assert [one["state"] for one in await reported(node)] == ["ordered"]
    attempt.outcome = Outcome("terminated")
    attempt.end()
    await until(lambda: node.document()["held_down"] or node.reports._number == 2)
    assert [one["state"] for one in await reported(node)] == ["over"]


async def test_a_soft_eviction_is_over_when_its_pod_has_ended_though_its_files_are_still_there(
    tmp_path, nursery
):
    """The kubelet, too, sees that the containers have ended; it would report the pod first."""
    node = node_in(tmp_path)
    make_cgroup(tmp_path)
    attempt = attempt_of("ordered", grace_period_seconds=30)
    node.evicted(attempt, nursery)
    attempt.outcome = Outcome("terminated")
    attempt.stopped.set()
    await until(lambda: node.reports._number == 2)
    assert [one["state"] for one in await reported(node)] == ["over"]
    assert not attempt.ended.is_set()
    await until(lambda: node.document()["held_down"] == 1)


async def test_a_soft_eviction_that_ends_in_a_kill_is_over_at_the_kill_and_kept_down_afterwards(
    tmp_path, nursery
):
    node = node_in(tmp_path)
    make_cgroup(tmp_path)
    attempt = attempt_of("ordered", grace_period_seconds=30)
    node.evicted(attempt, nursery)
    attempt.outcome = Outcome("killed")
    attempt.stopped.set()
    await until(lambda: node.reports._number == 2)
    assert [one["state"] for one in await reported(node)] == ["over"]
    attempt.end()
    await until(lambda: node.document()["held_down"] == 1)
    assert node.reports._number == 2


@pytest.mark.parametrize("outcome", ["called off", "failed"])
async def test_a_soft_eviction_whose_pod_lives_on_is_reported_and_the_pod_not_kept_down(
    node, nursery, outcome
):
    attempt = attempt_of("ordered", grace_period_seconds=30)
    node.evicted(attempt, nursery)
    attempt.outcome = outcome
    attempt.end()
    await until(lambda: node.reports._number == 2)
    assert [one["state"] for one in await reported(node)] == ["called off"]
    assert node.document()["held_down"] == 0


async def test_a_soft_eviction_that_a_hard_one_overtakes_says_nothing_more(node, nursery):
    soft, hard = attempt_of("ordered", grace_period_seconds=30), attempt_of()
    node.evicted(soft, nursery)
    node.evicted(hard, nursery)
    soft.outcome = Outcome("pre-empted")
    soft.end()
    await trio.testing.wait_all_tasks_blocked()
    assert [one["state"] for one in await reported(node)] == ["over"]


async def test_a_pod_without_a_known_name_is_reported_by_its_uid_alone(node, nursery):
    node.evicted(attempt_of(pod=replace(POD, namespace="kubepods", name="podu")), nursery)
    (eviction,) = await reported(node)
    assert ("u", "", "") == (eviction["uid"], eviction["namespace"], eviction["name"])


async def test_only_a_kill_for_the_nodes_sake_is_a_system_oom(node):
    for scope in (OomScope.OWN_LIMIT, OomScope.NODE):
        node.oom_killed(OomKill(source="ebpf-oom", scope=scope, at_ns=0, pid=7, comm=str(scope)))
    assert await reported(node) == [{"report": "system OOM", "comm": "node", "pid": 7}]


NO_VICTIM = "no pod can be evicted"


def slowdown() -> Slowdown:
    return Slowdown(
        signal=Signal.MEMORY_AVAILABLE,
        reason=next(iter(SlowReason)),
        since_seconds=0.0,
        until_seconds=1.0,
        message="they do not help",
    )


async def test_a_slowdown_is_reported(node):
    node.befell(SLOWED_DOWN, slowdown().message)
    assert await reported(node) == [{"report": "evictions slowed down", "message": "they do not help"}]


async def test_a_shortage_without_a_pod_to_evict_is_reported(node):
    node.befell(NO_EVICTABLE_POD, NO_VICTIM)
    assert await reported(node) == [{"report": "no evictable pod", "message": "no pod can be evicted"}]


async def test_reports_that_are_lost_are_a_problem(node, nursery):
    for number in range(300):
        node.evicted(attempt_of(pod=replace(POD, uid=f"u{number}")), nursery)
    assert "44 could not be kept" in node.problems["kubernetes reports"]
    assert node.document()["lost_reports"] == 44


async def test_without_a_steward_the_start_waits_for_no_pods(node, autojump_clock):
    began = trio.current_time()
    await node.wait_pods()
    assert trio.current_time() - began <= 2


def test_without_the_extra_the_configuration_is_refused_with_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "find_spec", lambda name: None if name == "h2" else find_spec(name))
    settings = settings_in(tmp_path)
    tree = CgroupTree(version=CgroupVersion.V2, memory_root=tmp_path)
    of = (tree, link_of(settings), Supervisor(), tuple)
    with pytest.raises(ConfigError, match=r"pip install '\.\[kubernetes\]'"):
        kubernetes_node_of(settings, *of)
    assert kubernetes_node_of(Settings(), *of) is None


class LeavingLink:
    """A steward that answers LEAVE with this, after a while; None: without a steward."""

    def __init__(self, answer: ReclaimOver | None, seconds: float = 0.0) -> None:
        self.answer = answer
        self.seconds = seconds
        self.asked: list[bool] = []
        self.until_seconds = 0.0

    def attend_cluster(self, pods, reports) -> None:
        pass

    async def ask(self, order: FrameKind, *, stands_by: bool, until_seconds: float) -> ReclaimOver:
        assert order is FrameKind.LEAVE
        self.asked.append(stands_by)
        self.until_seconds = until_seconds
        await trio.sleep(self.seconds)
        if self.answer is None:
            raise StewardError("steward: there is none at present")
        return self.answer


def leaving_node(directory, link: LeavingLink, **changes) -> KubernetesNode:
    settings = settings_in(directory, **changes)
    tree = CgroupTree(version=CgroupVersion.V2, memory_root=directory)
    return KubernetesNode(settings, tree, link, Supervisor(), lambda: ())


async def test_what_makes_a_pod_critical_outlives_the_configuration_though_it_is_listed_no_more(tmp_path):
    node, settings = node_in(tmp_path), settings_in(tmp_path)
    (tmp_path / f"cgroup/kubepods/burstable/pod{POD.uid}").mkdir(parents=True)
    node.facts.specs = {POD.uid: replace(POD, priority=2_000_000_000, critical_because="priority 2000000000")}
    await node.pod_list(settings).listed()
    node.facts.specs = {}
    for _ in range(2):
        (pod,) = await node.pod_list(settings).listed()
        assert "priority 2000000000" == pod.critical_because


async def test_what_becomes_of_the_nodes_conditions_is_logged_as_the_steward_tells(tmp_path, caplog):
    caplog.set_level("INFO")
    link = LeavingLink(ReclaimOver(number=1, did=("node one: removed 2 taints",), problems=("not all",)))
    await leaving_node(tmp_path, link).leave(stands_by=True, seconds=10.0)
    assert link.asked == [True]
    assert [("INFO", "node one: removed 2 taints"), ("WARNING", "not all")] == [
        (one.levelname, one.message) for one in caplog.records
    ]


@pytest.mark.parametrize(
    ("link", "said"),
    [
        (LeavingLink(None), "steward: there is none at present"),
        (LeavingLink(ReclaimOver(number=1), seconds=60.0), "no answer of the steward"),
    ],
)
async def test_the_end_waits_for_no_steward_that_is_not_there_or_does_not_answer(
    tmp_path, caplog, autojump_clock, link, said
):
    began = time.monotonic()
    await leaving_node(tmp_path, link).leave(stands_by=False, seconds=10.0)
    assert f"conditions and taints stay on the node: {said}" in caplog.text
    assert trio.current_time() <= 10.0 + 0.01
    # The steward, which may read this seconds later, is over before the guard ceases to wait.
    assert link.until_seconds < time.monotonic() + 10.0
    assert link.until_seconds > began + 9.0


async def test_a_pod_that_is_ended_for_a_shutdown_is_reported_at_its_end(node, nursery):
    ending = ShutdownTermination(pod=POD, grace_seconds=20)
    node.shuts_down(is_under_way=True)
    node.shutdown_ends(ending, nursery)
    await trio.testing.wait_all_tasks_blocked()
    assert [{"report": "shutdown", "is_under_way": True}] == await reported(node)
    ending.outcome = Outcome("killed")
    ending.end()
    await until(lambda: node.reports._number == 2)
    (report,) = await reported(node)
    assert ("over", True, True) == (report["state"], report["for_shutdown"], report["disrupted"])
    assert "Pod was terminated in response to imminent node shutdown." == report["message"]


@pytest.mark.parametrize("outcome", ["called off", "spared", "failed"])
async def test_a_pod_that_a_shutdown_did_not_end_is_not_reported(node, nursery, outcome):
    ending = ShutdownTermination(pod=POD, grace_seconds=20, outcome=Outcome(outcome))
    node.shutdown_ends(ending, nursery)
    ending.end()
    await trio.testing.wait_all_tasks_blocked()
    assert [] == await reported(node)


async def test_each_new_steward_hears_that_the_node_shuts_down(node):
    node.shuts_down(is_under_way=True)
    (first,) = await reported(node)
    node.reports.reported(1)
    node.reports.restart()
    assert [first] == await reported(node)
    node.shuts_down(is_under_way=False)
    assert [{"report": "shutdown", "is_under_way": False}] == await reported(node)


def _at(unobserved: Unobserved, now_seconds: float, *seen: Signal, in_force=()) -> list[NodeCondition]:
    return list(unobserved.conditions(THRESHOLDS, seen, in_force, now_seconds))


def test_a_signal_that_stays_unobserved_makes_its_condition_unknown_and_no_other() -> None:
    unobserved = Unobserved(patience_seconds=30.0)
    assert [] == _at(unobserved, 0.0, Signal.MEMORY_AVAILABLE)
    assert [] == _at(unobserved, 30.0, Signal.MEMORY_AVAILABLE)
    assert [_DISK] == _at(unobserved, 30.1, Signal.MEMORY_AVAILABLE)
    assert [] == _at(unobserved, 31.0, *ALL)
    assert [] == _at(unobserved, 32.0, Signal.MEMORY_AVAILABLE)


def test_a_condition_in_force_stays_in_force() -> None:
    unobserved = Unobserved(patience_seconds=0.0)
    _at(unobserved, 0.0)
    assert [_MEMORY] == _at(unobserved, 1.0, in_force=[_DISK])


def test_a_filesystem_without_inodes_and_signals_without_a_threshold_make_nothing_unknown() -> None:
    unobserved = Unobserved(patience_seconds=0.0)
    seen = Signal.MEMORY_AVAILABLE, Signal.NODEFS_AVAILABLE
    _at(unobserved, 0.0, *seen)
    assert [] == _at(unobserved, 1.0, *seen)


@pytest.mark.parametrize(
    ("changes", "reported"),
    [({}, ["marks"]), ({"rules": (_RULE,)}, []), ({"dry_run": True}, [])],
    ids=["no rule shows anything", "a rule reports itself", "a dry run"],
)
async def test_by_settings_without_such_rules_the_node_shows_none(
    tmp_path: Path, changes: dict[str, Any], reported: list[str]
) -> None:
    node = node_in(tmp_path)
    for _ in range(2):
        node.pod_list(settings_in(tmp_path, **changes))
    found = []
    for _ in range(len(node.reports)):
        document = json.loads((await node.reports.next()).content)
        found.append(document["report"])
        assert document["shown"] == document["left"] == []
    assert reported == found


_HOG = ProcessMemory(
    pid=4242, name="tool\x1b[2J", anonymous_bytes=40 << 20, shared_bytes=0, swap_bytes=0, processes=3
)


def process_attempt(outcome: str, grace_period_seconds: int = 0, pod: Pod = POD) -> EvictionAttempt:
    return replace(attempt_of(outcome, grace_period_seconds, pod), process=_HOG)


@pytest.mark.parametrize(
    ("outcome", "how"), [("process-killed", "killed"), ("process-terminated", "ended by SIGTERM")]
)
async def test_a_process_that_is_killed_alone_is_an_event_and_no_eviction(
    node, nursery, outcome: str, how: str
) -> None:
    attempt = process_attempt(outcome)
    node.passed(record_of(attempt), nursery)
    attempt.end()
    await trio.testing.wait_all_tasks_blocked()
    found = [one for one in await reported(node) if one["report"] not in {"conditions", "threshold met"}]
    which = "tool\\x1b[2J (process 4242 and 2 others, 40Mi)"
    assert found == [
        {
            "report": "process killed",
            "uid": "u",
            "namespace": "shop",
            "name": "web",
            "message": f"{which} was {how}, the pod lives on. The node was low on resource: memory.",
        }
    ]
    assert 0 == node.document()["held_down"]


@pytest.mark.parametrize("outcome", ["called off", "failed", "pre-empted"])
async def test_a_process_that_lives_on_is_not_reported(node, nursery, outcome: str) -> None:
    attempt = process_attempt(outcome, 30)
    node.evicted(attempt, nursery)
    attempt.end()
    await trio.testing.wait_all_tasks_blocked()
    assert [] == await reported(node)


async def test_no_event_is_for_a_pod_of_which_no_name_is_known(node, nursery) -> None:
    attempt = process_attempt("process-killed", pod=replace(POD, namespace="kubepods"))
    node.evicted(attempt, nursery)
    attempt.end()
    await trio.testing.wait_all_tasks_blocked()
    assert [] == await reported(node)


async def test_labels_outlive_a_restart(tmp_path) -> None:
    labelled = replace(POD, cgroup=None, labels={"app": "web"})
    node = node_in(tmp_path)
    for piece in pieces(Section.SPECS, 1, [spec_record(PodSource.API, labelled) or b""]):
        node.facts.take(piece)
    node.close()
    after = node_in(tmp_path)
    after.restore(Node(observed=Observed(stale_seconds=35.0)))
    assert {"u": labelled} == after.facts.specs
