"""Beside a kubelet with MemoryQoS, which writes memory.high of each container, again and again.

memory.high = request + 0.9 · (limit - request), in whole pages. Source: KEP-2570,
kuberuntime_container_linux.go.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from guarded import CGROUP, MEMORY, MIB, SLICE_MIB, V2, Service, Tenant, eventually

pytestmark = pytest.mark.skipif(not V2, reason="memory.high is meant: run it on bookworm or trixie")

# Of the slice's 512 MiB: crossed at 412, when the hog has 348 and is throttled from 343 on. The further past,
# the slower it grows: by 4 MiB a minute at 3 %.
HARD: Final = {"evictionHard": {"memory.available": "100Mi"}}
INNOCENT_MIB, LIMIT_MIB, REQUEST_MIB = 60, 380, 10
_PAGE: Final = 4096
LEVEL: Final = str((SLICE_MIB - 100) * MIB)
HIGH: Final = str((REQUEST_MIB * MIB + (LIMIT_MIB - REQUEST_MIB) * MIB * 9 // 10) // _PAGE * _PAGE)
SLICE_HIGH: Final = MEMORY / CGROUP.lstrip("/") / "memory.high"
SOURCES: Final[dict[str, dict[str, Any]]] = {
    "ebpf": {"psi": False},
    "memory-high": {"ebpf": False, "psi": False},
}


@dataclass
class Kubelet:
    """What it found before it wrote again: values that are not its own, and how often each was throttled."""

    foreign: list[str] = field(default_factory=list)
    throttled: dict[str, int] = field(default_factory=dict)


@contextmanager
def kubelet(*tenants: Tenant) -> Iterator[Kubelet]:
    """Write memory.high of these, ten times a second, as long as this lasts."""
    found = Kubelet()
    written: set[str] = set()
    ends = threading.Event()

    def write(tenant: Tenant) -> None:
        path = tenant.cgroup / "memory.high"
        if tenant.unit in written and (value := path.read_text().strip()) != HIGH:
            found.foreign.append(f"{tenant.unit}: {value}")
        path.write_text(HIGH)
        written.add(tenant.unit)
        found.throttled[tenant.pod] = events_high(tenant.cgroup)

    def write_all() -> None:
        while not ends.wait(0.1):
            for tenant in tenants:
                try:
                    write(tenant)
                except OSError:  # it is not there yet, or has ended
                    continue

    writer = threading.Thread(target=write_all)
    writer.start()
    try:
        yield found
    finally:
        ends.set()
        writer.join()


def events_high(cgroup: Path) -> int:
    """Return how often the kernel has throttled a cgroup at its memory.high."""
    words = (cgroup / "memory.events").read_text().split()
    return int(words[words.index("high") + 1])


@pytest.mark.parametrize("source", SOURCES)
def test_a_hog_that_is_throttled_at_its_memory_high_is_evicted_and_no_value_is_changed(
    service: Service, source: str
) -> None:
    of_the_slice = SLICE_HIGH.read_text()
    service.configure(HARD, {"sources": SOURCES[source]})
    service.start()
    service.armed_after(source)
    innocent = Tenant("innocent", "hold", str(INNOCENT_MIB), properties={"MemoryLow": "64M"})
    eventually(innocent.holds_its_memory, "the memory of the innocent")
    # Its own limit is the end of it where nobody evicts it: 390 MiB are more than that.
    hog = Tenant("hog", "grow", "390", "100", properties={"MemoryMax": f"{LIMIT_MIB}M"})
    with kubelet(innocent, hog) as found:
        decision = service.wait_for_eviction()
        assert [hog.pod] == service.evicted()
        assert service.was_woken_by(source, decision)
        assert found.throttled[hog.pod] > 0
        assert found.throttled[innocent.pod] == 0
        assert innocent.is_alive()
    assert [] == found.foreign
    assert [] == service.oom_kills()
    assert HIGH == (innocent.cgroup / "memory.high").read_text().strip()
    service.stop()
    assert of_the_slice == SLICE_HIGH.read_text()


def test_the_level_of_the_slice_stands_while_a_pod_is_throttled_at_its_own(service: Service) -> None:
    """memory.events counts those of the pods, too; memory.events.local does not."""
    service.configure(HARD, {"sources": SOURCES["memory-high"]})
    service.start()
    service.armed_after("memory-high")
    eventually(lambda: SLICE_HIGH.read_text().strip() == LEVEL, "the level")
    pod = Tenant("throttled", "grow", "200", "100", properties={"MemoryHigh": "64M"})
    eventually(
        lambda: pod.usage_bytes() > 64 * MIB and events_high(pod.cgroup) > 0, "a pod that is throttled"
    )
    before = events_high(pod.cgroup)
    found = []
    for _ in range(100):
        found.append(SLICE_HIGH.read_text().strip())
        time.sleep(0.1)
    assert events_high(pod.cgroup) > before
    assert [LEVEL] * 100 == found
    assert pod.is_alive()
