"""eBPF as the daemon's memory source on cgroup v2, and what stands in where it can't be had."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from guarded import V2, Service, Tenant, eventually, run

from reactor.kernel.bpf.objects import OBJECTS
from tests.support.at_rest import is_busy

HARD = {"evictionHard": {"memory.available": "100Mi"}}
RESIDENT_MIB = 41

pytestmark = pytest.mark.skipif(
    not V2, reason="eBPF watches memory on cgroup v2: run it on bookworm or trixie"
)


def sources(service: Service) -> dict[str, tuple[str, str]]:
    return {one["name"]: (one["health"], one["detail"]) for one in service.status()["sources"]}


def armed_after(service: Service, name: str) -> dict[str, tuple[str, str]]:
    eventually(lambda: sources(service)[name][0] == "armed", f"{name} armed")
    return sources(service)


def test_ebpf_is_armed_and_the_daemon_stays_small(service: Service) -> None:
    service.configure(HARD)
    service.start()
    found = armed_after(service, "ebpf")
    assert found["memory-high"] == ("off", "ebpf is armed")
    assert resident_mib(service) < RESIDENT_MIB


def test_the_daemon_stays_small_with_every_probe_loaded(service: Service) -> None:
    service.configure(
        {"evictionHard": {"memory.available": "100Mi", "pid.available": "100"}},
        {"nodeCgroup": "/", "pods": {"parents": ["/guarded.slice"]}},
    )
    service.start()
    for name in ("ebpf", "ebpf-pids", "ebpf-oom"):
        armed_after(service, name)
    eventually(lambda: "pid.available<100" in sources(service)["ebpf-pids"][1], "the level of processes")
    assert "not /" not in sources(service)["ebpf"][1]
    assert resident_mib(service) < RESIDENT_MIB


def resident_mib(service: Service) -> float:
    status = Path(f"/proc/{service.prop('MainPID')}/status").read_text()
    resident, peak = (int(status.split(name)[1].split()[0]) / 1024 for name in ("VmRSS:", "VmHWM:"))
    print(f"resident {resident:.1f} MiB, {peak:.1f} at the most")
    return resident


def test_machine_itself_is_watched_by_ebpf(service: Service) -> None:
    service.configure(HARD, {"nodeCgroup": "/", "pods": {"parents": ["/guarded.slice"]}})
    service.start()
    health, detail = armed_after(service, "ebpf")["ebpf"]
    assert (health, "not /" in detail) == ("armed", False)
    assert "/ memory.available<100Mi" in detail


def test_unit_past_the_machines_own_threshold_is_ended_by_a_wake_of_ebpf(service: Service) -> None:
    section = {"nodeCgroup": "/", "pods": {"parents": ["/guarded.slice"]}, "sources": {"psi": False}}
    # What the hog meets is to be the machine's threshold, not the limit of its slice.
    run("systemctl", "set-property", "--runtime", "guarded.slice", "MemoryMax=infinity")
    service.configure({"evictionHard": {"memory.available": "1Mi"}}, section)
    service.start()
    quiet = Tenant("quiet", "hold", "50")
    eventually(quiet.holds_its_memory, "the quiet unit's memory")
    signals = {one["signal"]: one for one in service.status()["signals"]}
    available_mib = int(signals["memory.available"]["available"]) >> 20
    service.stop()
    service.configure({"evictionHard": {"memory.available": f"{available_mib - 200}Mi"}}, section)
    service.start()
    armed_after(service, "ebpf")
    hog = Tenant("hog", "grow", "380", "100")
    decision = service.wait_for_eviction()
    assert [hog.pod] == service.evicted()
    assert service.was_woken_by("ebpf", decision)
    assert quiet.is_alive()


def test_unit_past_the_threshold_is_ended_by_a_wake_of_ebpf(service: Service) -> None:
    service.configure(HARD)
    service.start()
    armed_after(service, "ebpf")
    Tenant("hog", "hold", "450")
    decision = service.wait_for_eviction()
    assert service.was_woken_by("ebpf", decision)


def test_memory_high_takes_over_where_ebpf_is_switched_off(service: Service) -> None:
    service.configure(HARD, {"sources": {"ebpf": False}})
    service.start()
    assert armed_after(service, "memory-high")["ebpf"] == ("off", "switched off in the configuration")


def test_memory_high_takes_over_without_the_capabilities(service: Service) -> None:
    service.configure(HARD)
    service.start("CapabilityBoundingSet=~CAP_BPF CAP_PERFMON CAP_SYS_ADMIN")
    health, detail = armed_after(service, "memory-high")["ebpf"]
    assert health == "degraded"
    assert "needs CAP_BPF and CAP_PERFMON" in detail
    Tenant("hog", "hold", "450")
    service.wait_for_eviction()


def test_kernel_that_hides_its_symbols_is_told_and_only_the_machine_goes_unwatched(service: Service) -> None:
    """The watch on the machine takes CAP_SYSLOG; with the pods' cgroup to watch, eBPF still is the source."""
    service.configure(
        {**HARD, "enforceNodeAllocatable": ["pods"]},
        {"nodeCgroup": "/", "pods": {"parents": ["/guarded.slice"]}},
    )
    service.start("CapabilityBoundingSet=~CAP_SYSLOG")
    eventually(lambda: "CAP_SYSLOG" in sources(service)["ebpf"][1], "the reason")


@pytest.mark.parametrize(
    ("content", "why"), [(b"\x7fELF", "libbpf can read"), (None, "not in this installation")]
)
def test_memory_high_takes_over_where_the_object_is_broken_or_missing(
    service: Service, content: bytes | None, why: str
) -> None:
    path = OBJECTS / "memory.bpf.o"
    whole = path.read_bytes()
    try:
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        service.configure(HARD)
        service.start()
        assert why in armed_after(service, "memory-high")["ebpf"][1]
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("hidden", "why"),
    [
        ("/sys/kernel/btf", "no /sys/kernel/btf/vmlinux: this kernel was built without"),
        ("-/usr/lib/x86_64-linux-gnu/libbpf.so.1", "libbpf.so.1: not found: Debian's package libbpf1 has it"),
    ],
)
def test_memory_high_takes_over_where_there_is_no_btf_or_no_libbpf(
    service: Service, hidden: str, why: str
) -> None:
    service.configure(HARD, {"ebpf": {"loader": "libbpf"}})
    service.start(f"InaccessiblePaths={hidden}")
    assert why in armed_after(service, "memory-high")["ebpf"][1]
    Tenant("hog", "hold", "450")
    service.wait_for_eviction()


def test_daemon_that_is_killed_leaves_no_program_loaded(service: Service) -> None:
    before = loaded_programs()  # by BCC, which pinned them for the other tests
    service.configure(HARD)
    service.start("Restart=no")
    armed_after(service, "ebpf")
    assert loaded_programs() == before + 1
    service.kill("SIGKILL")
    eventually(lambda: loaded_programs() == before, "the programs gone")


def loaded_programs() -> int:
    """Return how often the program at a charge of memory is loaded; the kernel keeps 15 letters of a name."""
    return run("bpftool", "prog", "list").count("memory_try_char")


def test_reloads_leave_neither_memory_nor_descriptors_behind(service: Service) -> None:
    """Each loads the programs anew: 5 MiB more until the last of them, those of warrants, are armed."""
    resident, descriptors = [], []
    for mib in range(100, 119):
        configure(service, mib)
        if mib == 100:
            service.start()
        else:
            run("systemctl", "reload", "reactor.service")
        level = f"memory.available<{mib}Mi"
        eventually(partial(is_watched, service, level), f"a watch of {level}")
        eventually(lambda: not is_busy(service.status()), "all programs")
        resident.append(resident_mib(service))
        descriptors.append(len(list(Path(f"/proc/{service.prop('MainPID')}/fd").iterdir())))
    assert min(resident[10:]) - min(resident[1:10]) < 1, resident
    assert min(descriptors[10:]) - min(descriptors[1:10]) < 3, descriptors


def configure(service: Service, mib: int) -> None:
    thresholds = {"memory.available": f"{mib}Mi", "pid.available": "100"}
    service.configure({"evictionHard": thresholds}, {"kernelKill": "hard"})


def is_watched(service: Service, level: str) -> bool:
    return level in sources(service).get("ebpf", ("", ""))[1]
