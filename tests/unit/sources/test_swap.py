from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from reactor.model.signals import Signal
from reactor.model.thresholds import Observation
from reactor.model.wakes import SourceHealth, WakeKind
from reactor.sources.catalogue import SWAP, chain_of
from reactor.sources.swap import SwapWatch
from reactor.sources.wakes import Wakes
from tests.support.builders import make_threshold

MIB = 1 << 20
GIB = 1 << 30
HARD = make_threshold(100 * MIB, signal=Signal.SWAP_AVAILABLE)


class Swap:
    """Swap of 8 GiB, of which so much is available; notes when it was read."""

    def __init__(self, available: int | None) -> None:
        self.available = available
        self.read_at: list[float] = []
        self.wakes = Wakes()
        self.board = self.wakes.board

    def observe(self) -> Observation | None:
        self.read_at.append(trio.current_time())
        return None if self.available is None else Observation(available=self.available, capacity=8 * GIB)

    @property
    def pauses(self) -> list[float]:
        return [after - before for before, after in zip(self.read_at, self.read_at[1:], strict=False)]

    @asynccontextmanager
    async def watched(self, events: Path | None = None) -> AsyncIterator[None]:
        watch = SwapWatch((HARD,), self.observe, self.wakes, events=events)
        async with trio.open_nursery() as nursery:
            await nursery.start(watch.run)
            yield
            nursery.cancel_scope.cancel()

    async def is_woken_within(self, seconds: float) -> bool:
        with trio.move_on_after(seconds):
            (wake,) = await self.wakes.wait()
            assert (SWAP, WakeKind.PROCESSES, Signal.SWAP_AVAILABLE) == (wake.source, wake.kind, wake.signal)
            return True
        return False


async def test_crossing_wakes_the_loop_and_again_while_it_lasts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    swap = Swap(4 * GIB)
    async with swap.watched():
        assert not await swap.is_woken_within(60)
        swap.available = 99 * MIB
        assert await swap.is_woken_within(10)
        assert await swap.is_woken_within(1)
        swap.available = 4 * GIB
        assert await swap.is_woken_within(1)  # that it is over is news too
        assert not await swap.is_woken_within(60)
    assert SourceHealth.ARMED is swap.board.state(SWAP).health


async def test_swap_is_read_more_often_the_less_is_left(autojump_clock: trio.testing.MockClock) -> None:
    swap = Swap(8 * GIB)
    async with swap.watched():
        await trio.sleep(35)
        assert max(swap.pauses) == pytest.approx(10)
        swap.available = 200 * MIB
        await trio.sleep(20)
        assert swap.pauses[-1] < 0.25


async def test_swap_is_read_more_often_the_faster_it_fills(autojump_clock: trio.testing.MockClock) -> None:
    swap = Swap(8 * GIB)
    async with swap.watched():
        await trio.sleep(1)
        swap.available = 3 * GIB
        await trio.sleep(19)
    # 5 GiB within ten seconds: at twice that pace 3 GiB are gone after 3 s.
    assert swap.pauses[0] == pytest.approx(10)
    assert 1 < swap.pauses[1] < 2
    assert swap.pauses[2] > 2  # and it has stopped
    assert swap.pauses[2] > 2  # and it has stopped


async def test_node_without_swap_is_left_alone(autojump_clock: trio.testing.MockClock) -> None:
    swap = Swap(None)
    async with swap.watched():
        assert not await swap.is_woken_within(60)
    assert min(swap.pauses) == pytest.approx(10)


async def test_swap_that_is_refused_is_read_at_once(tmp_path: Path) -> None:
    events = tmp_path / "memory.swap.events"
    events.write_text("high 0\nmax 0\nfail 0\n")
    swap = Swap(8 * GIB)
    async with swap.watched(events):
        assert "events" in swap.board.state(SWAP).detail
        swap.available = 0
        await trio.testing.wait_all_tasks_blocked(0.05)
        events.write_text("high 0\nmax 1\nfail 1\n")
        assert await swap.is_woken_within(30)


async def test_cgroup_without_events_is_sampled(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    swap = Swap(0)
    async with swap.watched(tmp_path / "memory.swap.events"):
        assert "sampled" == swap.board.state(SWAP).detail
        assert await swap.is_woken_within(1)


async def test_absurd_threshold_wakes_nobody(autojump_clock: trio.testing.MockClock) -> None:
    swap = Swap(GIB)
    absurd = make_threshold(9 * GIB, signal=Signal.SWAP_AVAILABLE)
    watch = SwapWatch((absurd,), swap.observe, swap.wakes)
    async with trio.open_nursery() as nursery:
        await nursery.start(watch.run)
        assert not await swap.is_woken_within(2)
        nursery.cancel_scope.cancel()
    assert math.isfinite(max(swap.pauses))


def test_swap_has_a_source_of_its_own_and_the_ticker() -> None:
    assert [SWAP, "ticker"] == [source.name for source in chain_of(Signal.SWAP_AVAILABLE)]
