"""Fork bombs in units, contained by pid.available: at the fork by eBPF, and by what stands in for it."""

from __future__ import annotations

import pytest
from guarded import CGROUP, SLICE, V2, Service, Tenant, eventually, run

HARD = {"evictionHard": {"pid.available": "200"}}
TASKS = 400

v2_only = pytest.mark.skipif(not V2, reason="eBPF is not loaded on cgroup v1: run it on v2")


def sources(service: Service) -> dict[str, tuple[str, str]]:
    return {one["name"]: (one["health"], one["detail"]) for one in service.status()["sources"]}


def limit_the_slice() -> None:
    run("systemctl", "set-property", "--runtime", SLICE, f"TasksMax={TASKS}")


@v2_only
def test_fork_bomb_in_the_virtual_node_is_ended_by_a_wake_of_ebpf(service: Service) -> None:
    limit_the_slice()
    service.configure(HARD)
    service.start()
    eventually(lambda: f"{CGROUP} pid.available<200 at 201" in sources(service)["ebpf-pids"][1], "it")
    assert sources(service)["processes"] == ("off", "ebpf-pids is armed")
    quiet = Tenant("quiet", "hold", "20")
    eventually(quiet.holds_its_memory, "the quiet unit's memory")
    bomb = Tenant("bomb", "fork")
    decision = service.wait_for_eviction()
    assert {bomb.pod} == set(service.evicted())
    assert "ebpf-pids" in {wake["source"] for wake in decision["wakes"]}
    eventually(lambda: not bomb.is_alive(), "the bomb's end")
    assert quiet.is_alive()


@v2_only
def test_fork_bomb_on_the_machine_is_ended_by_a_wake_of_ebpf(service: Service) -> None:
    threads_max = run("sysctl", "-n", "kernel.threads-max").strip()
    run("sysctl", "-q", "-w", "kernel.threads-max=1500")
    try:
        service.configure(
            {"evictionHard": {"pid.available": "800"}},
            {"nodeCgroup": "/", "pods": {"parents": [CGROUP]}},
        )
        service.start()
        eventually(lambda: "/ pid.available<800 at 701" in sources(service)["ebpf-pids"][1], "it")
        bomb = Tenant("bomb", "fork")
        decision = service.wait_for_eviction()
        assert {bomb.pod} == set(service.evicted())  # once more, where its end takes long
        assert "ebpf-pids" in {wake["source"] for wake in decision["wakes"]}
        eventually(lambda: not bomb.is_alive(), "the bomb's end")
    finally:
        run("sysctl", "-q", "-w", f"kernel.threads-max={threads_max}")


def test_fork_bomb_is_contained_without_ebpf_too(service: Service) -> None:
    limit_the_slice()
    service.configure(HARD, {"sources": {"ebpf": False}})
    service.start()
    eventually(lambda: sources(service)["processes"][0] == "armed", "the process connector")
    bomb = Tenant("bomb", "fork")
    decision = service.wait_for_eviction()
    assert {bomb.pod} == set(service.evicted())
    assert "processes" in {wake["source"] for wake in decision["wakes"]}
    eventually(lambda: not bomb.is_alive(), "the bomb's end")


@v2_only
def test_forks_below_the_threshold_do_not_wake_the_loop(service: Service) -> None:
    limit_the_slice()
    service.configure(HARD)
    service.start()
    eventually(lambda: sources(service)["ebpf-pids"][0] == "armed", "ebpf-pids")
    for _ in range(5):
        Tenant("short", "hold", "1")
        run("systemctl", "stop", "short.service")
    (source,) = (one for one in service.status()["sources"] if one["name"] == "ebpf-pids")
    assert source["wakes"] == 0


@v2_only
def test_limit_that_is_changed_moves_the_level(service: Service) -> None:
    limit_the_slice()
    service.configure(HARD, {"housekeepingInterval": "1s"})
    service.start()
    eventually(lambda: f"{CGROUP} pid.available<200 at 201" in sources(service)["ebpf-pids"][1], "it")
    run("systemctl", "set-property", "--runtime", SLICE, "TasksMax=600")
    eventually(lambda: f"{CGROUP} pid.available<200 at 401" in sources(service)["ebpf-pids"][1], "the move")
