"""What each pod uses. The path from a wake to a kill leads through here, so it opens and allocates little.

Measured with cgroup v1 on two cores: about 10 us a pod, two thirds of it the kernel's formatting of
memory.stat. That file is not read for a pod that uses nothing.

What the containers of a pod use is wanted for nothing but the message about it, so it is read only of the
pods that are about to be chosen: of 110 pods with two containers each 0.25 ms, of all of them 27 ms.
"""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, suppress
from typing import Final

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.cgroup_memory import MemoryCounters
from reactor.kernel.files import GONE, NO_DESCRIPTORS, KernelFile, parse_integer, room_for
from reactor.kernel.mem_available import AvailableCounters
from reactor.kernel.swap import SwapCounter
from reactor.model.pods import ContainerUsage, Pod, PodUsage
from reactor.model.settings import MemoryAvailable
from reactor.model.signals import Resource

_DETAILED_PODS: Final = 2
_CHARGE_BYTES: Final = 32
_READ_AT_ONCE, _CHARGES_AT_ONCE = 32, 128  # 0.4 ms
_MOST_PARENTS: Final = 8
_LATE_SECONDS: Final = 0.001
# A page that is charged counts for the pod before it counts for its parent; the largest is 2 MiB.
_UNDER_WAY_BYTES: Final = (os.cpu_count() or 1) << 21
_FRESH_SECONDS: Final = 10.0
_COUNTED: Final = frozenset({Resource.MEMORY, Resource.PIDS})


class _PodCounters:
    """One pod's counters, held open. `tasks` is None where no pids controller counts the cgroup.

    `with_swap` is what v1 charges to the pod of memory and swap together, None if that is not counted or not
    wanted; `swap` what of it is in swap, once that was asked for.
    """

    __slots__ = ("memory", "swap", "tasks", "with_swap")

    def __init__(
        self,
        tree: CgroupTree,
        cgroup: str,
        kind: type[MemoryCounters],
        inode: int | None,
        *,
        counts_swap: bool = False,
    ) -> None:
        self.memory = kind(tree, cgroup, inode=inode)
        self.tasks: KernelFile | None = None
        self.with_swap: KernelFile | None = None
        self.swap: SwapCounter | None = None
        if counts_swap and tree.version is CgroupVersion.V1:
            path = tree.spelled(cgroup)
            with suppress(FileNotFoundError), tree.open_for(path, cgroup, inode) as directory:
                self.with_swap = directory.kernel_file("memory.memsw.usage_in_bytes", path)
        if tree.pids_root is not None:
            # v1 may not mirror the cgroup there
            with suppress(FileNotFoundError):
                self.tasks = KernelFile(tree.path(cgroup, "pids") / "pids.current")

    def close(self) -> None:
        self.memory.close()
        self.forget_swap()
        for file in (self.tasks, self.with_swap):
            if file is not None:
                file.close()

    def forget_swap(self) -> None:
        """Close what is in swap, until it is asked for again."""
        swap, self.swap = self.swap, None
        if swap is not None:
            swap.close()

    def charge_fd(self) -> int:
        """Return the descriptor of what bounds all that is known of the pod's memory but for swap on v2."""
        return self.memory.usage_fd() if self.with_swap is None else self.with_swap.fileno()


class PodObserver:
    """Keeps each pod's counters open and reads them afresh with each call.

    A number that can't be read stays what it was for `fresh_seconds`, and is named as unreadable after that;
    why is in `problems`. A pod that has vanished is absent from the answers. `vanished` names those whose
    cgroup turned out to be gone since the last `track`: they are no victims, and absent is not unreadable.
    `unseen` names those that there were no descriptors to read.

    Pods beyond `most_held` (None: what the limit of descriptors allows) are opened for each reading. What
    counts as available of the node counts for no pod: nothing of it comes back when the pod dies.

    What of a pod is in swap is reported as it was at the last `note_swap`, or with `counts_swap` read afresh.
    """

    def __init__(
        self,
        tree: CgroupTree,
        *,
        memory_available: MemoryAvailable = MemoryAvailable.WORKING_SET,
        counts_swap: bool = False,
        most_held: int | None = None,
        fresh_seconds: float = _FRESH_SECONDS,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tree = tree
        counts_available = memory_available is MemoryAvailable.MEM_AVAILABLE
        self._kind = AvailableCounters if counts_available else MemoryCounters
        self._most_held = most_held
        self._counts_swap = counts_swap
        self._swapped: dict[str, int | None] = {}
        self._cgroups: dict[str, str] = {}
        self._inodes: dict[str, int | None] = {}
        self._with_containers: dict[str, Pod] = {}
        self._counters: dict[str, _PodCounters] = {}
        self._charges: dict[str, tuple[int, str]] | None = None  # by uid, in the pods' order; and its parent
        self._parents: tuple[tuple[str, int, tuple[str, ...]], ...] | None = None
        self._parent_files: dict[str, MemoryCounters] = {}
        self._problems: dict[str, str] = {}
        self._vanished: set[str] = set()
        self.unseen: set[str] = set()
        self._without_cgroup: tuple[str, ...] = ()
        self._fresh_seconds = fresh_seconds
        self._clock_seconds = clock_seconds
        self._last: dict[Resource, Mapping[str, PodUsage]] = {Resource.MEMORY: {}, Resource.PIDS: {}}
        self._read_at_seconds = dict.fromkeys(_COUNTED, clock_seconds())
        self._failing_since_seconds: dict[tuple[str, Resource], float] = {}

    @property
    def problems(self) -> Mapping[str, str]:
        """Return why pods that exist could not be read, by cgroup, since the last `track`."""
        return dict(self._problems)

    @property
    def vanished(self) -> frozenset[str]:
        """Return the uids of the pods whose cgroup turned out to be gone since the last `track`."""
        return frozenset(self._vanished)

    def track(self, pods: Sequence[Pod]) -> None:
        """Observe these pods from now on: open what is new, close what is not among them.

        Of a pod without a cgroup nothing can be read. One whose cgroup was recreated is opened again. What
        is read of a pod is of the cgroup with its inode, as its kill is: v1 lets cgroups be renamed.
        """
        wanted = {pod.uid: pod.cgroup for pod in pods if pod.cgroup is not None}
        self._charges = None
        for uid in [uid for uid in self._counters if wanted.get(uid) != self._cgroups[uid]]:
            self._counters.pop(uid).close()
        known = self._swapped.items()
        self._swapped = {uid: swapped for uid, swapped in known if wanted.get(uid) == self._cgroups[uid]}
        self._cgroups = wanted
        self._inodes = {pod.uid: pod.cgroup_inode for pod in pods}
        self._without_cgroup = tuple(pod.uid for pod in pods if pod.cgroup is None)
        self._with_containers = {
            pod.uid: pod for pod in pods if pod.container_cgroups and pod.critical_because is None
        }
        failing = self._failing_since_seconds
        self._failing_since_seconds = {key: since for key, since in failing.items() if key[0] in wanted}
        self._problems.clear()
        self._vanished.clear()
        self.unseen &= wanted.keys()
        missing = [uid for uid in wanted if uid not in self._counters]
        if missing:
            most = room_for(len(wanted)) if self._most_held is None else self._most_held
            for uid in missing[: max(0, most - len(self._counters))]:
                try:
                    self._counters[uid] = self._opened(uid)
                except (OSError, ReactorError) as error:
                    self._note(uid, error)

    def memory(self, between: Callable[[], object] = bool) -> Mapping[str, PodUsage]:
        """Return each pod's working set by uid, and its containers' where it is the first to go.

        `between` is called before each few pods, and ends the reading by what it raises.
        """
        return self._remembered(self._read(self._cgroups, between=between), Resource.MEMORY)

    def full(self) -> Mapping[str, PodUsage]:
        """Return what `memory` does, and the number of tasks (threads count, as they do for the node)."""
        return self._remembered(self._read(self._cgroups, is_full=True), Resource.MEMORY, Resource.PIDS)

    def of(
        self, uids: Iterable[str], *, with_processes: bool = False, with_containers: bool = False
    ) -> Mapping[str, PodUsage]:
        """Return what these pods use; one that is not tracked is absent.

        `with_containers`: what their containers do as well, as `memory` has it.
        """
        found = self._read([uid for uid in uids if uid in self._cgroups], is_full=with_processes)
        if with_containers and self._with_containers:
            return self._detailed(found)
        return found

    def bounds(self, between: Callable[[], object] = bool) -> tuple[dict[str, int], dict[str, PodUsage]]:
        """Return the most that each pod can hold, by uid, and what those use of which that is not known.

        That is what is charged to it: its working set and all of its page cache, and if swap is counted what
        of it is there. It is read in a twelfth of the time that `memory` takes; `between` is as there.
        """
        charges, pread, found = self._charged(), os.pread, dict[str, int]()
        unknown = [uid for uid in self._cgroups if uid not in self._counters]
        for number, (uid, (fd, _)) in enumerate(charges.items()):
            if number % _CHARGES_AT_ONCE == 0:
                between()
            try:
                found[uid] = int(pread(fd, _CHARGE_BYTES, 0))
            except (OSError, ValueError):
                unknown.append(uid)
        used = self._read(unknown) if unknown else {}
        if self._without_cgroup:
            used |= dict.fromkeys(self._without_cgroup, PodUsage(unreadable=_COUNTED))
        if self._counts_swap:
            for uid in found:
                if uid not in self._counters or self._counters[uid].with_swap is None:
                    found[uid] += self._swap_bytes(uid) or 0
        return found, used

    def wide_bounds(
        self, uids: Iterable[str]
    ) -> tuple[dict[str, int], dict[str, PodUsage], AbstractSet[str]] | None:
        """Return what `bounds` does, by reading what is charged to these pods and to the parents of all.

        No other pod holds more than what is charged to its parent and to none of these. What is added to a
        pod's counter and not yet to its parent's is allowed for. The last are the pods whose own charge was
        read. None if it can't be had in this way: many parents, swap that is counted, a reading that failed
        or took long.
        """
        charges, parents, pread = self._charges, self._parents, os.pread
        if charges is None or parents is None or self._vanished or self.unseen or self._counts_swap:
            return None  # the pods have changed, and `bounds` says how; or there are many parents
        began_seconds = self._clock_seconds()
        found, left = dict[str, int](), dict[str, int]()
        try:
            before = [int(pread(fd, _CHARGE_BYTES, 0)) for _, fd, _ in parents]
            for uid in uids:
                if uid in charges and uid not in found:
                    fd, parent = charges[uid]
                    charged = found[uid] = int(pread(fd, _CHARGE_BYTES, 0))
                    left[parent] = left.get(parent, 0) + charged
            after = [int(pread(fd, _CHARGE_BYTES, 0)) for _, fd, _ in parents]
        except (OSError, ValueError):
            self._charges = None  # a parent may have been removed and made again
            while self._parent_files:
                self._parent_files.popitem()[1].close()
            return None
        if self._clock_seconds() - began_seconds > _LATE_SECONDS:
            return None
        bounds: dict[str, int] = {}
        for (parent, _, pods), one, other in zip(parents, before, after, strict=True):
            most_bytes = max(0, max(one, other) - left.get(parent, 0)) + _UNDER_WAY_BYTES
            bounds |= dict.fromkeys(pods, most_bytes)
        unreadable = dict.fromkeys(self._without_cgroup, PodUsage(unreadable=_COUNTED))
        return bounds | found, unreadable, found.keys()

    def _hold_parents(self) -> None:
        """Hold open what is charged to the parents of the pods; none if there are many."""
        below: dict[str, list[str]] = {}
        for uid, cgroup in self._cgroups.items():
            below.setdefault(os.path.dirname(cgroup), []).append(uid)
        for parent in self._parent_files.keys() - below.keys():
            self._parent_files.pop(parent).close()
        self._parents = None
        if len(below) > _MOST_PARENTS or "/" in below:
            return
        try:
            for parent in below.keys() - self._parent_files.keys():
                self._parent_files[parent] = MemoryCounters(self._tree, parent)
        except (OSError, ReactorError):
            return
        files = self._parent_files
        self._parents = tuple((one, files[one].usage_fd(), tuple(pods)) for one, pods in below.items())

    def _charged(self) -> dict[str, tuple[int, str]]:
        """Return the descriptors of what is charged to the pods: those of the counters that are open now."""
        if self._charges is None:
            self._hold_parents()
            self._charges = {
                uid: (self._counters[uid].charge_fd(), os.path.dirname(cgroup))
                for uid, cgroup in self._cgroups.items()
                if uid in self._counters
            }
        return self._charges

    def charged_bytes(self, uids: Iterable[str]) -> Mapping[str, int]:
        """Return what is charged to these pods, page cache included; what can't be read is absent."""
        found = {uid: self._counted(uid, MemoryCounters.usage_bytes) for uid in uids}
        return {uid: charged for uid, charged in found.items() if charged is not None}

    def shared_memory_bytes(self, uid: str) -> int | None:
        """Return how much shared memory and tmpfs is charged to a pod; None where that can't be read."""
        return self._counted(uid, MemoryCounters.shared_bytes)

    def active_file_bytes(self, uid: str) -> int | None:
        """Return how much of a pod's working set is page cache; None where that can't be read."""
        return self._counted(uid, MemoryCounters.active_file_bytes)

    def _counted(self, uid: str, read: Callable[[MemoryCounters], int]) -> int | None:
        held = self._counters.get(uid)
        try:
            if held is not None:
                return read(held.memory)
            with closing(MemoryCounters(self._tree, self._cgroups[uid], inode=self._inodes[uid])) as opened:
                return read(opened)
        except (KeyError, OSError, ReactorError):
            return None

    def note_swap(self, *, has_swap: bool) -> None:
        """Read what of each pod is in swap; where the machine has no swap nothing is read or held open."""
        self._swapped = {uid: self._swap_bytes(uid) for uid in self._cgroups} if has_swap else {}
        for held in () if has_swap else self._counters.values():
            held.forget_swap()

    def _swap_bytes(self, uid: str) -> int | None:
        """Return what of a pod is in swap, None where that is not counted or can't be read."""
        held = self._counters.get(uid)
        with suppress(OSError, ReactorError):  # the cgroup is gone, or its swap is not counted
            if held is not None and held.swap is not None:
                return held.swap.swapped_bytes()
            swap = SwapCounter(self._tree, self._cgroups[uid], inode=self._inodes[uid])
            if held is not None:
                held.swap = swap
                return swap.swapped_bytes()
            with closing(swap):
                return swap.swapped_bytes()
        if held is not None:
            held.forget_swap()
        return None

    def close(self) -> None:
        """Close every descriptor. Harmless when repeated."""
        self.track(())
        self._hold_parents()

    def _read(
        self, uids: Iterable[str], *, is_full: bool = False, between: Callable[[], object] = bool
    ) -> dict[str, PodUsage]:
        usages = {}
        for number, uid in enumerate(uids):
            if number % _READ_AT_ONCE == 0:
                between()
            cgroup = self._cgroups[uid]
            if uid in self._vanished:
                continue
            try:
                held = self._counters.get(uid)
                if held is None:  # no descriptor can be spared: slower, but the pod keeps its place
                    held = self._opened(uid)  # closed with the last reference to it
                usages[uid] = self._full(uid, held, cgroup) if is_full else self._memory(uid, held)
            except (OSError, ReactorError) as error:
                self._note(uid, error)
                if uid not in self._vanished:
                    usages[uid] = self._as_it_was(uid)
            else:
                if self._failing_since_seconds:
                    self._failing_since_seconds.pop((uid, Resource.MEMORY), None)
        return usages

    def _as_it_was(self, uid: str) -> PodUsage:
        """Return what a pod used when it was last read, for as long as that is fresh."""
        known = self._last[Resource.MEMORY].get(uid)
        if known is None or not self._is_fresh(uid, Resource.MEMORY):
            return PodUsage(unreadable=_COUNTED)
        return known._replace(containers=())

    def _is_fresh(self, uid: str, resource: Resource) -> bool:
        """Return whether a number that can't be read now was read a short time ago."""
        since = self._failing_since_seconds.setdefault((uid, resource), self._read_at_seconds[resource])
        return self._clock_seconds() - since <= self._fresh_seconds

    def _remembered(self, usages: dict[str, PodUsage], *read: Resource) -> Mapping[str, PodUsage]:
        """Return all that is to be reported of the pods, and remember it for when a number can't be read."""
        if self._without_cgroup:
            usages |= dict.fromkeys(self._without_cgroup, PodUsage(unreadable=_COUNTED))
        found = self._detailed(usages) if self._with_containers else usages
        now_seconds = self._clock_seconds()
        for resource in read:
            self._last[resource] = found
            self._read_at_seconds[resource] = now_seconds
        return found

    def _detailed(self, usages: dict[str, PodUsage]) -> dict[str, PodUsage]:
        """Add the containers of the pods that the policy would choose first for memory."""

        def place(uid: str) -> tuple[bool, int, int]:
            pod = self._with_containers[uid]
            excess = (usages[uid].memory_working_set_bytes or 0) - pod.requests.get(Resource.MEMORY, 0)
            return excess > 0, -pod.priority, excess

        for uid in heapq.nlargest(_DETAILED_PODS, usages.keys() & self._with_containers.keys(), key=place):
            usages[uid] = usages[uid]._replace(containers=self._containers(self._with_containers[uid]))
        return usages

    def _containers(self, pod: Pod) -> tuple[ContainerUsage, ...]:
        found = []
        for name, cgroup in pod.container_cgroups.items():
            with suppress(OSError, ReactorError), closing(self._kind(self._tree, cgroup)) as opened:
                used_bytes = opened.working_set_bytes()
                found.append(ContainerUsage(name=name, memory_working_set_bytes=used_bytes))
        return tuple(found)

    def _memory(self, uid: str, counters: _PodCounters) -> PodUsage:
        return PodUsage(
            memory_working_set_bytes=counters.memory.working_set_bytes(),
            swap_bytes=self._swap_bytes(uid) if self._counts_swap else self._swapped.get(uid),
        )

    def _full(self, uid: str, counters: _PodCounters, cgroup: str) -> PodUsage:
        used = self._memory(uid, counters)
        try:
            if counters.tasks is None:
                count = len(self._tree.processes(cgroup))
            else:
                count = parse_integer(counters.tasks.read(), counters.tasks.path)
        except (OSError, ReactorError) as error:
            # What is known of the pod's memory must not get lost with it.
            self._problems[cgroup] = str(error)
            known = self._last[Resource.PIDS].get(uid)
            if known is None or known.process_count is None or not self._is_fresh(uid, Resource.PIDS):
                return used._replace(unreadable=frozenset({Resource.PIDS}))
            return used._replace(process_count=known.process_count)
        if self._failing_since_seconds:
            self._failing_since_seconds.pop((uid, Resource.PIDS), None)
        return used._replace(process_count=count)

    def _opened(self, uid: str) -> _PodCounters:
        """Return a pod's counters, with another's descriptors if there are too few. Raises as they do."""
        cgroup, inode = self._cgroups[uid], self._inodes[uid]
        self.unseen.discard(uid)
        while True:
            try:
                return _PodCounters(self._tree, cgroup, self._kind, inode, counts_swap=self._counts_swap)
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS:
                    raise
                if not self._counters:
                    self.unseen.add(uid)
                    raise
            self._charges = None  # a descriptor that is closed may be another's next
            self._counters.popitem()[1].close()

    def _note(self, uid: str, error: Exception) -> None:
        if not isinstance(error, OSError) or error.errno not in GONE:
            self._problems[self._cgroups[uid]] = str(error)
            return
        self._vanished.add(uid)
        self._charges = None  # a descriptor that is closed may be another's next
        if uid in self._counters:
            self._counters.pop(uid).close()
