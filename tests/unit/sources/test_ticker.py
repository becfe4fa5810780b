import trio
import trio.testing

from reactor.model.wakes import SourceHealth, WakeKind
from reactor.sources.catalogue import TICKER
from reactor.sources.wakes import Ticker, Wakes


async def ticks_within(ticker: Ticker, wakes: Wakes, seconds: float) -> list[float]:
    """Return when the ticker woke, in seconds since it was started."""
    start = trio.current_time()
    seen: list[float] = []
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            await nursery.start(ticker.run)
            while True:
                assert (WakeKind.HOUSEKEEPING,) == tuple(wake.kind for wake in await wakes.wait())
                seen.append(round(trio.current_time() - start, 6))
    return seen


async def test_it_ticks_at_once_and_then_at_its_interval(autojump_clock: trio.testing.MockClock) -> None:
    wakes = Wakes()
    board = wakes.board
    assert [0, 10, 20, 30] == await ticks_within(Ticker(10, wakes), wakes, 35)
    assert (SourceHealth.ARMED, 4) == (board.state(TICKER).health, board.state(TICKER).wakes)


async def test_it_never_ticks_faster_than_every_hundredth_of_a_second(
    autojump_clock: trio.testing.MockClock,
) -> None:
    wakes = Wakes()
    assert [0, 0.01, 0.02] == await ticks_within(Ticker(0, wakes), wakes, 0.025)


async def test_missed_ticks_are_not_made_up_for(mock_clock: trio.testing.MockClock) -> None:
    wakes = Wakes()
    async with trio.open_nursery() as nursery:
        await nursery.start(Ticker(1, wakes).run)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(100.5)
        await trio.testing.wait_all_tasks_blocked()
        await wakes.wait()
        mock_clock.jump(0.4)
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0) as nothing_more:
            await wakes.wait()
        assert nothing_more.cancelled_caught
        nursery.cancel_scope.cancel()
