"""Whose the names of cgroups are: root's, or those of who was given a part of the tree.

systemd gives a unit its own subtree (Delegate=), and a user his below user@UID.service. What lies there is
called what its owner likes: `sshd.service` in a user's app.slice is no sshd.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

_SLICE: Final = ".slice"
_UNITS_OF_PROCESSES: Final = (".service", ".scope")
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_MOST_HELD: Final = 512


def names_are_trusted(cgroup: str, directory: str) -> bool:
    """Return whether root chose the names of a cgroup's children. Raises OSError where it is gone.

    Those below a service or a scope are the unit's own, whose processes may be a container's root.
    """
    if any(part.endswith(_UNITS_OF_PROCESSES) for part in cgroup.split("/")):
        return False
    return is_roots(os.stat(directory))


def is_roots(found: os.stat_result) -> bool:
    """Return whether no user but root, or the one that the daemon runs as, writes a file or directory."""
    return found.st_uid in {0, os.geteuid()} and not found.st_mode & _OTHERS_MAY_WRITE


def is_written_by_root(directory: str, files: Iterable[str]) -> bool:
    """Return whether no other user may write these files of a cgroup; those that are missing are left out.

    Raises OSError.
    """
    for file in files:
        with suppress(FileNotFoundError):
            if not is_roots(os.stat(f"{directory}/{file}")):
                return False
    return True


def held_in_slices(cgroup: str, directory: str) -> Iterator[str]:
    """Yield the units in a slice and in the slices below it, as far as root chose their names.

    What is no slice holds none. Of an enormous tree only the beginning is listed, and what can't be listed is
    left out: a slice is root's to fill.
    """
    left = _MOST_HELD
    waiting = [(cgroup, directory)] if cgroup.endswith(_SLICE) else []
    while waiting:
        above, path = waiting.pop()
        with suppress(OSError):
            if not is_roots(os.stat(path)):
                continue
            with os.scandir(path) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            for name in names[:left]:
                left -= 1
                yield f"{above}/{name}"
                if name.endswith(_SLICE):
                    waiting.append((f"{above}/{name}", f"{path}/{name}"))
