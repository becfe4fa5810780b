"""The ring buffer's layout, played by a file: whoever writes it is the kernel."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reactor.errors import KernelInterfaceError
from reactor.kernel.bpf.probes import RingBuffer

SIZE = 4096
BUSY, DISCARDED = 1 << 31, 1 << 30


class Writer:
    """Writes as the kernel does, the data twice in a row."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("ring")
        os.truncate(self.fd, 2 * mmap.PAGESIZE + 2 * SIZE)
        self.position = 0
        self.last = 0

    def write(self, record: bytes, flags: int = 0) -> None:
        self.last = self.position
        self.header(len(record) | flags)
        for place, byte in enumerate(record):
            self._byte(self.position + 8 + place, byte)
        self.position += (8 + len(record) + 7) // 8 * 8
        os.pwrite(self.fd, struct.pack("=Q", self.position), mmap.PAGESIZE)

    def header(self, word: int) -> None:
        """Write the last record's header."""
        for place, byte in enumerate(struct.pack("=II", word, 0)):
            self._byte(self.last + place, byte)

    def consumed(self) -> int:
        return int(struct.unpack("=Q", os.pread(self.fd, 8, 0))[0])

    def _byte(self, position: int, byte: int) -> None:
        for copy in (0, SIZE):
            offset = 2 * mmap.PAGESIZE + position % SIZE + copy
            os.pwrite(self.fd, bytes([byte]), offset)


@pytest.fixture
def writer() -> Iterator[Writer]:
    made = Writer()
    yield made
    os.close(made.fd)


@pytest.fixture
def ring(writer: Writer) -> Iterator[RingBuffer]:
    opened = RingBuffer(writer.fd, SIZE)
    yield opened
    opened.close()
    opened.close()


def test_records_are_taken_once_and_in_order(writer: Writer, ring: RingBuffer) -> None:
    assert ring.take() == []
    writer.write(b"first")
    writer.write(b"second, and longer")
    assert ring.take() == [b"first", b"second, and longer"]
    assert ring.take() == []
    assert writer.position == writer.consumed()


def test_record_that_is_not_yet_submitted_is_waited_for(writer: Writer, ring: RingBuffer) -> None:
    writer.write(b"first")
    writer.write(b"second", BUSY)
    assert ring.take() == [b"first"]
    writer.header(len(b"second"))
    assert ring.take() == [b"second"]


def test_discarded_record_is_passed_over(writer: Writer, ring: RingBuffer) -> None:
    writer.write(b"first", DISCARDED)
    writer.write(b"second")
    assert ring.take() == [b"second"]


def test_length_that_can_not_be_is_refused(writer: Writer, ring: RingBuffer) -> None:
    writer.write(b"first")
    writer.header(SIZE)
    with pytest.raises(KernelInterfaceError, match="ring buffer"):
        ring.take()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20)
@given(st.lists(st.binary(min_size=1, max_size=300), max_size=40))
def test_any_records_come_back_however_they_wrap_around(
    writer: Writer, ring: RingBuffer, records: list[bytes]
) -> None:
    for record in records:
        writer.write(record)
        assert ring.take() == [record]
