"""A cgroup for the guard and one for the steward, where reactor's own is delegated; for cgroup v2 alone.

    reactor.service      delegated by systemd (Delegate=memory pids); its limits hold for both
    ├─ guard             the guard, with what the unit protects (memory.min, memory.low)
    └─ steward           the steward, the walker and commands: the unit's limits less the guard's reserve

So neither a leak nor a command can have the guard wait for memory at the unit's limit, or leave it no task to
start. Without delegation the tree is systemd's, and the steward has its rlimit alone. On cgroup v1 systemd
does not delegate the memory controller. memory.oom.group stays 0: of the steward's processes the walker is
the OOM killer's first, and is restarted alone.

The kernel allows no processes in a cgroup that distributes memory, so the guard moves first. Each step waits
for the kernel (a move takes up to 25 ms), and may be refused: then the rlimit is what holds, and `document`
says why.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from reactor.errors import ReactorError, RefusedError
from reactor.kernel.cgroup import GUARD, STEWARD, CgroupTree, is_delegated, is_service, own_cgroup
from reactor.kernel.cgroup_directory import CgroupVersion, parse_limit, parse_processes
from reactor.kernel.files import read_file, write_file
from reactor.kernel.procfs import PROC
from reactor.model.name_patterns import PodParent
from reactor.processes import STEWARD_DATA_BYTES

_LOG: Final = logging.getLogger("reactor.steward")
# What of the unit's limits is the guard's: twice what it takes, and its threads (threads.MOST_THREADS).
_GUARD_BYTES: Final = 64 << 20
_GUARD_TASKS: Final = 32
_UNLIMITED_BYTES: Final = 256 << 20  # for the steward, where the unit has no limit
_MEMORY: Final = "memory"
_PIDS: Final = "pids"


class OwnCgroups:
    """The cgroups of both processes: `make` makes them, `adopt` has a steward enter, `remove` removes them.

    `make` and `adopt` block, for a worker thread. `parents` are those of pods. `controller` is what is
    distributed.
    """

    def __init__(
        self,
        tree: CgroupTree,
        parents: Sequence[str],
        *,
        proc: Path = PROC,
        controller: str = _MEMORY,
    ) -> None:
        self._tree = tree
        self._parents = tuple(map(PodParent, parents))
        self._proc = proc
        self._controller = controller
        self._is_tried = False
        self._has_moved = False
        self._above: Path | None = None
        self._cgroup: str | None = None
        self._limit_bytes: int | None = None
        self._because: str | None = "no steward has been started"

    def make(self) -> None:
        """Make both, once. Never raises: what is refused is why the rlimit has to do."""
        if self._is_tried:
            return
        self._is_tried = True
        try:
            own = self._own()
            # Whether the guard was started in the right place (DelegateSubgroup=, or by itself).
            is_inside = os.path.basename(own) == GUARD and not is_delegated(self._tree.path(own))
            above = os.path.dirname(own) if is_inside else own
            self._check(own, above)
        except (OSError, ReactorError) as error:
            self._because = str(error)
            return
        self._above = self._tree.path(above)
        try:
            self._divide(self._above, is_inside=is_inside)
        except (OSError, ReactorError) as error:
            self._because = f"{above} can't be divided: {error}"
            _LOG.warning("the steward has no cgroup of its own: %s", self._because)
            self._undo()
        else:
            self._because = None
            self._cgroup = f"{above}/{STEWARD}"

    def adopt(self, pid: int) -> None:
        """Have a steward, and what it starts, live in its cgroup. Never raises: else that is the guard's."""
        if self._above is None:
            return
        try:
            write_file(self._above / STEWARD / "cgroup.procs", str(pid))
        except OSError as error:
            self._because = f"it can't be moved: {error}"
            _LOG.warning("the steward is not in its cgroup: %s", self._because)
        else:
            self._because = None

    def remove(self) -> None:
        """Put things back as they were: systemd starts a unit in the delegated cgroup itself.

        Never raises. What is left, because a process in it does not end, is for systemd to remove.
        """
        self._cgroup = None
        self._undo()

    def document(self) -> dict[str, Any]:
        """Return what bounds the steward's memory, as plain JSON values."""
        if self._cgroup is None or self._because is not None:
            bound = {"limited_by": "rlimit", "limit_bytes": STEWARD_DATA_BYTES, "cgroup": None}
        else:
            bound = {"limited_by": "cgroup", "limit_bytes": self._limit_bytes, "cgroup": self._cgroup}
        return {**bound, "because": self._because}

    def _own(self) -> str:
        """Return the guard's cgroup. Raises RefusedError where it is none that could be divided."""
        if self._tree.version is CgroupVersion.V1:
            raise RefusedError("cgroup v1: memory is not delegated")
        own = own_cgroup(self._tree, self._proc / "self/cgroup")
        # "/": the machine's root, or where a container's namespace begins, which need not be what is mounted.
        if own is None or own == "/":
            raise RefusedError("reactor has no cgroup of its own")
        return own

    def _check(self, own: str, above: str) -> None:
        """Raise RefusedError where the tree is not reactor's to divide, OSError where that is not known."""
        directory = self._tree.path(above)
        if not is_service(above) or not is_delegated(directory):
            raise RefusedError(f"{above} is no service with Delegate=memory pids")
        if any(parent.is_parent(above) for parent in self._parents):
            raise RefusedError(f"{above} is a configured parent of pods")
        # With others in it, it is not ours alone; without us, it is another of that name.
        if parse_processes(read_file(self._tree.path(own) / "cgroup.procs")) != [os.getpid()]:
            raise RefusedError(f"{own} holds other processes than reactor")
        if self._controller not in _words(directory / "cgroup.controllers"):
            raise RefusedError(f"{above} has no {self._controller} controller")

    def _divide(self, above: Path, *, is_inside: bool) -> None:
        for name in (GUARD, STEWARD):
            with suppress(FileExistsError):  # what a killed guard has left
                (above / name).mkdir()
        if not is_inside:
            write_file(above / GUARD / "cgroup.procs", str(os.getpid()))
            self._has_moved = True
        write_file(above / "cgroup.subtree_control", f"+{self._controller}")
        if self._controller == _MEMORY:
            self._limit_memory(above)
        if _PIDS in _words(above / "cgroup.controllers"):
            write_file(above / "cgroup.subtree_control", f"+{_PIDS}")
            if (tasks := _limit(above / "pids.max")) is not None:
                write_file(above / STEWARD / "pids.max", str(max(tasks - _GUARD_TASKS, tasks // 2)))

    def _limit_memory(self, above: Path) -> None:
        limit_bytes = _limit(above / "memory.max")
        if limit_bytes is None:
            self._limit_bytes = _UNLIMITED_BYTES
        else:
            self._limit_bytes = max(limit_bytes - _GUARD_BYTES, limit_bytes // 2)
        write_file(above / STEWARD / "memory.max", str(self._limit_bytes))
        for name in ("memory.min", "memory.low"):  # where no child asks for it, the unit's protects none
            write_file(above / GUARD / name, read_file(above / name).decode().strip())

    def _undo(self) -> None:
        above, self._above = self._above, None
        if above is None:
            return
        for controller in (_PIDS, self._controller):
            with suppress(OSError):
                write_file(above / "cgroup.subtree_control", f"-{controller}")
        if self._has_moved:
            with suppress(OSError):
                write_file(above / "cgroup.procs", str(os.getpid()))
                self._has_moved = False
        for name in (STEWARD, GUARD):
            with suppress(OSError):  # it holds processes, which may be we
                (above / name).rmdir()


def _words(path: Path) -> list[str]:
    return read_file(path).decode().split()


def _limit(path: Path) -> int | None:
    return parse_limit(read_file(path), str(path))
