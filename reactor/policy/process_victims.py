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

from reactor.model.amounts import bytes_text
from reactor.model.decisions import Eviction, InFlight, OomVictim, PolicyState, ProcessKill, Snapshot
from reactor.model.pods import Pod
from reactor.model.processes import ProcessMemory
from reactor.model.settings import EvictionSettings
from reactor.model.signals import FREED_TOGETHER, Resource
from reactor.policy.oom_victims import credit_bytes
from reactor.policy.storm import with_process_kill

UNKILLABLE: Final = -1000
_LEAST_PERCENT: Final = 10
_MOST_IN_VAIN: Final = 3
_WINDOW_SECONDS: Final = 60.0
_HELPED_SHARE: Final = 4  # of what was killed: as much has to be gone, or it did not help


def takes_one_process(pod: Pod, resource: Resource) -> bool:
    """Return whether an eviction of the pod for a resource is one of its processes': for memory and swap."""
    return pod.process_victim is not None and resource in FREED_TOGETHER


def evicts_one_process(eviction: Eviction) -> bool:
    """Return whether an eviction is one process's; one by a rule of the operator's is the whole pod's."""
    return eviction.threshold is not None and takes_one_process(eviction.pod, eviction.resource)


def in_order(processes: Iterable[ProcessMemory]) -> list[ProcessMemory]:
    """Return the processes, the one that holds the most first; of equal ones that of the lowest id."""
    return sorted(processes, key=lambda one: (-one.held_bytes, one.pid))


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


def dying_bytes(state: PolicyState, uid: str) -> int:
    """Return what processes that were killed alone of a pod still have to give back: it is not its own."""
    victims = (one for one in state.oom_victims if one.uid == uid and one.pod_key is not None)
    return sum(credit_bytes(victim) or 0 for victim in victims)


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
    judged = recent[-_MOST_IN_VAIN:]
    before_bytes = judged[0].used_bytes
    if before_bytes is not None and used_bytes is not None:
        killed_bytes = sum(one.held_bytes for one in judged)
        if used_bytes < before_bytes - killed_bytes // _HELPED_SHARE:
            return None
    return f"{_MOST_IN_VAIN} of its processes were killed within a minute, and it holds as much as before"


def record_process_eviction(
    settings: EvictionSettings,
    state: PolicyState,
    eviction: Eviction,
    process: ProcessMemory,
    now_seconds: float,
    *,
    snapshot: Snapshot,
    pods: Sequence[Pod],
) -> PolicyState:
    """Return the state after the eviction of one process was ordered; the pod it was in lives on.

    Where it is killed at once, what it held is waited for as that of a victim of the kernel's is. With a
    grace period the pod is in flight until that is over, with what the process holds.
    """
    used = snapshot.pods.get(eviction.pod.uid)
    state = with_process_kill(settings, state, eviction, snapshot, pods, now_seconds, process.resident_bytes)
    kill = ProcessKill(
        uid=eviction.pod.uid,
        at_seconds=now_seconds,
        held_bytes=process.resident_bytes,
        used_bytes=None if used is None else used.memory_working_set_bytes,
    )
    recent = (one for one in state.process_kills if now_seconds - one.at_seconds < _WINDOW_SECONDS)
    ordered = (at for at in state.evicted_at if now_seconds - at < _WINDOW_SECONDS)
    state = replace(state, process_kills=(*recent, kill), evicted_at=(*ordered, now_seconds))
    if eviction.grace_period_seconds <= 0:
        return killed_process(settings, state, eviction.pod, process, now_seconds)
    kill_at_seconds = now_seconds + eviction.grace_period_seconds
    flight = InFlight(
        uid=eviction.pod.uid,
        resource=eviction.resource,
        kill_at_seconds=kill_at_seconds,
        deadline_seconds=kill_at_seconds + settings.in_flight_deadline_seconds,
        process_bytes=process.resident_bytes,
    )
    others = tuple(one for one in state.in_flight if one.uid != flight.uid)
    return replace(state, in_flight=(*others, flight))


def killed_process(
    settings: EvictionSettings, state: PolicyState, pod: Pod, process: ProcessMemory, now_seconds: float
) -> PolicyState:
    """Return the state after a process of a pod was killed: the pod is not in flight, what it held is."""
    victim = OomVictim(
        pid=process.pid,
        victim_bytes=process.resident_bytes,
        uid=pod.uid,
        pod_key=pod.key,
        grew_at_seconds=now_seconds,
        deadline_seconds=now_seconds + settings.in_flight_deadline_seconds,
    )
    victims = tuple(one for one in state.oom_victims if one.pid != process.pid)
    return replace(landed_process(state, pod.uid), oom_victims=(*victims, victim))


def landed_process(state: PolicyState, uid: str) -> PolicyState:
    """Return the state with no process of the pod in its grace period any more."""
    flights = tuple(one for one in state.in_flight if one.uid != uid or one.process_bytes is None)
    return replace(state, in_flight=flights)
