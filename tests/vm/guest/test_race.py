"""`reactor bench race`: a short one, without the peers, who are not in the machine."""

from __future__ import annotations

import json
from pathlib import Path

from guarded import BIN, V2, run

OWN = "reactor-ebpf" if V2 else "reactor-memcg-eventfd"


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
