"""The eBPF probes of bpf/, typed: watches on memory and on process counts, and the OOM killer's kills.

A probe is loaded and attached, or raises BpfError and leaves nothing. Each has a ring buffer of its own, so
that none depends on another. Calls are short system calls, but for what is for a worker thread: making a
probe and `prepare_node` (libbpf reads the kernel's BTF: 0.1 s), and `counters` (the kernel's cgroup lock).
"""

from __future__ import annotations

import mmap
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Generic, Protocol, Self, TypeVar

from reactor.errors import BpfError, KernelInterfaceError
from reactor.kernel.bpf.libbpf import LIBRARY, BpfMap
from reactor.kernel.bpf.objects import OBJECTS, BpfObject
from reactor.kernel.bpf.records import (
    CounterAddresses,
    Level,
    NodeCounting,
    OomRecord,
    WatchRecord,
    pack_node_counting,
    pack_watch,
    parse_counters,
    parse_record,
)

_Record = TypeVar("_Record")
_POSITION: Final = struct.Struct("=Q")
_HEADER: Final = struct.Struct("=II")
_BUSY: Final = 1 << 31  # reserved, not yet submitted
_DISCARDED: Final = 1 << 30
_LENGTH: Final = _DISCARDED - 1
_ALIGNMENT: Final = 8

KEY: Final = struct.Struct("=Q")
ONLY: Final = struct.pack("=I", 0)  # the key of an array's one value
_COUNT: Final = struct.Struct("=Q")
_KPROBES: Final = "kprobes"
_NODE_START: Final = struct.Struct("=qq")
_TASKS_START: Final = struct.Struct("=q")
NEEDS_SYSLOG: Final = (
    "the kernel's counters can't be read; "
    "needs CAP_SYSLOG, kernel.kptr_restrict below 2, and CONFIG_KALLSYMS_ALL"
)


# The ring buffer that eBPF programs write records into, read through its memory mappings.
#
# libbpf's own reader calls back for each record, and to give C a Python function takes writable and
# executable memory, which a hardened unit (MemoryDenyWriteExecute) is refused. Sources:
# kernel/bpf/ringbuf.c, Documentation/bpf/ringbuf.rst, libbpf's ringbuf.c.


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


class Loaded(Protocol):
    """Programs in the kernel, with their maps."""

    def map(self, name: str) -> BpfMap:
        """Return one of the maps."""

    def attach(self) -> None:
        """Attach what hooks something."""

    def close(self) -> None:
        """Detach and let go."""


class Probe(Generic[_Record]):
    """Loaded programs, attached, with their ring buffer. `fd` is readable while there are records.

    A subclass says in `record` which ones it takes. `made_by` says who made the programs, and at what cost,
    where that is not libbpf; `hooks` how they are called where that is not by trampolines.
    """

    record: type[_Record]
    made_by = ""
    hooks = ""

    def __init__(self, loaded: Loaded) -> None:
        with ExitStack() as owned:
            owned.callback(loaded.close)
            self._events = loaded.map("events")
            self._lost = loaded.map("lost")
            self._ring = RingBuffer(self._events.fd, self._events.max_entries)
            owned.callback(self._ring.close)
            self._ring.take()  # earlier records are not for this probe
            loaded.attach()
            self._owned = owned.pop_all()
        self.fd = self._ring.fd

    def take(self) -> list[_Record]:
        """Return the records that have come since, without waiting."""
        records = map(parse_record, self._ring.take())
        return [one for one in records if isinstance(one, self.record)]

    def lost(self) -> int:
        """Return how many records have found the ring buffer full so far."""
        raw = self._lost.get(ONLY, _COUNT.size)
        return 0 if raw is None else int(_COUNT.unpack(raw)[0])

    def close(self) -> None:
        """Detach and unload; a second time is harmless."""
        self.fd = -1
        self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class WatchProbe(Probe[WatchRecord], ABC):
    """Watches on cgroups' counters, kept in the map `cgroups` by the counter's address."""

    record = WatchRecord

    def __init__(self, loaded: Loaded, cgroups: str) -> None:
        super().__init__(loaded)
        self._cgroups = loaded.map(cgroups)

    @abstractmethod
    def counters(self, directory: Path) -> CounterAddresses:
        """Return where the kernel keeps a cgroup's counters. Raises OSError where the cgroup is gone."""

    def watch(self, address: int, watch_id: int, levels: Sequence[Level]) -> None:
        """Watch the counter at these levels and no others. Raises OSError: E2BIG with 4,096 watches.

        The caller has to check afterwards that the cgroup still exists: a watch that is made after its
        removal stays, on memory that may become another counter.
        """
        self._cgroups.put(KEY.pack(address), pack_watch(watch_id, levels))

    def unwatch(self, address: int) -> bool:
        """Remove a watch; return whether there was one."""
        return self._cgroups.delete(KEY.pack(address))


def counters_of(loaded: BpfObject, directory: Path) -> CounterAddresses:
    """Return where the kernel keeps a cgroup's counters. Raises OSError where the cgroup is gone."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = parse_counters(loaded.iterate("cgroup_counters", fd))
    finally:
        os.close(fd)
    if not found:
        raise FileNotFoundError(2, os.strerror(2), str(directory))
    return found[0]


def file_name(name: str, *, kprobes: bool) -> str:
    """Return the object with the same bodies that is called by trampolines, or by kprobes."""
    return f"{name}_kprobe" if kprobes else name


class _CoreProbe(WatchProbe):
    """One of the objects that libbpf loads."""

    def __init__(self, name: str, cgroups: str, *, kprobes: bool, directory: Path, library: str) -> None:
        self.hooks = _KPROBES if kprobes else ""
        self._object = BpfObject(file_name(name, kprobes=kprobes), directory=directory, library=library)
        super().__init__(self._object, cgroups)

    def counters(self, directory: Path) -> CounterAddresses:
        return counters_of(self._object, directory)


class MemoryProbe(_CoreProbe):
    """Memory watches on any number of cgroups and, after `prepare_node`, on the node; in pages."""

    def __init__(self, *, kprobes: bool = False, directory: Path = OBJECTS, library: str = LIBRARY) -> None:
        super().__init__("memory", "memory_watches", kprobes=kprobes, directory=directory, library=library)
        self._directory = directory
        self._library = library
        self._node: BpfMap | None = None
        self._counting: BpfMap | None = None

    def watch_node(
        self, watch_id: int, levels: Sequence[Level], counting: NodeCounting | None = None
    ) -> None:
        """Watch what is used of the node at these levels and no others.

        That is the working set (anonymous + file - inactive file), or with `counting`, for which the node has
        to be prepared, what MemAvailable leaves.
        """
        if self._node is None:
            raise ValueError("watch_node before prepare_node")
        if self._counting is not None:
            self._counting.put(ONLY, pack_node_counting(counting))
        self._node.put(ONLY, pack_watch(watch_id, levels, of_node=True))

    def prepare_node(self, *, mem_available: bool = False) -> None:
        """Load what watches the node. Raises BpfError; the watches on cgroups are none the worse for it."""
        if self._node is not None:
            return
        shared = {"events": self._events, "lost": self._lost}
        name = file_name("node_available" if mem_available else "node", kprobes=bool(self.hooks))
        with ExitStack() as owned:
            node = BpfObject(name, shared=shared, directory=self._directory, library=self._library)
            owned.callback(node.close)
            used_pages, timer = _NODE_START.unpack(node.run("node_start", _NODE_START.size))
            # What MemAvailable leaves is none before it is said of how much.
            if used_pages < 0 or (used_pages == 0 and not mem_available):
                raise BpfError(f"eBPF object {name}", NEEDS_SYSLOG)
            if timer != 0:
                raise BpfError(f"eBPF object {name}", f"its timer does not start: {os.strerror(-timer)}")
            node.attach()
            self._owned.push(owned.pop_all())
        self._node = node.map("node_memory")
        self._counting = node.map("node_counting") if mem_available else None


class TasksProbe(_CoreProbe):
    """Process-count watches on any number of cgroups and on the node; threads count."""

    def __init__(self, *, kprobes: bool = False, directory: Path = OBJECTS, library: str = LIBRARY) -> None:
        super().__init__("processes", "task_watches", kprobes=kprobes, directory=directory, library=library)
        self._node = self._object.map("node_tasks")

    def watch_node(self, watch_id: int, levels: Sequence[Level]) -> None:
        """Watch the number of threads on the node. Raises BpfError where the kernel hides it."""
        if _TASKS_START.unpack(self._object.run("tasks_start", _TASKS_START.size))[0] <= 0:
            raise BpfError("eBPF object processes", NEEDS_SYSLOG)
        self._node.put(ONLY, pack_watch(watch_id, levels, of_node=True))


class OomRecords(Probe[OomRecord]):
    """The kernel's OOM kills, one record each."""

    record = OomRecord


class OomProbe(OomRecords):
    """The kernel's OOM kills, by libbpf."""

    def __init__(self, *, kprobes: bool = False, directory: Path = OBJECTS, library: str = LIBRARY) -> None:
        self.hooks = _KPROBES if kprobes else ""
        super().__init__(BpfObject(file_name("oom", kprobes=kprobes), directory=directory, library=library))
