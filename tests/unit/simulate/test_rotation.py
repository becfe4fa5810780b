"""Recordings that rotate: each file stands alone, the older ones are compressed, and few stay."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
import trio

from reactor.cli import main
from reactor.model.settings import KubernetesSettings
from reactor.simulate import recording
from reactor.simulate.recording import RecordOptions, RotatingRecording, ScenarioFile, at
from reactor.simulate.scenario import scenario_in
from tests.support.api_faults import Asked, Reply, pod_document, served
from tests.unit.simulate.test_recording import _summary, recording_access

_GIB = 1 << 30


class _Recorded:
    def __init__(self, directory: Path, keep: int = 2) -> None:
        self.now = 1_790_000_000.0
        self.path = directory / "recording.json"
        self.rotating = RotatingRecording(
            self.path,
            "a recording",
            {"node": {"name": "a", "labels": {"pool": "gpu"}}},
            rotate_seconds=3600,
            keep=keep,
            clock_unix_seconds=lambda: self.now,
        )

    def add(self, seconds: float, **step: Any) -> None:
        self.now = 1_790_000_000.0 + seconds
        memory = {"availableBytes": 1, "workingSetBytes": 2}
        self.rotating.add({"at": at(seconds), "summary": {"node": {"memory": memory}}, **step})


def pods(*names: str) -> list[Any]:
    return [{"metadata": {"name": name, "namespace": "n", "uid": name}} for name in names]


def test_each_file_begins_at_zero_with_the_pods_as_they_are(tmp_path: Path) -> None:
    recorded = _Recorded(tmp_path)
    recorded.add(0, pods=pods("a"), preferences={"a": "avoid"})
    recorded.add(1800, pods=pods("a", "b"))
    recorded.add(3600)
    recorded.add(5400)
    recorded.rotating.close()
    older = tmp_path / "recording-20260921T141320Z.json.gz"
    assert ["recording-20260921T141320Z.json.gz", "recording.json"] == sorted(
        one.name for one in tmp_path.iterdir()
    )
    first, second = scenario_in(str(older)), scenario_in(str(tmp_path / "recording.json"))
    assert [[0.0, 1800.0], [0.0, 1800.0]] == [[step.at for step in one.steps] for one in (first, second)]
    assert ["a", "b"] == [pod.uid for pod in second.steps[0].pods or ()]
    assert ("a", {"pool": "gpu"}, "2026-09-21T15:13:20.000000Z") == (
        second.node.name,
        second.node.labels,
        second.node.began,
    )
    assert 4 == recorded.rotating.steps


def test_the_last_files_stay_and_what_an_earlier_run_left_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "recording.json").write_text("left")
    (tmp_path / "recording-other.json.gz").write_text("of somebody else")
    recorded = _Recorded(tmp_path)
    (left,) = tmp_path.glob("recording-2*.json.gz")
    assert b"left" == gzip.decompress(left.read_bytes())
    for hour in range(6):
        recorded.add(3600.0 * hour)
    recorded.rotating.close()
    names = sorted(one.name for one in tmp_path.glob("recording-2*"))
    assert 2 == len(names)
    assert (tmp_path / "recording-other.json.gz").exists()


async def test_a_quiet_kubelet_is_recorded_seldom_and_a_moving_one_at_each_look(tmp_path: Path) -> None:
    steps = []
    for moves in (False, True):
        available = [2 * _GIB]
        enough = trio.Event()
        asked = []

        def script(
            request: Asked,
            available: list[int] = available,
            enough: trio.Event = enough,
            asked: list[str] = asked,
            *,
            moves: bool = moves,
        ) -> Reply:
            if request.path != "/stats/summary":
                return Reply(body={"items": [pod_document()]})
            asked.append(request.path)
            if len(asked) > 8:
                enough.set()
            available[0] -= (_GIB // 8) * moves
            return Reply(body=_summary(max(0, available[0]), 3 * _GIB - max(0, available[0])))

        async with served(script) as (server, _):
            with pytest.MonkeyPatch.context() as patch:
                url = server.url
                patch.setattr(recording, "kubelet_access", lambda _, url=url: recording_access(url))
                file = io.BytesIO()
                options = RecordOptions(config=tmp_path, interval_seconds=0.02)
                async with trio.open_nursery() as nursery:
                    scenario = ScenarioFile(file, "test", {})
                    nursery.start_soon(recording._poll, KubernetesSettings(), scenario, options)
                    await enough.wait()
                    nursery.cancel_scope.cancel()
        steps.append(len(json.loads(file.getvalue())["steps"]))
    assert 1 == steps[0]
    assert 8 <= steps[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rotate-hours", "24", "-"], "--rotate-hours goes with a file"),
        (["--label", "gpu", "a.json"], "got 'gpu'; accepted: KEY=VALUE"),
        (["--rotate-hours", "0", "a.json"], "got '0'; accepted: a number above 0"),
    ],
)
def test_wrong_options_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["record", *arguments])
    assert message in capsys.readouterr().err


def test_a_compressed_recording_that_is_cut_is_an_error_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b"{}" * 1000)[:-9])
    assert 2 == main(["simulate", str(path)])
    assert "a.json.gz" in capsys.readouterr().err


def test_a_sweep_goes_over_a_directory_and_names_what_it_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = _Recorded(tmp_path / "node")
    (tmp_path / "node").mkdir()
    recorded.add(0, pods=pods("a"))
    recorded.add(3601)
    recorded.rotating.close()
    (tmp_path / "bad.json").write_text("{}")
    arguments = ["simulate", "--sweep", "memory.available<1,2", "--output", "json", str(tmp_path)]
    assert 0 == main(arguments)
    out, err = capsys.readouterr()
    assert 4 == len(out.splitlines())
    assert f"{tmp_path}/bad.json" in err
    empty = tmp_path / "empty"
    empty.mkdir()
    assert 1 == main([*arguments[:-1], str(empty)])
    assert "no recording (NAME.json) is there" in capsys.readouterr().err
