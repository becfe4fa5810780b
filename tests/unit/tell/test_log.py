from __future__ import annotations

import logging
import os
import socket
from contextlib import suppress

import pytest
import trio

from reactor.tell.log import QueuedLog


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def record(text: str, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("reactor", level, __file__, 1, text, (), None)


def test_lines_for_the_journal_daemon_carry_their_priority(pipe):
    log = QueuedLog(pipe[1], for_journald=True)
    log.handle(record("first\nsecond"))
    log.handle(record("third", logging.ERROR))
    log.close()

    assert os.read(pipe[0], 1000) == b"<4>first; second\n<3>third\n"


def test_what_is_not_printable_is_written_as_its_escape(pipe):
    log = QueuedLog(pipe[1], for_journald=True)
    log.handle(record("pod \x1b[2J\u202e\udcff is evicted"))
    log.close()

    assert os.read(pipe[0], 1000) == b"<4>pod \\x1b[2J\\u202e\\xff is evicted\n"


def test_lines_for_a_terminal_carry_time_and_level(pipe):
    log = QueuedLog(pipe[1], for_journald=False)
    log.handle(record("text"))
    log.close()

    assert os.read(pipe[0], 1000).endswith(b" WARNING text\n")


def test_full_pipe_never_blocks_the_logging_task_and_what_is_lost_is_counted(pipe):
    log = QueuedLog(pipe[1], for_journald=True)
    for _ in range(5000):
        log.handle(record("x" * 100))

    assert log.lost > 1000
    assert not log._writer.flush(0)
    read = 0
    os.set_blocking(pipe[0], False)
    while not log._writer.flush(0):
        read += len(os.read(pipe[0], 1 << 20))
    with suppress(BlockingIOError):
        read += len(os.read(pipe[0], 1 << 20))
    log.close()
    assert read == (5000 - log.lost) * len("<4>" + "x" * 100 + "\n")


async def test_lines_that_wait_are_written_as_soon_as_there_is_room_also_those_of_other_threads(pipe):
    log = QueuedLog(pipe[1], for_journald=True)
    log.handle(record("the first"))
    os.set_blocking(pipe[0], False)
    for _ in range(1000):
        log.handle(record("x" * 100))
    await trio.to_thread.run_sync(log.handle, record("the last"))
    got = b""
    with trio.fail_after(90):
        while not got.endswith(b"the last\n"):
            await trio.lowlevel.wait_readable(pipe[0])
            got += os.read(pipe[0], 1 << 20)
    log.close()
    assert len(got.splitlines()) == 1002
    assert log.lost == 0


def test_descriptor_that_others_have_too_stays_as_it_is_and_a_socket_is_not_waited_for_either():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        log = QueuedLog(ours.fileno(), for_journald=True)
        for _ in range(20_000):
            log.handle(record("x" * 100))
        assert log.lost
        assert os.get_blocking(ours.fileno())
        theirs.close()
        log.close()


def test_file_is_written_by_a_thread(tmp_path):
    with (tmp_path / "log").open("wb") as file:
        log = QueuedLog(file.fileno(), for_journald=True)
        log.handle(record("text"))
        log.close()
    assert (tmp_path / "log").read_bytes() == b"<4>text\n"


def test_closed_standard_error_is_survived():
    ends = os.pipe()
    log = QueuedLog(ends[1], for_journald=True)
    os.close(ends[0])
    log.handle(record("nobody reads this"))
    log.close()
    os.close(ends[1])

    assert log.lost == 1


class _Untouchable:
    """A lock that nobody may take, by either of the ways in which the versions of Python do."""

    def acquire(self) -> None:
        raise AssertionError("the lock was taken")

    def __enter__(self) -> None:
        raise AssertionError("the lock was taken")

    def __exit__(self, *_: object) -> None:
        raise AssertionError("the lock was taken")


def test_records_are_queued_without_a_lock_in_every_version_of_python(pipe):
    log = QueuedLog(pipe[1], for_journald=True)
    log.lock = _Untouchable()
    log.handle(record("hello"))
    log.lock = None
    log.close()

    assert os.read(pipe[0], 100) == b"<4>hello\n"


def test_records_that_a_filter_drops_are_not_written(pipe):
    log = QueuedLog(pipe[1], for_journald=True)
    log.addFilter(lambda one: one.getMessage() != "secret")
    log.handle(record("secret"))
    log.handle(record("open"))
    log.close()

    assert os.read(pipe[0], 100) == b"<4>open\n"


def test_record_that_can_not_be_formatted_is_lost_and_raises_nothing(pipe):
    class Unsayable:
        def __str__(self) -> str:
            raise ValueError("no words")

    log = QueuedLog(pipe[1], for_journald=True)
    log.handle(logging.LogRecord("reactor", logging.ERROR, __file__, 1, "%s", (Unsayable(),), None))
    log.handle(record("next"))
    log.close()

    assert os.read(pipe[0], 1000) == b"<4>next\n"
    assert log.lost == 1
