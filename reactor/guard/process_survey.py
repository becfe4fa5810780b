"""Which processes a pod has, and what score and size each: read a few at a time, beside the loop."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from reactor.errors import ReactorError
from reactor.guard.own_scores import AT_ONCE
from reactor.kernel.cgroup_directory import CgroupDirectory, walk
from reactor.kernel.files import close_descriptor
from reactor.kernel.oom import Birth, open_process, read_birth, read_score
from reactor.kernel.process_memory import read_process_memory
from reactor.kernel.procfs import PROC

_MOST_CGROUPS: Final = 1_024  # of a pod
_PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")


class Seen(NamedTuple):
    """A process as it was found."""

    pid: int
    born: Birth
    score: int

    @property
    def resident_bytes(self) -> int:
        """Return its memory, as the kernel's OOM killer counts it but for swap and page tables."""
        return self.born.resident_pages * _PAGE_BYTES


class Survey:
    """The processes of pods, `most` of them: `processes` are those found, `is_cut` if there are more."""

    def __init__(self, most: int, proc: Path = PROC) -> None:
        self.processes: list[Seen] = []
        self.is_cut = False
        self._most = most
        self._proc = proc

    def steps(self, top: CgroupDirectory, spared: Sequence[str]) -> Iterator[None]:
        """Add those of a pod, by its cgroup's directory, a few at a time.

        Each cgroup is listed once more in the end: what is not in it then may have the id of one that was.
        Raises OSError, ReactorError.
        """
        below = walk(top, lambda _cgroup, _error: None, spared=spared)
        with closing(below):
            for number, one in enumerate(below):
                pids = one.processes()
                if number >= _MOST_CGROUPS or len(self.processes) + len(pids) > self._most:
                    self.is_cut = True
                    return
                here: list[Seen] = []
                for start in range(0, len(pids), AT_ONCE):
                    here += _seen(pids[start : start + AT_ONCE], self._proc)
                    yield
                still = set(one.processes()) if here else set()
                self.processes += [seen for seen in here if seen.pid in still]


def _seen(pids: Sequence[int], proc: Path) -> Iterator[Seen]:
    for pid in pids:
        if pid == os.getpid():
            continue
        process = -1
        try:
            process = open_process(pid, proc)
            born = read_birth(process)
            if not born.resident_pages:
                born = born._replace(resident_pages=_held_by_threads_bytes(pid, proc) // _PAGE_BYTES)
            yield Seen(pid, born, read_score(process))
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
