"""The mounted hierarchies of control groups, and what a pass asks of them: directories, limits, requests.

cgroup.py has the rest, and the sources.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from reactor.errors import RefusedError
from reactor.kernel.cgroup_directory import CgroupDirectory, CgroupVersion, cgroup_components, parse_limit
from reactor.kernel.files import read_value, with_path

Controller = Literal["memory", "pids", "cpu", "freezer"]
UNLIMITED_BYTES: Final = 9223372036854771712  # what v1 shows where nothing limits
LIMIT_AND_REQUESTS: Final = {
    CgroupVersion.V1: ("memory.limit_in_bytes", "memory.soft_limit_in_bytes"),
    CgroupVersion.V2: ("memory.max", "memory.low", "memory.min"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchies:
    """The mounted hierarchies; None where a controller is not mounted. On v2 all roots are the same."""

    version: CgroupVersion
    memory_root: Path
    pids_root: Path | None = None
    cpu_root: Path | None = None
    freezer_root: Path | None = None

    def path(self, cgroup: str, controller: Controller = "memory") -> Path:
        """Return the directory of a cgroup, which need not exist.

        Raises RefusedError for a path that is not normal ("..", "//", NUL, no leading "/"), that passes
        through a symlink, or whose controller is not mounted: a name from outside must not reach anything
        but the cgroup that it spells.
        """
        return Path(self._directory(cgroup, controller))

    def open(
        self, cgroup: str, controller: Controller = "memory", *, inode: int | None = None
    ) -> CgroupDirectory:
        """Return a cgroup's directory held open, for the caller to close; with `inode` that very one.

        On v1 it may have been renamed since it was listed, and another may have got its name: then it is
        searched beside that by its inode. v2 renames none. Raises RefusedError as `path`, OSError with the
        path: FileNotFoundError where there is none.
        """
        root = self._mounted(cgroup, controller)
        if inode is None:
            return CgroupDirectory.open(root, cgroup)
        try:
            directory = CgroupDirectory.open(root, cgroup)
        except FileNotFoundError:
            if self.version is CgroupVersion.V2:
                raise
        else:
            if directory.inode == inode:
                return directory
            directory.close()
        if self.version is CgroupVersion.V1:
            above, _, _ = cgroup.rpartition("/")
            with CgroupDirectory.open(root, above or "/") as parent:
                renamed = parent.child_of_inode(inode, cgroup)
            if renamed is not None:
                return renamed
        raise FileNotFoundError(errno.ENOENT, "another cgroup has this path", f"{root}{cgroup}")

    def open_for(self, path: str, cgroup: str, inode: int | None) -> CgroupDirectory:
        """Return what `open` does; where there is no such cgroup, the error names `path`, a file of it."""
        try:
            return self.open(cgroup, inode=inode)
        except FileNotFoundError as error:
            raise with_path(error, path) from None

    def listed_memory_request_bytes(self, directory: str) -> int:
        """Return what `memory_request_bytes` does, of a directory that was listed: not checked again."""
        if self.version is CgroupVersion.V1:
            return _memory_limit(directory, self.request_files[0]) or 0
        return first_request(_memory_requests(directory, self.request_files))

    def listed_memory_limit_bytes(self, directory: str) -> int | None:
        return _memory_limit(directory, LIMIT_AND_REQUESTS[self.version][0])

    @property
    def request_files(self) -> tuple[str, ...]:
        return LIMIT_AND_REQUESTS[self.version][1:]

    def _root(self, controller: Controller) -> Path | None:
        return {
            "memory": self.memory_root,
            "pids": self.pids_root,
            "cpu": self.cpu_root,
            "freezer": self.freezer_root,
        }[controller]

    def spelled(self, cgroup: str, controller: Controller = "memory") -> str:
        """Return the path of a cgroup for people, unchecked."""
        return f"{self._mounted(cgroup, controller)}{cgroup.rstrip('/')}"

    def _mounted(self, cgroup: str, controller: Controller) -> str:
        root = self._root(controller)
        if root is None:
            raise RefusedError(f"cgroup {cgroup!r}: the {controller} controller is not mounted")
        return os.fspath(root)

    def _directory(self, cgroup: str, controller: Controller) -> str:
        """Return what `path` does as plain text: pathlib would double the time that listing pods takes."""
        spelled = self._mounted(cgroup, controller)
        for part in cgroup_components(cgroup):
            spelled = f"{spelled}/{part}"
            if os.path.islink(spelled):
                raise RefusedError(f"cgroup {cgroup!r}: leads through a symlink")
        return spelled


def _memory_limit(directory: str, name: str) -> int | None:
    path = f"{directory}/{name}"
    try:
        return parse_limit(read_value(path), path)
    except FileNotFoundError:
        if os.path.isdir(directory):
            return None  # the root has no limits
        raise


def _memory_requests(directory: str, names: Iterable[str]) -> Iterator[int | None]:
    for name in names:
        path = f"{directory}/{name}"
        try:
            yield parse_limit(read_value(path), path)
        except FileNotFoundError:
            continue  # the root has neither


def first_request(requests: Iterable[int | None]) -> int:
    """Return the first of v2's protections that is one; UNLIMITED_BYTES where that is `max`, 0 for none."""
    for request_bytes in requests:
        if request_bytes != 0:
            return UNLIMITED_BYTES if request_bytes is None else request_bytes
    return 0
