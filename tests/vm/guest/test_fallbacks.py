"""Each source of the chain in the other's place: named by doctor, status and metric, and enough to evict."""

from __future__ import annotations

import json
import struct
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from guarded import BIN, CONFIG, V2, Service, Tenant, run

from reactor.kernel.bpf.objects import OBJECTS

HARD = {"evictionHard": {"memory.available": "100Mi"}}
METRICS = "127.0.0.1:9753"
LIBBPF = Path("/usr/lib/x86_64-linux-gnu/libbpf.so.1")
# What is switched off, and what is then left; the hint stays off, or it might be the first to tell.
FORCED = {
    "v2-ebpf": ({"psi": False}, "ebpf"),
    "v2-memory-high": ({"ebpf": False, "psi": False}, "memory-high"),
    "v2-psi": ({"ebpf": False, "memoryHigh": False}, "psi"),
    "v2-ticker": ({"ebpf": False, "memoryHigh": False, "psi": False}, "ticker"),
    "v1-memcg-eventfd": ({"psi": False}, "memcg-eventfd"),
    "v1-psi": ({"memcg": False}, "psi"),
    "v1-ticker": ({"memcg": False, "psi": False}, "ticker"),
}
MEMORY_SOURCES = {"ebpf", "memcg-eventfd", "memory-high", "psi"}
needs_v2 = pytest.mark.skipif(not V2, reason="eBPF watches memory on cgroup v2: run it on bookworm or trixie")


@pytest.mark.parametrize("forced", [name for name in FORCED if name.startswith("v2" if V2 else "v1")])
def test_each_source_alone_is_named_everywhere_and_has_the_hog_evicted(service: Service, forced: str) -> None:
    sources, expected = FORCED[forced]
    interval = "2s" if expected == "ticker" else "300s"
    section = {"sources": sources, "housekeepingInterval": interval, "metrics": METRICS}
    service.configure(HARD, section)
    assert used_by_doctor() & MEMORY_SOURCES == {expected} & MEMORY_SOURCES
    service.start()
    service.armed_after(expected)
    assert armed_in_metrics() & MEMORY_SOURCES == {expected} & MEMORY_SOURCES
    # Pressure comes of reclaim only, so there has to be page cache to reclaim, and a limit to do so at.
    load = ["thrash", "/var/tmp/thrash", "440"] if expected == "psi" else ["grow", "480", "100"]
    hog = Tenant("hog", *load)
    decision = service.wait_for_eviction()
    assert [hog.pod] == service.evicted()
    assert service.was_woken_by(expected, decision)


def used_by_doctor() -> set[str]:
    found = json.loads(run(BIN, "doctor", "--config", CONFIG, "--output", "json"))
    return {plan["name"] for plan in found["sources"] if plan["used"]}


def armed_in_metrics() -> set[str]:
    with urllib.request.urlopen(f"http://{METRICS}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    start = 'reactor_source_state{source="'
    return {
        line.removeprefix(start).partition('"')[0]
        for line in lines
        if line.startswith(start) and 'state="armed"' in line and line.endswith(" 1.0")
    }


@needs_v2
def test_without_libbpf_the_next_source_evicts(service: Service) -> None:
    aside = LIBBPF.with_suffix(".aside")
    LIBBPF.rename(aside)
    try:
        service.configure(HARD, {"sources": {"psi": False}})
        service.start()
        service.armed_after("memory-high")
        assert "libbpf" in service.source("ebpf")[1]
        hog = Tenant("hog", "grow", "480", "100")
        service.wait_for_eviction()
        assert [hog.pod] == service.evicted()
    finally:
        aside.rename(LIBBPF)


@needs_v2
def test_program_that_the_verifier_refuses_is_shown_with_its_log_and_the_next_source_evicts(
    service: Service,
) -> None:
    with refused_by_the_verifier(OBJECTS / "memory.bpf.o"):
        service.configure(HARD, {"sources": {"psi": False}})
        service.start()
        service.armed_after("memory-high")
        health, detail = service.source("ebpf")
        assert health == "degraded"
        print(detail)
        assert "memory" in detail
        hog = Tenant("hog", "grow", "480", "100")
        service.wait_for_eviction()
        assert [hog.pod] == service.evicted()


@contextmanager
def refused_by_the_verifier(path: Path) -> Iterator[None]:
    """Make the first instruction of the object's first program one that reads a register nobody has set."""
    whole = path.read_bytes()
    changed = bytearray(whole)
    offset = first_program(whole)
    changed[offset : offset + 8] = struct.pack("<BBhi", 0xBF, 0x98, 0, 0)  # r8 = r9
    path.write_bytes(changed)
    try:
        yield
    finally:
        path.write_bytes(whole)


def first_program(elf: bytes) -> int:
    """Return the file offset of the first section of code that is attached to a function of the kernel."""
    (sections,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers: list[Any] = [struct.unpack_from("<IIQQQQ", elf, sections + size * one) for one in range(count)]
    start = headers[names][4]
    for name, _, _, _, offset, length in headers:
        if elf[start + name :].startswith((b"fexit/", b"fentry/")) and length:
            return int(offset)
    raise AssertionError("no program in the object")
