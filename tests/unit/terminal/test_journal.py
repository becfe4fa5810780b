"""`reactor explain --journal`: what is read of a journal on disk, without a daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reactor.cli import main
from reactor.terminal.journal import explained, sparkline
from tests.unit.terminal.test_explanation import EVICTION

BOX: dict[str, Any] = {
    "window_seconds": 60.0,
    "text": "memory was taken by cgroup/database.service (+200Mi/s, 1.3Gi), which is never evicted",
    "node": {
        "capacity_bytes": 256 << 20,
        "available_bytes": [[-60.0, 200 << 20], [-2.0, 200 << 20], [-1.0, 120 << 20], [-0.1, 60 << 20]],
        "swap_free_bytes": None,
    },
    "pods": [
        {
            "pod": "cgroup/database.service",
            "uid": "/shop.slice/database.service#7",
            "never_evicted": True,
            "working_set_bytes": [[-60.0, 10 << 20], [-2.0, 10 << 20], [-0.1, 150 << 20]],
            "grew_bytes": 140 << 20,
            "bytes_per_second": 200 << 20,
            "kinds": None,
        }
    ],
    "processes": [
        {
            "pod": "cgroup/hog",
            "uid": "u",
            "never_evicted": False,
            "at_seconds": -0.3,
            "count": 1,
            "is_partial": False,
            "largest": [
                {
                    "pid": 41,
                    "name": "python3",
                    "command": "python3 train.py …",
                    "age_seconds": 61.0,
                    "anonymous_bytes": 90 << 20,
                    "file_bytes": 4 << 20,
                    "shared_bytes": 0,
                    "swap_bytes": 0,
                }
            ],
        }
    ],
    "missing_because": None,
}


def decision(number: int, pod: str = "cgroup/hog.service", **differences: Any) -> dict[str, Any]:
    """Return a line of the journal that evicts one pod."""
    of_decision = ("threshold", "wakes", "timing", "ranking", "reclaimed", "rule", "dry_run")
    one = {key: value for key, value in EVICTION.items() if key not in of_decision}
    uid = f"/shop.slice/{pod.rpartition('/')[2]}#{number}"
    evictions = [{**one, "pod": pod, "uid": uid, "cgroup": uid.partition("#")[0], "process": None}]
    return {
        "kind": "decision",
        "id": number,
        "time": f"2026-11-22T10:{number // 60:02}:{number % 60:02}.125792Z",
        "thresholds_met": ["memory.available<50Mi"],
        "conditions": ["MemoryPressure"],
        "deferred_because": None,
        "reclaim": [],
        **{key: EVICTION[key] for key in of_decision},
        "evictions": evictions,
        **differences,
    }


def journal(directory: Path, *documents: dict[str, Any], older: int = 0) -> Path:
    """Write a journal, the first `older` documents into its older file."""
    path = directory / "journal.jsonl"
    lines = [json.dumps(one) + "\n" for one in documents]
    path.write_text("".join(lines[older:]) + '{"cut off by a cra')
    if older:
        path.with_name("journal.jsonl.1").write_text("".join(lines[:older]))
    return path


def test_every_decision_is_there_also_those_of_older_files(tmp_path: Path) -> None:
    path = journal(tmp_path, *(decision(number) for number in range(300)), older=200)
    found, near = explained(path, "hog", None)
    assert list(range(299, -1, -1)) == [one["id"] for one in found["evictions"]]
    assert near is None
    assert [299, 298, 297] == [one["id"] for one in explained(path, None, 3)[0]["evictions"]]
    assert len(explained(path, None, None)[0]["evictions"]) == 10


@pytest.mark.parametrize(
    "name",
    ["hog", "hog.service", "cgroup/hog.service", "/shop.slice/hog.service", "/shop.slice/hog.service#1"],
)
def test_pod_goes_by_every_name_that_reactor_prints(tmp_path: Path, name: str) -> None:
    path = journal(tmp_path, decision(1), decision(2, "cgroup/web.service"))
    assert [1] == [one["id"] for one in explained(path, name, None)[0]["evictions"]]


def test_near_name_is_offered_and_the_status_says_that_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = journal(tmp_path, decision(1, "cgroup/database.service"))
    assert main(["explain", "databse", "--journal", str(path)]) == 1
    assert "of databse (did you mean database.service?)" in capsys.readouterr().err
    assert main(["explain", "--journal", str(tmp_path / "none.jsonl")]) == 1
    assert "none.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ("explain", "--journal"),
        ("report", "--out", "-", "--journal"),
        ("shadow", "--journal"),
        ("tune", "--journal"),
    ],
    ids=lambda command: command[0],
)
def test_a_fifo_that_no_process_writes_is_refused_and_not_waited_for(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    os.mkfifo(tmp_path / "journal")
    done = subprocess.run(
        [sys.executable, "-m", "reactor", *command, str(tmp_path / "journal")],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert f"reactor: {tmp_path}/journal: not a regular file\n" in done.stderr


def test_a_pipe_of_the_shells_own_is_read(tmp_path: Path) -> None:
    path = journal(tmp_path, decision(1, black_box=BOX))
    done = subprocess.run(
        ["bash", "-c", '"$0" -m reactor explain hog --journal <(cat "$1")', sys.executable, str(path)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "cgroup/hog" in done.stdout
    assert "" == done.stderr


def test_curve_who_grew_and_processes_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = journal(tmp_path, decision(1, black_box=BOX))
    assert main(["explain", "hog", "--journal", str(path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "200Mi to 60Mi, threshold 50Mi" in shown
    assert BOX["text"] in shown
    assert "cgroup/database.service grew by 140Mi, up to 200Mi/s" in shown
    assert "0.3 s before cgroup/hog 41 90Mi 4Mi 0 0 1m01s python3 train.py …" in shown


def test_journal_of_the_configuration_is_the_one_that_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = journal(tmp_path, decision(1))
    config = tmp_path / "reactor.yaml"
    config.write_text(f"reactor: {{journal: {{path: {path}}}, pods: {{parents: [/a.slice]}}}}\n")
    assert main(["explain", "hog", "--journal", "--config", str(config), "--output", "json"]) == 0
    assert [1] == [one["id"] for one in json.loads(capsys.readouterr().out)["evictions"]]


def test_page_goes_where_a_link_leads_and_not_in_its_place(tmp_path: Path) -> None:
    path, out = journal(tmp_path, decision(1)), tmp_path / "out"
    out.symlink_to("/dev/null")
    assert 0 == main(["report", "--journal", str(path), "--out", str(out)])
    assert out.is_symlink()


def test_sparkline_goes_by_time_and_a_value_holds() -> None:
    curve = [[-4.0, 8], [-1.0, 0], [0.0, 4]]
    assert "███▁▅" == sparkline(curve, 5)
    assert "###_+" == sparkline(curve, 5, "ascii")
    assert sparkline([], 5) == ""
    assert sparkline([[0.0, 0]], 3) == "▁▁▁"


@pytest.mark.parametrize(
    "odd",
    [
        {"evictions": [{"outcome": "killed"}]},
        {"evictions": [{**EVICTION, "resource": "cheese"}], "threshold": {"threshold": "x"}},
        {"time": "2026-11-22T10:00:00", "evictions": [EVICTION]},
        {"id": [], "evictions": [EVICTION]},
        {"evictions": 5},
        {"evictions": [EVICTION], "black_box": {**BOX, "node": {**BOX["node"], "available_bytes": [[1]]}}},
        {"evictions": [EVICTION], "black_box": {**BOX, "processes": ["x"]}},
        {"evictions": [EVICTION], "timing": [1]},
    ],
)
def test_a_line_of_another_form_is_named_or_left_and_what_follows_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], odd: dict[str, Any]
) -> None:
    journal = tmp_path / "journal.jsonl"
    kill = {"kind": "oom-kill", "time": "2026-11-22T11:00:00Z", "message": "the kernel killed one"}
    lines = [{"kind": "decision", "id": 1, "time": "2026-11-22T10:00:00Z", "ranking": [], **odd}, kill]
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    assert 1 == main(["explain", "nobody", "--journal", str(journal)])
    assert "no eviction and no OOM kill of nobody" in capsys.readouterr().err
    assert 0 == main(["explain", "--journal", str(journal)])
    assert "the kernel killed one" in capsys.readouterr().out
    for last in ("1", "2"):
        arguments = ["--journal", str(journal), "--since", "2026-01-01T00:00", "--last", last, "--out", "-"]
        assert 0 == main(["report", *arguments])
        assert "the kernel killed one" in capsys.readouterr().out
    assert 1 == main(["report", "nobody", "--journal", str(journal)])
