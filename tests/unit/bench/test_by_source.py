import json

import pytest

from bench.by_source import Contender, Seen, _but, _figures, _percent, _spread, contenders, so_far
from reactor.config.settings import settings_from_text
from reactor.errors import RefusedError
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.model.settings import Settings
from reactor.testbed.allocator import MIB, HogTimes
from reactor.testbed.crossing import LEVEL_BYTES, THRESHOLDS, Run


def a_run(wake_ms: float) -> Run:
    times = HogTimes(
        started_ns=0,
        crossed_ns=1_000_000,
        dead_ns=9_000_000,
        ended_ns=40_000_000,
        back_ns=41_000_000,
        peak_bytes=LEVEL_BYTES + 3 * MIB,
        before_bytes=0,
        back_bytes=0,
    )
    timing = {"woke_ns": 1_000_000, "started_ns": 1_000_000 + int(wake_ms * 1e6), "decided_ns": 2_000_000}
    return Run(times=times, timing=timing, woken_by=frozenset({"ebpf"}))


@pytest.mark.parametrize("version", CgroupVersion)
def test_every_contender_is_a_configuration_with_one_source_or_none(version: CgroupVersion) -> None:
    found = contenders(version)
    assert {"poll-10ms", "poll-10s"} < {contender.name for contender in found}
    for contender in found:
        sources = _settings(contender).sources
        on = [name for name in ("ebpf", "memcg", "memory_high", "psi") if getattr(sources, name)]
        assert [] == on if contender.name.startswith("poll") else len(on) == 1


def test_an_event_contender_never_ticks_while_a_poll_ticks_at_its_interval() -> None:
    intervals = {
        contender.name: _settings(contender).housekeeping_interval_seconds
        for contender in contenders(CgroupVersion.V1)
    }
    assert (0.01, 10, 600) == (intervals["poll-10ms"], intervals["poll-10s"], intervals["memcg-eventfd"])


def _settings(contender: Contender) -> Settings:
    return settings_from_text(json.dumps({**THRESHOLDS, "reactor": dict(contender.section)}), "contender")


def test_the_wake_is_the_loop_awake_and_not_the_instant_that_the_kernel_noted() -> None:
    seen = Seen(runs={"max": [a_run(2.5)]}, missed=1, rss_mib=[30.0, 31.0], at_rest_cpu_percent=[0.1])
    seen.woken_by.update(["ebpf"])
    found = _figures(seen)
    assert {"p50": 2.5, "p99": 2.5, "max": 2.5, "n": 1} == found["crossing_to_wake_ms"]["max"]
    assert (3.0, 8.0) == (found["overshoot_mib"]["max"]["p50"], found["crossing_to_kill_ms"]["max"]["p50"])
    assert (1, {"ebpf": 1}, 31.0) == (found["missed"], found["woken_by"], found["rss_mib"])


def test_what_was_seen_so_far_is_reported_by_rate_and_nothing_of_what_was_not() -> None:
    told = "to_loop_ms 3, to_kill_ms 8, to_freed_ms 40, overshoot_mib 3"
    assert [f"max MiB/s, n 3: {told}"] == list(so_far(Seen(runs={"max": [a_run(2), a_run(3), a_run(9)]})))
    assert [] == list(so_far(Seen(missed=2)))


def test_what_is_skipped_is_left_out_and_an_unknown_name_is_reported_with_the_known_ones() -> None:
    found = contenders(CgroupVersion.V1)
    assert "psi" not in {contender.name for contender in _but(found, ["psi", "poll-10s"])}
    assert list(found) == _but(found, [""])
    with pytest.raises(RefusedError, match=r"'pis' is none of memcg-eventfd, psi"):
        _but(found, ["pis"])


def test_a_contender_that_failed_before_anything_was_seen_has_its_reason_for_figures() -> None:
    found = _figures(Seen(failures=["not armed"]))
    assert (["not armed"], None, {}) == (found["failures"], found["rss_mib"], found["overshoot_mib"])


def test_a_cost_is_a_median_with_its_quartiles() -> None:
    assert 25 == _percent(125, 100)
    assert {"percent": 3, "p25": 2, "p75": 4, "n": 5} == _spread([1, 2, 3, 4, 5])
