"""Which processes a pod has, and what score and size each: read a few at a time, beside the loop."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from reactor.errors import ReactorError
from reactor.kernel.cgroup_directory import CgroupDirectory, walk
from reactor.kernel.files import close_descriptor
from reactor.kernel.oom_score import open_process, read_birth, read_score
from reactor.kernel.process_memory import read_process_memory
from reactor.kernel.procfs import PROC
from reactor.model.processes import ProcessMemory

AT_ONCE: Final = 8  # processes between two turns of the loop: 0.3 ms
_MOST_CGROUPS: Final = 256
_PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")


class Seen(NamedTuple):
    """A process as it was found: `directory` is the inode of its cgroup."""

    pid: int
    start_ticks: int
    parent: int
    score: int
    directory: int
    resident_bytes: int
    memory: ProcessMemory | None = None


def survey(
    top: CgroupDirectory,
    spared: Sequence[str],
    most: int,
    found: list[Seen],
    proc: Path = PROC,
    *,
    with_memory: bool = False,
) -> Iterator[None]:
    """Add up to `most` processes of a pod, by its cgroup's directory, to `found`; yield after every few.

    Each cgroup is listed once more in the end: what is not in it then may have the id of one that was.
    `with_memory`: what each holds is read, too. Raises OSError, ReactorError.
    """
    below = walk(top, lambda _cgroup, _error: None, spared=spared)
    with closing(below):
        for one in islice(below, _MOST_CGROUPS):
            pids = one.processes()[: most - len(found)]
            inode = one.inode
            here: list[Seen] = []
            for start in range(0, len(pids), AT_ONCE):
                here += _seen(pids[start : start + AT_ONCE], inode, proc, with_memory=with_memory)
                yield
            still = set(one.processes()) if here else set()
            found += [seen for seen in here if seen.pid in still]


def _seen(pids: Sequence[int], directory: int, proc: Path, *, with_memory: bool) -> Iterator[Seen]:
    for pid in pids:
        if pid == os.getpid():
            continue
        process = -1
        try:
            process = open_process(pid, proc)
            born = read_birth(process)
            resident_bytes = born.resident_pages * _PAGE_BYTES or _held_by_threads_bytes(pid, proc)
            score = read_score(process)
            memory = read_process_memory(pid, proc) if with_memory else None
            yield Seen(pid, born.start_ticks, born.parent, score, directory, resident_bytes, memory)
        except (OSError, ReactorError, ValueError):
            continue  # gone
        finally:
            if process >= 0:
                close_descriptor(process)


def _held_by_threads_bytes(pid: int, proc: Path) -> int:
    """Return what a process holds whose main thread may have exited before others; 0: unknown."""
    try:
        memory = read_process_memory(pid, proc)
    except (OSError, ReactorError):
        return 0
    return 0 if memory is None else memory.resident_bytes
