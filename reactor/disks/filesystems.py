"""The node's filesystems: where each lies, how full it is, and which of them are one."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reactor.kernel.filesystem import FilesystemSpace, Mount, layout_of, mount_of, read_mounts, read_space
from reactor.kernel.procfs import PROC
from reactor.model.settings import Settings
from reactor.model.signals import Filesystem, Layout
from reactor.observe.filesystems import filesystem_paths


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look at a path showed. `real_path` is the path without symlinks."""

    space: FilesystemSpace
    real_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Where the filesystems lie. `mounts` lacks one that lies on no known mount; `layout` None: unknown."""

    mounts: Mapping[Filesystem, Mount] = field(default_factory=dict)
    layout: Layout | None = None


class FilesystemObserver:
    """Looks at the filesystems at `paths`; one path may stand for several of them.

    Of the `unplaced` ones it is not known where they lie: they are not looked at.
    """

    def __init__(
        self, settings: Settings, *, unplaced: Collection[Filesystem] = (), proc: Path = PROC
    ) -> None:
        self._proc = proc
        paths = filesystem_paths(settings)
        self.paths: Mapping[Filesystem, str] = {
            filesystem: path for filesystem, path in paths.items() if filesystem not in unplaced
        }

    @staticmethod
    def look(path: str) -> Look:
        """Return what is left of the filesystem at a path. Raises OSError with the path.

        For a worker thread: a dead network filesystem holds the caller for as long as it likes.
        """
        return Look(space=read_space(path), real_path=os.path.realpath(path))

    def survey(self, real_paths: Mapping[Filesystem, str]) -> Survey:
        """Return where the filesystems lie. Raises OSError where the mount table can't be read.

        It reads that table alone, so that it waits for no filesystem.
        """
        mounts = read_mounts(self._proc / "self/mountinfo")
        found = {filesystem: mount_of(path, mounts) for filesystem, path in real_paths.items()}
        return Survey(
            mounts={filesystem: mount for filesystem, mount in found.items() if mount is not None},
            layout=layout_of(real_paths, mounts),
        )
