"""overlayfs: where what a container has written lies. Source: Documentation/filesystems/overlayfs.rst."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from reactor.kernel.files import read_file, unescape_mount
from reactor.kernel.procfs import PROC

_UPPER: Final = b"upperdir="


def parse_upper_directory(raw: bytes) -> str | None:
    """Return the upper directory of the overlay at "/" in a mountinfo, None where no overlay is there.

    The path is as the mounting process saw it. Of several mounts on one point the last hides the others.
    """
    found = None
    for line in raw.split(b"\n"):
        head, _, tail = line.partition(b" - ")
        fields, rest = head.split(b" "), tail.split(b" ")
        if len(fields) < 6 or fields[4] != b"/" or len(rest) < 3:
            continue
        upper = [option for option in rest[2].split(b",") if option.startswith(_UPPER)]
        is_overlay = rest[0] == b"overlay" and len(upper) == 1
        found = os.fsdecode(unescape_mount(upper[0].removeprefix(_UPPER))) if is_overlay else None
    return found


def read_upper_directory(pid: int, proc: Path = PROC) -> str | None:
    """Return where what a process writes to its root lies, None where its root is no overlay.

    Raises OSError with the path where the process is gone.
    """
    return parse_upper_directory(read_file(proc / str(pid) / "mountinfo"))
