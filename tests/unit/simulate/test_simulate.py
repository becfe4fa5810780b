"""`reactor simulate` as its users meet it: exit status, standard error, and what every line holds."""

import copy
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from reactor.cli import main
from reactor.config.documents import load_document
from reactor.errors import ConfigError, Problem
from reactor.simulate import run_scenario_file
from reactor.simulate.replay import passes, replay
from reactor.simulate.scenario import scenario_from_text
from reactor.simulate.summary import Summary

KEYS = [
    "at",
    "conditions",
    "thresholdsMet",
    "reclaimed",
    "evicted",
    "ranking",
    "imagesRemoved",
    "admit",
    "memcgThresholdsBytes",
    "error",
]
POD = {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [{"name": "c"}]}}
MEMORY = {"node": {"memory": {"availableBytes": 1, "workingSetBytes": 999}}, "pods": []}
VALID: dict[str, Any] = {
    "apiVersion": "reactor/v1alpha1",
    "kind": "Scenario",
    "kubeletConfiguration": {"evictionHard": {"memory.available": "10%"}},
    "pods": [POD],
    "steps": [{"at": "0s", "summary": MEMORY}],
}
FIXTURES = [
    load_document(path.read_text(), path.name)
    for path in sorted((Path(__file__).parents[2] / "fixtures" / "scenarios").glob("*.yaml"))
]


def _with(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in {**VALID, **changes}.items() if value is not None}


def _step(**changes: Any) -> dict[str, Any]:
    return _with(steps=[{"at": "0s", **changes}])


def _run(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str = "json"
) -> tuple[int, str, str]:
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    status = main(["simulate", str(path), "--output", output])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize(
    ("scenario", "path"),
    [
        (_with(apiVersion=None), "apiVersion"),
        (_with(apiVersion="v1"), "apiVersion"),
        (_with(apiVersion=1), "apiVersion"),
        (_with(kind="Pod"), "kind"),
        (_with(steps=None), "steps"),
        (_with(steps={}), "steps"),
        (_with(steps=["0s"]), "steps[0]"),
        (_with(steps=[{}]), "steps[0].at"),
        (_with(steps=[{"at": 1}]), "steps[0].at"),
        (_with(steps=[{"at": "-1s"}]), "steps[0].at"),
        (_with(steps=[{"at": "2s"}, {"at": "2s"}, {"at": "1999ms"}]), "steps[2].at"),
        (_with(surprise=1), "surprise"),
        (_step(sumary={}), "steps[0].sumary"),
        (_step(statsError="yes"), "steps[0].statsError"),
        (_step(reclaimError=["image"]), "steps[0].reclaimError[0]"),
        (_step(reclaimError="images"), "steps[0].reclaimError"),
        (_step(afterReclaim={"images": []}), "steps[0].afterReclaim.images"),
        (_step(pods=[{"metadata": {}}]), "steps[0].pods[0].metadata.name"),
        (_step(admit=[5]), "steps[0].admit[0]"),
        (_step(pods=[POD, POD]), "steps[0].pods[1].metadata.uid"),
        (_with(pods=[POD, POD]), "pods[1].metadata.uid"),
        (_with(pods="none"), "pods"),
        (_with(images=[{"id": "i"}]), "images[0].sizeBytes"),
        (_with(images=[{"sizeBytes": 1}]), "images[0].id"),
        (_with(images=[{"id": "i", "sizeBytes": 1, "lastUsed": "yesterday"}]), "images[0].lastUsed"),
        (_with(images=[{"id": "i", "sizeBytes": 1, "pinned": "no"}]), "images[0].pinned"),
        (_with(filesystems={"splitImageFs": True}), "filesystems.splitImageFs"),
        (_with(filesystems={"dedicatedImageFs": "false"}), "filesystems.dedicatedImageFs"),
        (_with(kubeletConfiguration=[]), "kubeletConfiguration"),
        (
            _with(kubeletConfiguration={"evictionHard": {"memory.free": "1Gi"}}),
            'kubeletConfiguration.evictionHard["memory.free"]',
        ),
        (
            _with(kubeletConfiguration={"evictionSoft": {"memory.available": "1Gi"}}),
            'kubeletConfiguration.evictionSoft["memory.available"]',
        ),
        (
            _step(summary={"node": {"memory": {"availableBytes": "1Gi"}}}),
            "steps[0].summary.node.memory.availableBytes",
        ),
        (
            _step(summary={"node": {"fs": {"time": "now"}}}),
            "steps[0].summary.node.fs.time",
        ),
        (
            _step(summary={"pods": [{"containers": [{"rootfs": {"usedBytes": -1}}]}]}),
            "steps[0].summary.pods[0].containers[0].rootfs.usedBytes",
        ),
    ],
)
def test_a_wrong_scenario_exits_2_and_names_the_key(
    scenario: dict[str, Any], path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = _run(json.dumps(scenario), tmp_path, capsys)
    assert (2, "") == (status, out)
    (line,) = err.splitlines()
    assert line.startswith(f"{path}: got ")
    assert "; accepted: " in line


@pytest.mark.parametrize("text", ["", "a: [", "5", "[]", "a: 1\n---\nb: 2", "\x00", "null"])
def test_what_is_no_scenario_at_all_exits_2(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = _run(text, tmp_path, capsys)
    assert (2, "") == (status, out)
    assert 1 == len(err.splitlines())


def test_a_file_that_cannot_be_read_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path / "missing", tmp_path):
        assert 2 == main(["simulate", str(path)])
        assert capsys.readouterr().err.startswith(f"{path}: got ")


def test_duplicate_keys_are_reported_by_their_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
apiVersion: reactor/v1alpha1
kind: Scenario
kubeletConfiguration:
  evictionHard: {memory.available: 1Gi, memory.available: 2Gi}
steps:
- at: 0s
  at: 1s
"""
    status, _, err = _run(text, tmp_path, capsys)
    assert 2 == status
    first, second = err.splitlines()
    assert first.startswith('kubeletConfiguration.evictionHard["memory.available"]: got the duplicate key')
    assert second.startswith("steps[0].at: got the duplicate key")


def test_standard_input_is_read_for_a_dash(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for content, status in ((json.dumps(VALID).encode(), 0), (b"\xff", 2), (b"{}", 2)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert status == main(["simulate", "-", "--output", "json"])
    captured = capsys.readouterr()
    assert 1 == len(captured.out.splitlines())
    assert "standard input: got " in captured.err


class _Endless(io.BytesIO):
    """A standard input that says what was asked of it; a read without a bound would never return."""

    def read(self, size: int | None = -1) -> bytes:
        assert size is not None
        assert size > 0
        return json.dumps(VALID).encode()


def test_standard_input_is_read_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(_Endless()))
    assert 0 == run_scenario_file("-", "json")


def test_names_in_errors_move_no_cursor_and_end_no_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = _run(json.dumps({**VALID, "\x1b[31m\n": 1}), tmp_path, capsys)
    assert 2 == status
    assert err.startswith('["\\x1b[31m\\x0a"]: got an unknown key; accepted: one of ')
    assert 1 == len(err.splitlines())


def test_a_mapping_of_another_kind_is_refused_key_by_key_without_guesses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = {f"step{number}": 1 for number in range(200)}
    for keys, guesses in ((1, 1), (200, 0)):
        given = dict(list(unknown.items())[:keys])
        status, _, err = _run(json.dumps({**VALID, **given}), tmp_path, capsys)
        assert (2, keys, guesses) == (status, len(err.splitlines()), err.count("did you mean steps?"))


def test_every_step_is_one_line_with_every_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [{"at": "0s"}, {"at": "1.5s", "summary": MEMORY}, {"at": "2s", "statsError": True}]
    status, out, err = _run(json.dumps(_with(steps=steps)), tmp_path, capsys)
    lines = [json.loads(line) for line in out.splitlines()]
    assert (0, "") == (status, err)
    assert [KEYS] * 3 == [list(line) for line in lines]
    assert [0.0, 1.5, 2.0] == [line["at"] for line in lines]
    assert [None, None] == [line["error"] for line in lines[:2]]
    assert lines[2]["error"]
    (evicted,) = lines[1]["evicted"]
    assert ["pod", "uid", "signal", "gracePeriodSeconds", "reason", "message"] == list(evicted)
    assert evicted["message"].startswith("The node was low on resource: memory. Threshold quantity: 100, ")
    assert "available: 1." in evicted["message"]
    assert "Pod p was using an unknown amount, request is 0." in evicted["message"]


def test_a_time_may_be_written_without_quotes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memory = "memory: {availableBytes: 1, workingSetBytes: 999, time: 2026-01-31T12:00:00Z}"
    text = f"""
apiVersion: reactor/v1alpha1
kind: Scenario
kubeletConfiguration: {{evictionHard: {{memory.available: 10%}}}}
pods: [{{metadata: {{name: p}}}}]
steps:
- {{at: 0s, summary: {{node: {{{memory}}}}}}}
- {{at: 1s}}
"""
    _, out, _ = _run(text, tmp_path, capsys)
    assert [1, 0] == [len(json.loads(line)["evicted"]) for line in out.splitlines()]


def test_ignored_thresholds_and_failing_reclaims_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = _with(
        kubeletConfiguration={"evictionHard": {"containerfs.available": "5%"}},
        steps=[{"at": "0s", "reclaimError": ["images"]}],
    )
    status, _, err = _run(json.dumps(scenario), tmp_path, capsys)
    assert 0 == status
    first, second = err.splitlines()
    assert first.startswith("warning: containerfs.available: ignored")
    assert second.startswith("warning: steps[0]: the reclaim of images fails")


@pytest.mark.parametrize("output", ["json", "table"])
def test_a_threshold_without_effect_at_the_nodes_capacity_is_warned_of_once(
    output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [{"at": "0s"}, {"at": "1s", "summary": MEMORY}, {"at": "2s"}, {"at": "3s", "statsError": True}]
    for value, warnings in (("1Ki", 1), ("999", 0)):
        path = tmp_path / "scenario.json"
        keys = {"evictionHard": {"memory.available": value}}
        path.write_text(json.dumps(_with(kubeletConfiguration=keys, steps=steps)))
        assert 0 == run_scenario_file(str(path), output)
        err = capsys.readouterr().err
        assert warnings == len(err.splitlines())
        assert warnings == err.count("warning: threshold memory.available<1Ki: ignored: it is not below the ")


def test_statistics_that_cannot_be_true_are_warned_of_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {"node": {"memory": {"availableBytes": 0, "workingSetBytes": 0}}}
    steps = [{"at": "0s", "summary": MEMORY}, {"at": "1s", "summary": wrong}, {"at": "2s"}]
    scenario = _with(kubeletConfiguration={"evictionHard": {"memory.available": "5"}}, steps=steps)

    status, _, err = _run(json.dumps(scenario), tmp_path, capsys)

    assert 0 == status
    assert ["warning: memory.available: capacity is 0: it counts as unobserved"] == err.splitlines()


@pytest.mark.parametrize("steps", [1, 3000])
def test_a_reader_that_leaves_early_causes_no_traceback(steps: int, tmp_path: Path) -> None:
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(_with(steps=[{"at": "0s", "summary": MEMORY}] * steps)))
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "reactor", "simulate", str(path), "--output", "json"]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)
    assert (1, b"") == (done.returncode, done.stderr)


def test_the_table_shows_what_the_json_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    steps = [
        {"at": "0s", "summary": MEMORY, "admit": [{"metadata": {"name": "late"}}]},
        {"at": "1s", "statsError": True},
        {"at": "9s", "summary": {}},
    ]
    status, out, _ = _run(json.dumps(_with(name="a story", steps=steps)), tmp_path, capsys, "table")
    assert 0 == status
    for words in ("a story", "MemoryPressure", "not admitted   default/late", "statistics can't be read"):
        assert words in out


def test_the_table_breaks_no_name_and_fits_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "payments-worker-of-the-night-7d8f9c6b5-x2vq9"
    pods = [{"metadata": {"name": name, "uid": "u"}, "spec": {"containers": [{"name": "c"}]}}]
    document = _with(pods=pods, steps=[{"at": "0s", "summary": MEMORY}])
    _, json_text, _ = _run(json.dumps(document), tmp_path, capsys)
    evicted = json.loads(json_text)["evicted"]
    _, out, _ = _run(json.dumps(document), tmp_path, capsys, "table")
    lines = out.splitlines()
    assert [one["pod"] for one in evicted] == [f"default/{name}"]
    assert f"            evicted        default/{name}" in lines
    assert max(map(len, lines)) <= 80


def test_a_pod_that_is_never_evicted_has_no_place_in_the_tables_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def pod(name: str, **more: Any) -> dict[str, Any]:
        return {"metadata": {"name": name, "uid": name, **more}, "spec": {"containers": [{"name": "c"}]}}

    pods = [pod("web"), pod("database", annotations={"kubernetes.io/config.source": "file"}), pod("batch")]
    document = _with(pods=pods, steps=[{"at": "0s", "summary": MEMORY}])
    _, out, _ = _run(json.dumps(document), tmp_path, capsys, "table")
    order = [line.split() for line in out.splitlines() if "in order" in line or "never" in line]
    assert ["1. in order", "2. in order", "never evicted"] == [" ".join(one[:-1]) for one in order]
    assert "default/database" == order[-1][-1]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) in a document."""
    here = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    found = [(value, key) for key, _ in here]
    for _, inner in here:
        if isinstance(inner, dict | list):
            found += _places(inner)
    return found


ODDITIES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**70),
    st.floats(),
    st.sampled_from(["", "0", "5s", "-5s", "1Gi", "50%", "images", "memory.available", "a.b", "Exists"]),
    st.text(max_size=5),
    st.sampled_from([[], {}, [None], [[]], {"": 1}, {"name": 1}, [{}]]),
)


@pytest.mark.slow
@given(st.data())
@examples(max_examples=300)
def test_a_scenario_that_is_changed_anywhere_is_replayed_or_refused(data: st.DataObject) -> None:
    scenario = copy.deepcopy(data.draw(st.sampled_from(FIXTURES)))
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(_places(scenario)))
        if data.draw(st.booleans()):
            container[key] = copy.deepcopy(data.draw(ODDITIES))
        elif isinstance(container, dict):
            container.pop(key)
            container[data.draw(st.sampled_from(["", "pods", "name", "a.b"]))] = copy.deepcopy(
                data.draw(ODDITIES)
            )
    problems: tuple[Problem, ...] = ()
    lines: list[dict[str, Any]] = []
    try:
        lines = list(replay(scenario_from_text(json.dumps(scenario, default=str), "scenario")))
    except ConfigError as error:
        problems = error.problems
    assert all(problem.path and problem.got and problem.accepted for problem in problems)
    for line in lines:
        assert KEYS == list(line)
        json.dumps(line, allow_nan=False)


def test_swap_of_the_summary_decides_as_the_daemon_does() -> None:
    """Upstream's Summary tells it (SwapStats); a node that has none crosses nothing."""
    pods = [
        {**POD, "metadata": {"name": name, "uid": name, "namespace": "default"}} for name in ("small", "leak")
    ]
    usages = [
        {"podRef": {"name": name, "namespace": "default", "uid": name}, "swap": {"swapUsageBytes": used}}
        for name, used in (("small", 1), ("leak", 900))
    ]
    swaps = (
        {"swapAvailableBytes": 99, "swapUsageBytes": 901},
        {"swapAvailableBytes": 100, "swapUsageBytes": 900},
        {"swapAvailableBytes": 0, "swapUsageBytes": 0},
    )
    document = {
        **VALID,
        "kubeletConfiguration": {
            "evictionHard": {"swap.available": "10%"},
            "evictionPressureTransitionPeriod": "1s",
        },
        "pods": pods,
        "steps": [
            {"at": f"{10 * place}s", "summary": {"node": {"swap": swap}, "pods": usages}}
            for place, swap in enumerate(swaps)
        ],
    }
    short, enough, without = replay(scenario_from_text(json.dumps(document), "x"))
    assert ["swap.available<10%"] == short["thresholdsMet"]
    assert ["MemoryPressure"] == short["conditions"]
    assert ["default/leak", "default/small"] == short["ranking"]
    assert ["default/leak"] == [one["pod"] for one in short["evicted"]]
    assert [] == enough["evicted"] == without["evicted"] == without["thresholdsMet"]


def test_what_a_pass_found_after_a_reclaim_lasts_until_the_next_one():
    full = {"node": {"fs": {"availableBytes": 1, "capacityBytes": 1000}}}
    document = _with(
        kubeletConfiguration={"evictionHard": {"nodefs.available": "10%"}},
        steps=[{"at": at, "summary": full} for at in ("0s", "20s")],
    )
    scenario = scenario_from_text(json.dumps(document), "f")
    settings = replace(scenario.settings, evicts_holders_only=True)
    found = [made.decision.slowdowns for made in passes(scenario, settings, Summary.snapshot)]
    assert [[0.0], [0.0]] == [[one.since_seconds for one in slowdowns] for slowdowns in found]


def test_an_eviction_of_a_scenario_is_over_at_once_and_counts_against_a_rate():
    """The state of a replay is changed by the daemon's events: settings that count evictions count its."""
    short = {"node": {"memory": {"availableBytes": 1, "workingSetBytes": 999}}, "pods": []}
    scenario = scenario_from_text(
        json.dumps(_with(steps=[{"at": f"{at}s", "summary": short} for at in range(3)])), "f"
    )
    assert [1, 1, 1] == [len(one["evicted"]) for one in replay(scenario)]
    rated = replace(scenario.settings, evictions_per_minute=1, hard_memory_evictions_per_minute=1)

    made = list(passes(scenario, rated, Summary.snapshot))

    assert [1, 0, 0] == [len(one.decision.evictions) for one in made]
