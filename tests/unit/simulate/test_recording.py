from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from reactor.cli import main
from reactor.errors import ConfigError
from reactor.kube.credentials import Access
from reactor.kube.errors import ApiError
from reactor.model.settings import KubernetesSettings
from reactor.simulate import recording
from reactor.simulate.recording import (
    RecordOptions,
    ScenarioFile,
    at,
    record,
    reduced_pod,
    reduced_summary,
    step_of,
    steps_of_journal,
)
from reactor.simulate.replay import replay
from reactor.simulate.scenario import scenario_from_text
from tests.support.api_faults import Asked, Reply, pod_document, refusal, served

_GIB = 1 << 30
_CONFIG = "evictionHard: {memory.available: 1Gi}\nreactor: {}\n"


def _summary(available: int, used: int, second: int = 0) -> dict[str, Any]:
    time = f"2026-01-01T00:00:{second:02}Z"
    return {
        "node": {
            "nodeName": "one",
            "cpu": {"usageNanoCores": 3},
            "memory": {
                "time": time,
                "availableBytes": available,
                "workingSetBytes": 4 * _GIB,
            },
        },
        "pods": [
            {
                "podRef": {"name": "web", "namespace": "default", "uid": "uid-web"},
                "memory": {"workingSetBytes": used, "rssBytes": 1},
                "network": {"rxBytes": 1},
            }
        ],
    }


def _recorded(*steps: dict[str, Any], seekable: bool = True) -> str:
    file = io.BytesIO()
    if not seekable:
        file.seekable = lambda: False  # type: ignore[method-assign]
    scenario = ScenarioFile(
        file, "test", {"kubeletConfiguration": {"evictionHard": {"memory.available": "1Gi"}}}
    )
    for step in steps:
        scenario.add(step)
        if seekable:
            json.loads(file.getvalue())  # valid after every step
    scenario.close()
    return file.getvalue().decode()


@pytest.mark.parametrize("seekable", [True, False])
def test_what_is_recorded_is_replayed(*, seekable: bool) -> None:
    pods = [reduced_pod(pod_document())]
    text = _recorded(
        step_of(0.0, _summary(2 * _GIB, _GIB), pods, None),
        step_of(10.0, _summary(_GIB // 2, 3 * _GIB, 10), pods, pods),
        step_of(20.0, None, None, pods),
        seekable=seekable,
    )
    lines = list(replay(scenario_from_text(text, "recorded")))
    assert [[], ["default/web"], []] == [[one["pod"] for one in line["evicted"]] for line in lines]
    assert lines[2]["error"] is not None


def test_pods_stand_only_where_they_changed() -> None:
    pods, others = [reduced_pod(pod_document())], [reduced_pod(pod_document("db"))]
    assert pods == step_of(0.0, {}, pods, None)["pods"]
    assert "pods" not in step_of(1.0, {}, pods, pods)
    assert others == step_of(1.0, {}, others, pods)["pods"]


def test_a_recording_without_a_step_is_valid() -> None:
    assert [] == list(replay(scenario_from_text(_recorded(), "recorded")))


def test_nothing_of_a_pod_is_kept_but_what_counts() -> None:
    pod = pod_document(
        metadata={
            "labels": {"app": "x"},
            "annotations": {"kubernetes.io/config.source": "file", "secret": "s"},
        },
        spec={
            "nodeName": "one",
            "containers": [{"name": "main", "image": "i", "env": [{"name": "PASSWORD", "value": "s"}]}],
            "volumes": [
                {"name": "a", "secret": {"secretName": "s"}},
                {"name": "b", "emptyDir": {"sizeLimit": "1Mi"}},
            ],
        },
    )
    assert {
        "metadata": {
            "name": "web",
            "namespace": "default",
            "uid": "uid-web",
            "annotations": {"kubernetes.io/config.source": "file"},
        },
        "spec": {
            "containers": [{"name": "main"}],
            "volumes": [{"name": "a", "secret": {}}, {"name": "b", "emptyDir": {"sizeLimit": "1Mi"}}],
        },
    } == reduced_pod(pod)
    assert {"availableBytes", "workingSetBytes", "time"} == set(
        reduced_summary(_summary(1, 1))["node"]["memory"]
    )


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda one: st.lists(one) | st.dictionaries(st.text(), one)
    )
)
def test_whatever_is_reduced_nothing_is_raised(document: Any) -> None:
    reduced_summary({"node": document, "pods": document})
    reduced_pod({"metadata": document, "spec": document})
    reduced_pod({"spec": {"volumes": document, "containers": document}})


async def test_the_kubelet_is_polled_again_and_again_and_a_failure_in_between_is_a_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    was_asked_often = trio.Event()

    def script(request: Asked) -> Reply:
        asked.append(request.path)
        if asked.count("/stats/summary") == 4:
            was_asked_often.set()
        if asked.count("/stats/summary") == 2:
            return refusal(404, "away")
        ended = pod_document("ended", status={"phase": "Failed"})
        pods = {"items": [pod_document(), ended]}
        return Reply(body=_summary(2 * _GIB, _GIB) if request.path == "/stats/summary" else pods)

    async with served(script) as (server, _):
        monkeypatch.setattr(recording, "kubelet_access", lambda _: recording_access(server.url))
        file = io.BytesIO()
        options = RecordOptions(config=tmp_path, interval_seconds=0.05)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(recording._poll, KubernetesSettings(), ScenarioFile(file, "test", {}), options)
            await was_asked_often.wait()
            nursery.cancel_scope.cancel()
    steps = json.loads(file.getvalue())["steps"]
    assert 3 == len(steps)
    assert ["web"] == [pod["metadata"]["name"] for pod in steps[0]["pods"]]
    assert [1] == [number for number, step in enumerate(steps) if step.get("statsError")]
    assert "away" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("looks", "seconds", "expected"),
    [
        ([0.0, 0.0, 0.0], 25.0, [0, 10, 20]),
        ([30.0], 5.0, [0]),  # one that outlasts the time is left to end
        ([30.0, 0.0], 20.0, [0, 30]),
        ([0.0], 0.0, [0]),
    ],
)
async def test_looks_go_on_until_the_time_is_over_and_there_is_one_at_least(
    autojump_clock: trio.testing.MockClock, looks: list[float], seconds: float, expected: list[float]
) -> None:
    began, found = trio.current_time(), []
    options = RecordOptions(config=Path("unread"), interval_seconds=10.0, seconds=seconds)
    pace = recording._Steps(options)
    while await pace.is_due():
        await trio.sleep(looks[len(found)])
        found.append(pace.seconds)
    assert expected == found
    assert trio.current_time() - began == max(seconds, expected[-1] + looks[-1])


async def test_a_node_whose_pods_are_more_than_one_answer_may_hold_is_recorded() -> None:
    environment = [{"name": f"v{number}", "value": "x" * 1000} for number in range(20)]
    containers = [{"name": "main", "env": environment}]
    pods = [pod_document(f"p{number}", spec={"containers": containers}) for number in range(250)]
    assert len(json.dumps(pods)) > 4 << 20

    def script(request: Asked) -> Reply:
        return Reply(body=_summary(1, 1) if request.path == "/stats/summary" else {"items": pods})

    async with served(script) as (_, client):
        _, recorded = await recording._ask(client, first=True)
    assert [f"p{number}" for number in range(250)] == [pod["metadata"]["name"] for pod in recorded or ()]
    assert len(json.dumps(recorded)) < 1 << 16


def recording_access(url: str) -> Any:
    return Access(server=url)


def test_a_kubelet_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("reactor: {kubernetes: {}}\n")
    monkeypatch.setattr(recording, "kubelet_access", lambda _: recording_access("http://127.0.0.1:1"))
    with pytest.raises(ApiError):
        record(RecordOptions(config=config, output=str(tmp_path / "out.json")))


def _decision(seconds: int, available: int, ranking: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    seen = {"available": available, "capacity": 8 * _GIB, "inactive_file_bytes": 5, "taken_at_seconds": 1.0}
    return {
        "kind": "decision",
        "time": f"2026-01-01T00:00:{seconds:02}.000000Z",
        "threshold": None if ranking is None else {"signal": "memory.available"},
        "observations": {
            "memory.available": seen,
            "allocatableMemory.available": seen,
            "nodefs.available": seen,
            "imagefs.inodesFree": seen,
            "pid.available": seen,
        },
        "ranking": ranking or [],
    }


def _place(name: str, **more: Any) -> dict[str, Any]:
    return {
        "pod": f"default/{name}",
        "uid": name,
        "qos_class": "Burstable",
        "priority": 0,
        "usage": 3 * _GIB,
        "request": _GIB,
        "critical_because": None,
        **more,
    }


def test_the_reactors_own_journal_is_replayed_to_the_same_victim(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    ranking = [
        _place("hog"),
        _place("modest", usage=_GIB // 2),
        _place("static", critical_because="static pod"),
    ]
    lines = [
        _decision(0, 4 * _GIB),
        _decision(7, _GIB // 2, ranking),
        {"kind": "outcome"},
        _decision(9, 4 * _GIB),
    ]
    journal.write_text("\n".join(map(json.dumps, lines)) + '\n{"kind": "deci')
    steps = list(steps_of_journal(journal))
    assert ["0.000s", "7.000s", "9.000s"] == [step["at"] for step in steps]
    replayed = list(replay(scenario_from_text(_recorded(*steps), "journal")))
    assert [[], ["default/hog"], []] == [[one["pod"] for one in line["evicted"]] for line in replayed]
    assert ["default/hog", "default/modest", "default/static"] == replayed[1]["ranking"]


def test_of_the_journals_oom_kills_those_at_the_nodes_own_limit_are_recorded(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    kills = [
        {"kind": "oom-kill", "time": _decision(seconds, 0)["time"], "scope": scope, "kills": 2}
        for seconds, scope in ((3, "own-limit"), (4, "node"), (5, "above-node"))
    ]
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in (_decision(0, 4 * _GIB), *kills)))

    steps = list(steps_of_journal(journal))

    assert [{"at": "4.000s", "oomKills": 2}] == steps[1:]
    scenario = scenario_from_text(_recorded(*steps), "journal")
    assert [0, 2] == [step.oom_kills for step in scenario.steps]
    assert [] == [one for line in replay(scenario) for one in line["evicted"]]


def test_what_a_rule_decided_is_no_step_of_a_recording(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    by_rule = {**_decision(1, 4 * _GIB), "rule": {"name": "thrash", "by": "pgscan"}}
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in (_decision(0, 4 * _GIB), by_rule)))
    assert 1 == len(list(steps_of_journal(journal)))


def test_a_recording_of_the_journal_needs_no_cluster(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(_CONFIG)
    (tmp_path / "journal.jsonl").write_text(json.dumps(_decision(0, 4 * _GIB)) + "\n")
    out = tmp_path / "out.json"
    options = RecordOptions(
        config=tmp_path / "config.yaml", output=str(out), journal=tmp_path / "journal.jsonl"
    )
    assert 0 == record(options)
    document = json.loads(out.read_text())
    assert {
        "enforceNodeAllocatable": [],
        "evictionHard": {"memory.available": "1Gi"},
    } == document["kubeletConfiguration"]
    assert 1 == len(document["steps"])


@pytest.mark.parametrize(
    ("config", "hard"),
    [
        ("reactor: {nodeCgroup: /n}\n", {"memory.available": "100Mi"}),
        (
            "evictionHard: {pid.available: 5%}\nmergeDefaultEvictionSettings: true\n",
            {"memory.available": "100Mi", "pid.available": "5%"},
        ),
        ("reactor: {kubernetes: {}}\n", None),
    ],
)
def test_a_recording_of_a_plain_node_has_no_default_thresholds_for_disks(
    tmp_path: Path, config: str, hard: dict[str, str] | None
) -> None:
    (tmp_path / "config.yaml").write_text(config)
    (tmp_path / "journal.jsonl").write_text(json.dumps(_decision(0, 4 * _GIB)) + "\n")
    out = tmp_path / "out.json"
    options = RecordOptions(
        config=tmp_path / "config.yaml", output=str(out), journal=tmp_path / "journal.jsonl"
    )
    assert 0 == record(options)
    kept = json.loads(out.read_text())["kubeletConfiguration"]
    assert hard == kept.get("evictionHard")
    scenario = scenario_from_text(out.read_text(), str(out))
    assert (hard is None) is any(one.signal.startswith("nodefs") for one in scenario.settings.thresholds)


def test_a_recording_has_the_thresholds_of_the_drop_ins(tmp_path: Path) -> None:
    drop_ins = tmp_path / "config.d"
    drop_ins.mkdir()
    (tmp_path / "config.yaml").write_text(_CONFIG)
    (drop_ins / "10.conf").write_text("evictionHard: {memory.available: 3Gi, pid.available: 5%}\n")
    (tmp_path / "journal.jsonl").write_text(json.dumps(_decision(0, 4 * _GIB)) + "\n")
    out = tmp_path / "out.json"
    words = ["--config", "config.yaml", "--config-dir", "config.d", "--journal", "journal.jsonl"]
    paths = [word if word.startswith("--") else str(tmp_path / word) for word in words]
    assert 0 == main(["record", str(out), *paths])
    kept = json.loads(out.read_text())["kubeletConfiguration"]
    assert {"memory.available": "3Gi", "pid.available": "5%"} == kept["evictionHard"]
    assert "reactor" not in kept


@pytest.mark.parametrize(
    "line", ["nothing\n", "[" * 100_000 + "\n", '{"kind": "decision"}\n', '{"kind": "decision", "time": 3}\n']
)
def test_what_is_no_journal_is_reported_by_its_line(tmp_path: Path, line: str) -> None:
    journal = tmp_path / "journal.jsonl"
    journal.write_text(line)
    with pytest.raises(ConfigError, match=r"journal\.jsonl:1"):
        list(steps_of_journal(journal))


def test_instants_are_durations_and_never_negative() -> None:
    assert ("0.000s", "12.346s") == (at(-1.0), at(12.3456))


def test_preferences_of_the_journal_are_replayed_and_end_with_it(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    small = {"usage": _GIB // 2}
    ranking = [
        _place("small", preference="prefer", **small),
        _place("other", preference="none", **small),
        _place("hog", preference="avoid"),
    ]
    later = [{**place, "preference": "none"} for place in ranking]
    lines = [_decision(0, _GIB // 2, ranking), _decision(9, 4 * _GIB), _decision(20, _GIB // 2, later)]
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    steps = list(steps_of_journal(journal))

    assert {"small": "prefer", "hog": "avoid"} == steps[0]["preferences"]
    assert [True, False, True] == ["pods" in step for step in steps]
    replayed = list(replay(scenario_from_text(_recorded(*steps), "journal")))
    assert ["default/small", "default/other", "default/hog"] == replayed[0]["ranking"]
    assert ["default/hog"] == [one["pod"] for one in replayed[2]["evicted"]]


@pytest.mark.parametrize(
    ("where", "accepted"),
    [
        ({"preferences": {"a": "prefer"}}, "preferences: got {'a': 'prefer'}"),
        ({"steps": [{"at": "0s", "preferences": {"a": "avoid"}}]}, "steps[0].preferences: got"),
        ({"steps": [{"at": "0s", "pods": [], "preferences": {"a": "never"}}]}, "preferences.a: got 'never'"),
    ],
)
def test_preferences_stand_beside_their_pods(where: dict[str, Any], accepted: str) -> None:
    document = {"apiVersion": "reactor/v1alpha1", "kind": "Scenario", "steps": [], **where}
    with pytest.raises(ConfigError) as raised:
        scenario_from_text(json.dumps(document), "s")
    assert accepted in str(raised.value)
