"""eBPF by BCC, for kernels without BTF: a child compiles and pins, the daemon opens what was pinned."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from guarded import HERE, V2, Service, Tenant, clear, eventually, run, start_slice

PINS: Final = Path("/sys/fs/bpf/reactor")
STASH: Final = Path("/sys/fs/bpf/reactor-test")
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
    pytest.mark.timeout(1800),
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


def pinned(start: str = "") -> list[str]:
    return sorted(path.name for path in PINS.glob(f"{start}*"))


@dataclass(frozen=True, slots=True, kw_only=True)
class First:
    """What was seen of a daemon that had the programs compiled, used them, and was killed."""

    meanwhile: str
    detail: str
    resident_mib: float
    mapped: str
    was_woken: bool
    pinned: list[str]
    pinned_when_killed: list[str]


@pytest.fixture(scope="module")
def first() -> Iterator[First]:
    """Compile once for several tests; the programs stay pinned in STASH."""
    clear()
    start_slice()
    service = Service()
    service.configure(HARD, BCC)
    service.start(*DROP_IN, "Restart=no")
    eventually(lambda: "stands in" in sources(service)["ebpf"][1], "memory.high meanwhile")
    meanwhile = sources(service)["memory-high"][0]
    detail = armed(service)
    process = Path(f"/proc/{service.prop('MainPID')}")
    resident_kib = int((process / "status").read_text().split("VmRSS:")[1].split()[0])
    mapped = (process / "maps").read_text()
    Tenant("hog", "hold", "450")
    was_woken = service.was_woken_by("ebpf", service.wait_for_eviction())
    (name,) = pinned("memory_")
    (STASH / name).mkdir(parents=True)
    for pin in (PINS / name).iterdir():
        os.link(pin, STASH / name / pin.name)
    service.kill("SIGKILL")
    eventually(lambda: service.prop("ActiveState") == "failed", "the daemon gone")
    seen = First(
        meanwhile=meanwhile,
        detail=detail,
        resident_mib=resident_kib / 1024,
        mapped=mapped,
        was_woken=was_woken,
        pinned=[name],
        pinned_when_killed=pinned("memory_"),
    )
    clear()
    try:
        yield seen
    finally:
        for pin in (STASH / name).iterdir():
            pin.unlink()
        (STASH / name).rmdir()
        STASH.rmdir()


@pytest.fixture
def left_behind(first: First) -> list[str]:
    """The pins are there as a daemon leaves them that is killed."""
    for name in first.pinned:
        if not (PINS / name).exists():
            (PINS / name).mkdir()
            for pin in (STASH / name).iterdir():
                os.link(pin, PINS / name / pin.name)
    return first.pinned


def test_unit_past_the_threshold_is_ended_by_a_wake_of_bcc(first: First) -> None:
    assert "by BCC, compiled in" in first.detail
    print(first.detail)
    assert first.was_woken


def test_memory_high_stands_in_while_bcc_compiles(first: First) -> None:
    assert first.meanwhile == "armed"


def test_daemon_stays_small_and_holds_no_compiler(first: First) -> None:
    print(f"resident {first.resident_mib:.1f} MiB")
    assert first.resident_mib < RESIDENT_MIB
    assert "LLVM" not in first.mapped


def test_daemon_that_is_killed_leaves_its_pins_and_attaches_nothing(first: First) -> None:
    assert first.pinned == first.pinned_when_killed


def test_pins_of_a_killed_daemon_are_taken_over_and_none_outlives_the_service(
    service: Service, left_behind: list[str]
) -> None:
    (PINS / "memory_01234567_01234567").mkdir()  # of another version of the programs
    (PINS / "new_memory_01234567_01234567").mkdir()  # of a child that was killed
    service.configure(HARD, BCC)
    service.start(*DROP_IN)
    assert "by BCC, compiled earlier" in armed(service, 60)
    assert pinned("memory_") == left_behind
    assert pinned("new_memory_") == []
    Tenant("hog", "hold", "450")
    assert service.was_woken_by("ebpf", service.wait_for_eviction())
    service.stop()
    assert pinned() == []


def test_kernel_without_btf_is_watched_by_bcc_the_machine_itself_too(
    service: Service, left_behind: list[str]
) -> None:
    service.configure(HARD, {"nodeCgroup": "/", "pods": {"parents": ["/guarded.slice"]}})
    service.start(*DROP_IN, "InaccessiblePaths=/sys/kernel/btf")
    detail = armed(service, 60)
    assert "by BCC" in detail
    assert "/ memory.available<100Mi" in detail
    assert "not /" not in detail
    assert pinned("memory_") == left_behind


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
    assert service.prop("NRestarts") == "0"
    Tenant("hog", "hold", "450")
    service.wait_for_eviction()
    service.stop()
    assert pinned() == []
