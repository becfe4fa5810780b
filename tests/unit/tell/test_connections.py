from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from reactor.tell.connections import Connections, Peer

pytestmark = pytest.mark.suite("hostile clients")


@pytest.fixture
async def listener() -> AsyncIterator[trio.socket.SocketType]:
    with trio.socket.socket() as listening:
        await listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        yield listening


async def test_client_that_drips_is_read_now_and_then(autojump_clock: trio.testing.MockClock) -> None:
    """Each byte that comes by itself would cost as much as a whole request."""
    autojump_clock.autojump_threshold = 0.05
    ours, theirs = socket.socketpair()
    with theirs:
        peer = Peer(trio.SocketStream(trio.socket.from_stdlib_socket(ours)))
        began, received = trio.current_time(), []
        for _ in range(3):
            theirs.send(b"G")
            received.append((await peer.receive(), round(trio.current_time() - began, 3)))
        await peer._stream.aclose()
    assert [(b"G", 0.0), (b"G", 0.05), (b"G", 0.1)] == received


async def test_clients_that_come_and_go_are_accepted_at_a_bounded_rate(
    listener: trio.socket.SocketType, autojump_clock: trio.testing.MockClock
) -> None:
    """Each of them has closed already, so that a slot is always free."""
    autojump_clock.autojump_threshold = 0.05
    attended = []

    async def attend(peer: Peer) -> None:
        attended.append(peer)
        await peer.receive()

    for _ in range(120):
        socket.create_connection(listener.getsockname()).close()
    with trio.move_on_after(0.5):
        await Connections(attend, 8, lambda _: None).serve(listener)
    assert 32 <= len(attended) <= 32 + 60 * 0.5
