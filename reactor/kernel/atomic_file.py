"""A file that is there as a whole or not at all: for each of its readers, and after a power cut."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write(
    path: Path, text: str, *, mode: int = 0o600, directory_mode: int = 0o700, replace: bool = True
) -> None:
    """Make the file hold this text, and its directory; raise OSError with the path where that can't be done.

    The content is on the disk before the name is, and the name when this returns: after a power cut the file
    is the old one or the new one, never an empty one. Its mode is this, whatever the umask. Not to `replace`
    is to raise FileExistsError where the name is taken, be it since the call.
    """
    path.parent.mkdir(mode=directory_mode, parents=True, exist_ok=True)
    # One fixed name beside it: a crash between the two steps leaves one file behind, not one each time.
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            os.fchmod(fd, mode)
            file.write(text)
            file.flush()
            os.fsync(fd)
        if replace:
            beside.replace(path)
        else:
            os.link(beside, path)
            beside.unlink()
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # not every filesystem can (EINVAL); the content is synced already
            os.fsync(fd)
    finally:
        os.close(fd)
