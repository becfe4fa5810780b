"""The steward's end of the pair, on Trio's clock."""

from __future__ import annotations

import socket

import trio
import trio.testing

from reactor.link.requests import LONGEST_BYTES, Request, RequestKind, read_request
from reactor.steward.guard import Guard


async def test_a_sign_of_life_is_sent_only_where_nothing_else_was_said_for_a_while(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, theirs = trio.socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    guard = Guard(theirs, lambda _: None)
    alive: list[float] = []
    others = 0
    with ours, theirs, trio.move_on_after(80):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(guard.send)
            nursery.start_soon(guard.say_alive)
            nursery.start_soon(_say_every_ten_seconds, guard, 5)
            while True:
                request = read_request(await ours.recv(LONGEST_BYTES + 1))
                assert isinstance(request, Request)
                if request.kind is RequestKind.ALIVE:
                    alive.append(trio.current_time())
                else:
                    others += 1
    assert (5, [0, 62, 74]) == (others, alive)


async def _say_every_ten_seconds(guard: Guard, times: int) -> None:
    for _ in range(times):
        await trio.sleep(10)
        await guard.say(Request(kind=RequestKind.OBSERVED, number=1))
