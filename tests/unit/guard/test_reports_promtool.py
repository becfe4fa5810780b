"""What a scrape gives is held against Prometheus' own checks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import trio

from reactor.guard.incidents import NoVictims
from reactor.guard.node import Node
from reactor.guard.recorder import Tally
from reactor.guard.reports import Report, Reports
from reactor.kernel.swap import SwapTraffic
from reactor.model.decisions import PolicyState
from reactor.model.kills import Slowdown, SlowReason, WarrantEnd
from reactor.model.settings import EvictionSettings, Settings
from reactor.model.signals import NodeCondition, Signal
from reactor.model.thresholds import Observation, Observed
from reactor.model.wakes import SourceHealth, SourceState, Wake, WakeKind
from reactor.reclaim.images import RemovedFor
from reactor.tell.http import serve_metrics
from reactor.tell.metrics import Metrics, StewardReading
from tests.support.builders import make_claim, make_pod
from tests.support.readings import of_others

MIB = 1 << 20
_ROOT = Path(__file__).parents[3]


@pytest.fixture
def promtool() -> str:
    fetched = _ROOT / ".cache" / "promtool"
    found = str(fetched) if fetched.exists() else shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool: `make promtool` fetches it, or install Debian's package prometheus")
    return found


def reading(make_threshold, tally: Tally) -> Reports:
    thresholds = (
        make_threshold(100 * MIB),
        make_threshold(200 * MIB, grace_period_seconds=30),
        make_threshold(1000, Signal.PID_AVAILABLE),
        make_threshold(1000, Signal.NODEFS_INODES_FREE),
        make_threshold(1000, Signal.NODEFS_AVAILABLE),
    )
    known = Node(
        observed=Observed(stale_seconds=100.0),
        clock_seconds=lambda: 110.0,
        state=PolicyState(
            conditions=(NodeCondition.MEMORY_PRESSURE,),
            slowdowns=(
                Slowdown(
                    signal=Signal.MEMORY_AVAILABLE,
                    reason=SlowReason.UNHELPFUL,
                    since_seconds=1,
                    until_seconds=2,
                    message="",
                    held_by="cgroup/docker.service",
                    held_by_bytes=560 * MIB,
                ),
            ),
            claims=(make_claim(),),
        ),
        pods=(make_pod("a"), make_pod("b")),
    )
    memory = Observation(available=150 * MIB, capacity=512 * MIB)
    known.observed.take({Signal.MEMORY_AVAILABLE}, {Signal.MEMORY_AVAILABLE: memory}, 110.0)
    others = {
        Signal.PID_AVAILABLE: Observation(available=3000, capacity=4000),
        Signal.NODEFS_INODES_FREE: Observation(available=5, capacity=10),
    }
    known.observed.take(others.keys(), others, 100.0)
    more = {
        **of_others(tally),
        "no_victims": NoVictims(lambda _: None).by_signal(thresholds),
        "kubernetes": {"node": "one", "watches": {"pods": True, "node": False}, "untold_evictions": 3},
        "oom_order": {"first": {"processes": 2}, "others": 1},
        "kernel_kill": {"counted": {WarrantEnd.SERVED: 2}},
        "journal": {"written": 4, "lost": 1},
    }
    return Reports(
        settings=Settings(eviction=EvictionSettings(thresholds=thresholds)),
        known=known,
        sources=(
            SourceState(name="memcg-eventfd", health=SourceHealth.ARMED, wakes=3),
            SourceState(name="processes", health=SourceHealth.FAILED, wakes=1, lost=7),
        ),
        started_unix_seconds=1.5e9,
        others=[Report(counts=lambda: more, problems=lambda: {"journal": "full"})],
    )


@pytest.fixture
async def scrape(nursery, make_loop, make_pod, make_threshold, observation) -> str:
    """A real scrape over HTTP, after an eviction was measured."""
    metrics, tally = Metrics(), Tally()
    loop = make_loop()
    loop.kills.reaped.set()
    loop.have(make_pod("hog"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    record = loop.passes.make([Wake(source="test", kind=WakeKind.MEMORY, at_ns=0)])
    await record.attempts[0].ended.wait()
    tally.observe_pass(record)
    tally.observe_attempt(record.attempts[0])
    tally.count_reload(taken=False)
    told = reading(make_threshold, tally).reading()
    told["problems"]["configuration"] = "the file is refused"
    own = StewardReading(
        parts={"metrics": 2},
        restart_loops=1,
        repeated_evictions=4,
        overdue_pods=2,
        removed_images={RemovedFor.SPACE: 3},
        notifications=[{"channel": "webhook", "sent": 3, "failed": 4, "dropped": 5, "skipped": 6}],
        problems=["journal", "disk"],
        swap_traffic=SwapTraffic(in_bytes=4096, out_bytes=8192),
    )
    metrics.read(json.loads(json.dumps(told)), own)
    (listener,) = await nursery.start(serve_metrics, metrics.registry, ("127.0.0.1", 0))
    return await get(listener.socket.getsockname()[1], "/metrics")


async def get(port: int, path: str, method: str = "GET") -> str:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = b""
        while more := await stream.receive_some(65536):
            answer += more
    return answer.decode()


async def test_promtool_finds_nothing_wrong_with_a_scrape(scrape, promtool):
    body = scrape.partition("\r\n\r\n")[2]

    checked = await trio.run_process(
        [promtool, "check", "metrics"],
        stdin=body.encode(),
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    "line",
    [
        'reactor_evictions_total{outcome="killed",signal="memory.available"} 1.0',
        'reactor_available_bytes{signal="memory.available"} 1.572864e+08',
        'reactor_threshold_bytes{kind="hard",signal="memory.available"} 1.048576e+08',
        'reactor_threshold_bytes{kind="soft",signal="memory.available"} 2.097152e+08',
        'reactor_available_processes{signal="pid.available"} 3000.0',
        'reactor_available_inodes{signal="nodefs.inodesFree"} 5.0',
        'reactor_observation_age_seconds{signal="pid.available"} 10.0',
        'reactor_node_condition{condition="MemoryPressure"} 1.0',
        'reactor_node_condition{condition="DiskPressure"} 0.0',
        'reactor_source_state{source="processes",state="failed"} 1.0',
        'reactor_source_state{source="processes",state="armed"} 0.0',
        'reactor_source_wakes_total{source="memcg-eventfd"} 3.0',
        'reactor_source_lost_events_total{source="processes"} 7.0',
        "reactor_evictions_in_flight 1.0",
        'reactor_oom_order_processes{pod="first"} 2.0',
        'reactor_swap_traffic_bytes_total{direction="in"} 4096.0',
        'reactor_swap_traffic_bytes_total{direction="out"} 8192.0',
        'reactor_oom_order_processes{pod="others"} 1.0',
        'reactor_warrants_total{outcome="served"} 2.0',
        'reactor_warrants_total{outcome="expired"} 0.0',
        "reactor_journal_lost_lines_total 1.0",
        'reactor_config_reloads_total{result="refused"} 1.0',
        'reactor_stage_duration_seconds_count{stage="free"} 1.0',
        "reactor_pass_duration_seconds_count 1.0",
        'reactor_pass_duration_seconds_bucket{le="+Inf"} 1.0',
        'reactor_evictions_total{outcome="failed",signal="emptydirfs.limit"} 0.0',
        'reactor_process_evictions_total{outcome="process-killed",signal="memory.available"} 0.0',
        'reactor_process_evictions_total{outcome="process-terminated",signal="swap.available"} 0.0',
        'reactor_reclaims_total{kind="images",outcome="failed"} 0.0',
        'reactor_reclaimed_bytes_total{kind="images"} 0.0',
        'reactor_reclaimed_inodes_total{kind="commands"} 0.0',
        "reactor_config_last_reload_successful 0.0",
        'reactor_signal_observed{signal="memory.available"} 1.0',
        'reactor_signal_observed{signal="nodefs.available"} 0.0',
        'reactor_threshold_absurd{kind="hard",signal="memory.available"} 0.0',
        'reactor_threshold_absurd{kind="hard",signal="nodefs.inodesFree"} 1.0',
        "reactor_problems 3.0",
        'reactor_notifications_total{channel="webhook",result="dropped"} 5.0',
        'reactor_part_restarts_total{part="metrics"} 2.0',
        'reactor_kubernetes_connected{watch="pods"} 1.0',
        'reactor_kubernetes_connected{watch="node"} 0.0',
        "reactor_kubernetes_untold_evictions 3.0",
        "reactor_restart_loops 1.0",
        "reactor_storage_overdue_pods 2.0",
        "reactor_repeated_evictions_total 4.0",
        "reactor_steward_refused_requests_total 0.0",
        "reactor_state_write_failures_total 0.0",
        "reactor_config_refused 1.0",
        'kubelet_evictions{eviction_signal="memory.available"} 1.0',
        'kubelet_evictions{eviction_signal="emptydirfs.limit"} 0.0',
        'kubelet_eviction_stats_age_seconds_count{eviction_signal="memory.available"} 1.0',
        'kubelet_eviction_stats_age_seconds_bucket{eviction_signal="memory.available",le="0.005"} 1.0',
        'kubelet_image_garbage_collected_total{reason="space"} 3.0',
        'kubelet_image_garbage_collected_total{reason="age"} 0.0',
        'kubelet_node_name{node="one"} 1.0',
    ],
)
async def test_scrape_holds(scrape, line):
    assert line in scrape.splitlines()


async def test_when_each_counter_began_is_not_said_for_each(scrape):
    assert "_created" not in scrape


async def test_what_is_counted_is_there_at_zero_before_it_happens(make_threshold):
    metrics = Metrics()
    metrics.read(reading(make_threshold, Tally()).reading())
    value = metrics.registry.get_sample_value
    for signal in Signal:
        assert value("reactor_evictions_total", {"signal": signal, "outcome": "killed"}) == 0
    assert value("reactor_oom_kills_total", {"scope": "node"}) == 0
    assert value("reactor_stage_duration_seconds_count", {"stage": "free"}) == 0
    assert value("reactor_wake_to_kill_seconds_count") == 0
    assert value("reactor_config_last_reload_successful") == 1


async def test_an_eviction_that_came_to_nothing_is_none_of_the_kubelets_count(make_threshold):
    tally = Tally().document()
    outcomes = ("killed", "terminated", "failed", "gone", "dry-run", "called off", "pre-empted")
    tally["evictions"] = [("memory.available", outcome, 1) for outcome in outcomes]
    metrics = Metrics()
    metrics.read({**reading(make_threshold, Tally()).reading(), "tally": tally})
    found = metrics.registry.get_sample_value("kubelet_evictions", {"eviction_signal": "memory.available"})
    assert found == 2.0


async def test_histograms_begin_at_a_hundred_microseconds(scrape):
    assert 'reactor_pass_duration_seconds_bucket{le="0.0001"}' in scrape


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/", "GET", "404"),
        ("/metrics", "POST", "405"),
        ("/metrics", "HEAD", "200"),
        ("/metrics?x=1", "GET", "200"),
    ],
)
async def test_endpoint_answers_what_it_is_asked(nursery, path, method, status):
    (listener,) = await nursery.start(serve_metrics, Metrics().registry, ("127.0.0.1", 0))

    answer = await get(listener.socket.getsockname()[1], path, method)

    assert answer.startswith(f"HTTP/1.1 {status} ")


async def test_health_is_what_the_loop_says_of_itself(nursery):
    alive = [True]
    (listener,) = await nursery.start(
        serve_metrics, Metrics().registry, ("127.0.0.1", 0), lambda: alive.pop() if alive else False
    )
    port = listener.socket.getsockname()[1]

    assert (await get(port, "/healthz")).startswith("HTTP/1.1 200 ")
    assert (await get(port, "/healthz")).startswith("HTTP/1.1 503 ")


async def test_nonsense_is_answered_by_closing_and_the_next_is_served(nursery):
    (listener,) = await nursery.start(serve_metrics, Metrics().registry, ("127.0.0.1", 0))
    port = listener.socket.getsockname()[1]
    for nonsense in (b"\r\n\r\n", b"\xff" * 10_000, b""):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(nonsense)
        await stream.aclose()

    assert (await get(port, "/metrics")).startswith("HTTP/1.1 200 ")


async def test_occupied_port_is_said_and_does_not_raise(nursery, caplog):
    (listener,) = await nursery.start(serve_metrics, Metrics().registry, ("127.0.0.1", 0))

    second = await nursery.start(
        serve_metrics, Metrics().registry, ("127.0.0.1", listener.socket.getsockname()[1])
    )

    assert second == ()
    assert "the port is taken" in caplog.text
