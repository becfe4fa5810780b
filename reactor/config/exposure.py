"""Whether others than root and the running user could have written a file from which commands are run."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

ONLY_OURS: Final = (
    "a file and directory that belong to root or the daemon's user, and no other user may write"
)
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def exposed_because(path: Path, found: os.stat_result) -> str | None:
    """Return how others than root and the running user could change the file, None where they can't.

    `found` is the file's own status, from the descriptor that it was read through. The directory counts as
    well, that of the name and that of the file where the name is a symbolic link. Raises OSError.
    """
    directories = dict.fromkeys((path.absolute().parent, Path(os.path.realpath(path)).parent))
    problems = [_exposure(path, found), *(directory_exposure(one) for one in directories)]
    return next((problem for problem in problems if problem is not None), None)


def directory_exposure(directory: Path) -> str | None:
    """Return how others could change what a directory holds, None where they can't. Raises OSError."""
    # No user writes through a read-only mount: that is how a ConfigMap lies in a container, with mode 0777.
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        return None
    found = directory.stat()
    # In a sticky directory (/tmp) only its owner can replace a file of another user's.
    return _exposure(directory, found, may_write=bool(found.st_mode & stat.S_ISVTX))


def _exposure(path: Path, found: os.stat_result, *, may_write: bool = False) -> str | None:
    if found.st_uid not in {0, os.geteuid()}:
        return f"{path} belongs to uid {found.st_uid}"
    if found.st_mode & _OTHERS_MAY_WRITE and not may_write:
        return f"{path} has mode {stat.S_IMODE(found.st_mode):04o}: others may write it"
    return None
