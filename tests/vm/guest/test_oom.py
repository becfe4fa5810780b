"""The kernel's own OOM kills, each recorded as what it is: a unit's own limit, or the guarded node's."""

from __future__ import annotations

from typing import Any

import pytest
from guarded import CGROUP, V2, Service, Tenant, eventually, run

# A dry run evicts nobody, so that the kernel has to.
NEVER_EVICTS = {"dryRun": True, "housekeepingInterval": "1s"}
HARD = {"evictionHard": {"memory.available": "50Mi"}}
# On v1 a kill is counted in the victim's own cgroup only, and for as long as that is there.
KILLED = "hold" if V2 else "survive"

by_each_source = pytest.mark.parametrize(
    "source",
    [
        pytest.param(
            "ebpf-oom",
            marks=pytest.mark.skipif(not V2, reason="eBPF is not loaded on cgroup v1: run it on v2"),
        ),
        "oom-counters",
    ],
)


def guard(service: Service, source: str) -> None:
    service.configure(HARD, {**NEVER_EVICTS, "sources": {"ebpf": source == "ebpf-oom"}})
    service.start()
    eventually(lambda: health(service, source) == "armed", f"{source} armed")


def health(service: Service, source: str) -> str | None:
    return next((one["health"] for one in service.status()["sources"] if one["name"] == source), None)


def kills(service: Service) -> list[dict[str, Any]]:
    return [line for line in service.lines() if line["kind"] == "oom-kill"]


def first_kill(service: Service) -> dict[str, Any]:
    eventually(lambda: bool(kills(service)), "an OOM kill in the journal")
    return kills(service)[0]


@by_each_source
def test_kill_at_a_units_own_limit_is_recorded_as_such(service: Service, source: str) -> None:
    guard(service, source)
    hog = Tenant("hog", KILLED, "150", properties={"MemoryMax": "60M"})
    line = first_kill(service)
    if V2:  # on v1 systemd is not told
        eventually(lambda: hog.result() == "oom-kill", "systemd's word on the hog")
    assert (source, "own-limit") == (line["source"], line["scope"])
    assert "faster than us" not in line["message"]
    if source == "ebpf-oom":
        assert hog.pod == line["pod"]
        assert f"{CGROUP}/{hog.unit}" == line["limit_cgroup"] == line["victim_cgroup"]
        assert line["limit_bytes"] == 60 << 20
        assert line["comm"].startswith("python")
    status = service.status()
    assert status["oom_kills"]["counted"]["own-limit"] >= 1
    assert status["oom_kills"]["counted"]["node"] == 0
    assert [one["wakes"] for one in status["sources"] if one["name"] == source] == [0]


@by_each_source
def test_kill_because_the_virtual_node_ran_out_is_told_as_the_nodes_and_wakes_the_loop(
    service: Service, source: str
) -> None:
    guard(service, source)
    hog = Tenant("hog", "hold", "700")
    line = first_kill(service)
    eventually(lambda: hog.result() == ("oom-kill" if V2 else "signal"), "systemd's word on the hog")
    assert (source, "node") == (line["source"], line["scope"])
    assert "the kernel's OOM killer was faster than us" in line["message"]
    if source == "ebpf-oom":
        assert (hog.pod, CGROUP) == (line["pod"], line["limit_cgroup"])
        assert line["limit_bytes"] == 512 << 20
    status = service.status()
    assert status["oom_kills"]["counted"]["node"] >= 1
    assert [one["wakes"] for one in status["sources"] if one["name"] == source] != [0]
    assert "OOM killer was faster than us" in run("journalctl", "-u", "reactor", "--no-pager")


def test_kill_outside_the_guarded_node_is_none_of_its_business(service: Service) -> None:
    guard(service, "ebpf-oom" if V2 else "oom-counters")
    limits = ["--property=MemoryMax=40M", "--property=MemorySwapMax=0"]
    run("systemd-run", "--wait", "--quiet", *limits, "python3", "-c", "b'1' * (200 << 20)", check=False)
    with pytest.raises(AssertionError, match="an OOM kill"):
        eventually(lambda: bool(kills(service)), "an OOM kill", 5)


def test_kills_are_remembered_over_a_restart_and_explained(service: Service) -> None:
    guard(service, "ebpf-oom" if V2 else "oom-counters")
    Tenant("hog", KILLED, "150", properties={"MemoryMax": "60M"})
    line = first_kill(service)
    service.stop()
    service.start()
    eventually(lambda: bool(service.status()["oom_kills"]["recent"]), "the kill remembered")
    assert line["message"] == service.status()["oom_kills"]["recent"][0]["message"]
