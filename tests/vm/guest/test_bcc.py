"""eBPF by BCC, for kernels without BTF: a child compiles and pins, the daemon opens what was pinned."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest
from guarded import HERE, V2, Service, Tenant, eventually, run

PINS: Final = Path("/sys/fs/bpf/reactor")
DROP_IN: Final = [
    line
    for line in (HERE.parent / "deploy/reactor-bcc.conf").read_text().splitlines()
    if "=" in line and not line.startswith("#")
]
HARD: Final = {"evictionHard": {"memory.available": "100Mi"}}
BCC: Final = {"ebpf": {"loader": "bcc"}}
COMPILE_SECONDS: Final = 300.0
RESIDENT_MIB: Final = 45

pytestmark = [
    pytest.mark.skipif(not V2, reason="the memory controller is not on cgroup v2 here"),
    pytest.mark.skipif(
        subprocess.run(["/usr/bin/python3", "-c", "import bcc"], capture_output=True, check=False).returncode
        != 0,
        reason="no module bcc: apt-get install python3-bpfcc and the kernel's linux-headers-*",
    ),
    pytest.mark.timeout(900),
]


def sources(service: Service) -> dict[str, tuple[str, str]]:
    return {one["name"]: (one["health"], one["detail"]) for one in service.status()["sources"]}


def armed(service: Service, seconds: float = COMPILE_SECONDS, *, name: str = "ebpf") -> str:
    """Return what a source says once it is armed."""
    eventually(lambda: sources(service)[name][0] == "armed", f"{name} armed", seconds)
    return sources(service)[name][1]


def refused(service: Service) -> str:
    """Return why there is no eBPF, once memory.high stands in for it."""

    def stands_in() -> bool:
        found = sources(service)
        return (found["ebpf"][0], found["memory-high"][0]) == ("degraded", "armed")

    eventually(stands_in, "memory.high in the place of ebpf", COMPILE_SECONDS)
    return sources(service)["ebpf"][1]


def pinned() -> list[str]:
    return sorted(path.name for path in PINS.glob("*"))


def loaded() -> int:
    return run("bpftool", "prog", "list").count("memory_try_char")


def test_unit_past_the_threshold_is_ended_by_a_wake_of_bcc_and_the_daemon_stays_small(
    service: Service,
) -> None:
    service.configure(HARD, BCC)
    service.start(*DROP_IN)
    eventually(lambda: sources(service)["memory-high"][0] == "armed", "memory.high meanwhile")
    detail = armed(service)
    assert "by BCC, compiled in" in detail
    print(detail)
    process = Path(f"/proc/{service.prop('MainPID')}")
    resident_mib = int((process / "status").read_text().split("VmRSS:")[1].split()[0]) / 1024
    print(f"resident {resident_mib:.1f} MiB")
    assert resident_mib < RESIDENT_MIB
    assert "LLVM" not in (process / "maps").read_text()
    assert sources(service)["memory-high"] == ("off", "ebpf is armed")
    Tenant("hog", "hold", "450")
    decision = service.wait_for_eviction()
    assert "ebpf" in {wake["source"] for wake in decision["wakes"]}


def test_pins_of_a_daemon_that_was_killed_are_taken_over_and_none_outlives_the_service(
    service: Service,
) -> None:
    service.configure(HARD, BCC)
    service.start(*DROP_IN, "Restart=no")
    armed(service)
    armed(service, name="ebpf-oom")
    ours = pinned()
    assert ["memory", "oom"] == [name.partition("_")[0] for name in ours]
    service.kill("SIGKILL")
    eventually(lambda: service.prop("ActiveState") == "failed", "the daemon gone")
    assert pinned() == ours
    (PINS / "memory_01234567_01234567").mkdir()  # of another version of the programs
    (PINS / "new_memory_01234567_01234567").mkdir()  # of a child that was killed
    service.start(*DROP_IN, "Restart=no")
    assert "by BCC, compiled earlier" in armed(service, 60)
    armed(service, 60, name="ebpf-oom")
    assert pinned() == ours
    Tenant("hog", "hold", "450")
    assert "ebpf" in {wake["source"] for wake in service.wait_for_eviction()["wakes"]}
    service.stop()
    assert pinned() == []
    eventually(lambda: loaded() == 0, "the programs gone")


def test_kernel_without_btf_is_watched_by_bcc_the_machine_itself_too(service: Service) -> None:
    service.configure(HARD, {"nodeCgroup": "/", "pods": {"parents": ["/guarded.slice"]}})
    service.start(*DROP_IN, "InaccessiblePaths=/sys/kernel/btf")
    detail = armed(service)
    assert "by BCC" in detail
    assert "/ memory.available<100Mi" in detail
    assert "not /" not in detail


def test_service_that_ends_while_bcc_compiles_leaves_neither_child_nor_pin(service: Service) -> None:
    service.configure(HARD, BCC)
    service.start(*DROP_IN)
    eventually(lambda: any(name.startswith("new_") for name in pinned()), "a child at work")
    service.stop()
    assert service.prop("Result") == "success"
    assert pinned() == []
    assert run("pgrep", "--full", "bcc_child", check=False) == ""


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        # What reactor.service forbids, and its drop-in allows.
        ([], "no kernel headers for "),
        (
            [*DROP_IN, "InaccessiblePaths=/usr/lib/python3/dist-packages/bcc"],
            "Debian's package python3-bpfcc",
        ),
        ([*DROP_IN, "InaccessiblePaths=/sys/fs/bpf"], "a bpf filesystem is needed"),
        ([*DROP_IN, "CapabilityBoundingSet=~CAP_BPF CAP_PERFMON CAP_SYS_ADMIN"], "CAP_BPF"),
    ],
    ids=["headers", "module", "bpffs", "capabilities"],
)
def test_memory_high_takes_over_where_bcc_lacks_something(
    service: Service, lines: list[str], why: str
) -> None:
    service.configure(HARD, BCC)
    service.start(*lines)
    detail = refused(service)
    print(detail)
    assert why in detail
    assert pinned() == []
    assert service.prop("NRestarts") == "0"
    Tenant("hog", "hold", "450")
    service.wait_for_eviction()
