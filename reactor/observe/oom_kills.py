"""In which pods the kernel's OOM killer has killed, by the counters of their cgroups: for nameless kills.

They are read when the kernel has met a limit that is guarded and names no victim (cgroup v1, and v2 without
eBPF), and with the housekeeping if the machine has killed since: so a pod that has met its own limit before
is not taken for the victim.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupDirectory, walk
from reactor.kernel.files import LastingFile
from reactor.kernel.oom import kills_within, machine_kills
from reactor.kernel.procfs import PROC, read_resident_bytes
from reactor.model.pods import Pod

_MOST_CGROUPS: Final = 512  # in one go: 5 ms
_MOST_OF_A_POD: Final = 64
_MOST_PROCESSES: Final = 64  # 0.5 ms


class PodOomKills:
    """Counts the kills in each pod. Nothing raises: a pod that can't be read counts as not struck."""

    def __init__(self, tree: CgroupTree, *, proc: Path = PROC) -> None:
        self._tree = tree
        self._proc = proc
        self._vmstat = LastingFile(proc / "vmstat")
        self._counted: dict[str, int] = {}
        self._is_whole = False
        self._machine_kills: int | None = None

    def recount(self, pods: Sequence[Pod]) -> None:
        """Take the counters as they stand, if there was any kill on the machine since the last time."""
        try:
            kills = machine_kills(self._vmstat)
        except (OSError, ReactorError):
            return
        if kills != self._machine_kills:
            self._machine_kills = kills
            self._counted, self._is_whole = self._read(pods)

    def struck(self, pods: Sequence[Pod]) -> tuple[str, ...]:
        """Return the uids of the pods in which there were kills since the counters were read last.

        A pod that has come since counts from 0, as its cgroup does.
        """
        now, is_whole = self._read(pods)
        found = tuple(
            uid
            for uid, kills in now.items()
            if kills > self._counted.get(uid, 0 if self._is_whole else kills)
        )
        self._counted, self._is_whole = now, is_whole
        return found

    def most_of_one_process(self, pod: Pod, held_bytes: int) -> int:
        """Return how much one process of a pod may hold, of so much that all do together.

        Either a process that is listed holds it, or one that is exiting: that one is not listed any more, and
        what is left beside the others may all be its own.
        """
        resident: list[int] = []
        is_whole = False
        if pod.cgroup is not None:
            with suppress(OSError, ReactorError), self._tree.open(pod.cgroup) as directory:
                if pod.cgroup_inode is None or directory.inode == pod.cgroup_inode:
                    is_whole = self._add_resident(directory, resident)
        if is_whole:
            return min(held_bytes, max(0, held_bytes - sum(resident), *resident))
        return min(held_bytes, max(resident, default=held_bytes))

    def _add_resident(self, directory: CgroupDirectory, resident: list[int]) -> bool:
        """Add what each of the first processes holds; return whether these were all."""
        with closing(walk(directory, lambda _cgroup, _error: None)) as found:
            for cgroups, one in enumerate(found):
                for pid in one.processes():
                    if cgroups >= _MOST_OF_A_POD or len(resident) >= _MOST_PROCESSES:
                        return False
                    with suppress(OSError, ReactorError):  # gone
                        resident.append(read_resident_bytes(pid, self._proc))
        return True

    def _read(self, pods: Sequence[Pod]) -> tuple[dict[str, int], bool]:
        """Return the kills by uid, and whether all pods were read."""
        counted: dict[str, int] = {}
        left = _MOST_CGROUPS
        for pod in pods:
            if left <= 0:
                return counted, False
            left -= 1
            if pod.cgroup is None:
                continue
            with suppress(OSError, ReactorError), self._tree.open(pod.cgroup) as directory:
                if pod.cgroup_inode is None or directory.inode == pod.cgroup_inode:
                    most = min(left + 1, _MOST_OF_A_POD)
                    counted[pod.uid], read = kills_within(directory, self._tree.version, most)
                    left -= read - 1
        return counted, True
