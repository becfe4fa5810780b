"""The daemon as systemd's service, guarding real units."""

from __future__ import annotations

import json

import pytest
from guarded import BIN, CGROUP, MEMORY, SLICE, V2, Service, Tenant, answer, eventually, run

from tests.support.daemon import after_housekeeping

HARD = {"evictionHard": {"memory.available": "100Mi"}}
# A level that brakes stalls tasks, so the hint may be the first to tell of the very same crossing.
NO_HINTS = {"sources": {"psi": False}}
# memory.high with nothing before or beside it.
HIGH_ONLY = {"sources": {"ebpf": False, "psi": False}}
PREFERRED = "ebpf" if V2 else "memcg-eventfd"


@pytest.mark.quick
def test_it_is_started_once_its_sources_are_armed(service: Service) -> None:
    service.configure(HARD)
    service.start()
    assert service.prop("ActiveState") == "active"
    assert service.prop("StatusText") != ""
    service.armed_after(PREFERRED)  # it does not wait longer than a second for it
    shown = json.loads(answer("status", "--output", "json"))
    assert "armed" == {source["name"]: source["health"] for source in shown["sources"]}[PREFERRED]


def test_it_is_restarted_when_it_no_longer_answers_the_watchdog(service: Service) -> None:
    service.configure(HARD)
    service.start("WatchdogSec=10s")
    service.kill("SIGSTOP")
    eventually(lambda: service.prop("NRestarts") != "0", "the watchdog")
    eventually(lambda: service.prop("ActiveState") == "active", "the restart")


@pytest.mark.quick
def test_a_unit_past_the_hard_threshold_is_ended_and_the_others_live(service: Service) -> None:
    service.configure(HARD, NO_HINTS)
    quiet = Tenant("quiet", "hold", "150")
    eventually(quiet.holds_its_memory, "the quiet unit's memory")
    service.start()
    service.armed_after(PREFERRED)
    hog = Tenant("hog", "hold", "300")
    decision = service.wait_for_eviction()
    assert [hog.pod] == service.evicted()
    assert service.was_woken_by(PREFERRED, decision)
    eventually(lambda: hog.result() == "signal", "systemd's word on the hog")
    assert quiet.is_alive()
    eventually(lambda: hog.usage_bytes() == 0, "the memory back")


def test_top_shows_the_signals_and_who_would_go_first(service: Service) -> None:
    service.configure(HARD)
    tenants = [Tenant("small", "hold", "20"), Tenant("large", "hold", "60")]
    for tenant in tenants:
        eventually(tenant.holds_its_memory, "the units' memory")
    service.start()

    lines = run("env", "COLUMNS=160", BIN, "top", "--once").splitlines()

    (memory,) = (line for line in lines if line.startswith("memory.available"))
    assert memory.split()[-2:] == ["ok", PREFERRED]
    pods = [line.split()[1] for line in lines if "above request" in line]
    assert pods == [tenant.pod for tenant in reversed(tenants)]


def test_page_cache_past_the_threshold_evicts_no_pod(service: Service) -> None:
    service.configure(HARD)
    service.start()
    quiet = Tenant("quiet", "hold", "50")
    writer = Tenant("writer", "cache", "/var/tmp/cache", "600", properties={"RemainAfterExit": "yes"})
    eventually(lambda: run("systemctl", "show", "-P", "SubState", writer.unit).strip() == "exited", "it", 180)
    assert writer.result() == "success"
    assert service.evicted() == []
    assert quiet.is_alive()


def test_a_soft_threshold_ends_a_unit_after_its_grace_period_and_not_before(service: Service) -> None:
    service.configure(
        {
            "evictionHard": {},
            "evictionSoft": {"memory.available": "100Mi"},
            "evictionSoftGracePeriod": {"memory.available": "8s"},
            "evictionMaxPodGracePeriod": 30,
        },
        {"housekeepingInterval": "1s"},
    )
    service.start()
    hog = Tenant("hog", "hold", "430")
    eventually(hog.holds_its_memory, "the hog's memory")
    decision = service.wait_for_eviction()
    since_seconds = decision["monotonic_seconds"] - _started_seconds(hog)
    assert since_seconds >= 8
    eventually(lambda: not hog.is_alive(), "the hog's end")
    # It was asked to, and did: no SIGKILL.
    assert run("systemctl", "show", "-P", "ExecMainStatus", hog.unit).strip() in {"15", "0"}


def test_a_short_visit_past_a_soft_threshold_evicts_no_pod(service: Service) -> None:
    service.configure(
        {
            "evictionHard": {},
            "evictionSoft": {"memory.available": "100Mi"},
            "evictionSoftGracePeriod": {"memory.available": "60s"},  # longer than a starved guest's visit
        },
        {"housekeepingInterval": "1s"},
    )
    service.start()
    hog = Tenant("hog", "hold", "430")
    eventually(hog.holds_its_memory, "the hog's memory")
    run("systemctl", "stop", hog.unit)
    Tenant("quiet", "hold", "20")
    after_housekeeping(service, 65)  # a turn each second
    assert [] == service.evictions()


def test_a_fork_bomb_is_contained_before_the_node_runs_out_of_processes(service: Service) -> None:
    threads_max = run("sysctl", "-n", "kernel.threads-max").strip()
    run("sysctl", "-q", "-w", "kernel.threads-max=1500")
    try:
        service.configure(
            {"evictionHard": {"pid.available": "800"}},
            {"nodeCgroup": "/", "pods": {"parents": [CGROUP]}},
        )
        # 1,500 processes need more memory than the slice has: the OOM killer might take the quiet one.
        run("systemctl", "set-property", "--runtime", SLICE, "MemoryMax=infinity")
        service.start()
        quiet = Tenant("quiet", "hold", "20")
        bomb = Tenant("bomb", "fork")
        decision = service.wait_for_eviction()
        assert {bomb.pod} == set(service.evicted())  # once more, where its end takes long
        assert {"ebpf-pids", "processes"} & {wake["source"] for wake in decision["wakes"]}
        eventually(lambda: not bomb.is_alive(), "the bomb's end")
        assert quiet.is_alive()
    finally:
        run("sysctl", "-q", "-w", f"kernel.threads-max={threads_max}")


def test_an_eviction_cut_short_by_a_crash_is_finished_and_not_repeated_on_another(service: Service) -> None:
    service.configure(
        {
            "evictionHard": {},
            "evictionSoft": {"memory.available": "100Mi"},
            "evictionSoftGracePeriod": {"memory.available": "1s"},
            "evictionMaxPodGracePeriod": 20,
        },
        {"housekeepingInterval": "1s", "inFlightDeadline": "40s"},
    )
    quiet = Tenant("quiet", "hold", "100")
    service.start()
    hog = Tenant("hog", "hold", "330", "stubborn")
    eventually(lambda: any(hog.pod in str(line) for line in service.lines()) or _in_flight(service), "it")
    service.kill("SIGKILL")
    assert hog.is_alive()
    eventually(lambda: service.prop("NRestarts") == "1", "the restart")
    eventually(lambda: not hog.is_alive(), "the hog's end")
    assert "resuming eviction after restart" in service.log()
    assert hog.result() == "signal"
    eventually(lambda: service.prop("ActiveState") == "active", "the service")
    assert quiet.is_alive()
    assert set(service.evicted()) <= {hog.pod}


@pytest.mark.skipif(not V2, reason="systemd delegates memory on cgroup v2: run it on bookworm or trixie")
def test_guard_and_steward_have_cgroups_of_their_own_also_after_a_crash_and_none_after_the_end(
    service: Service,
) -> None:
    unit = MEMORY / "system.slice/reactor.service"
    service.configure(HARD)
    service.start()

    def is_divided() -> bool:
        bound = service.status()["processes"]["steward"]["memory"]
        return (bound["limited_by"], bound["limit_bytes"]) == ("cgroup", 192 << 20)

    for restarts in ("0", "1", "2"):
        eventually(lambda expected=restarts: service.prop("NRestarts") == expected, "the restart")
        eventually(lambda: service.prop("ActiveState") == "active", "the service")
        eventually(is_divided, f"the steward's cgroup after {restarts} restarts")
        processes = service.status()["processes"]
        for name in ("guard", "steward"):
            assert str(processes[name]["pid"]) in (unit / name / "cgroup.procs").read_text().split()
        run("systemctl", "reload", "reactor.service")  # its command runs in the unit's cgroup as well
        if restarts != "2":
            service.kill("SIGKILL")
    service.stop()
    assert not unit.exists()


@pytest.mark.skipif(not V2, reason="memory.high is a file of cgroup v2: run it on bookworm or trixie")
def test_the_operators_memory_high_is_back_after_the_end_and_after_a_crash(service: Service) -> None:
    high = MEMORY / SLICE / "memory.high"
    run("systemctl", "set-property", "--runtime", SLICE, "MemoryHigh=500M")
    operators = high.read_text()
    service.configure(HARD, HIGH_ONLY)
    service.start()
    eventually(lambda: high.read_text() != operators, "memory.high to be borrowed")
    service.stop()
    assert operators == high.read_text()
    service.start("Restart=no")
    eventually(lambda: high.read_text() != operators, "memory.high to be borrowed")
    service.kill("SIGKILL")
    eventually(lambda: service.prop("ActiveState") == "failed", "the crash")
    run("systemctl", "start", "reactor.service")
    service.stop()
    assert operators == high.read_text()


@pytest.mark.skipif(not V2, reason="memory.high is a file of cgroup v2: run it on bookworm or trixie")
def test_a_level_that_systemd_overwrites_is_armed_again(service: Service) -> None:
    service.configure(HARD, HIGH_ONLY)
    service.start()
    high = MEMORY / SLICE / "memory.high"
    eventually(lambda: high.read_text() != "max\n", "memory.high to be borrowed")
    # The next unit in the slice has systemd write the slice's own settings, memory.high among them.
    run("systemctl", "daemon-reload")
    quiet = Tenant("quiet", "hold", "50")
    eventually(quiet.holds_its_memory, "the quiet unit's memory")
    eventually(lambda: high.read_text() != "max\n", "memory.high to be borrowed again")
    hog = Tenant("hog", "grow", "430", "100")
    decision = service.wait_for_eviction()
    assert [hog.pod] == service.evicted()
    assert service.was_woken_by("memory-high", decision)


def _started_seconds(tenant: Tenant) -> float:
    return int(run("systemctl", "show", "-P", "ExecMainStartTimestampMonotonic", tenant.unit)) / 1e6


def _in_flight(service: Service) -> bool:
    return bool(service.status().get("in_flight"))
