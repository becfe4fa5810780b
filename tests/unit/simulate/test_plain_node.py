"""A plain node recorded into a scenario: what is in it, how much of it, and that it replays."""

from __future__ import annotations

import json
import signal
from functools import partial

import pytest
import trio

from reactor.config.settings import load_configuration, settings_from_text
from reactor.kernel.cgroup import CgroupVersion
from reactor.model.decisions import PolicyState, Snapshot
from reactor.model.pod_lists import Preference
from reactor.model.pods import Pod, PodUsage
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation
from reactor.policy.decide import decide
from reactor.simulate import recording
from reactor.simulate.plain_node import PlainNode, Worth, pod_document, summary_of
from reactor.simulate.recording import RecordOptions, record
from reactor.simulate.replay import replay
from reactor.simulate.scenario import scenario_from_text

MIB = 1 << 20
CONFIG = (
    "evictionHard: {memory.available: 100Mi}\n"
    "reactor: {nodeCgroup: /node, pods: {parents: [/node]}, filesystems: {nodefs: PATH}}\n"
)


@pytest.fixture(params=list(CgroupVersion))
def node(request, make_tree):
    tree = make_tree(request.param)
    for cgroup, mib in {"/": 0, "/node": 950, "/node/web": 200, "/node/hog": 700}.items():
        tree.add(cgroup, usage_bytes=mib * MIB)
        tree.file(cgroup, "pids.current", "3\n", "pids")
    tree.tree.set_memory_limit("/node", 1024 * MIB)
    tree.tree.set_memory_request("/node/web", 256 * MIB)
    return tree


@pytest.fixture
def settings(tmp_path):
    return settings_from_text(CONFIG.replace("PATH", str(tmp_path)), "f")


def looked(node, settings, proc):
    plain = PlainNode(node.tree, settings, proc=proc)
    try:
        return trio.run(plain.observe)
    finally:
        plain.close()


@pytest.fixture
def proc(tmp_path):
    path = tmp_path / "proc"
    (path / "sys/kernel").mkdir(parents=True)
    names = ("MemTotal", "MemFree", "Buffers", "Cached", "AnonPages", "Inactive(file)", "SReclaimable")
    path.joinpath("meminfo").write_text("".join(f"{name}: 4194304 kB\n" for name in (*names, "SUnreclaim")))
    return path


@pytest.mark.parametrize(("by", "swapped"), [("swap", 300 * MIB), ("memory", None)])
def test_a_recording_has_what_a_rule_ranks_by(node, tmp_path, proc, by, swapped):
    if node.tree.version is CgroupVersion.V2:
        node.file("/node/hog", "memory.swap.current", f"{300 * MIB}\n")
    else:
        node.file("/node/hog", "memory.stat", f"total_inactive_file 0\ntotal_swap {300 * MIB}\n")
    rule = f"{{name: r, cgroups: [/node], when: [{{swapUsed: 90%}}], for: 0s, action: evictWorst, by: {by}}}"
    text = CONFIG.replace("PATH", str(tmp_path)).replace("reactor: {", f"reactor: {{rules: [{rule}], ")
    _, pods, usages = looked(node, settings_from_text(text, "f"), proc)
    (hog,) = (pod for pod in pods if pod.name == "hog")
    assert swapped == usages[hog.uid].swap_bytes


def test_what_is_recorded_replays_to_the_decision_that_the_daemon_would_make(node, settings, proc):
    seen, pods, usages = looked(node, settings, proc)
    step = {
        "at": "0s",
        "pods": [pod_document(pod) for pod in pods],
        "summary": summary_of(seen, pods, usages),
    }
    document = {
        "apiVersion": "reactor/v1alpha1",
        "kind": "Scenario",
        "kubeletConfiguration": {"evictionHard": {"memory.available": "100Mi"}},
        "steps": [step],
    }
    (line,) = replay(scenario_from_text(json.dumps(document), "recorded"))
    assert [one["pod"] for one in line["evicted"]] == ["cgroup/hog"]
    assert line["ranking"] == ["cgroup/hog", "cgroup/web"]
    assert seen[Signal.NODEFS_AVAILABLE].capacity > 0
    assert Signal.ALLOCATABLE_MEMORY_AVAILABLE not in seen


def test_a_pod_that_is_exempt_is_exempt_in_the_scenario():
    exempt = Pod(name="a", namespace="cgroup", uid="u", critical_because="user.oomd_omit")
    critical = Pod(name="b", namespace="cgroup", uid="v", critical_because="priority", priority=2_000_000_000)
    steps = [{"at": "0s", "pods": [pod_document(exempt), pod_document(critical)]}]
    document = {"apiVersion": "reactor/v1alpha1", "kind": "Scenario", "steps": steps}
    scenario = scenario_from_text(json.dumps(document), "recorded")
    (step,) = scenario.steps
    assert all(pod.critical_because for pod in step.pods or ())


def memory(mib):
    return {Signal.MEMORY_AVAILABLE: Observation(available=mib * MIB, capacity=10_000 * MIB)}


@pytest.fixture
def is_step(settings):
    worth = Worth(settings.eviction.thresholds)
    pods = (Pod(name="a", namespace="cgroup", uid="u"),)

    def ask(at, mib, used_mib=0, pods=pods):
        return worth.is_step(at, memory(mib), {"u": PodUsage(memory_working_set_bytes=used_mib * MIB)}, pods)

    assert ask(0, 5000)
    return ask


def test_a_quiet_node_has_a_step_in_ten_minutes(is_step):
    assert [600, 1200] == [at for at in range(10, 1300, 10) if is_step(at, 5000)]


def test_slight_changes_far_from_every_threshold_have_a_step_a_minute(is_step):
    assert [60, 120, 180] == [at for at in range(10, 200, 10) if is_step(at, 5000 + at)]


def test_what_moves_clearly_has_a_step_at_once_and_so_has_a_pod_that_grows_while_another_shrinks(is_step):
    assert not is_step(10, 5100)
    assert is_step(20, 5200)
    assert is_step(30, 5200, used_mib=200)
    assert not is_step(40, 5200, used_mib=210)


def test_near_a_threshold_every_change_has_a_step(is_step):
    assert is_step(10, 190)
    assert is_step(20, 179)
    assert not is_step(30, 179)


def test_pods_that_come_or_go_have_a_step(is_step):
    assert is_step(10, 5000, pods=())
    assert not is_step(20, 5000, pods=())


TURNS = 5


class EndsAfterSomeTurns(PlainNode):
    """Observes a node so often, and then has the recording ended as an operator does."""

    turns = 0

    async def observe(self):
        type(self).turns += 1
        if self.turns == TURNS:
            signal.raise_signal(signal.SIGINT)
        return await super().observe()


def test_record_writes_a_plain_nodes_scenario(node, proc, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(EndsAfterSomeTurns, "turns", 0)
    monkeypatch.setattr(recording, "PlainNode", partial(EndsAfterSomeTurns, proc=proc))
    monkeypatch.setattr(recording.CgroupTree, "discover", lambda: node.tree)
    config, out = tmp_path / "config.yaml", tmp_path / "node.json"
    # Of a real disk others take and free space meanwhile, which is a step near a threshold.
    config.write_text(CONFIG.replace("PATH", "/proc"))
    options = RecordOptions(config=config, output=str(out), interval_seconds=0.0)
    assert record(options) == 0
    assert TURNS == EndsAfterSomeTurns.turns
    scenario = scenario_from_text(out.read_text(), "recorded")
    assert [pod.name for pod in scenario.steps[0].pods or ()] == ["hog", "web"]
    assert len(scenario.steps) == 1  # nothing has changed since
    assert "1 step recorded" in capsys.readouterr().err


@pytest.mark.parametrize("enforced", ["", "enforceNodeAllocatable: [pods]\n", "enforceNodeAllocatable: []\n"])
@pytest.mark.parametrize("hard", ["", "evictionHard:\n", "evictionHard: {memory.available: 100Mi}\n"])
def test_a_plain_nodes_recording_is_judged_as_the_daemon_judges_the_node(
    node, proc, tmp_path, monkeypatch, enforced, hard
):
    monkeypatch.setattr(recording, "PlainNode", partial(PlainNode, proc=proc))
    monkeypatch.setattr(recording.CgroupTree, "discover", lambda: node.tree)
    section = CONFIG.split("\n")[1].replace("PATH", str(tmp_path))
    config, out = tmp_path / "config.yaml", tmp_path / "node.json"
    config.write_text(f"{enforced}{hard}{section}\n")
    assert record(RecordOptions(config=config, output=str(out), interval_seconds=0.01, seconds=0.0)) == 0
    scenario = scenario_from_text(out.read_text(), "recorded")
    settings = load_configuration(config).settings
    assert settings.eviction.thresholds == scenario.settings.thresholds

    seen, pods, usages = looked(node, settings, proc)
    by_daemon = decide(
        settings.eviction, PolicyState(), Snapshot(signals=seen, pods=dict(usages)), pods, 0.0
    )[1]
    (line,) = replay(scenario)
    memory = [str(one) for one in by_daemon.thresholds_met if "emory" in str(one)]
    assert memory == [one for one in line["thresholdsMet"] if "emory" in one]
    assert [one.pod.key for one in by_daemon.evictions] == [one["pod"] for one in line["evicted"]]
    assert [one.pod.key for one in by_daemon.ranking] == line["ranking"]


def test_record_writes_who_goes_first_and_last_by_the_lists(node, settings, proc, tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "PlainNode", partial(PlainNode, proc=proc))
    monkeypatch.setattr(recording.CgroupTree, "discover", lambda: node.tree)
    config, out = tmp_path / "config.yaml", tmp_path / "node.json"
    config.write_text(CONFIG.replace("PATH", str(tmp_path)))
    lists = tmp_path / "config.d"
    lists.mkdir()
    (lists / "lists.conf").write_text("reactor: {pods: {avoid: [hog], prefer: [web]}}\n")
    options = RecordOptions(
        config=config, config_dir=lists, output=str(out), interval_seconds=0.01, seconds=0.1
    )
    assert record(options) == 0
    scenario = scenario_from_text(out.read_text(), "recorded")
    assert {"hog": Preference.AVOID, "web": Preference.PREFER} == {
        pod.name: pod.preference for pod in scenario.steps[0].pods or ()
    }
