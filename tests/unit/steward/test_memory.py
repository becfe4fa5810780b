from __future__ import annotations

from mmap import PAGESIZE

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from reactor.kernel.cgroup import CgroupVersion
from reactor.steward.memory import CounterRate, SwapTrafficWatch


def fed(*samples: tuple[float, int | None], window_seconds: float = 10.0) -> CounterRate:
    rate = CounterRate(window_seconds)
    for at_seconds, count in samples:
        rate.take(count, at_seconds)
    return rate


def test_rate_is_the_mean_over_the_window() -> None:
    assert fed((0, 100), (4, 100), (10, 300)).per_second() == 20
    assert fed((0, 0), (5, 1000), (10, 1000), (15, 1000), (20, 1100)).per_second() == 10


def test_rate_is_not_known_before_the_whole_window_was_observed() -> None:
    assert fed().per_second() is None
    assert fed((0, 100)).per_second() is None
    assert fed((0, 100), (9.9, 300)).per_second() is None


def test_what_is_older_than_the_window_does_not_count() -> None:
    assert fed((0, 0), (10, 1_000_000), (20, 1_000_000)).per_second() == 0


def test_samples_that_come_seldom_count_for_the_time_between_them() -> None:
    assert fed((0, 0), (60, 600)).per_second() == 10


@pytest.mark.parametrize("broken", [None, 50])
def test_counter_that_goes_back_or_can_not_be_read_begins_a_window_anew(broken: int | None) -> None:
    rate = fed((0, 100), (10, 300), (12, broken), (14, 400))
    assert rate.per_second() is None
    rate.take(500, 24)
    assert rate.per_second() == 10


def test_counter_that_stands_still_has_a_rate_of_zero() -> None:
    assert fed((0, 7), (5, 7), (10, 7)).per_second() == 0


def test_window_that_is_just_over_has_a_rate_though_its_length_is_rounded() -> None:
    began, ended = 15.113528497272648, 15.213528497272648
    assert ended - began < 0.1
    rate = CounterRate(0.1)
    for at_seconds, count in [(began - 1, 0), (began, 20), (ended, 30)]:
        rate.take(count, at_seconds)
    assert rate.per_second() == pytest.approx(100)


@given(
    st.lists(st.tuples(st.floats(0.001, 30), st.integers(0, 1 << 30)), min_size=2, max_size=300),
    st.floats(0.1, 60),
)
def test_rate_lies_between_the_slowest_and_the_fastest_step_and_memory_is_bounded(steps, window_seconds):
    rate = CounterRate(window_seconds)
    at_seconds, count, speeds = 0.0, 0, []
    rate.take(count, at_seconds)
    for pause_seconds, growth in steps:
        at_seconds += pause_seconds
        count += growth
        speeds.append(growth / pause_seconds)
        rate.take(count, at_seconds)
    found = rate.per_second()
    assert (found is None) or min(speeds) * 0.999 <= found <= max(speeds) * 1.001
    assert (found is not None) or at_seconds < window_seconds * 1.1
    assert len(rate._samples) <= 64 * 2 + 3


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


async def test_it_is_sampled_no_more_often_than_a_rate_needs(machine, nursery, autojump_clock) -> None:
    samples = []
    watch = SwapTrafficWatch(lambda: samples.append(trio.current_time()), proc=machine.proc)
    nursery.start_soon(watch.run)
    await trio.sleep(61)
    assert len(set(samples)) == 13

    machine(0, 0, swap_kib=0)  # from the next sample on, once a minute
    await trio.sleep(600)
    assert len(set(samples)) in {23, 24}
