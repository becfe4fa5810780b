"""Another policy over recordings and journals: what it evicts more and fewer; skipping changes none."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from reactor.cli import main
from reactor.shadow.replay import Evicted, _Replay
from reactor.simulate.scenario import Scenario, eviction_settings, scenario_of
from tests.support.fleet import BEGAN, CAPACITY, MIB, write_recording
from tests.support.fleet import Node as MadeUp

_GIB = 1 << 30


def fleet(
    capsys: pytest.CaptureFixture[str], directory: Path, policy: str, *more: str, status: int = 0
) -> Any:
    file = directory / "policy.yaml"
    file.write_text(policy)
    arguments = ["fleet", "--output", "json", "--jobs", "1", "--policy", str(file), *more]
    assert status == main([*arguments, str(directory / "files")])
    return json.loads(capsys.readouterr().out)


def recording(directory: Path, *available_mib: int, name: str = "node-a", **header: Any) -> Path:
    """Write a recording of two pods, a step a minute with so much available."""
    path = directory / "files" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    steps = []
    for number, available in enumerate(available_mib):
        memory = {
            "availableBytes": available * MIB,
            "workingSetBytes": CAPACITY - available * MIB,
        }
        pods = [
            {"podRef": {"name": one, "namespace": "n", "uid": one}, "memory": {"workingSetBytes": size * MIB}}
            for one, size in (("large", 900), ("small", 90))
        ]
        steps.append({"at": f"{60 * number}s", "summary": {"node": {"memory": memory}, "pods": pods}})
    listed = [{"metadata": {"name": one, "namespace": "n", "uid": one}} for one in ("large", "small")]
    steps[0]["pods"] = listed
    document = {
        "apiVersion": "reactor/v1alpha1",
        "kind": "Scenario",
        "name": "",
        "kubeletConfiguration": {"evictionHard": {"memory.available": "200Mi"}},
        "filesystems": {},
        "node": {"name": name, "labels": {"pool": "gpu"}, "began": "2026-11-01T00:00:00Z"},
        **header,
    }
    lines = ",\n".join(json.dumps(step, separators=(",", ":")) for step in steps)
    path.write_text(json.dumps(document, separators=(",", ":"))[:-1] + ',"steps":[\n' + lines + "\n]}\n")
    return path


def test_a_lower_threshold_makes_fewer_evictions_and_a_higher_one_more_here_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording(tmp_path, 4000, 150, 4000, *[4000] * 20, 450, 4000)
    fewer = fleet(capsys, tmp_path, "evictionHard: {memory.available: 100Mi}")
    (change,) = fewer["changes"]
    assert {
        "node": "node-a",
        "pool": "gpu",
        "change": "fewer",
        "time": "2026-11-01T00:01:00.000000Z",
        "at_seconds": None,
        "pod": "n/large",
        "uid": "large",
        "by": "memory.available<200Mi",
        "source": "recording",
    } == change
    more = fleet(capsys, tmp_path, "evictionHard: {memory.available: 500Mi}")
    assert [("more", "n/large", "2026-11-01T00:23:00.000000Z")] == [
        (one["change"], one["pod"], one["time"]) for one in more["changes"]
    ]
    assert (1, 0) == (more["total"]["more"], more["total"]["fewer"])
    assert [] == fleet(capsys, tmp_path, "evictionHard: {memory.available: 200Mi}")["changes"]


def test_recordings_alone_are_replayed_and_said_to_have_nothing_to_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording(tmp_path, 4000)
    assert 0 == main(["fleet", str(tmp_path / "files")])
    assert capsys.readouterr().out.startswith("1 node with recordings alone: there is no journal to compare.")


def test_more_or_fewer_than_are_allowed_is_an_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording(tmp_path, 9000, 150, *[9000] * 20, 4000)
    low = "evictionHard: {memory.available: 100Mi}"
    fleet(capsys, tmp_path, low, "--allow-fewer", "1", "--allow-more", "0")
    fleet(capsys, tmp_path, low, "--allow-fewer", "0", status=3)
    fleet(capsys, tmp_path, "evictionHard: {memory.available: 5000Mi}", "--allow-more", "0", status=3)
    with pytest.raises(SystemExit, match="2"):
        main(["fleet", "--allow-more", "0", str(tmp_path)])
    assert "--allow-more: only with --policy" in capsys.readouterr().err


def test_an_invalid_policy_is_refused_with_its_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "policy.yaml").write_text("evictionHard: {memory.available: much}")
    assert 2 == main(["fleet", "--policy", str(tmp_path / "policy.yaml"), str(tmp_path)])
    assert "got 'much'" in capsys.readouterr().err


def test_a_journal_alone_is_compared_with_the_evictions_that_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = MadeUp("node-b", "web", random.Random(4))
    first, *_ = node.shortage(BEGAN + 7200)
    node.over(BEGAN + 7212)
    node.written(tmp_path / "files" / "node-b.jsonl")
    same = fleet(capsys, tmp_path, "evictionHard: {memory.available: 200Mi}")
    assert [] == same["changes"]
    fewer = fleet(capsys, tmp_path, "evictionHard: {memory.available: 100Mi}")
    assert [("fewer", first.key, "journal")] == [
        (one["change"], one["pod"], one["source"]) for one in fewer["changes"]
    ]
    more = fleet(capsys, tmp_path, "evictionHard: {memory.available: 5Gi}")
    assert [] == more["changes"], "the same pod within ten minutes"


def test_rules_of_the_policy_are_replayed_where_the_recording_has_what_they_observe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recording(tmp_path, 4000, 4000, 4000)
    text = path.read_text()
    cgroups = '"cgroups":{"/a":{"pressure":{"memory":{"full":{"avg10":90}}}}},"summary"'
    listed = '"podCgroups":{"large":"/a/large","small":"/b/small"},"pods"'
    path.write_text(
        text.replace('"summary"', cgroups).replace('"pods":[{"metadata"', f'{listed}:[{{"metadata"')
    )
    condition = "{pressure: memory full, avg10: 60%}"
    rule = f"{{name: stalls, cgroups: [/a], when: [{condition}], for: 10s, action: evictWorst}}"
    found = fleet(capsys, tmp_path, f"reactor: {{nodeCgroup: /a, rules: [{rule}]}}")
    assert ("more", "n/large", "rule stalls") in {
        (one["change"], one["pod"], one["by"]) for one in found["changes"]
    }


_POLICIES = (
    {"evictionHard": {"memory.available": "200Mi"}},
    {
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "10%", "pid.available": "5%"},
        "evictionSoft": {"memory.available": "1Gi"},
        "evictionSoftGracePeriod": {"memory.available": "90s"},
        "evictionMinimumReclaim": {"memory.available": "300Mi"},
    },
)


def random_steps(chance: random.Random) -> list[dict[str, Any]]:
    """Return a history that goes below thresholds and comes back, with pods that come and go."""
    steps: list[dict[str, Any]] = []
    uids = [f"u{number}" for number in range(4)]
    for number in range(60):
        available = chance.choice((90, 150, 450, 900, 1100, 1300, 4000, 4000, 4000)) * MIB
        node = {
            "memory": {"availableBytes": available, "workingSetBytes": CAPACITY - available},
            "fs": {"availableBytes": chance.choice((9, 50, 50)) * _GIB, "capacityBytes": 100 * _GIB},
            "rlimit": {"maxpid": 1000, "curproc": chance.choice((100, 100, 970))},
        }
        pods = [
            {
                "podRef": {"uid": uid},
                "memory": {"workingSetBytes": chance.randrange(100) * MIB},
                "process_stats": {"process_count": chance.randrange(50)},
                "ephemeral-storage": {"usedBytes": chance.choice((1, 1, 3)) * _GIB},
                "containers": [{"name": "c", "rootfs": {"usedBytes": chance.randrange(9)}}],
            }
            for uid in uids
        ]
        step: dict[str, Any] = {"at": f"{40 * number}s", "summary": {"node": node, "pods": pods}}
        if number == 0 or chance.random() < 0.15:
            uids = [f"u{chance.randrange(9)}" for _ in range(chance.randrange(1, 6))]
            uids = list(dict.fromkeys(uids))
            limits = {"limits": {"ephemeral-storage": "2Gi"}} if chance.random() < 0.4 else {}
            step["pods"] = [
                {
                    "metadata": {"name": uid, "namespace": "n", "uid": uid},
                    "spec": {"containers": [{"name": "c", "resources": limits}]},
                }
                for uid in uids
            ]
        if chance.random() < 0.05:
            del step["summary"]
        elif chance.random() < 0.05 and "pods" in step:
            step["pods"] = step.pop("pods")  # behind the summary
        elif chance.random() < 0.05:
            step = {"at": step["at"], "statsError": True}
        steps.append(step)
    return steps


def lasting_shortage(chance: random.Random, *, length: int = 120) -> list[dict[str, Any]]:
    """Return a history that stays below thresholds for long; pods change seldom, statistics may be old."""
    steps: list[dict[str, Any]] = []
    held = {f"u{number}": chance.randrange(100) * MIB for number in range(4)}
    available, memory = 900 * MIB, dict[str, Any]()
    for number in range(length):
        if chance.random() < 0.15:
            available = chance.choice((90, 150, 290, 450, 900, 1100, 1300, 4000)) * MIB
        if not memory or not length % 2 or chance.random() < 0.8:
            memory = {"availableBytes": available, "workingSetBytes": CAPACITY - available}
            if length % 2:
                memory["time"] = f"2026-11-01T00:{number // 60:02}:{number % 60:02}Z"
        held |= {uid: chance.randrange(100) * MIB for uid in held if chance.random() < 0.1}
        pods: list[dict[str, Any]] = [
            {"podRef": {"uid": uid}, "memory": {"workingSetBytes": size}} for uid, size in held.items()
        ]
        if chance.random() < 0.1:
            pods[0].pop("memory")
        step = {"at": f"{40 * number}s", "summary": {"node": {"memory": memory}, "pods": pods}}
        if number == 0 or chance.random() < 0.05:
            priorities = chance.choices((0, 1, 2_000_000_000), k=4)
            step["pods"] = [
                {"metadata": {"name": uid, "namespace": "n", "uid": uid}, "spec": {"priority": priority}}
                for uid, priority in zip(held, priorities, strict=True)
            ]
        steps.append(chance.choices((step, {"at": step["at"], "statsError": True}), (19, number > 0))[0])
    return steps


def evicted(
    steps: list[dict[str, Any]], *, reads_all: bool, by_line: bool = False
) -> tuple[tuple[list[Evicted], ...], int]:
    header = {"apiVersion": "reactor/v1alpha1", "kind": "Scenario", "steps": []}
    scenarios: list[Scenario] = [scenario_of({**header, "kubeletConfiguration": one}) for one in _POLICIES]
    policies = [(eviction_settings(one.configuration, one.layout), one.rules) for one in scenarios]
    replay = _Replay(policies, scenarios[0])
    replay._reads_all |= reads_all
    for step in steps:
        if by_line:
            replay.take_line(json.dumps(step, separators=(",", ":")).encode() + b",\n")
        else:
            replay.take(step)
    return replay.evicted, replay.passes


@pytest.mark.parametrize("seed", range(40))
def test_what_is_skipped_changes_no_eviction_of_any_policy(seed: int) -> None:
    steps = random_steps(random.Random(seed))
    with_all, all_passes = evicted(steps, reads_all=True)
    skipping, passes = evicted(steps, reads_all=False)
    assert with_all == skipping
    by_line, _ = evicted(steps, reads_all=False, by_line=True)
    assert with_all == by_line
    assert any(with_all)
    assert passes <= all_passes


@pytest.mark.parametrize("seed", range(60))
def test_what_a_lasting_shortage_repeats_is_skipped_and_changes_no_eviction(seed: int) -> None:
    steps = lasting_shortage(random.Random(seed), length=120 + seed % 2)
    with_all, all_passes = evicted(steps, reads_all=True)
    by_line, passes = evicted(steps, reads_all=False, by_line=True)
    assert with_all == by_line
    assert any(with_all)
    assert passes < 0.8 * all_passes


def test_a_day_in_one_shortage_is_a_few_passes() -> None:
    (first,) = lasting_shortage(random.Random(2), length=1)
    first["summary"]["node"]["memory"] = {"availableBytes": 900 * MIB, "workingSetBytes": CAPACITY}
    later = ({"at": f"{10 * number}s", "summary": first["summary"]} for number in range(1, 8640))
    (in_force, other), passes = evicted([first, *later], reads_all=False)
    assert ([], ["memory.available<1Gi"]) == (in_force, [one.by for one in other])
    assert 10 == passes, "those of the grace period of 90 s"


def test_a_quiet_month_is_told_from_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_recording(tmp_path / "files" / "node.json", days=10, shortages=2)
    document = fleet(capsys, tmp_path, "evictionHard: {memory.available: 100Mi}")
    assert 2 == document["total"]["fewer"]
    assert 1920 == document["replayed"]["steps"]
    assert 8 >= document["replayed"]["passes"]


def test_a_recording_of_very_many_steps_near_a_threshold_is_cut_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reactor.shadow.replay._MOST_READ", 5)
    path = recording(tmp_path, *[150, 450] * 10)
    file = tmp_path / "policy.yaml"
    file.write_text("evictionHard: {memory.available: 100Mi}")
    assert 0 == main(["fleet", "--output", "json", "--policy", str(file), str(path.parent)])
    out, err = capsys.readouterr()
    assert f"{path}: step 6, where its replay ends: more than 5 steps near a threshold" in err
    assert 3 == json.loads(out)["total"]["fewer"]
