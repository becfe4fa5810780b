"""Status, explain, journal and metrics have the keys, types and words that were recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from reactor.guard.incidents import NoVictims, OomKills, SourceLosses
from reactor.guard.record import Reclaimed, outcome_document
from reactor.guard.recorder import Recorder, Tally
from reactor.guard.reports import EvictionOrder, Report, Reports
from reactor.kernel.cgroup import CgroupTree, CgroupVersion
from reactor.kernel.swap import SwapTraffic
from reactor.model.decisions import ClaimKind, Decision, Hold
from reactor.model.kills import OomKill, OomScope, ProcessMemory
from reactor.model.pod_lists import ProcessVictim
from reactor.model.rules import Condition, Firing, Measure, Metric, Rule, RuleAction, RuleInput
from reactor.model.settings import OomOrderMode
from reactor.model.signals import Reclaim, Resource, Signal
from reactor.model.wakes import SourceHealth, SourceState, Wake, WakeKind
from reactor.oom_scores.order import OomOrder
from reactor.reclaim.images import RemovedFor
from reactor.steward.answers import RecentRecords, explanation
from reactor.steward.answers import status as answered
from reactor.supervisor import PartHealth, PartState
from reactor.tell.metrics import Metrics, StewardReading
from tests.golden import deferrals
from tests.golden.documents import shape
from tests.golden.files import CHANGED, is_recorded
from tests.support.builders import make_claim, make_observation, make_pod
from tests.unit.guard.conftest import MIB, WAKE
from tests.unit.guard.test_kubernetes import link_of, node_in, settings_in
from tests.unit.guard.test_node_shutdown import PREPARING, _pod
from tests.unit.guard.test_node_shutdown import Node as ShuttingDown
from tests.unit.guard.test_recorder import FakeJournal
from tests.unit.guard.test_reports_promtool import reading
from tests.unit.rules.test_watch import make_rule, watched  # noqa: F401 - fixtures
from tests.unit.warrants.test_warrants import setting  # noqa: F401 - a fixture

SOURCES = (
    SourceState(name="ticker", health=SourceHealth.ARMED, wakes=2),
    SourceState(name="memcg-eventfd", health=SourceHealth.FAILED, detail="gone", lost=1),
)
CONDITION = Condition(Metric(Measure.PRESSURE, "memory full avg10"), 40.0)


def full(view: Reports, tmp_path: Path) -> Reports:
    """Return these reports with everything optional in them."""
    part = PartState(name="records", health=PartHealth.RUNNING, restarts=1, last_error="gone", problem=None)
    oom_order = {"first": {"pod": "a/b", "uid": "u", "processes": 1}, "others": 2}
    more = {
        "kubernetes": node_in(tmp_path).document(),
        "parts": [part.document()],
        "processes": {"guard": {"pid": 1}, "steward": link_of(settings_in(tmp_path)).document()},
        "shutdown": ShuttingDown(tmp_path, ()).shutdown.document(),
        "oom_order": {"mode": OomOrderMode.LEAVE, **oom_order},
        "health": {"alive": True, "not_ready_because": None},
    }
    return replace(view, others=(*view.others, Report(document=lambda: more)))


def crowded(loop: Any, make_pass: Any) -> None:
    """Have something of each kind that a status lists."""
    loop.have(
        make_pod("hog"),
        make_pod("other", request_bytes=MIB),
        replace(make_pod("session"), process_victim=ProcessVictim(entry="unit session")),
    )
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: make_observation(50 * MIB)}
    make_pass()
    slowed = deferrals._pod_that_is_never_evicted_holds_the_memory()
    loop.known.state = loop.known.state._replace(
        claims=(
            *loop.known.state.claims,
            make_claim("gone", ClaimKind.FILES, kill_at_seconds=1, deadline_seconds=9, amount=7),
            make_claim(None, ClaimKind.KERNEL_KILL, pid=7, amount=9, deadline_seconds=9),
            make_claim("u", ClaimKind.PROCESS, pid=8, amount=9, deadline_seconds=9, pod=make_pod("b")),
            make_claim(None, ClaimKind.KERNEL_KILL, deadline_seconds=9),
        ),
        slowdowns=slowed.slowdowns,
    )
    loop.known.reclaimed = (reclaimed(),)


def reclaimed() -> Reclaimed:
    return Reclaimed(
        kind=Reclaim.IMAGES,
        signal=Signal.NODEFS_AVAILABLE,
        resource=Resource.EPHEMERAL_STORAGE,
        at_unix_seconds=1.0,
        wanted=1,
        freed=2,
        took_seconds=0.5,
        did=("vacuumed",),
        problems=("none",),
    )


async def test_status_has_the_keys_types_and_words_that_it_had(make_view, tmp_path):
    _, view, make_pass = make_view()
    make_pass()
    plain = answered(view().status(), RecentRecords(), {})
    loop, view, make_pass = make_view(*SOURCES)
    crowded(loop, make_pass)
    all_on = answered(full(view(), tmp_path).status(), recent(await journaled(loop)), {"journal": "full"})
    watching = await full(view(), tmp_path).top(EvictionOrder(), loop.usages, loop.node.memory(), 2)

    made = {"plain": shape([plain]), "everything on": shape([all_on]), "top": shape([watching])}

    assert is_recorded("status.json", made), CHANGED


async def test_status_of_rules_and_warrants_has_the_keys_that_it_had(watched, setting):  # noqa: F811
    rule = make_rule(CONDITION, for_seconds=0.0)
    watch = watched.watch(rule)
    before = watch.document()
    watched.fake.file("/node/hog", "memory.pressure", "full avg10=50.00 avg60=0 avg300=0 total=9\n")
    await watched.ticks(watch, 3)

    made = {"rules": shape([*before, *watch.document()]), "warrants": shape([setting.warrants.document()])}

    assert is_recorded("status-of-parts.json", made), CHANGED


async def test_explain_has_the_keys_types_and_words_that_it_had(make_view, tmp_path):
    loop, view, make_pass = make_view(*SOURCES)
    crowded(loop, make_pass)
    loop.known.state = loop.known.state._replace(claims=())
    lines = recent(await journaled(loop))

    made = shape([explanation(await full(view(), tmp_path).explain(loop.usages), lines, None)])

    assert is_recorded("explain.json", made), CHANGED


def recent(lines: list[Mapping[str, Any]]) -> RecentRecords:
    found = RecentRecords()
    for one in lines:
        found.take(one)
    return found


class Lines(FakeJournal):
    """A journal whose documents keep their enumerations."""

    def write(self, make, ranking=None) -> bool:
        document = dict(make())
        if ranking is not None:
            document["ranking"] = [place for some in ranking() for place in some]
        self.lines.append(document)
        return True


def firing(action: RuleAction) -> Firing:
    rule = Rule(name="r", cgroups=("/node",), conditions=(CONDITION,), for_seconds=1.0, action=action)
    inputs = (RuleInput(CONDITION, 50.0, 40.0, 60.0),)
    return Firing(rule=rule, cgroup="/node", since_seconds=990.0, at_seconds=1000.0, inputs=inputs)


async def journaled(loop: Any) -> list[Mapping[str, Any]]:
    """Return a journal with a line of each kind."""
    journal = Lines()
    recorder = Recorder(journal, Tally(), patience_seconds=10.0)
    loop.now_seconds += 100
    loop.known.state = loop.known.state._replace(claims=(), slowdowns=())
    loop.usages.seen = {
        pod.uid: used for pod, used in zip(loop.pods.present, loop.usages.seen.values(), strict=True)
    }
    record = loop.passes.make([WAKE, Wake(source="kernel", kind=WakeKind.MEMORY, at_ns=2)])
    (attempt,) = record.attempts
    attempt.process = ProcessMemory(pid=7, name="x", anonymous_bytes=1, shared_bytes=1, swap_bytes=1)
    attempt.whole_because, attempt.not_served_because = "it is small", "none was armed"
    unhelpful = deferrals._eviction_did_not_help()
    in_files = deferrals._eviction_for_inodes_did_not_help()
    hold = Hold(
        kind=Reclaim.POD_MEMORY,
        reason="why",
        threshold=deferrals.SOFT,
        began_seconds=1.0,
        until_seconds=2.0,
        wanted_bytes=2,
    )
    asked = record.decision._replace(
        deferred_because=unhelpful.deferred_because,
        slowdowns=unhelpful.slowdowns,
        unhelpful=(*unhelpful.unhelpful, *in_files.unhelpful),
        absurd={Signal.PID_AVAILABLE: "capacity is 0"},
        reclaim=(Reclaim.IMAGES,),
        memory_reclaim=replace(hold, kind=Reclaim.MEMORY, outside_bytes=3),
        soft_reclaim=hold,
    )
    async with trio.open_nursery() as nursery:
        recorder.resume(record, nursery)
        recorder.record(replace(record, decision=asked, reclaimed=(reclaimed(),)), nursery)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    for action in RuleAction:
        by_rule = Decision(at_seconds=1000.0, rule=firing(action))
        recorder.record(replace(record, decision=by_rule, attempts=()), nursery)
    journal.write(lambda: outcome_document(1, 1.0, attempt))
    SourceLosses(journal.write).changed(SOURCES[1])
    kills = OomKills(loop.known, journal.write, loop.passes.observations.refresh_pods)
    for cgroup in (None, "/node/hog/x"):
        kills.record(
            OomKill(source="ebpf", scope=OomScope.NODE, at_ns=1, pid=7, comm="x", victim_cgroup=cgroup)
        )
    asked = record.decision._replace(evictions=(), acted_on=deferrals.HARD, no_victim=no_victim())
    shown = replace(record, attempts=(), decision=asked)
    NoVictims(journal.write).passed(shown)
    return journal.lines


def no_victim() -> Any:
    scene = deferrals.Scene(deferrals.HARD)
    scene.kept("static", 300)
    scene.memory(50)
    return scene.decide().no_victim


async def test_a_shutdown_has_the_lines_and_the_status_that_it_had(tmp_path, autojump_clock):
    node = ShuttingDown(tmp_path, [_pod("stubborn", grace_seconds=100), _pod("high", 1000)])
    before = node.shutdown.document()
    async with node.running():
        node.say(PREPARING)
        await node.until_over()
    phases = sorted({line["phase"] for line in node.lines})

    made = {
        "status": shape([before, node.shutdown.document()]),
        **{phase: shape(line for line in node.lines if line["phase"] == phase) for phase in phases},
    }

    assert is_recorded("shutdown.json", made), CHANGED


async def test_lines_of_the_journal_have_the_keys_types_and_words_that_they_had(make_view, tmp_path):
    loop, _, make_pass = make_view()
    crowded(loop, make_pass)
    lines = await journaled(loop)
    tree = CgroupTree(version=CgroupVersion.V2, memory_root=tmp_path)
    order = OomOrder(tree, tmp_path / "order.json", write=lambda make: lines.append(make()))
    order._report("restored")
    kinds = sorted({line["kind"] for line in lines})

    made = {kind: shape(line for line in lines if line["kind"] == kind) for kind in kinds}

    assert is_recorded("journal.json", made), CHANGED


def test_metrics_have_the_names_labels_and_help_that_they_had(make_threshold):
    metrics, tally = Metrics(), Tally()
    own = StewardReading(
        parts={"metrics": 2},
        removed_images={RemovedFor.SPACE: 3},
        notifications=[{"channel": "webhook", "sent": 3, "failed": 4, "dropped": 5, "skipped": 6}],
        swap_traffic=SwapTraffic(in_bytes=4096, out_bytes=8192),
        pod_oom_kills={("cgroup/web", "own-limit"): 2},
    )
    counted = {
        **tally.document(),
        "rules": [("r", "evict", 1)],
        "rules_unhelpful": [("r", "evict", 1)],
        "process_evictions": [("memory.available", "killed", 1)],
    }
    time_left = {
        "signals": [
            {
                "threshold": "memory.available<1Gi",
                "seconds": 2.0,
                "earliest_seconds": 1.0,
                "latest_seconds": 3.0,
            }
        ],
        "in_time": {"needed": 1, "presumed": 0, "sooner": 0, "not_needed": 0},
    }
    scraped = {**reading(make_threshold, tally).reading(), "tally": counted, "time_left": time_left}
    metrics.read(json.loads(json.dumps(scraped)), own)

    made = {
        family.name: {
            "type": family.type,
            "help": family.documentation,
            "samples": sorted({f"{one.name}{{{','.join(sorted(one.labels))}}}" for one in family.samples}),
        }
        for family in metrics.registry.collect()
    }

    assert is_recorded("metrics.json", dict(sorted(made.items()))), CHANGED


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": None}, {"a": [None]}),
        ({"kind": "x"}, {"kind": "y"}),
        ({"a": [{"b": 1}]}, {"a": [{"b": "1"}]}),
    ],
)
def test_documents_of_another_shape_differ(one, other):
    assert shape([one]) != shape([other])


def test_names_that_are_data_make_no_difference():
    assert shape([{"problems": {"journal": "full"}}]) == shape([{"problems": {"disk": "slow"}}])
