"""One process of a pod instead of the whole pod, where the operator says so: which, and when no longer.

The ranking of pods is as ever. In the pod that it puts first the process that holds the most is killed, of
those that may be. What a tenant writes (names, forks, what it moves where) decides only which of its own
processes that is; and where it comes to nothing, the whole pod is killed as it would have been at once:

    no process of it may be killed alone, or there are too many to choose among
    the largest holds little: files in memory, or many small processes
    three processes of it were killed within a minute, and it holds as much as before
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from reactor.model.kills import ProcessKill, ProcessMemory
from reactor.model.quantity import bytes_text

UNKILLABLE: Final = -1000
_LEAST_PERCENT: Final = 10
_MOST_IN_VAIN: Final = 3
_WINDOW_SECONDS: Final = 60.0
_HELPED_SHARE: Final = 4  # of what was killed: as much has to be gone, or it did not help


def in_order(processes: Iterable[ProcessMemory], *, counts_shared: bool = True) -> list[ProcessMemory]:
    """Return the processes, that whose death frees most first; of equal ones that of the lowest id.

    Each is returned with so much shared memory as it frees, see `_alone`; with none of it if a kill
    for it has brought back nothing (`counts_shared`).
    """
    seen = list(processes)
    mapped_bytes = sum(one.shared_bytes for one in seen)
    found = [_alone(one, mapped_bytes if counts_shared else None) for one in seen] if mapped_bytes else seen
    return sorted(found, key=lambda one: (-one.held_bytes, one.pid))


def _alone(process: ProcessMemory, mapped_bytes: int | None) -> ProcessMemory:
    """Return a process with the shared memory that no other of its pod has mapped, at the least.

    The kernel counts a shared page to each process that has mapped it. It is free only when the last of them
    is dead, and a file in tmpfs not even then. What a process has mapped beyond all that the others have
    mapped together (`mapped_bytes` is the sum, its own included; None: count none) is certainly its alone.
    """
    if not process.shared_bytes:
        return process
    others_bytes = process.shared_bytes if mapped_bytes is None else mapped_bytes - process.shared_bytes
    return replace(process, shared_bytes=max(0, process.shared_bytes - others_bytes))


def counts_shared_memory(
    kills: Sequence[ProcessKill], uid: str, used_bytes: int | None, now_seconds: float
) -> bool:
    """Return whether shared memory counts in the choice among a pod's processes.

    It does not within a minute of a kill after which the pod holds as much as before: then that was no
    process's alone, and who has the most anonymous memory is next.
    """
    recent = [one for one in kills if one.uid == uid and now_seconds - one.at_seconds < _WINDOW_SECONDS]
    return not recent or _has_helped(recent[-1:], used_bytes)


def is_spared(
    process: ProcessMemory, score: int, is_never: Callable[[str], bool], reserved: Collection[int]
) -> bool:
    """Return whether a process is never killed alone: by its oom_score_adj, its name, or as one of ours."""
    return score <= UNKILLABLE or process.pid in reserved or is_never(process.name)


def too_small_because(
    first: ProcessMemory, processes: Iterable[ProcessMemory], used_bytes: int | None
) -> str | None:
    """Return why the kill of a pod's largest process would not be worth it, None where it is.

    `used_bytes` is the pod's working set (None: not observed); what its processes have in swap comes to it.
    """
    seen = list(processes)
    in_memory_bytes = sum(one.resident_bytes for one in seen) if used_bytes is None else used_bytes
    whole_bytes = in_memory_bytes + sum(one.swap_bytes for one in seen)
    if first.held_bytes > 0 and 100 * first.held_bytes >= _LEAST_PERCENT * whole_bytes:
        return None
    return (
        f"its largest process that may be killed alone holds {bytes_text(first.held_bytes)} of "
        f"{bytes_text(whole_bytes)}, less than {_LEAST_PERCENT} %"
    )


def given_up_because(
    kills: Sequence[ProcessKill], uid: str, used_bytes: int | None, now_seconds: float
) -> str | None:
    """Return why no more processes of a pod are killed one by one, None where one may be.

    Each kill that helped makes the pod smaller. One that holds as much as before the last three, less a
    quarter of what those held, has taken it all again, or never lost it.
    """
    recent = [one for one in kills if one.uid == uid and now_seconds - one.at_seconds < _WINDOW_SECONDS]
    if len(recent) < _MOST_IN_VAIN:
        return None
    if _has_helped(recent[-_MOST_IN_VAIN:], used_bytes):
        return None
    return f"{_MOST_IN_VAIN} of its processes were killed within a minute, and it holds as much as before"


def _has_helped(kills: Sequence[ProcessKill], used_bytes: int | None) -> bool:
    """Return whether a pod holds less than before these kills, by a quarter of what they killed."""
    before_bytes = kills[0].used_bytes
    if before_bytes is None or used_bytes is None:
        return False
    killed_bytes = sum(one.held_bytes for one in kills)
    return used_bytes < before_bytes - killed_bytes // _HELPED_SHARE
