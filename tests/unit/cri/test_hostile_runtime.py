"""A runtime that answers anything: arbitrary bytes as HTTP/2 and as protobuf, floods, and prices."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import hpack
import pytest
import trio
import trio.testing
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reactor.cri import client, messages
from reactor.cri.messages import Message, WireError
from reactor.errors import ReactorError, RuntimeServiceError, RuntimeUnavailableError
from tests.support.executed_lines import executed_lines

pytestmark = pytest.mark.suite("hostile peers")

METHOD = "/runtime.v1.RuntimeService/Version"
SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
MESSAGES = [
    one
    for one in vars(messages).values()
    if isinstance(one, type) and issubclass(one, Message) and one is not Message
]


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def headers(*fields: tuple[str | bytes, str | bytes], flags: int = 4) -> bytes:
    return frame(1, flags, 1, hpack.Encoder().encode(fields, huffman=False))


OK = headers((":status", "200"), ("content-type", "application/grpc"))
FRAMES = st.builds(
    frame, st.integers(0, 12), st.integers(0, 255), st.sampled_from([0, 1, 2, 3]), st.binary(max_size=40)
)


@asynccontextmanager
async def runtime(send: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[Path]:
    """Give the socket of a runtime that does this with a connection."""
    with tempfile.TemporaryDirectory() as directory, trio.socket.socket(trio.socket.AF_UNIX) as listening:
        path = Path(directory) / "runtime.sock"
        await listening.bind(str(path))
        listening.listen()

        async def serve() -> None:
            connection, _ = await listening.accept()
            with connection, suppress(OSError, trio.BrokenResourceError):
                await send(trio.SocketStream(connection))
                connection.shutdown(trio.socket.SHUT_WR)
                while await connection.recv(65536):
                    pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            yield path
            nursery.cancel_scope.cancel()


def answered(pieces: Iterable[bytes], deadline_seconds: float = 5.0) -> bytes | ReactorError:
    """Return what a call makes of a runtime that sends these bytes and closes, an error of ours included."""

    async def main() -> bytes | ReactorError:
        async def send(stream: trio.SocketStream) -> None:
            for piece in pieces:
                await stream.send_all(piece)

        found: bytes | ReactorError = b""
        async with runtime(send) as path:
            try:
                found = await client.call(path, METHOD, b"asked", deadline_seconds)
            except (RuntimeUnavailableError, RuntimeServiceError) as error:
                found = error
        return found

    return trio.run(main)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(FRAMES, st.binary(max_size=40)), max_size=8), st.sampled_from([SETTINGS, b""]))
@example([OK, headers(("grpc-status", "9" * 5000), flags=5)], SETTINGS)
@example([OK, headers(("grpc-status", "²"), flags=5)], SETTINGS)
@example([OK, headers(("grpc-status", "٣"), flags=5)], SETTINGS)
@example([headers((b"\xff", b"\xfe"), flags=5)], SETTINGS)
@example(
    [headers((":status", "200"), ("grpc-status", "5"), ("grpc-message", "%ff%00%1b[2J" * 500), flags=5)],
    SETTINGS,
)
def test_any_frames_are_an_answer_or_an_error_of_ours(frames: list[bytes], first: bytes) -> None:
    found = answered([first + b"".join(frames)])
    assert isinstance(found, bytes) or len(str(found)) < 1000


@pytest.mark.parametrize(
    "flood",
    [
        SETTINGS,
        frame(6, 0, 0, b"x" * 8),
        frame(0, 0, 1, b""),
        frame(2, 0, 1, b"\0\0\0\0\1"),
        frame(8, 0, 0, b"\0\0\0\1"),
    ],
    ids=["settings", "pings", "empty data", "priorities", "windows"],
)
def test_frames_without_end_are_no_answer(flood: bytes) -> None:
    found = answered([SETTINGS + OK, *[flood * 1000] * 100], deadline_seconds=60)
    assert isinstance(found, RuntimeUnavailableError)


def test_headers_without_end_are_no_answer() -> None:
    block = hpack.Encoder().encode(
        [(":status", "200"), *((f"x-{number}", "y" * 100) for number in range(3000))]
    )
    pieces = [block[at : at + 16000] for at in range(0, len(block), 16000)]
    frames = [frame(1 if at == 0 else 9, 0, 1, piece) for at, piece in enumerate(pieces)]
    assert isinstance(answered([SETTINGS, *frames, frame(9, 4, 1, b"")]), RuntimeUnavailableError)


async def test_byte_a_second_is_no_answer_by_the_deadline(autojump_clock: trio.testing.MockClock) -> None:
    autojump_clock.autojump_threshold = 0.05

    async def drip(stream: trio.SocketStream) -> None:
        for byte in SETTINGS + OK + frame(0, 0, 1, b"x" * 10_000):
            await stream.send_all(bytes([byte]))
            await trio.sleep(1)

    async with runtime(drip) as path:
        with pytest.raises(RuntimeUnavailableError, match="no answer within 10 s"):
            await client.call(path, METHOD, b"asked", 10)


@given(st.sampled_from(MESSAGES), st.binary(max_size=300))
def test_any_bytes_are_a_message_or_an_error_of_ours(of: type[Message], raw: bytes) -> None:
    with suppress(WireError):
        of.decode(raw)
    assert issubclass(WireError, ReactorError)


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def delimited(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def entry(number: int, key: str, value: str) -> bytes:
    return delimited(number, delimited(1, key.encode()) + delimited(2, value.encode()))


def steps_of(raw: bytes) -> int:
    """Return how many lines of Python are run to decode these sandboxes."""
    return executed_lines(lambda: messages.Sandboxes.decode(raw))


def test_what_tenants_annotate_costs_linear_time_and_is_not_kept() -> None:
    def annotated(count: int) -> bytes:
        own = entry(6, "kubernetes.io/config.hash", "abc") + entry(5, "io.kubernetes.pod.uid", "uid")
        theirs = b"".join(
            entry(number, f"tenant.example/{n}", "x") for number in (5, 6) for n in range(count)
        )
        return delimited(1, theirs + own)

    (sandbox,) = messages.Sandboxes.decode(annotated(30_000)).items
    assert {"kubernetes.io/config.hash": "abc"} == sandbox.annotations
    assert {"io.kubernetes.pod.uid": "uid"} == sandbox.labels
    assert steps_of(annotated(2000)) < 2.2 * steps_of(annotated(1000))


def test_key_behind_its_value_is_read_as_well() -> None:
    value_first = delimited(6, delimited(2, b"abc") + delimited(1, b"kubernetes.io/config.hash"))
    (sandbox,) = messages.Sandboxes.decode(delimited(1, value_first)).items
    assert {"kubernetes.io/config.hash": "abc"} == sandbox.annotations


@pytest.mark.slow
def test_repeated_messages_cost_linear_time_and_are_bounded() -> None:
    assert 10_000 == len(messages.Sandboxes.decode(delimited(1, b"") * 10_000).items)
    with pytest.raises(WireError, match="more than 20000"):
        messages.Sandboxes.decode(delimited(1, b"") * 1_000_000)
    with pytest.raises(WireError, match="more than 1000000 fields"):
        messages.Sandboxes.decode(delimited(9, b"") * 3_000_000)
