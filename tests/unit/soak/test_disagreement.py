"""What is kept of a disagreement replays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.soak.disagreement import Evidence, against, scenario_of
from tests.soak.episode import Outcome
from tests.soak.oracle import Counters, Episode, Kill, Life, Rules, Sample, Spec, judge
from tests.soak.plan import Disturbance

MIB = 1 << 20
MS = 1_000_000
HOG, SMALL = 1, 2


def wrong_victim() -> Outcome:
    """Return a crossing of a hog for which another was killed."""
    samples = [
        Sample(
            began_ns=at * MS,
            ended_ns=at * MS + 1000,
            node=Counters((hog + 5) * MIB, 0),
            pods={HOG: Counters(hog * MIB, 0), SMALL: Counters(5 * MIB, 0)},
        )
        for at, hog in ((0, 70), (1, 78), (2, 78), (3, 78))
    ]
    lives = {
        HOG: Life(instance=HOG, name="hog", spec=Spec(priority=3), born_ns=-1),
        SMALL: Life(instance=SMALL, name="small", spec=Spec(request_bytes=9 * MIB), born_ns=-1),
    }
    rules = Rules(capacity_bytes=100 * MIB, hard_bytes=20 * MIB)
    episode = Episode(samples=samples, lives=lives, kills=[Kill(instance=SMALL, at_ns=2 * MS)], rules=[rules])
    return Outcome(
        episode=episode,
        verdict=judge(episode),
        to_kill_ms=[],
        past_mib=[],
        is_fast=True,
        disturbed=(Disturbance.STOP,),
    )


def test_wrong_victim_is_said_in_one_line_with_who_would_have_been_right() -> None:
    assert against(wrong_victim()) == "killed the wrong pod: small, not hog; stop"


def test_scenario_of_a_disagreement_has_the_right_victim_evicted_by_the_simulator(tmp_path: Path) -> None:
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(scenario_of(wrong_victim().episode, 2 * MS, "a disagreement")))

    command = [sys.executable, "-m", "reactor", "simulate", str(path), "--output", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")
    assert [one["pod"] for one in json.loads(done.stdout)["evicted"]] == ["soak/hog"]


def test_evidence_has_what_was_expected_the_counters_and_the_journals_lines(tmp_path: Path) -> None:
    evidence = Evidence(tmp_path / "kept", lambda: iter([{"kind": "decision", "id": 1}]))

    said = evidence.take(wrong_victim())

    assert said is not None
    assert said.endswith("1.scenario.json")
    kept = json.loads((tmp_path / "kept" / "1.evidence.json").read_text())
    assert kept["expected"][0]["acceptable"] == ["hog#1"]
    assert kept["expected"][0]["killed"] == "small"
    assert len(kept["samples"]) == 4
    assert kept["journal"][0]["id"] == 1


def test_what_the_daemon_read_is_said_beside_what_is_wrong(tmp_path: Path) -> None:
    line = {
        "kind": "decision",
        "threshold": {"signal": "memory.available", "available": 19 * MIB, "value": 20 * MIB},
        "observations": {"memory.available": {"inactive_file_bytes": 2 * MIB}},
        "timing": {"observed_ns": MS},
        "evictions": [
            {"pod": "cgroup/small", "killed_ns": 2 * MS},
            {"pod": "cgroup/other", "killed_ns": 2 * MS},
            {"pod": "cgroup/small", "killed_ns": None},
        ],
    }
    evidence = Evidence(tmp_path / "kept", lambda: iter([{"kind": "outcome"}, line]))
    said = evidence.take(wrong_victim()) or ""
    read = f"small: the daemon read {19 * MIB} available of {20 * MIB} wanted, {2 * MIB} of them page cache"
    assert f"{read}, 1.00 ms before the kill" in said
