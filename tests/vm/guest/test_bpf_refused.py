"""A program that the verifier refuses: one line in the daemon's words, the whole log for who asks."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from guarded import BIN, V2, Service, Tenant, eventually, run

from reactor.errors import BpfError
from reactor.kernel.bpf.objects import OBJECTS
from reactor.kernel.bpf.probes import OomProbe

pytestmark = pytest.mark.skipif(not V2, reason="eBPF is not loaded on cgroup v1: run it on v2")
# r0 = r5, of which the program has never set the one on the right.
UNINITIALIZED = bytes.fromhex("bf50000000000000")


def section_offset(elf: bytes, name: str) -> int:
    """Return where a section of a 64-bit ELF file begins."""
    headers, size, count, names = (
        struct.unpack_from("<Q", elf, 40)[0],
        *struct.unpack_from("<HHH", elf, 58),
    )
    texts = struct.unpack_from("<Q", elf, headers + names * size + 24)[0]
    for place in range(headers, headers + count * size, size):
        begin = texts + struct.unpack_from("<I", elf, place)[0]
        if elf[begin : elf.index(b"\0", begin)] == name.encode():
            return int(struct.unpack_from("<Q", elf, place + 24)[0])
    raise AssertionError(f"no section {name}")


@pytest.fixture
def refused() -> Iterator[Path]:
    """The installed OOM object, its program made one that the verifier refuses."""
    path = OBJECTS / "oom.bpf.o"
    whole = path.read_bytes()
    offset = section_offset(whole, "fentry/oom_kill_process")
    try:
        path.write_bytes(whole[:offset] + UNINITIALIZED + whole[offset + 8 :])
        yield path
    finally:
        path.write_bytes(whole)


def test_refusal_is_one_line_and_carries_the_log(refused: Path) -> None:
    with pytest.raises(BpfError, match="R5 !read_ok") as caught:
        OomProbe()
    assert "\n" not in str(caught.value)
    assert "`reactor doctor -v` shows the log" in str(caught.value)
    assert len(caught.value.log.splitlines()) > 1


def test_doctor_shows_the_log_where_it_is_asked_for(refused: Path) -> None:
    assert "log of eBPF OOM kills:" not in run(BIN, "doctor")
    printed = run(BIN, "doctor", "-v")
    assert "log of eBPF OOM kills:" in printed
    assert "bf) r0 = r5" in printed


def test_counters_take_over_and_memory_is_defended_all_the_same(service: Service, refused: Path) -> None:
    service.configure({"evictionHard": {"memory.available": "100Mi"}})
    service.start()
    eventually(
        lambda: any(
            one["name"] == "ebpf-oom" and one["health"] == "degraded" for one in service.status()["sources"]
        ),
        "the counters to stand in",
    )
    hog = Tenant("hog", "hold", "450")
    service.wait_for_eviction()
    assert [hog.pod] == service.evicted()
