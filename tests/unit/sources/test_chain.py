import errno
import os
from collections.abc import Callable

import pytest
import trio
import trio.testing

from reactor.backoff import Pace
from reactor.errors import BpfError, failure_text
from reactor.model.wakes import SourceHealth
from reactor.sources.catalogue import SourceBoard
from reactor.sources.chain import AttemptBackoff, keep_trying


async def test_pauses_grow_to_thirty_seconds(autojump_clock: trio.testing.MockClock) -> None:
    backoff = AttemptBackoff()
    pauses = [await next_pause_seconds(backoff) for _ in range(11)]
    assert pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30]) == pauses


async def after_five() -> AttemptBackoff:
    """Return the back-off of a source that has failed five times."""
    backoff = AttemptBackoff()
    for _ in range(5):
        await backoff.pause()
    return backoff


async def next_pause_seconds(backoff: AttemptBackoff) -> float:
    began = trio.current_time()
    await backoff.pause()
    return trio.current_time() - began


async def test_an_attempt_that_stood_for_long_starts_again_with_the_shortest_pause(
    autojump_clock: trio.testing.MockClock,
) -> None:
    backoff = await after_five()

    async def stand(armed: Callable[[str], None]) -> None:
        armed("here")
        await trio.sleep(30)

    await backoff.attempt(stand, lambda _: None)
    assert pytest.approx(0.1) == await next_pause_seconds(backoff)


async def test_an_attempt_that_took_long_to_fail_does_not_start_again_with_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    backoff = await after_five()

    async def fail_late(_: Callable[[str], None]) -> None:
        await trio.sleep(40)

    await backoff.attempt(fail_late, lambda _: None)
    assert pytest.approx(3.2) == await next_pause_seconds(backoff)


async def test_pauses_grow_to_ten_minutes_where_the_node_refuses_and_only_there(
    autojump_clock: trio.testing.MockClock,
) -> None:
    refusal = ExceptionGroup("", [BpfError("eBPF object memory", "needs CAP_BPF")])
    backoff, pauses = AttemptBackoff(), []
    for error in [refusal] * 15 + [OSError(19, "gone")] * 2:
        began = trio.current_time()
        await backoff.pause(error)
        pauses.append(trio.current_time() - began)
    assert pytest.approx([409.6, 600, 600, 30, 30]) == pauses[12:]


async def test_a_burst_passes_at_once_the_rest_at_its_rate(
    autojump_clock: trio.testing.MockClock,
) -> None:
    pace, began = Pace(burst=4, per_second=10), trio.current_time()
    for _ in range(4):
        await pace.turn()
    assert pytest.approx(0, abs=0.11) == trio.current_time() - began
    for _ in range(20):
        await pace.turn()
    assert pytest.approx(2, abs=0.11) == trio.current_time() - began


def test_a_failure_is_one_line_with_its_path() -> None:
    error = OSError(errno.ENODEV, os.strerror(errno.ENODEV), "/sys/x")
    assert "[Errno 19] No such device: '/sys/x'" == failure_text(ExceptionGroup("", [error]))
    assert "ValueError: a b" == failure_text(ValueError("a\nb"))


async def test_whatever_an_attempt_raises_is_survived_and_tried_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    board, seen = SourceBoard(), []

    async def attempt(armed) -> None:
        seen.append(board.state("x").health)
        if len(seen) == 3:
            armed("third time")
            await trio.sleep_forever()
        raise [ZeroDivisionError("odd"), OSError(5, "bad")][len(seen) - 1]

    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: keep_trying("x", board, attempt, task_status=task_status))
        assert (SourceHealth.FAILED, "ZeroDivisionError: odd") == (
            board.state("x").health,
            board.state("x").detail,
        )
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert [SourceHealth.OFF, SourceHealth.FAILED, SourceHealth.FAILED] == seen
    assert (SourceHealth.ARMED, "third time") == (board.state("x").health, board.state("x").detail)
