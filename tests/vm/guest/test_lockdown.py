"""A kernel that is locked down: "integrity" leaves eBPF as it is, "confidentiality" shows it no memory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from guarded import BIN, V2, Service, Tenant, eventually, run

LOCKDOWN: Final = Path("/sys/kernel/security/lockdown")
HARD: Final = {"evictionHard": {"memory.available": "100Mi"}, "enforceNodeAllocatable": ["pods"]}
MACHINE: Final = {"nodeCgroup": "/", "pods": {"parents": ["/guarded.slice"]}}
WHY: Final = "the kernel is locked down (confidentiality)"


def level() -> str:
    """Return how far the kernel is locked down."""
    try:
        return LOCKDOWN.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return "none"


pytestmark = [
    pytest.mark.lockdown,
    pytest.mark.skipif(not V2, reason="the memory controller is not on cgroup v2 here"),
    pytest.mark.skipif(level() == "none", reason="not locked down: run it in the machine trixie-lockdown"),
]


@pytest.fixture
def confidentiality() -> None:
    """The kernel can be locked down further while it runs, and never be opened again."""
    if level() != "confidentiality":  # once it is, even that is refused
        LOCKDOWN.write_text("confidentiality")


def sources(service: Service) -> dict[str, tuple[str, str]]:
    return {one["name"]: (one["health"], one["detail"]) for one in service.status()["sources"]}


def start(service: Service, section: dict[str, object], *drop_in: str, armed: str) -> str:
    """Start the service; return what its eBPF source says once the other is armed."""
    service.configure(HARD, section)
    service.start(*drop_in)
    eventually(lambda: sources(service)[armed][0] == "armed", f"{armed} armed")
    return sources(service)["ebpf"][1]


@pytest.mark.skipif(level() != "integrity", reason="locked down too far: boot the machine anew")
def test_integrity_leaves_cgroups_and_the_machine_watched(service: Service) -> None:
    detail = start(service, MACHINE, armed="ebpf")
    assert "/ memory.available<100Mi" in detail
    assert "not /" not in detail


@pytest.mark.skipif(level() != "integrity", reason="locked down too far: boot the machine anew")
def test_integrity_leaves_the_kernel_to_kill_under_warrants(service: Service) -> None:
    start(service, {"kernelKill": "hard"}, armed="ebpf")
    eventually(lambda: service.status()["kernel_kill"]["state"] == "armed", "the programs of warrants")


@pytest.mark.usefixtures("confidentiality")
def test_confidentiality_leaves_cgroups_watched_by_ebpf(service: Service) -> None:
    start(service, {}, armed="ebpf")
    Tenant("hog", "hold", "450")
    assert service.was_woken_by("ebpf", service.wait_for_eviction())


@pytest.mark.usefixtures("confidentiality")
def test_confidentiality_leaves_the_machine_itself_unwatched_and_says_why(service: Service) -> None:
    detail = start(service, MACHINE, armed="ebpf")
    assert "not /: eBPF object node: " in detail
    assert WHY in detail


@pytest.mark.usefixtures("confidentiality")
def test_confidentiality_refuses_bcc_in_one_line_and_memory_high_takes_over(service: Service) -> None:
    detail = start(service, {"ebpf": {"loader": "bcc"}}, armed="memory-high")
    assert WHY in detail
    assert sources(service)["ebpf"][0] == "degraded"
    Tenant("hog", "hold", "450")
    service.wait_for_eviction()


@pytest.mark.usefixtures("confidentiality")
def test_confidentiality_leaves_oom_kills_to_the_counters(service: Service) -> None:
    start(service, {}, armed="oom-counters")
    health, detail = sources(service)["ebpf-oom"]
    assert health == "degraded"
    assert WHY in detail


@pytest.mark.usefixtures("confidentiality")
def test_confidentiality_refuses_warrants_in_one_line_and_the_daemon_kills_itself(service: Service) -> None:
    start(service, {"kernelKill": "hard"}, armed="ebpf")
    eventually(lambda: service.status()["kernel_kill"]["state"] == "failed", "no programs of warrants")
    assert WHY in service.status()["kernel_kill"]["detail"]
    told = [line for line in service.log().splitlines() if line.startswith("warrants: failed")]
    assert 1 == len(told), service.log()
    assert WHY in told[0]
    hog = Tenant("hog", "hold", "450")
    (eviction,) = service.wait_for_eviction()["evictions"]
    assert (hog.pod, None) == (eviction["pod"], eviction["warrant"])
    assert WHY in run(BIN, "doctor", check=False)
