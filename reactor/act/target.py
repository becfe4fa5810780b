"""What a kill needs of a pod: its processes listed, pidfds of them, v2's cgroup.kill opened.

Found out at the kill itself it takes 0.3 ms of the way from a wake to a kill, so it is got ready for whoever
is likely to be next. What is ready names processes and cgroups, never a decision: at the kill the cgroup is
listed anew, and a pidfd of a process that is not in it any more is passed over.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import Final, Self

from reactor.act.processes import HELD, Members, close_all, open_pidfds
from reactor.errors import RefusedError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.model.pods import Pod

_KILL: Final = "cgroup.kill"  # since 5.14


@dataclass(slots=True, kw_only=True)
class Target:
    """A pod's cgroup, and what lists it. `pidfds` (by process id) and `kill_fds` (by directory) are owned."""

    cgroup: str
    spared: tuple[str, ...]
    members: Members
    pidfds: dict[int, int] = field(default_factory=dict)
    kill_fds: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: CgroupTree, pod: Pod) -> Self:
        """Return the pod's target with nothing open. Raises RefusedError where its cgroup is not plain."""
        if pod.cgroup is None:
            raise RefusedError(f"pod {pod.key}: its cgroup is not known")
        members = Members(tree, pod.cgroup, spared=pod.spared_cgroups)  # refuses symlinks
        return cls(cgroup=pod.cgroup, spared=pod.spared_cgroups, members=members)

    def is_of(self, pod: Pod) -> bool:
        """Return whether it still is what would be made of the pod."""
        return self.cgroup == pod.cgroup and self.spared == pod.spared_cgroups

    def listed(self, pod: Pod) -> list[int]:
        """Return the processes in it now. Raises RefusedError where one of them must not be ended."""
        pids = self.members()
        for pid in {1, os.getpid()}.intersection(pids):
            raise RefusedError(
                f"pod {pod.key}: {self.cgroup!r} holds process {pid}, {'init' if pid == 1 else 'reactor'}"
            )
        return pids

    def get_ready(self, pod: Pod, tree: CgroupTree) -> None:
        """Open what is not open yet. Raises RefusedError as `listed`, OSError; what is open stays owned."""
        pids = self.listed(pod)
        for gone in self.pidfds.keys() - set(pids):
            os.close(self.pidfds.pop(gone))
        wanted = [pid for pid in pids if pid not in self.pidfds]
        opened, _ = open_pidfds(wanted[: HELD - len(self.pidfds)])
        self.pidfds |= opened
        if tree.version is CgroupVersion.V2:
            subtrees = self.members.subtrees()
            for gone_directory in self.kill_fds.keys() - set(subtrees):
                os.close(self.kill_fds.pop(gone_directory))
            for directory in subtrees:
                if directory not in self.kill_fds:
                    with contextlib.suppress(FileNotFoundError):
                        self.kill_fds[directory] = open_kill(directory)

    def take_pidfds(self) -> dict[int, int]:
        """Return the pidfds, which are the caller's from now on."""
        taken, self.pidfds = self.pidfds, {}
        return taken

    def take_kill_fd(self, directory: str) -> int:
        """Return a descriptor of a subtree's cgroup.kill, the caller's from now on.

        Raises OSError; FileNotFoundError where the kernel has none, or the cgroup is gone.
        """
        fd = self.kill_fds.pop(directory, None)
        return open_kill(directory) if fd is None else fd

    def close(self) -> None:
        """Close what is open; harmless when repeated."""
        close_all(self.take_pidfds().values())
        while self.kill_fds:
            os.close(self.kill_fds.popitem()[1])


def open_kill(directory: str) -> int:
    """Return a descriptor by which everything in the subtree can be killed at once. Raises OSError."""
    return os.open(f"{directory}/{_KILL}", os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
