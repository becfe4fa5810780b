"""`reactor bench race`: a short one, without the peers, who are not in the machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from guarded import BIN, V2, run
from machine_memory import SwapFile

OWN = "reactor-ebpf" if V2 else "reactor-memcg-eventfd"
SWAP_MIB = 300


def test_a_short_race_has_the_reactor_and_both_floors_kill(tmp_path: Path) -> None:
    only = ["--only", f"{OWN},c-floor,kernel-oom", "--rounds", "1", "--heats", "1"]
    print(run(BIN, "bench", "race", *only, "--courses", "step,ramp-1000", "--results", tmp_path))
    (stored,) = tmp_path.iterdir()  # no HTML: what draws it is not installed here
    found = json.loads(stored.read_text())
    assert 6 == len(found["heats"])
    # Under emulation the kernel's count may reach the level before the allocator's own does.
    assert all(heat["kill_ms"] is not None or heat["early"] for heat in found["heats"])
    assert "earlyoom" in found["left_out"]
    # The allocator would have taken 490 MiB more: it was stopped on its way.
    overshoots = {
        heat["course"]: heat["overshoot_mib"] for heat in found["heats"] if heat["contestant"] == OWN
    }
    assert {"step", "ramp-1000"} == overshoots.keys()
    assert max(overshoots.values()) < 480


@pytest.mark.skipif(not V2, reason="the courses under pressure need cgroup v2: run it on trixie")
def test_a_heat_under_pressure_keeps_the_reactors_record_of_whom_it_killed(tmp_path: Path) -> None:
    only = ["--only", "reactor-memory-swap", "--rounds", "1", "--heats", "1"]
    with SwapFile(SWAP_MIB):
        print(run(BIN, "bench", "race", *only, "--courses", "swap", "--results", tmp_path))
    (heat,) = json.loads(next(tmp_path.iterdir()).read_text())["heats"]
    (decision,) = heat["decisions"]
    assert ["cgroup/trouble"] == [one["pod"] for one in decision["evictions"]]
    assert {"cgroup/resident", "cgroup/idle", "cgroup/probe"} < {one["pod"] for one in decision["ranking"]}
    assert [] == heat["wrong"]
    assert 0 == heat["kernel_oom_kills"]
