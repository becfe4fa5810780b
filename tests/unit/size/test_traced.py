from __future__ import annotations

from pathlib import Path

from tests.size.traced import Trace


def test_of_two_passes_that_a_wake_makes_the_latter_counts_and_what_led_to_the_first(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace.json", lambda: None)
    trace._files, trace._lost = {"sources/wakes.py": {"Wakes.notify"}}, {"a": "b"}
    trace._begin_pass()
    trace._files |= {"guard/pass_.py": {"Passes.make"}, "policy/forecast.py": {"near"}}
    trace._lost["c"] = "d"
    trace._begin_pass()
    assert ({"sources/wakes.py": {"Wakes.notify"}}, {"a": "b"}) == (trace._files, trace._lost)
    trace._files["act/kill.py"] = {"HardKills.kill_now"}
    trace._begin_pass()
    assert {"sources/wakes.py"} == trace._files.keys()
