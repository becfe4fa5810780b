"""Swap that is there: a hog larger than memory, a leak in swap, a reclaim before a soft eviction, page cache.

Units in a slice of 512 MiB on cgroup v2. The machine swaps to a file, or to zram.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from guarded import CGROUP, MIB, SLICE_MIB, V2, Service, Tenant, eventually
from machine_memory import SwapFile, ZramSwap

pytestmark = pytest.mark.skipif(not V2, reason="memory.reclaim and memory.swap.* are meant: run it on trixie")

SWAP_MIB: Final = 400
GENERATIONS: Final = Path("/sys/kernel/mm/lru_gen/enabled")


@pytest.fixture(params=["file", "zram"])
def swap(request: pytest.FixtureRequest) -> Iterator[str]:
    """Swap of 400 MiB; asked for before the service, so that the units are gone when it is taken away."""
    if request.param == "zram" and (missing := ZramSwap.missing_because()) is not None:
        pytest.skip(missing)
    with SwapFile(SWAP_MIB) if request.param == "file" else ZramSwap(SWAP_MIB):
        yield request.param


@pytest.fixture
def swap_file() -> Iterator[None]:
    with SwapFile(SWAP_MIB):
        yield


@pytest.fixture
def by_recency() -> Iterator[None]:
    """Have the kernel take pages for active that were read twice, which its generations do not."""
    before = GENERATIONS.read_text() if GENERATIONS.exists() else None
    if before is not None:
        GENERATIONS.write_text("n")
    yield
    if before is not None:
        GENERATIONS.write_text(before.strip())


def signals(service: Service) -> dict[str, Any]:
    return {one["signal"]: one for one in service.status()["signals"]}


def swapped_bytes(tenant: Tenant) -> int:
    try:
        return int((tenant.cgroup / "memory.swap.current").read_text())
    except OSError:
        return 0


@pytest.mark.parametrize("node", [CGROUP, "/"])
def test_hog_larger_than_memory_is_killed_before_it_has_all_of_the_swap(
    swap: str, service: Service, node: str
) -> None:
    """The slice's own limit has the kernel swap; neither its OOM killer nor an innocent unit is met."""
    parents = {"pods": {"parents": [CGROUP]}}
    section = {"nodeCgroup": node, "housekeepingInterval": "2s", **parents}
    service.configure({"evictionHard": {"swap.available": "150Mi"}}, section)
    service.start()
    innocent = Tenant("innocent", "hold", "60")
    eventually(innocent.holds_its_memory, "the innocent's memory")
    assert (SWAP_MIB - 1) * MIB < signals(service)["swap.available"]["capacity"] <= SWAP_MIB * MIB
    hog = Tenant("hog", "grow", "900", "200")
    eventually(lambda: is_traffic_told(service, node), "the traffic of the swap in status")

    decision = service.wait_for_eviction()

    assert service.evicted() == [hog.pod]
    assert innocent.is_alive()
    assert service.oom_kills() == []
    assert decision["threshold"]["signal"] == "swap.available"
    assert 0 < decision["threshold"]["available"] < 150 * MIB
    first, *others = decision["ranking"]
    assert first["pod"] == hog.pod
    assert all(first["swap_bytes"] > (one["swap_bytes"] or 0) for one in others)
    assert decision["conditions"] == ["MemoryPressure"]
    eventually(lambda: signals(service)["swap.available"]["available"] > 300 * MIB, f"the hog's {swap} back")


def is_traffic_told(service: Service, node: str) -> bool:
    """Return whether status shows what goes to swap; of a cgroup the kernel may not count it."""
    traffic = service.status()["swap_traffic"]
    if node != "/" and traffic["unknown_because"] is not None:
        return "6.13" in traffic["unknown_because"]
    return (traffic["out_bytes_per_second"] or 0) > 0


@pytest.mark.parametrize(("ranking", "victim"), [("memory+swap", "leak"), ("memory", "resident")])
def test_slow_leak_in_swap_is_the_first_to_go_where_swap_counts(
    swap_file: None, service: Service, ranking: str, victim: str
) -> None:
    """What the kernel has swapped out of the leak makes it look small, as upstream ranks it."""
    section = {"ranking": ranking, "housekeepingInterval": "2s"}
    service.configure({"evictionHard": {"memory.available": "100Mi"}}, section)
    service.start()
    service.armed_after("ebpf")
    resident = Tenant("resident", "hold", "230")
    eventually(resident.holds_its_memory, "the resident's memory")
    leak = Tenant("leak", "grow", "600", "10")
    eventually(lambda: leak.usage_bytes() > 120 * MIB, "120 MiB of the leak")
    swap_out(leak, 110)
    assert swapped_bytes(leak) > 90 * MIB

    decision = service.wait_for_eviction()

    assert service.evicted() == [f"cgroup/{victim}.service"]
    assert service.oom_kills() == []
    places = {one["pod"]: one for one in decision["ranking"]}
    assert places[leak.pod]["swap_bytes"] > 90 * MIB
    assert not places[resident.pod]["swap_bytes"]


def swap_out(tenant: Tenant, mib: int) -> None:
    """Have the kernel swap so much of a unit; what it finds is less while the unit uses it.

    Linux 6.1 does not know `swappiness=`, and reclaims a unit without page cache to swap without it.
    """
    file = tenant.cgroup / "memory.reclaim"
    with suppress(BlockingIOError):
        try:
            file.write_text(f"{mib}M swappiness=200")
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            file.write_text(f"{mib}M")


def test_soft_eviction_is_spared_where_a_reclaim_to_swap_is_enough(swap_file: None, service: Service) -> None:
    soft_shortage(service, mib=300)
    idle = Tenant("idle", "hold", "300")

    eventually(lambda: bool(reclaims(service)), "a reclaim")
    (reclaimed,) = reclaims(service)

    assert (reclaimed["kind"], reclaimed["signal"]) == ("pod-memory", "memory.available")
    assert reclaimed["freed"] >= reclaimed["wanted"] - 4 * MIB
    assert reclaimed["problems"] == []
    assert any("to swap from /guarded.slice/idle.service" in one for one in reclaimed["did"])
    asked = [line for line in service.lines() if line.get("soft_reclaim")]
    assert len(asked) == 1
    assert "being reclaimed from the pods first" in asked[0]["deferred_because"]
    service.two_more_passes()
    assert service.evicted() == []
    assert idle.is_alive()
    assert signals(service)["memory.available"]["available"] >= 240 * MIB
    assert swapped_bytes(idle) > 0


def test_soft_eviction_follows_a_reclaim_that_finds_nothing(service: Service) -> None:
    soft_shortage(service, mib=300)
    idle = Tenant("idle", "hold", "300")

    decision = service.wait_for_eviction()

    assert service.evicted() == [idle.pod]
    (reclaimed,) = decision["reclaimed"]
    assert (reclaimed["kind"], reclaimed["problems"]) == ("pod-memory", [])
    assert reclaimed["freed"] < 16 * MIB


def soft_shortage(service: Service, *, mib: int) -> None:
    """Guard by a soft threshold that a unit of so much crosses, with a reclaim before its first eviction."""
    soft = f"{SLICE_MIB - mib + 38}Mi"
    configuration = {
        "evictionHard": {"memory.available": "20Mi"},
        "evictionSoft": {"memory.available": soft},
        "evictionSoftGracePeriod": {"memory.available": "2s"},
    }
    service.configure(configuration, {"reclaimBeforeSoft": "60s", "housekeepingInterval": "2s"})
    service.start()
    service.armed_after("ebpf")


def reclaims(service: Service) -> list[dict[str, Any]]:
    return [one for line in service.lines() for one in line.get("reclaimed") or ()]


@pytest.mark.parametrize("counted", ["memAvailable", "workingSet"])
def test_reader_of_a_large_file_goes_for_its_page_cache_by_the_working_set_alone(
    by_recency: None, service: Service, counted: str
) -> None:
    """Beside a hog: as MemAvailable the hog goes once it takes what is left; for upstream the reader."""
    threshold_mib = 150
    service.configure(
        {"evictionHard": {"memory.available": f"{threshold_mib}Mi"}},
        {"memoryAvailable": counted, "housekeepingInterval": "2s"},
    )
    service.start()
    service.armed_after("ebpf")
    file = Path("/var/tmp/reactor-reader")
    try:
        reader = Tenant("reader", "read", str(file), "280")
        eventually(lambda: active_file_bytes(reader) > 220 * MIB, "the reader's page cache in use")
        if counted == "workingSet":
            Tenant("hog", "hold", "120")
            service.wait_for_eviction()
            assert service.evicted()[0] == reader.pod
            return
        quiet = Tenant("quiet", "hold", "120")
        eventually(quiet.holds_its_memory, "the quiet unit's memory")
        service.two_more_passes()
        assert service.evicted() == []
        hog = Tenant("hog", "grow", "600", "50")
        service.wait_for_eviction()
        assert service.evicted() == [hog.pod]
        assert reader.is_alive()
        assert quiet.is_alive()
        assert service.oom_kills() == []
    finally:
        file.unlink(missing_ok=True)


def active_file_bytes(tenant: Tenant) -> int:
    try:
        stat = (tenant.cgroup / "memory.stat").read_text()
    except OSError:
        return 0
    return int(dict(line.split() for line in stat.splitlines())["active_file"])
