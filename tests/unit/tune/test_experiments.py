import pytest

from reactor.config.settings import settings_from_text
from reactor.errors import ConfigError
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.model.settings import Settings
from reactor.testbed.allocator import MIB, HogTimes
from reactor.testbed.crossing import LEVEL_BYTES, Run
from reactor.tune import experiments
from reactor.tune.experiments import BUSY, IDLE, MEMORY_HIGH_ALONE, loads_named, reaction_of, ways
from reactor.tune.measured import AS_CONFIGURED


@pytest.fixture
def with_ebpf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "absent_because", lambda _: None)


def test_on_v1_the_configured_way_is_measured_and_nothing_else() -> None:
    section = {"realtime": {"fifoPriority": 10}, "nodeCgroup": "/real", "journal": {"path": "/real"}}
    (way,) = ways(CgroupVersion.V1, Settings(), section)
    assert (AS_CONFIGURED, "memcg-eventfd") == (way.name, way.expected)
    assert {"realtime": {"fifoPriority": 10}} == way.section  # the real node's cgroup is left alone


@pytest.mark.usefixtures("with_ebpf")
def test_on_v2_the_next_source_is_measured_as_well() -> None:
    found = {way.name: way for way in ways(CgroupVersion.V2, Settings(), {})}
    assert {AS_CONFIGURED, MEMORY_HIGH_ALONE} == found.keys()
    assert ("ebpf", "memory-high") == (found[AS_CONFIGURED].expected, found[MEMORY_HIGH_ALONE].expected)


def test_without_any_event_the_ticker_is_waited_for() -> None:
    text = "reactor: {sources: {memcg: false, psi: false}, housekeepingInterval: 3s}"
    (way,) = ways(CgroupVersion.V1, settings_from_text(text, "x"), {})
    assert (None, 3.0) == (way.expected, way.interval_seconds)


def test_loads_are_known_by_their_names() -> None:
    assert (IDLE, BUSY) == loads_named("idle,busy")
    assert (BUSY,) == loads_named(" busy")
    with pytest.raises(ConfigError, match="'bsy'"):
        loads_named("idle,bsy")


def test_a_run_comes_down_to_times_from_the_crossing() -> None:
    times = HogTimes(
        started_ns=0,
        crossed_ns=1_000_000,
        dead_ns=3_000_000,
        ended_ns=40_000_000,
        back_ns=43_000_000,
        peak_bytes=LEVEL_BYTES + 2 * MIB,
        before_bytes=MIB,
        back_bytes=0,
    )
    run = Run(times=times, timing={"woke_ns": 900_000}, woken_by=frozenset({"b", "a"}))
    found = reaction_of(run, "way", "idle")
    assert (0.0, 0.002, 0.04) == (found.wake_seconds, found.kill_seconds, found.freed_seconds)
    assert (LEVEL_BYTES + MIB, 2 * MIB) == (found.victim_bytes, found.overshoot_bytes)
    assert "a, b" == found.source
