"""Trampolines or kprobes: what this kernel lets call an eBPF program, and a crossing by each."""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path

import pytest
from guarded import BIN, V2, Service, Tenant, eventually, run

from reactor.errors import BpfError, BpfNotAttachedError
from reactor.kernel.bpf.loaders import open_memory_probe, open_oom_probe, open_tasks_probe, open_warrant_probe
from reactor.kernel.bpf.probes import NEEDS_SYSLOG, MemoryProbe
from reactor.model.settings import EbpfLoader

HARD = {"evictionHard": {"memory.available": "100Mi"}}
DIRECT_CALLS_ON_ARM64 = (6, 4)

pytestmark = [
    pytest.mark.hooks,
    pytest.mark.skipif(not V2, reason="eBPF watches memory on cgroup v2: run it on bookworm or trixie"),
]


def has_trampolines() -> bool:
    """Return what is known of this kernel; that is for the test alone, the daemon asks the kernel."""
    version = tuple(int(part) for part in platform.release().split(".")[:2])
    return os.uname().machine != "aarch64" or version >= DIRECT_CALLS_ON_ARM64


@functools.cache
def has_names_of_counters() -> bool:
    """Return whether the kernel names its own counters: CONFIG_KALLSYMS_ALL, which Debian's arm64 lacks."""
    return any(line.split()[2] == "vm_node_stat" for line in Path("/proc/kallsyms").read_text().splitlines())


def test_hooks_are_those_that_the_kernel_attaches() -> None:
    expected = "" if has_trampolines() else "kprobes"
    for opened in (open_memory_probe, open_tasks_probe, open_oom_probe):
        with opened() as probe:
            assert expected == probe.hooks


@pytest.mark.skipif(has_trampolines(), reason="this kernel attaches trampolines")
def test_a_kernel_without_direct_calls_says_so_and_makes_no_warrants() -> None:
    with pytest.raises(BpfNotAttachedError, match=r"not attached: .*no direct calls.*6\.4 on"):
        MemoryProbe()
    # The counters are read first.
    refused = "no direct calls.*a kprobe can miss a charge" if has_names_of_counters() else NEEDS_SYSLOG
    with pytest.raises(BpfError, match=refused):
        open_warrant_probe()


def test_kprobes_are_used_where_they_are_configured() -> None:
    for opened in (open_memory_probe, open_tasks_probe, open_oom_probe):
        with opened(EbpfLoader.KPROBE) as probe:
            assert probe.hooks == "kprobes"
    with pytest.raises(BpfError, match="loader is kprobe; a kprobe can miss a charge"):
        open_warrant_probe(EbpfLoader.KPROBE)


@pytest.mark.parametrize("loader", ["auto", "kprobe"])
def test_unit_past_the_threshold_is_ended_by_a_wake_of_ebpf(service: Service, loader: str) -> None:
    service.configure(HARD, {"ebpf": {"loader": loader}})
    service.start()
    armed(service)
    quiet = Tenant("quiet", "hold", "50")
    eventually(quiet.holds_its_memory, "the quiet unit's memory")
    hog = Tenant("hog", "hold", "450")
    decision = service.wait_for_eviction()
    assert [hog.pod] == service.evicted()
    assert service.was_woken_by("ebpf", decision)
    assert quiet.is_alive()


@pytest.mark.skipif(not has_names_of_counters(), reason="this kernel has no names for its own counters")
def test_unit_past_the_machines_own_threshold_is_ended_by_a_wake_of_kprobes(service: Service) -> None:
    section = {
        "nodeCgroup": "/",
        "pods": {"parents": ["/guarded.slice"]},
        "sources": {"psi": False},
        "ebpf": {"loader": "kprobe"},
    }
    # What the hog meets is to be the machine's threshold, not the limit of its slice.
    run("systemctl", "set-property", "--runtime", "guarded.slice", "MemoryMax=infinity")
    service.configure({"evictionHard": {"memory.available": "1Mi"}}, section)
    service.start()
    signals = {one["signal"]: one for one in service.status()["signals"]}
    available_mib = int(signals["memory.available"]["available"]) >> 20
    service.stop()
    service.configure({"evictionHard": {"memory.available": f"{available_mib - 200}Mi"}}, section)
    service.start()
    assert "/ memory.available" in armed(service)
    hog = Tenant("hog", "grow", "380", "100")
    decision = service.wait_for_eviction()
    assert [hog.pod] == service.evicted()
    assert service.was_woken_by("ebpf", decision)


def test_doctor_names_the_hooks() -> None:
    hooks = "" if has_trampolines() else " (kprobes)"
    if has_names_of_counters():
        expected = f"on cgroups and on the machine itself{hooks}"
    else:
        expected = f"on cgroups{hooks}; not on the machine itself"
    assert f"eBPF watches yes {expected}" in " ".join(run(BIN, "doctor", check=False).split())


@pytest.mark.skipif(has_names_of_counters(), reason="this kernel has names for its own counters")
def test_a_kernel_without_names_for_its_counters_is_watched_by_the_next_source(service: Service) -> None:
    section = {"nodeCgroup": "/", "pods": {"parents": ["/guarded.slice"]}}
    service.configure({"evictionHard": {"memory.available": "1Mi"}}, section)
    service.start()
    eventually(lambda: NEEDS_SYSLOG in service.source("ebpf")[1], "why eBPF does not watch the machine")
    assert service.source("ebpf")[0] != "armed"
    service.armed_after("psi")


def armed(service: Service) -> str:
    """Wait until eBPF watches the memory; return what it says of that."""

    def found() -> tuple[str, str]:
        return next(
            (one["health"], one["detail"]) for one in service.status()["sources"] if one["name"] == "ebpf"
        )

    eventually(lambda: found()[0] == "armed", "ebpf armed")
    return found()[1]
