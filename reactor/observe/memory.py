"""The node's memory and that of all its pods, against what each may use.

Counted as the kubelet's Summary API does, so that thresholds mean the same: available is the capacity less
the working set, and the working set is usage less inactive page cache. The machine's capacity is without the
pools of huge pages, which neither usage nor anybody's ordinary memory can have. With `memoryAvailable:
memAvailable` what MemAvailable leaves of the capacity counts as used (reactor/kernel/mem_available.py).

The root of cgroup v2 has no memory.current. Its usage is anon and file of its memory.stat, for the kubelet
and here, but a pass reads the same counters from /proc/meminfo:

- memory.stat adds up what each CPU has counted for each cgroup (rstat). A reader that finds too little to add
  up, or before 6.8 another reader at it, is given the sums as they were; else it walks every cgroup that has
  changed: a tenant that makes many of them makes it slow.
- /proc/meminfo reads the counters that the eBPF watch on the machine compares with its levels: what woke the
  pass is never newer than what the pass reads.

Both lag behind by what each CPU has not added yet: vmstat by at most 125 pages of each counter
(mm/vmstat.c, calculate_normal_threshold) and a second. On 6.12 with two CPUs, right after 4 MiB were
allocated, meminfo was up to 0.2 MiB behind and memory.stat up to 0.3 MiB ahead or behind; MemFree showed none
of the 4 MiB as used, since they came from the lists of free pages that each CPU keeps. Under emulation
meminfo took 37 us to be read (p99 0.3 ms), memory.stat 45 us (p99 4.3 ms).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from reactor.kernel.cgroup import CgroupTree, CgroupVersion
from reactor.kernel.cgroup_directory import parse_limit
from reactor.kernel.cgroup_memory import MemoryCounters
from reactor.kernel.files import KernelFile, LastingFile, read_file
from reactor.kernel.mem_available import Watermarks, available_bytes_of, counters_of, parse_watermarks
from reactor.kernel.procfs import MemoryInfo, parse_meminfo, parse_memory_in_use, parse_swap
from reactor.model.settings import MemoryAvailable, Settings
from reactor.model.thresholds import Observation


class MemoryReading(NamedTuple):
    """What a cgroup uses and may use, in bytes; None without a limit.

    `inactive_file_bytes` is how much of the usage counts as available.
    `own_limit_bytes` is set on the cgroup itself, `limit_bytes` is the lowest from there up to the root.
    """

    usage_bytes: int
    inactive_file_bytes: int
    own_limit_bytes: int | None
    limit_bytes: int | None


class CgroupMemory:
    """One cgroup's counters and limits, held open; opened again where the cgroup was removed and made again.

    memory.stat may lag behind memory.current by 64 pages for each CPU (mm/memcontrol.c,
    memcg_vmstats_needs_flush): page cache that has just come would count as used. Until 6.15 whoever reads a
    cgroup's cpu.stat has all its statistics added up first (kernel/cgroup/rstat.c); later kernels lag.

    Reading raises OSError (with the path; ENOENT where the cgroup doesn't exist now), KernelInterfaceError
    for content that makes no sense, RefusedError for a path that is not plain.
    """

    def __init__(self, tree: CgroupTree, cgroup: str) -> None:
        self._tree = tree
        self._watermarks: Watermarks | None = None
        self.cgroup = cgroup
        self._counters: MemoryCounters | None = None
        self._adds_up: tuple[LastingFile, ...] = ()
        self._limits: tuple[LastingFile, ...] = ()

    def read(self) -> MemoryReading:
        """Return the present reading."""
        try:
            return self._read(self._counters or self._open())
        except OSError as error:
            self.close()
            if error.errno != errno.ENODEV:
                raise
        return self._read(self._open())

    def count_by(self, watermarks: Watermarks) -> None:
        """Count as MemAvailable does, by these watermarks; of the root only the usage is wanted."""
        self.close()
        self._watermarks = None if self.cgroup == "/" else watermarks

    def close(self) -> None:
        """Close the descriptors; the next reading opens them again."""
        for file in (*self._limits, *self._adds_up):
            file.close()
        if self._counters is not None:
            self._counters.close()
            self._counters = None

    def _read(self, counters: MemoryCounters) -> MemoryReading:
        limits = [parse_limit(limit.read(), limit.path) for limit in self._limits]
        usage_bytes = counters.usage_bytes()
        for file in self._adds_up:
            file.read()
        return MemoryReading(
            usage_bytes=usage_bytes,
            inactive_file_bytes=counters.available_cache_bytes(),
            own_limit_bytes=limits[0] if limits else None,
            limit_bytes=min((limit for limit in limits if limit is not None), default=None),
        )

    def _open(self) -> MemoryCounters:
        counters = self._counters = counters_of(self._tree, self.cgroup, self._watermarks)
        if self._tree.version is CgroupVersion.V2 and self.cgroup != "/":
            self._adds_up = (LastingFile(self._tree.path(self.cgroup) / "cpu.stat"),)
        self._limits = tuple(self._limit_files())
        return counters

    def _limit_files(self) -> Iterator[LastingFile]:
        """Yield the limit file of the cgroup and of each above it; the root of v2 has none."""
        name = "memory.max" if self._tree.version is CgroupVersion.V2 else "memory.limit_in_bytes"
        cgroup = self.cgroup
        while cgroup != "/":
            yield LastingFile(self._tree.path(cgroup) / name)
            cgroup = os.path.dirname(cgroup)


class MemoryUse(NamedTuple):
    """What is used of a capacity, in bytes; `machine_bytes` is the most that anything can use.

    `inactive_file_bytes` is how much of the usage counts as available, where `is_mem_available` as
    MemAvailable counts.
    """

    usage_bytes: int
    inactive_file_bytes: int
    capacity_bytes: int
    machine_bytes: int
    is_mem_available: bool = False

    def observation(self) -> Observation:
        """Return it as a signal shows it.

        A cgroup may stand above its limit for a moment, or for long where the limit was lowered: nothing is
        available then. More than the machine has is no usage but nonsense, and stays visible as such.
        """
        working_set_bytes = max(0, self.usage_bytes - self.inactive_file_bytes)
        available = self.capacity_bytes - working_set_bytes
        if self.usage_bytes <= self.machine_bytes:
            available = max(0, available)
        return Observation(
            available=available,
            capacity=self.capacity_bytes,
            inactive_file_bytes=self.usage_bytes - working_set_bytes,
            is_mem_available=self.is_mem_available,
        )


class NodeMemory:
    """Reads memory through descriptors that it holds open.

    Each reading raises OSError with the path, KernelInterfaceError, or RefusedError for a cgroup in the
    settings that is not plain.
    """

    def __init__(self, tree: CgroupTree, settings: Settings, proc: Path) -> None:
        self._tree = tree
        self._node_cgroup = settings.node_cgroup
        self._reserved_bytes = settings.reserved_memory_bytes
        self._proc = proc
        self._meminfo = KernelFile(proc / "meminfo")
        self._machine_bytes = 0
        self._capacity_bytes = 0
        self._counts_available = settings.memory_available is MemoryAvailable.MEM_AVAILABLE
        self.watermarks: Watermarks | None = None
        self.has_swap = False
        self._reading: MemoryReading | None = None
        self._node = CgroupMemory(tree, settings.node_cgroup or "/")
        self._parents = tuple(CgroupMemory(tree, parent) for parent in settings.measured_parents)

    def node(self) -> MemoryUse:
        """Return what is used of the node: the machine, or the cgroup that stands for it."""
        if self._node_cgroup is None and self._tree.version is CgroupVersion.V2:
            return self._v2_root()
        if self._node_cgroup is None and self._counts_available:
            return self._v1_root_by_mem_available()
        if not self._machine_bytes:
            self.refresh_machine()
        found = self._reading = self._node.read()
        return MemoryUse(
            usage_bytes=found.usage_bytes,
            inactive_file_bytes=found.inactive_file_bytes,
            capacity_bytes=self._capacity_bytes
            if found.limit_bytes is None
            else min(self._capacity_bytes, found.limit_bytes),
            machine_bytes=self._machine_bytes,
            is_mem_available=self._counts_available,
        )

    def refresh_machine(self) -> None:
        """Read again how much memory the machine has, and whether it has swap.

        A node with a counter of its own needs nothing else of /proc/meminfo, which the kernel adds up again
        for each reader (30 us of a pass), and this changes only where memory is plugged in or taken for huge
        pages. What a virtual node may use is its limit, huge pages or not.

        Where memory counts as MemAvailable the watermarks are read again too; counters that go by others are
        opened again.
        """
        raw = self._meminfo.read()
        machine = parse_meminfo(raw, self._meminfo.path)
        self.has_swap = parse_swap(raw, self._meminfo.path)[0] > 0
        if self._counts_available:
            path = self._proc / "zoneinfo"
            watermarks = parse_watermarks(read_file(path), str(path))
            if watermarks != self.watermarks:
                self.watermarks = watermarks
                for held in (self._node, *self._parents):
                    held.count_by(watermarks)
        self._machine_bytes = machine.total_bytes
        self._capacity_bytes = machine.capacity_bytes if self._node_cgroup is None else machine.total_bytes

    def pods(self, node: MemoryUse) -> MemoryUse | None:
        """Return what all pods use of what they may, None where the settings name no parent of pods.

        To be called after `node`, whose reading serves again for a parent that is the node itself.

        They may use the sum of their parents' own limits where each has one, else what is not reserved of
        the node. A limit that counts the machine's huge pages in is taken as it is, as the kubelet takes that
        of its pods. A parent that doesn't exist (yet) holds no pod and uses nothing; one of them has to.
        """
        if not self._parents:
            return None
        readings = self._readings()
        own = [None if name == self._node_cgroup else one.own_limit_bytes for name, one in readings.items()]
        known = [limit for limit in own if limit is not None]
        unreserved_bytes = node.capacity_bytes - self._reserved_bytes
        most_bytes = node.machine_bytes if self._node_cgroup is None else node.capacity_bytes
        return MemoryUse(
            usage_bytes=sum(reading.usage_bytes for reading in readings.values()),
            inactive_file_bytes=sum(reading.inactive_file_bytes for reading in readings.values()),
            capacity_bytes=min(sum(known), most_bytes) if len(known) == len(own) else unreserved_bytes,
            machine_bytes=node.machine_bytes,
            is_mem_available=self._counts_available,
        )

    def close(self) -> None:
        """Close every descriptor."""
        self._meminfo.close()
        for held in (self._node, *self._parents):
            held.close()

    def _v2_root(self) -> MemoryUse:
        """Return the machine's memory where the root has no memory.current (libcontainer's statMemory)."""
        raw = self._meminfo.read()
        machine = parse_meminfo(raw, self._meminfo.path)
        used = parse_memory_in_use(raw, self._meminfo.path)
        if self._counts_available:
            if self.watermarks is None:  # the pods' cgroups count by them
                self.refresh_machine()
            return _by_mem_available(machine, used.usage_bytes)
        return MemoryUse(
            usage_bytes=used.usage_bytes,
            inactive_file_bytes=used.inactive_file_bytes,
            capacity_bytes=machine.capacity_bytes,
            machine_bytes=machine.total_bytes,
        )

    def _v1_root_by_mem_available(self) -> MemoryUse:
        if self.watermarks is None:
            self.refresh_machine()
        usage_bytes = self._node.read().usage_bytes
        return _by_mem_available(parse_meminfo(self._meminfo.read(), self._meminfo.path), usage_bytes)

    def _readings(self) -> dict[str, MemoryReading]:
        readings = {}
        missing = ""
        for parent in self._parents:
            try:
                of_node = self._reading if parent.cgroup == self._node_cgroup else None
                readings[parent.cgroup] = of_node or parent.read()
            except FileNotFoundError as error:
                missing = str(error.filename)
        if not readings:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), missing)
        return readings


def _by_mem_available(machine: MemoryInfo, usage_bytes: int) -> MemoryUse:
    """Return the machine's memory with all that MemAvailable leaves of the capacity as used."""
    used_bytes = machine.capacity_bytes - available_bytes_of(machine.available_bytes)
    return MemoryUse(
        usage_bytes=usage_bytes,
        inactive_file_bytes=usage_bytes - used_bytes,
        capacity_bytes=machine.capacity_bytes,
        machine_bytes=machine.total_bytes,
        is_mem_available=True,
    )
