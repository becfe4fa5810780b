"""The guard's end of the pair to the process that watches logind: checked as a stranger's."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import pytest
import trio
import trio.testing

from reactor.guard.shutdown_watch import ShutdownWatch, ShutdownWatchError
from reactor.link.shutdown import GO_ON, ShutdownNews, ShutdownNewsKind, write_news
from tests.support.waiting import until

INHIBITED, NOT_INHIBITED, PREPARING, CANCELLED, PROBLEM = ShutdownNewsKind


def _fake(script: str) -> tuple[str, ...]:
    """Return the command of a process that runs this, with its end of the pair as `guard`."""
    head = "import os, socket, sys, time; guard = socket.socket(fileno=os.dup(0)); "
    return (sys.executable, "-S", "-c", head + script)


def _sent(*news: ShutdownNews) -> str:
    return "".join(f"guard.send({write_news(one)!r}); " for one in news)


async def test_what_the_process_says_is_passed_on_and_kept() -> None:
    heard: list[ShutdownNews] = []
    script = _sent(
        ShutdownNews(kind=INHIBITED, seconds=35),
        ShutdownNews(kind=PROBLEM, text="too short"),
        ShutdownNews(kind=PREPARING),
    )
    watch = ShutdownWatch(heard.append, command=_fake(f"{script}guard.recv(1)"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run, 30, None)
        await until(lambda: len(heard) == 3, "all is heard")
        assert (35, "too short") == (watch.inhibited_seconds, watch.problem)
        assert watch.pid is not None
        nursery.cancel_scope.cancel()
    assert [INHIBITED, PROBLEM, PREPARING] == [one.kind for one in heard]
    assert (None, None, None) == (watch.pid, watch.inhibited_seconds, watch.problem)


async def test_what_is_no_message_is_counted_and_begins_no_shutdown(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[ShutdownNews] = []
    garbage = [b"\1\3", b"x" * 16, b"\0" * 400, write_news(ShutdownNews(kind=PREPARING, seconds=7))]
    script = "".join(f"guard.send({one!r}); " for one in garbage) + _sent(ShutdownNews(kind=NOT_INHIBITED))
    watch = ShutdownWatch(heard.append, command=_fake(f"{script}guard.recv(1)"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run, 30, None)
        await until(lambda: heard, "the last message")
        nursery.cancel_scope.cancel()
    assert [NOT_INHIBITED] == [one.kind for one in heard]
    assert len(garbage) == watch.refused
    assert 1 == caplog.text.count("a message is refused")


async def test_a_process_that_ends_is_named_with_how_it_ended() -> None:
    watch = ShutdownWatch(lambda _: None, command=_fake("sys.exit(3)"))
    with pytest.raises(ShutdownWatchError, match="status 3"):
        await watch.run(30, None)


async def test_the_process_is_told_that_the_shutdown_may_go_on_and_what_is_wanted() -> None:
    heard: list[ShutdownNews] = []
    script = (
        f"assert guard.recv(64) == {GO_ON!r}; assert sys.argv[1:] == ['30', '/kubelet.yaml']; "
        f"{_sent(ShutdownNews(kind=CANCELLED))}guard.recv(1)"
    )
    watch = ShutdownWatch(heard.append, command=_fake(script))
    await watch.go_on()  # without a process there is no lock either
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run, 30, "/kubelet.yaml")
        await until(lambda: watch.pid is not None, "the process runs")
        await watch.go_on()
        await until(lambda: heard, "its answer")
        nursery.cancel_scope.cancel()
    assert [CANCELLED] == [one.kind for one in heard]


async def test_a_flood_of_messages_is_read_at_a_bounded_pace(
    autojump_clock: trio.testing.MockClock,
) -> None:
    heard: list[ShutdownNews] = []
    one = write_news(ShutdownNews(kind=PREPARING))
    watch = ShutdownWatch(
        heard.append, command=_fake(f"[guard.send({one!r}) for _ in range(116)]; guard.recv(1)")
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run, 30, None)
        began = trio.current_time()
        await until(lambda: len(heard) == 116, "all are heard", seconds=1e9, pause_seconds=0.1)
        assert trio.current_time() - began >= 9.0
        pid = watch.pid
        nursery.cancel_scope.cancel()
    # The clock jumps over the time in which its end is awaited.
    assert pid is not None
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)  # noqa: ASYNC222 - it was killed
