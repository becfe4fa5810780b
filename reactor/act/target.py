"""A pod as the target of a kill: its cgroup's directory by descriptor, pidfds, and v2's cgroup.kill opened.

From the ranking to the end of the kill a target is one directory, identified by its inode: another cgroup
under the same path, such as that of a restarted unit, is another pod and not touched. Opening pidfds and
cgroup.kill takes 0.3 ms, so both are prepared for the pods that are likely to be next. What is prepared names
processes and cgroups, and is never a decision.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Self

from reactor.act.processes import HELD, close_all, open_pidfds
from reactor.errors import ReactorError, RefusedError
from reactor.kernel.cgroup import CgroupTree, Controller, is_said_empty, processes_below
from reactor.kernel.cgroup_directory import CgroupDirectory, CgroupVersion, fail, walk
from reactor.kernel.files import GONE, close_descriptor
from reactor.kernel.procfs import is_exiting
from reactor.model.pods import Pod

_KILL: Final = "cgroup.kill"  # since 5.14
AT_ONCE: Final = 64  # cgroups of a pod that are listed before other tasks have their turn


@dataclass(eq=False, slots=True)
class Target:
    """A pod's cgroup. `directory` is None where it is gone, or another has its path.

    All descriptors are owned. `kill_fds` are by the names of subtrees, the cgroup's own by "".
    """

    cgroup: str
    directory: CgroupDirectory | None
    spared: tuple[str, ...] = ()
    is_ready: bool = False
    pidfds: dict[int, int] = field(default_factory=dict)
    kill_fds: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: CgroupTree, pod: Pod) -> Self:
        """Return the pod's target. Raises RefusedError where its cgroup is not plain, OSError."""
        if pod.cgroup is None:
            raise RefusedError(f"pod {pod.key}: its cgroup is not known")
        try:
            directory = tree.open(pod.cgroup, inode=pod.cgroup_inode)
        except FileNotFoundError:
            return cls(pod.cgroup, None)
        return cls(pod.cgroup, directory, pod.spared_cgroups)

    def is_of(self, pod: Pod) -> bool:
        """Return whether it still is what would be made of the pod."""
        if self.directory is None or self.cgroup != pod.cgroup or self.spared != pod.spared_cgroups:
            return False
        return pod.cgroup_inode is None or self.directory.inode == pod.cgroup_inode

    def exists(self) -> bool:
        """Return whether the cgroup is still there. Raises OSError if that is unknown."""
        return self.directory is not None and self.directory.exists()

    def processes(self) -> list[int]:
        """Return the processes in it now. Raises OSError, see processes_below."""
        return [] if self.directory is None else processes_below(self.directory, self.spared)

    def is_unpopulated(self) -> bool:
        """Return whether v2 says that no process lives in it; not asked of one with processes held ready."""
        return self.directory is not None and not self.pidfds and is_said_empty(self.directory)

    def prepare(self, tree: CgroupTree) -> None:
        """Open what is not open yet, of the cgroups found first. Raises OSError; what is open stays owned."""
        if self.directory is None:
            return
        pids = self._found_first()
        for gone in self.pidfds.keys() - set(pids):
            close_descriptor(self.pidfds.pop(gone))
        wanted = [pid for pid in pids if pid not in self.pidfds]
        self.pidfds |= open_pidfds(wanted[: HELD - len(self.pidfds)]).pidfds
        if tree.version is CgroupVersion.V2:
            self._open_kill_fds(self.directory)
        self.is_ready = True

    def kill_whole(self) -> tuple[int, dict[str, OSError]]:
        """Kill everything through v2's cgroup.kill; return how many subtrees took it, and what refused.

        Nothing is listed before but, where something is spared, what lies directly in the pod's cgroup. A
        kernel without cgroup.kill refuses with FileNotFoundError, a subtree that is gone does not.
        """
        struck = 0
        refused: dict[str, OSError] = {}
        if self.directory is None:
            return struck, refused
        if not self.spared:
            struck += self._kill_subtree(self.directory, "", refused)
            return struck, refused
        for name in tuple(self.kill_fds):
            struck += self._kill_through(self.kill_fds.pop(name), name, refused)
        try:
            names = self.directory.children(self.spared)
        except OSError as error:
            if error.errno not in GONE:
                refused[self.cgroup] = error
            return struck, refused
        for name in names:
            try:
                with self.directory.child(name) as below:
                    struck += self._kill_subtree(below, name, refused)
            except OSError as error:
                if error.errno not in GONE:
                    refused[f"{self.cgroup}/{name}"] = error
        return struck, refused

    def take_killed(self) -> tuple[int, dict[int, int]]:
        """Return how many processes a whole kill is known to have met, and pidfds of some, the caller's.

        Those are the prepared ones, and those that are still listed: a process that is exiting is not listed.
        """
        pidfds = self.take_pidfds()
        listed: list[int] = []
        with contextlib.suppress(OSError, ReactorError):
            listed = self._found_first()
        for left in _not_dying(pidfds, listed):
            close_descriptor(pidfds.pop(left))
        count = len(pidfds.keys() | set(listed))
        missing = [pid for pid in listed if pid not in pidfds]
        with contextlib.suppress(OSError):  # no descriptors left: reap polls instead
            pidfds |= open_pidfds(missing[: HELD - len(pidfds)]).pidfds
        return count, pidfds

    def mirrored(self, tree: CgroupTree, controller: Controller) -> CgroupDirectory | None:
        """Return the same cgroup in a controller's hierarchy, for the caller to close; None without one.

        On v1 that is another directory of the same path. It counts only where the memory hierarchy's is still
        there after it was opened, by that name: then it is not that of a successor, nor of one that has been
        renamed. Raises OSError.
        """
        if self.directory is None:
            return None
        try:
            mirror = tree.open(self.cgroup, controller)
        except (FileNotFoundError, RefusedError):  # not mirrored, or the controller is not mounted
            return None
        try:
            is_same = self.directory.exists() and _has_path(tree, self.cgroup, self.directory.inode)
        except OSError:
            mirror.close()
            raise
        if not is_same:
            mirror.close()
            return None
        return mirror

    def take_pidfds(self) -> dict[int, int]:
        """Return the pidfds, which are the caller's from now on."""
        taken, self.pidfds = self.pidfds, {}
        return taken

    def take_directory(self) -> CgroupDirectory | None:
        """Return the directory, which is the caller's from now on."""
        taken, self.directory = self.directory, None
        return taken

    def close(self) -> None:
        """Close what is open; harmless when repeated."""
        close_all(self.take_pidfds().values())
        close_all(self.kill_fds.values())
        self.kill_fds.clear()
        if self.directory is not None:
            self.directory.close()

    def _found_first(self) -> list[int]:
        """Return the processes of the first few cgroups. Raises OSError where one can't be listed."""
        if self.directory is None:
            return []
        pids: dict[int, None] = {}
        rounds = walk(self.directory, fail, spared=self.spared)
        with closing(rounds) as directories:
            for directory in islice(directories, AT_ONCE):
                pids.update(dict.fromkeys(directory.processes()))
        return list(pids)

    def _open_kill_fds(self, directory: CgroupDirectory) -> None:
        wanted = directory.children(self.spared) if self.spared else [""]
        for gone in self.kill_fds.keys() - set(wanted):
            close_descriptor(self.kill_fds.pop(gone))
        for name in wanted[:AT_ONCE]:
            if name in self.kill_fds:
                continue
            with contextlib.suppress(FileNotFoundError):
                self.kill_fds[name] = directory.open_file(f"{name}/{_KILL}" if name else _KILL, os.O_WRONLY)

    def _kill_subtree(self, directory: CgroupDirectory, name: str, refused: dict[str, OSError]) -> int:
        kill_fd = self.kill_fds.pop(name, None)
        if kill_fd is None:
            try:
                kill_fd = directory.open_file(_KILL, os.O_WRONLY)
            except OSError as error:
                if error.errno not in GONE or directory.exists():
                    refused[directory.cgroup] = error
                return 0
        return self._kill_through(kill_fd, name, refused)

    def _kill_through(self, kill_fd: int, name: str, refused: dict[str, OSError]) -> int:
        try:
            os.write(kill_fd, b"1")
        except OSError as error:
            if error.errno != errno.ENODEV:  # the cgroup is gone; another may have its name
                refused[f"{self.cgroup}/{name}" if name else self.cgroup] = error
            return 0
        finally:
            close_descriptor(kill_fd)
        return 1


def _has_path(tree: CgroupTree, cgroup: str, inode: int) -> bool:
    """Return whether a path is still that cgroup's; on v2 none is renamed. Raises OSError."""
    if tree.version is CgroupVersion.V2:
        return True
    try:
        with tree.open(cgroup) as directory:
            return directory.inode == inode
    except (FileNotFoundError, RefusedError):
        return False


def _not_dying(pidfds: dict[int, int], listed: list[int]) -> list[int]:
    """Return whose cgroup was killed without them: not in it any more, and neither exited nor exiting."""
    unlisted = {fd: pid for pid, fd in pidfds.items() if pid not in set(listed)}
    poller = select.poll()
    for fd in unlisted:
        poller.register(fd, select.POLLIN)
    exited = {fd for fd, _ in poller.poll(0)} if unlisted else set()
    return [pid for fd, pid in unlisted.items() if fd not in exited and not is_exiting(pid)]
