"""What pods could give back, by their counters; what a reclaim of one comes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from reactor.kernel.cgroup import CgroupVersion
from reactor.reclaim import memory
from reactor.reclaim.memory import MemoryReclaim

MIB = 1 << 20


@pytest.fixture
def pods(make_tree, tmp_path):
    """Pods a, b, ... on a machine with 300 MiB of free swap."""
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "meminfo").write_text(f"MemTotal: 9 kB\nSwapTotal: {400 << 10} kB\nSwapFree: {300 << 10} kB\n")
    return Pods(make_tree(CgroupVersion.V2), proc)


class Pods:
    def __init__(self, fake, proc: Path) -> None:
        self.fake, self.proc = fake, proc

    def add(self, name: str, *, anon: int = 0, active: int = 0, idle: int = 0, swap_max: str = "max") -> None:
        cgroup = f"/pods/{name}"
        self.fake.add(cgroup, usage_bytes=(anon + active + idle) * MIB)
        self.fake.file(
            cgroup,
            "memory.stat",
            f"anon 1\ninactive_anon {anon * MIB // 2}\nactive_anon {anon * MIB // 2}\n"
            f"active_file {active * MIB}\ninactive_file {idle * MIB}\n",
        )
        self.fake.file(cgroup, "memory.swap.max", f"{swap_max}\n")
        self.fake.file(cgroup, "memory.swap.current", f"{10 * MIB}\n")

    def found(self, *names: str, counts_cache: bool = True) -> list[tuple[str, int, int, int]]:
        reclaim = MemoryReclaim(self.fake.tree, counts_cache=counts_cache, proc=self.proc)
        return [
            (
                one.cgroup.rpartition("/")[2],
                one.swap_bytes // MIB,
                one.cache_bytes // MIB,
                one.idle_cache_bytes // MIB,
            )
            for one in reclaim.most_first([f"/pods/{name}" for name in names])
        ]


def test_pods_that_could_give_most_come_first_by_name_where_it_is_as_much(pods) -> None:
    pods.add("a", anon=20)
    pods.add("b", anon=100, active=50, idle=10)
    pods.add("c", active=20)
    assert [("b", 100, 50, 10), ("a", 20, 0, 0), ("c", 0, 20, 0)] == pods.found("a", "b", "c")


def test_no_more_goes_to_swap_than_there_is_room_for(pods) -> None:
    pods.add("machine", anon=500)
    pods.add("limited", anon=500, swap_max=str(60 * MIB))
    pods.add("none", anon=500, swap_max="0")
    assert [("machine", 300, 0, 0), ("limited", 50, 0, 0)] == pods.found("machine", "limited", "none")


def test_without_swap_there_is_page_cache_alone(pods) -> None:
    pods.add("a", anon=100, active=30)
    for text in ("SwapTotal: 0 kB\nSwapFree: 0 kB\n", None):
        if text is None:
            (pods.proc / "meminfo").unlink()
        else:
            (pods.proc / "meminfo").write_text(text)
        assert [("a", 0, 30, 0)] == pods.found("a")


def test_page_cache_helps_where_more_is_in_use_than_idle(pods) -> None:
    pods.add("reader", active=100, idle=99)
    pods.add("writer", active=100, idle=100)
    assert [("reader", 0, 100, 99)] == pods.found("reader", "writer")


def test_page_cache_that_counts_as_available_helps_nobody(pods) -> None:
    pods.add("a", anon=10, active=100)
    pods.add("b", active=100)
    assert [("a", 10, 0, 0)] == pods.found("a", "b", counts_cache=False)


def test_pod_that_is_gone_or_shows_nothing_is_left_out(pods) -> None:
    pods.add("a", anon=10)
    pods.fake.add("/pods/odd")
    assert [("a", 10, 0, 0)] == pods.found("gone", "odd", "..", "a")


def test_reclaim_comes_to_what_was_asked_or_what_usage_has_lost(pods, monkeypatch) -> None:
    pods.add("a", anon=100)
    asked = []

    def reclaim(_tree, cgroup: str, wanted_bytes: int, *, to_swap: bool) -> bool:
        asked.append((cgroup, wanted_bytes, to_swap))
        left = 100 * MIB - min(wanted_bytes, 30 * MIB)
        pods.fake.file("/pods/a", "memory.current", f"{left}\n")
        return wanted_bytes <= 30 * MIB

    monkeypatch.setattr(memory, "reclaim", reclaim)
    reclaims = MemoryReclaim(pods.fake.tree, counts_cache=True, proc=pods.proc)
    assert 20 * MIB == reclaims.take("/pods/a", 20 * MIB, to_swap=True)
    pods.fake.file("/pods/a", "memory.current", f"{100 * MIB}\n")
    assert 30 * MIB == reclaims.take("/pods/a", 40 * MIB, to_swap=False)
    assert [("/pods/a", 20 * MIB, True), ("/pods/a", 40 * MIB, False)] == asked


def test_pod_that_grows_under_a_reclaim_that_found_too_little_gave_nothing(pods, monkeypatch) -> None:
    pods.add("a", anon=100)

    def reclaim(*_: object, **__: object) -> bool:
        pods.fake.file("/pods/a", "memory.current", f"{120 * MIB}\n")
        return False

    monkeypatch.setattr(memory, "reclaim", reclaim)
    assert 0 == MemoryReclaim(pods.fake.tree, counts_cache=True).take("/pods/a", MIB, to_swap=True)
