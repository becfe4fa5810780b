"""The cgroups of reactor and of init: a cgroup that holds one of them is never killed.

A kill through v2's cgroup.kill comes before anything is listed, so a listing of the victim can't show this.
/proc/PID/cgroup shows it in one read, but as seen from our own cgroup namespace: in a container it may be "/"
for a cgroup deep in the tree that is mounted here. So each of the two processes is searched for once in the
tree itself, and /proc only shows whether it has been moved since.
"""

from __future__ import annotations

import os
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reactor.errors import ReactorError, RefusedError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import walk
from reactor.kernel.cgroup_files import parse_own_cgroup
from reactor.kernel.files import KernelFile
from reactor.kernel.procfs import PROC

_INIT: Final = 1


@dataclass(slots=True)
class _Home:
    """A process's cgroup (None: not in this tree), and what /proc said when it was found there."""

    pid: int
    file: KernelFile
    said: bytes
    cgroup: str | None


class Untouchable:
    """Knows the cgroups of reactor and of init in the memory hierarchy, and holds their /proc files open."""

    def __init__(self, tree: CgroupTree, proc: Path = PROC) -> None:
        self._tree = tree
        self._homes: list[_Home] = []
        for pid in dict.fromkeys((os.getpid(), _INIT)):
            with suppress(OSError):  # /proc is not to be read, or not this one
                self._homes.append(_Home(pid, KernelFile(proc / str(pid) / "cgroup"), b"", None))
        self.find()  # now, not at the first kill

    @property
    def pids(self) -> frozenset[int]:
        """Return the processes that are never to be signalled."""
        return frozenset({os.getpid(), _INIT})

    def find(self) -> None:
        """Find both where they are now."""
        self.refuse("/reactor-looks-where-it-is")

    def refuse(self, cgroup: str) -> bool:
        """Raise RefusedError where the cgroup holds reactor or init.

        Returns whether it is certain that it does not: False where it could not be told of reactor.
        """
        is_certain = False
        for home in self._homes:
            try:
                said = home.file.read()
                if said != home.said:
                    home.cgroup = self._found(home.pid, said)
                    home.said = said
            except (OSError, ReactorError):
                continue
            is_certain |= home.pid == os.getpid()
            if home.cgroup is not None and _holds(cgroup, home.cgroup):
                what = "init" if home.pid == _INIT else "reactor"
                raise RefusedError(f"cgroup {cgroup!r} holds process {home.pid}, {what}")
        return is_certain

    def close(self) -> None:
        """Close every descriptor. Harmless when repeated."""
        for home in self._homes:
            home.file.close()
        self._homes.clear()

    def _found(self, pid: int, said: bytes) -> str | None:
        """Return where in this tree a process is, None where nowhere. Raises OSError where not to be told."""
        told = parse_own_cgroup(said, self._tree.version)
        if told is not None and self._lists(told, pid):
            return told
        failed: list[OSError] = []
        with (
            self._tree.open("/") as root,
            closing(walk(root, lambda _, error: failed.append(error))) as directories,
        ):
            for directory in directories:
                if pid in directory.processes():
                    return directory.cgroup
        if failed:
            raise failed[0]
        return None

    def _lists(self, cgroup: str, pid: int) -> bool:
        try:
            with self._tree.open(cgroup) as directory:
                return pid in directory.processes()
        except (OSError, ReactorError):  # "/..": outside what our namespace shows
            return False


def _holds(cgroup: str, home: str) -> bool:
    return home == cgroup or home.startswith(f"{cgroup.rstrip('/')}/")
