"""kernelKill: hard, as the daemon does it: the kernel kills at the crossing, and the daemon follows."""

from __future__ import annotations

from typing import Any, Final

import pytest
from guarded import BIN, MIB, V2, Service, Tenant, eventually, run

pytestmark = pytest.mark.skipif(not V2, reason="the kernel kills on cgroup v2 alone: run it on trixie")

HARD: Final = {"evictionHard": {"memory.available": "100Mi"}}
KERNEL_KILL: Final = {"kernelKill": "hard"}
# Slow enough for a warrant under emulation beside other load, where a pass took 0.2 s: it is armed 3 MiB
# before the crossing.
PACE: Final = "4"


def kernel_kill(service: Service) -> dict[str, Any]:
    found: dict[str, Any] = service.status()["kernel_kill"]
    return found


def armed(service: Service, pods: int) -> None:
    """Wait until the kernel knows the pods."""
    known = f"{pods} of {pods} pods known to the kernel"
    eventually(lambda: kernel_kill(service)["detail"] == known, known)


def was_killed_by_the_kernel(service: Service, unit: str) -> dict[str, Any]:
    """Return the warrant under which this unit was killed, and nothing else."""
    decision = service.wait_for_eviction()
    print(kernel_kill(service), decision["wakes"], decision["threshold"])
    assert [f"cgroup/{unit}"] == service.evicted()
    (eviction,) = decision["evictions"]
    warrant: dict[str, Any] | None = eviction["warrant"]
    assert warrant is not None
    assert eviction["outcome"] == "killed"
    assert warrant["armed_ns"] < warrant["crossed_ns"] <= warrant["signalled_ns"] == eviction["killed_ns"]
    print(f"signalled {(warrant['signalled_ns'] - warrant['crossed_ns']) / 1000:.0f} us after the crossing")
    assert kernel_kill(service)["counted"]["served"] == 1
    return warrant


def test_hog_is_killed_by_the_kernel_and_its_neighbour_lives(service: Service) -> None:
    neighbour = Tenant("neighbour", "hold", "20")
    filler = Tenant("filler", "hold", "310", properties={"ManagedOOMPreference": "omit"})
    eventually(lambda: neighbour.holds_its_memory() and filler.holds_its_memory(), "what there is besides")
    service.configure(HARD, KERNEL_KILL)
    service.start()
    armed(service, 2)
    hog = Tenant("hog", "grow", "150", PACE)
    was_killed_by_the_kernel(service, hog.unit)
    assert neighbour.is_alive()
    told = run(BIN, "explain", hog.pod)
    print(told)
    assert "killed by the kernel under warrant" in told
    assert "kernel kill: " in run(BIN, "status")


def test_hog_too_fast_for_the_nearer_early_level_has_its_warrant_from_the_farther_one(
    service: Service,
) -> None:
    """It takes the last 3 MiB in the time of a pass under emulation, the last 32 MiB in ten times that."""
    neighbour = Tenant("neighbour", "hold", "20")
    filler = Tenant("filler", "hold", "250", properties={"ManagedOOMPreference": "omit"})
    eventually(lambda: neighbour.holds_its_memory() and filler.holds_its_memory(), "what there is besides")
    service.configure(HARD, KERNEL_KILL)
    service.start()
    armed(service, 2)
    hog = Tenant("hog", "grow", "250", "20")
    was_killed_by_the_kernel(service, hog.unit)
    assert neighbour.is_alive()


def test_hog_past_the_machines_own_threshold_is_killed_by_the_kernel(service: Service) -> None:
    run("systemctl", "set-property", "--runtime", "guarded.slice", "MemoryMax=infinity")
    neighbour = Tenant("neighbour", "hold", "20")
    # Where pods hold much less than the threshold evicting could end no shortage, and none is prepared.
    filler = Tenant("filler", "hold", "850", properties={"ManagedOOMPreference": "omit"})
    eventually(lambda: neighbour.holds_its_memory() and filler.holds_its_memory(), "what there is besides")
    section = {"nodeCgroup": "/", "pods": {"parents": ["/guarded.slice"]}, **KERNEL_KILL}
    service.configure({"evictionHard": {"memory.available": "1Mi"}}, section)
    service.start()
    available = next(
        one["available"] for one in service.status()["signals"] if one["signal"] == "memory.available"
    )
    service.stop()
    service.configure({"evictionHard": {"memory.available": f"{available // MIB - 60}Mi"}}, section)
    service.start()
    armed(service, 2)
    hog = Tenant("hog", "grow", "300", PACE)
    was_killed_by_the_kernel(service, hog.unit)
    assert neighbour.is_alive()


def test_without_it_the_daemon_kills_itself(service: Service) -> None:
    hog = Tenant("hog", "grow", "500", "40")
    service.configure(HARD)
    service.start()
    decision = service.wait_for_eviction()
    assert [hog.pod] == service.evicted()
    assert decision["evictions"][0]["warrant"] is None
    assert (kernel_kill(service)["mode"], kernel_kill(service)["counted"]) == ("off", {})


def test_dry_run_lets_the_kernel_kill_nothing(service: Service) -> None:
    hog = Tenant("hog", "grow", "450", "40")
    service.configure(HARD, {**KERNEL_KILL, "dryRun": True})
    service.start()
    service.wait_for_eviction()
    assert hog.is_alive()
    assert kernel_kill(service)["counted"] == {}
