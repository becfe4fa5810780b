import itertools
from collections import Counter

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from reactor.backoff import Backoff, next_beat


def pauses(backoff: Backoff, count: int) -> list[float]:
    return [backoff.next_seconds() for _ in range(count)]


def test_pauses_double_up_to_the_longest_and_are_short_again_after_a_reset() -> None:
    backoff = Backoff(1.0, 5.0, jitter=None)
    assert backoff.is_first
    assert [1.0, 2.0, 4.0, 5.0, 5.0] == pauses(backoff, 5)
    assert not backoff.is_first
    backoff.reset()
    assert [1.0, 2.0] == pauses(backoff, 2)


@pytest.mark.parametrize(("jitter", "expected"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
def test_jitter_takes_between_half_of_a_pause_and_the_whole(jitter: float, expected: float) -> None:
    assert Backoff(1.0, jitter=lambda: jitter).next_seconds() == expected


def test_what_a_server_asked_for_is_kept_to_and_spread() -> None:
    asked = [Backoff(8.0, jitter=None).next_seconds(at_least) for at_least in (10.0, 2.0)]
    assert [18.0, 4.0] == asked


def test_a_failure_may_have_a_longest_pause_of_its_own() -> None:
    backoff = Backoff(1.0, 4.0, jitter=None)
    assert [1.0, 2.0, 4.0, 8.0] == [backoff.next_seconds(last_seconds=100.0) for _ in range(4)]
    assert 4.0 == backoff.next_seconds()


async def test_a_pause_is_slept(autojump_clock: trio.testing.MockClock) -> None:
    backoff = Backoff(1.0, 2.0, jitter=None)
    began = trio.current_time()
    for _ in itertools.repeat(None, 3):
        await backoff.pause()
    assert 5.0 == pytest.approx(trio.current_time() - began)


async def test_tasks_with_one_interval_wake_together_whenever_they_began(
    autojump_clock: trio.testing.MockClock,
) -> None:
    woken: list[float] = []

    async def pause(begin_seconds: float) -> None:
        await trio.sleep(begin_seconds)
        for _ in range(3):
            await next_beat(10.0)
            woken.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for begin_seconds in (0.0, 2.5, 7.0):
            nursery.start_soon(pause, begin_seconds)
    assert {10.0: 3, 20.0: 3, 30.0: 3} == dict(Counter(woken))


@given(st.floats(0, 1e6), st.floats(0.01, 1000))
def test_the_next_beat_is_never_now_and_never_later_than_an_interval(
    now_seconds: float, interval_seconds: float
) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    clock.jump(now_seconds)
    waited: list[float] = []

    async def wait() -> None:
        before = trio.current_time()
        await next_beat(interval_seconds)
        waited.append(trio.current_time() - before)

    trio.run(wait, clock=clock)
    assert 0 < waited[0] <= 1.0101 * interval_seconds
