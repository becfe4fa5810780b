"""What status, top and the metrics are told of swap traffic."""

from __future__ import annotations

from mmap import PAGESIZE

import pytest
import trio

from reactor.kernel.cgroup import CgroupVersion
from reactor.steward.swap_traffic import SwapTrafficWatch


@pytest.fixture
def machine(tmp_path):
    """A machine's /proc with swap; `machine(in_pages, out_pages)` sets what has been swapped."""
    proc = tmp_path / "proc"
    proc.mkdir()

    def set_traffic(in_pages: int, out_pages: int, *, swap_kib: int = 1024) -> None:
        (proc / "meminfo").write_text(f"MemTotal: 9 kB\nSwapTotal: {swap_kib} kB\nSwapFree: 0 kB\n")
        (proc / "vmstat").write_text(f"pswpin {in_pages}\npswpout {out_pages}\n")

    set_traffic.proc = proc
    set_traffic(0, 0)
    return set_traffic


def test_rates_are_known_once_ten_seconds_were_observed(machine) -> None:
    watch = SwapTrafficWatch(lambda: None, proc=machine.proc)
    watch.sample(0.0)
    assert watch.document()["in_bytes_per_second"] is None
    machine(100, 300)
    watch.sample(10.0)
    assert watch.document() == {
        "in_bytes_per_second": 10 * PAGESIZE,
        "out_bytes_per_second": 30 * PAGESIZE,
        "window_seconds": 10.0,
        "unknown_because": None,
    }
    assert watch.counted() == (100 * PAGESIZE, 300 * PAGESIZE)


def test_machine_without_swap_has_no_traffic_and_says_so(machine) -> None:
    machine(0, 0, swap_kib=0)
    watch = SwapTrafficWatch(lambda: None, proc=machine.proc)
    watch.sample(0.0)
    assert watch.counted() is None
    assert watch.document()["unknown_because"] == "the machine has no swap"
    (machine.proc / "meminfo").unlink()
    watch.sample(10.0)
    assert "meminfo" in watch.document()["unknown_because"]


def test_virtual_node_has_its_own_traffic_and_a_reload_to_another_begins_anew(machine, make_tree) -> None:
    fake = make_tree(CgroupVersion.V2)
    fake.add("/node")
    fake.file("/node", "memory.stat", "pswpin 0\npswpout 0\n")
    nodes = ["/node"]
    watch = SwapTrafficWatch(lambda: nodes[0], tree=fake.tree, proc=machine.proc)
    watch.sample(0.0)
    fake.file("/node", "memory.stat", "pswpin 20\npswpout 0\n")
    watch.sample(10.0)
    assert watch.document()["in_bytes_per_second"] == 2 * PAGESIZE
    nodes[0] = None
    watch.sample(12.0)
    assert watch.document()["in_bytes_per_second"] is None


def test_cgroup_whose_traffic_is_not_counted_is_unknown_and_not_zero(machine, make_tree) -> None:
    fake = make_tree(CgroupVersion.V2)
    fake.add("/node")
    watch = SwapTrafficWatch(lambda: "/node", tree=fake.tree, proc=machine.proc)
    for at_seconds in (0.0, 10.0):
        watch.sample(at_seconds)
    assert watch.document()["out_bytes_per_second"] is None
    assert "6.13" in watch.document()["unknown_because"]


async def test_it_is_sampled_while_it_runs(machine, nursery, autojump_clock) -> None:
    watch = SwapTrafficWatch(lambda: None, proc=machine.proc)
    nursery.start_soon(watch.run)
    await trio.sleep(11)
    assert watch.document()["in_bytes_per_second"] == 0
