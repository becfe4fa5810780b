"""`reactor tune`: a short run, with each source that this kernel offers."""

from __future__ import annotations

import json
from pathlib import Path

from guarded import BIN, V2, run


def test_a_short_run_recommends_thresholds_for_this_kernel(tmp_path: Path) -> None:
    directory = tuned(tmp_path)
    document = json.loads((directory / "measured.json").read_text())
    measured, recommended = document["measured"], document["recommendation"]
    sources = [reaction["source"] for reaction in measured["reactions"] if reaction["way"] == "as configured"]
    assert sources
    expected = "ebpf" if V2 else "memcg-eventfd"
    assert any(expected in woken_by for woken_by in sources)
    # Near a threshold the loop looks every 10 ms, too, and may be the first to see it.
    assert all(expected in woken_by or "glance" in woken_by for woken_by in sources)
    capacity, reserve = measured["node"]["capacity_bytes"], recommended["terms"]["reserve_bytes"]
    assert reserve <= recommended["hard_bytes"] < recommended["soft"]["threshold_bytes"] <= capacity
    run(BIN, "config", "check", directory / "reactor.yaml")


def tuned(directory: Path) -> Path:
    """Return where the results of a short run lie; of a longer one on a host with much other work."""
    results = directory / "short"
    run_for = (BIN, "tune", "--loads", "idle", "--pods", "2", "--results")
    try:
        print(run(*run_for, results, "--minutes", "2.5"))
    except AssertionError as error:
        if "too few crossings were measured" not in str(error):
            raise
        results = directory / "long"
        print(run(*run_for, results, "--minutes", "7"))
    (found,) = results.iterdir()
    return found
