from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import trio
import trio.testing

from reactor.backoff import Backoff
from reactor.kube.errors import ApiError, BusyError, ForbiddenError, UnreachableError
from reactor.kube.pods import PodStore
from reactor.kube.recovery import Recovery
from reactor.kube.watch import Watch

_REFUSED = UnreachableError("GET /", "Connection refused")


async def _paused(recovery: Recovery, error: ApiError, *, back_after_seconds: float) -> float:
    """Return how long a part pauses that has failed often, where another gets through meanwhile."""
    backoff = Backoff(0.25, 30.0, jitter=None)
    for _ in range(10):
        backoff.next_seconds()
    recovery.lost()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(recovery.pause, backoff, error)
        await trio.sleep(back_after_seconds)
        recovery.reached()
    return trio.current_time() - began


async def test_the_first_that_gets_through_ends_the_pause_of_the_others(autojump_clock: object) -> None:
    assert 2.25 == await _paused(Recovery(), _REFUSED, back_after_seconds=2.0)
    failed = BusyError("GET /", "etcd is away", status=503)
    assert 2.25 == await _paused(Recovery(), failed, back_after_seconds=2.0)


async def test_a_pause_that_is_nearly_over_grows_by_nothing(autojump_clock: object) -> None:
    assert 30.0 == await _paused(Recovery(), _REFUSED, back_after_seconds=29.9)


async def test_what_the_server_asked_for_is_kept_to(autojump_clock: object) -> None:
    asked = BusyError("GET /", "too many requests", status=429, retry_after_seconds=7.0)
    assert 14.0 == await _paused(Recovery(), asked, back_after_seconds=2.0)
    missing = ForbiddenError("GET /", "a rule is missing", status=403)
    assert 30.0 == await _paused(Recovery(), missing, back_after_seconds=2.0)


async def test_a_server_that_was_never_lost_ends_no_pause(autojump_clock: object) -> None:
    recovery, backoff = Recovery(), Backoff(4.0, jitter=None)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(recovery.pause, backoff, _REFUSED)
        await trio.testing.wait_all_tasks_blocked()
        recovery.reached()
    assert 4.0 == trio.current_time() - began


class _Client:
    """Is away, or answers every list with nothing in it and every watch with silence."""

    def __init__(self) -> None:
        self.recovery = Recovery()
        self.is_away = True

    @asynccontextmanager
    async def stream(
        self, _: str, query: Mapping[str, str], *, silence_seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        await trio.lowlevel.checkpoint()
        if self.is_away:
            self.recovery.lost()
            raise _REFUSED

        async def pieces() -> AsyncIterator[bytes]:
            yield b'{"metadata": {"resourceVersion": "9"}, "items": []}'

        async def silence() -> AsyncIterator[bytes]:
            await trio.sleep(silence_seconds)
            yield b""

        yield silence() if "watch" in query else pieces()


async def test_a_watch_goes_on_as_soon_as_any_other_request_is_answered(autojump_clock: object) -> None:
    """Its own pauses had grown to seconds: an eviction's status that was dropped stayed away for as long."""
    client, store = _Client(), PodStore()
    async with trio.open_nursery() as nursery:
        watch = Watch(client, "/api/v1/pods", {}, store)  # type: ignore[arg-type] - all that it uses of one
        nursery.start_soon(watch.run)
        await trio.sleep(300.0)
        assert watch.problem is not None
        client.is_away = False
        client.recovery.reached()
        await trio.sleep(0.3)
        assert watch.synced.is_set()
        assert watch.problem is None
        nursery.cancel_scope.cancel()
