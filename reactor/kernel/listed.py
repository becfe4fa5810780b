"""A cgroup's directory as it was listed: its first process, and what says how its pod is to be treated.

A listing of pods compares what each one's files hold with what they held: nothing is parsed of a pod, and no
pod made, that is as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from reactor.errors import KernelInterfaceError
from reactor.kernel.files import parse_integer, read_value
from reactor.kernel.procfs import PROC

_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_VALUE_BYTES: Final = 256
_FIRST_BYTES: Final = 32  # of the list of processes, which may be as long as a tenant likes


def first_process(directory: str) -> int:
    """Return the first process in a cgroup, 0 where there is none or it is of another pid namespace.

    Raises OSError, KernelInterfaceError.
    """
    path = f"{directory}/cgroup.procs"
    raw = read_value(path, _FIRST_BYTES)
    first, end, _ = raw.partition(b"\n")
    if raw and not end:
        raise KernelInterfaceError(path, raw, "process ids, one a line")
    return parse_integer(first, path) if first else 0


def unparsed(
    directory: str, files: Iterable[str], proc: Path = PROC, *, with_name: bool
) -> tuple[bytes, ...] | None:
    """Return what these files of a cgroup hold, its first process, and the score of that and its name.

    None if that does not say all, because the cgroup has attributes, and if it can't be read.
    """
    try:
        if os.listxattr(directory, follow_symlinks=False):
            return None
        held = [_read_if_there(f"{directory}/{file}") for file in files]
        first, _, _ = _read_if_there(f"{directory}/cgroup.procs").partition(b"\n")
        if first.isdigit() and first != b"0":
            own = f"{proc}/{first.decode()}"
            held += (first, _read_if_there(f"{own}/oom_score_adj"))
            if with_name:
                held.append(_read_if_there(f"{own}/comm"))
        return tuple(held)
    except OSError:
        return None


def _read_if_there(path: str) -> bytes:
    try:
        fd = os.open(path, _FLAGS)  # `read_value` takes half as long again, a thousand times a minute
    except FileNotFoundError:
        return b""
    try:
        return os.read(fd, _VALUE_BYTES)
    finally:
        os.close(fd)
