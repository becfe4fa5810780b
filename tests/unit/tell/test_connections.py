from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack

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


async def test_no_more_connections_are_open_at_a_time_than_there_are_slots(
    listener: trio.socket.SocketType, autojump_clock: trio.testing.MockClock
) -> None:
    """All are silent, and each is left alone for a while."""
    autojump_clock.autojump_threshold = 0.05
    present, most = 0, 0

    async def attend(peer: Peer) -> None:
        nonlocal present, most
        present += 1
        most = max(most, present)
        try:
            await peer.receive()
        finally:
            present -= 1

    with ExitStack() as clients:
        for _ in range(60):
            clients.enter_context(socket.create_connection(listener.getsockname()))
        with trio.move_on_after(2):
            await Connections(attend, 8, lambda _: None).serve(listener)
    assert most == 8


async def test_client_that_never_reads_its_answer_is_closed_upon_though_no_other_wants_its_slot(
    listener: trio.socket.SocketType, autojump_clock: trio.testing.MockClock
) -> None:
    autojump_clock.autojump_threshold = 0.05
    took: list[float] = []

    async def attend(peer: Peer) -> None:
        began = trio.current_time()
        peer.answering()
        try:
            await peer.send(bytes(64 << 20))
        finally:
            took.append(round(trio.current_time() - began, 1))

    with socket.create_connection(listener.getsockname()), trio.move_on_after(60):
        await Connections(attend, 8, lambda _: None).serve(listener)
    assert took == [5.0]
