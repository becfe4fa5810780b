"""The probes of bpf/bcc, typed as those of `bpf_probes`: for kernels without BTF.

Without BTF there are no iterators: the address of a cgroup's counters is learned by reading one of its
control files while a kprobe is on the function that serves it. And there is no timer: the node is read by the
clock of one CPU.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from reactor.errors import BpfError
from reactor.kernel.bpf.bcc import BccObject, BccPrograms
from reactor.kernel.bpf.libbpf import BpfMap
from reactor.kernel.bpf.probes import KEY, NEEDS_SYSLOG, ONLY, OomRecords, WatchProbe
from reactor.kernel.bpf.records import (
    COUNTERS_RECORD,
    CounterAddresses,
    Level,
    NodeCounting,
    pack_node_counting,
    pack_watch,
    parse_counters,
)
from reactor.kernel.procfs import PROC

MEMORY: Final = BccPrograms(
    name="memory",
    kprobes={
        "memory_try_charge": "page_counter_try_charge",
        "memory_charge": "page_counter_charge",
        "memory_removed": "mem_cgroup_css_offline",
        "memory_asked": "memory_current_read",
    },
    sampled=("node_sample",),
    step="memory_step",
    maps=(
        "events",
        "lost",
        "asked",
        "steps",
        "memory_watches",
        "node_memory",
        "node_counting",
        "node_counters",
    ),
)
TASKS: Final = BccPrograms(
    name="processes",
    kprobes={
        "tasks_fork": "pids_can_fork",
        "tasks_removed": "pids_css_free",
        "tasks_asked": "pids_current_read",
    },
    step="tasks_step",
    maps=("events", "lost", "asked", "steps", "task_watches", "node_tasks", "node_counters"),
)
OOM: Final = BccPrograms(
    name="oom", kprobes={"oom_kill": "oom_kill_process"}, maps=("events", "lost", "asked")
)
Load = Callable[[BccPrograms], BccObject]

_NODE_PERIOD_NS: Final = 10_000_000
_ASK_TIMES: Final = 3  # a kprobe is passed over where it interrupts another eBPF program on its CPU


def compiled(interrupt: Callable[[], None]) -> Load:
    """Return what compiles programs, or opens those of an earlier run; see BccObject for `interrupt`."""
    return partial(BccObject, interrupt=interrupt)


class _BccProbe(WatchProbe):
    """Programs of BCC; `asks` is the control file whose reading reveals a cgroup's counter."""

    def __init__(self, loaded: BccObject, cgroups: str, node: str, asks: str) -> None:
        super().__init__(loaded, cgroups)
        self.made_by = _made_by(loaded)
        self._asked = loaded.map("asked")
        self._asks = asks
        self._node = loaded.map(node)

    def counters(self, directory: Path) -> CounterAddresses:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            key = KEY.pack(os.fstat(fd).st_ino)
            for _ in range(_ASK_TIMES):
                found = self._ask(key, fd)
                if found.memory or found.tasks:
                    return found
        finally:
            os.close(fd)
        raise BpfError(f"kprobe {self._asks}", f"did not see that {directory} was read")

    def _ask(self, key: bytes, directory_fd: int) -> CounterAddresses:
        self._asked.put(key, key + bytes(COUNTERS_RECORD.size - len(key)))
        try:
            try:
                file_fd = os.open(self._asks, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory_fd)
            except FileNotFoundError:
                raise OSError(19, f"the cgroup has no {self._asks}") from None
            try:
                os.read(file_fd, 64)
            finally:
                os.close(file_fd)
            answer = self._asked.get(key, COUNTERS_RECORD.size)
        finally:
            self._asked.delete(key)
        return parse_counters(answer or bytes(COUNTERS_RECORD.size))[0]


class BccMemoryProbe(_BccProbe):
    """Memory watches on any number of cgroups and, after `prepare_node`, on the node; in pages."""

    def __init__(self, load: Load = BccObject) -> None:
        self._loaded = load(MEMORY)
        super().__init__(self._loaded, "memory_watches", "node_memory", "memory.current")
        self._prepared = False

    def prepare_node(self, *, mem_available: bool = False) -> None:
        """Make watches on the node possible. Raises BpfError where its counters are hidden."""
        if self._prepared:
            return
        symbols = ("vm_node_stat", "vm_zone_stat")[: 1 + mem_available]
        _give_addresses(self._loaded.map("node_counters"), *symbols)
        self._loaded.sample("node_sample", _NODE_PERIOD_NS)
        self._prepared = True

    def watch_node(
        self, watch_id: int, levels: Sequence[Level], counting: NodeCounting | None = None
    ) -> None:
        """Watch what is used of the node at these levels and no others; see MemoryProbe.watch_node."""
        if not self._prepared:
            raise ValueError("watch_node before prepare_node")
        self._loaded.map("node_counting").put(ONLY, pack_node_counting(counting))
        self._node.put(ONLY, pack_watch(watch_id, levels, of_node=True))


class BccTasksProbe(_BccProbe):
    """Process-count watches on any number of cgroups and on the node; threads count."""

    def __init__(self, load: Load = BccObject) -> None:
        self._loaded = load(TASKS)
        super().__init__(self._loaded, "task_watches", "node_tasks", "pids.current")

    def watch_node(self, watch_id: int, levels: Sequence[Level]) -> None:
        """Watch the number of threads on the node. Raises BpfError where the kernel hides it."""
        _give_addresses(self._loaded.map("node_counters"), "nr_threads")
        self._node.put(ONLY, pack_watch(watch_id, levels, of_node=True))


class BccOomProbe(OomRecords):
    """The kernel's OOM kills, one record each."""

    def __init__(self, load: Load = BccObject) -> None:
        loaded = load(OOM)
        super().__init__(loaded)
        self.made_by = _made_by(loaded)


def _made_by(loaded: BccObject) -> str:
    return f"by BCC, {loaded.compiled or 'compiled earlier'}"


def _give_addresses(counters: BpfMap, *symbols: str) -> None:
    """Give the programs the addresses of the kernel's own counters. Raises BpfError if it hides them."""
    addresses = symbol_addresses(symbols)
    if not all(addresses.get(symbol) for symbol in symbols):
        raise BpfError("BCC programs on the node", NEEDS_SYSLOG)
    for place, symbol in enumerate(symbols):
        counters.put(place.to_bytes(4, "little"), KEY.pack(addresses[symbol]))


def symbol_addresses(symbols: Sequence[str], path: Path = PROC / "kallsyms") -> dict[str, int]:
    """Return the addresses of these symbols, of those that the kernel lists; 0 where it hides them.

    Reads 10 MB: for a worker thread.
    """
    line = re.compile(rb"^([0-9a-f]+) \w (%s)$" % b"|".join(re.escape(one.encode()) for one in symbols))
    found: dict[str, int] = {}
    with path.open("rb") as file:
        for text in file:
            match = line.match(text)
            if match:
                found[match[2].decode()] = int(match[1], 16)
                if len(found) == len(symbols):
                    break
    return found
