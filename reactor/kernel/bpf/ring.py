"""The ring buffer that eBPF programs write records into, read through its memory mappings.

libbpf's own reader calls back for each record, and to give C a Python function takes writable and executable
memory, which a hardened unit (MemoryDenyWriteExecute) is refused. Sources: kernel/bpf/ringbuf.c,
Documentation/bpf/ringbuf.rst, libbpf's ringbuf.c.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

from reactor.errors import KernelInterfaceError

_POSITION: Final = struct.Struct("=Q")
_HEADER: Final = struct.Struct("=II")
_BUSY: Final = 1 << 31  # reserved, not yet submitted
_DISCARDED: Final = 1 << 30
_LENGTH: Final = _DISCARDED - 1
_ALIGNMENT: Final = 8


class RingBuffer:
    """The records that programs write into a ring buffer map, in order, each once.

    `fd` is the map's, and is readable while there are records. Level-triggered, so a record that comes while
    others are taken is seen the next time.

    The mapping is one page for the consumer's position, one for the producer's, and the data twice in a row,
    so that a record that wraps around can be read in one piece. Both positions only ever grow.
    """

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self._mask = size - 1
        self._consumer = mmap.mmap(fd, mmap.PAGESIZE)
        try:
            self._producer = mmap.mmap(
                fd, mmap.PAGESIZE + 2 * size, prot=mmap.PROT_READ, offset=mmap.PAGESIZE
            )
        except BaseException:
            self._consumer.close()
            raise

    def take(self) -> list[bytes]:
        """Return the records that have come since, without waiting.

        The kernel writes a record, then its header, then wakes us; the system call that we wait in orders
        that for processors that would not.
        """
        records = []
        position = _POSITION.unpack_from(self._consumer)[0]
        end = _POSITION.unpack_from(self._producer)[0]
        while position < end:
            offset = mmap.PAGESIZE + (position & self._mask)
            word, _ = _HEADER.unpack_from(self._producer, offset)
            if word & _BUSY:
                break  # its submission makes the descriptor readable again
            length = word & _LENGTH
            if length > self._mask:
                raise KernelInterfaceError("eBPF ring buffer", length, "a record that fits into it")
            start = offset + _HEADER.size
            if not word & _DISCARDED:
                records.append(self._producer[start : start + length])
            position += -(-(_HEADER.size + length) // _ALIGNMENT) * _ALIGNMENT
            # After each record, so that a writer finds room as soon as there is some.
            _POSITION.pack_into(self._consumer, 0, position)
        return records

    def close(self) -> None:
        """Unmap the buffer; a second time is harmless. The descriptor belongs to the map."""
        self.fd = -1
        self._consumer.close()
        self._producer.close()
