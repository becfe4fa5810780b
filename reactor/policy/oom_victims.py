"""What the kernel's OOM killer has killed is in flight as an eviction is: no pod is evicted for its memory.

Right after an OOM kill nothing is available yet, although the victim alone may bring back all that is
missing. Where its size is known, what it has not given back yet is credited to the node until it has exited.
If only its pod is known (its cgroup counts a kill), what the pod's largest process holds is credited for as
long as the pod shrinks. If nothing but the kill is known, no pod is evicted while the node's available memory
grows. If the pods' counters of OOM kills rise again meanwhile, nothing is credited to these: what the kernel
kills is taken again at once, and a pod has to be evicted. A process that was killed here, alone of its pod,
is waited for likewise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from reactor.model.decisions import OomVictim, PolicyState
from reactor.model.kills import OomKill, OomScope
from reactor.model.settings import EvictionSettings
from reactor.model.thresholds import Observation

# A victim of which nothing is known is waited for as long as more comes back within this time. A process
# that waits for a CPU, or for its quota's next period, gives back nothing for 100 ms and more.
STILL_SECONDS: Final = 0.25
# One that was killed here has no OOM reaper behind it: where the kernel can't end it (a filesystem that
# hangs), nothing comes back of it.
_STUCK_SECONDS: Final = 1.0
# A fork bomb at the node's limit loses a process every few milliseconds.
_RISING_SECONDS: Final = 1.0
_GROWTH_BYTES: Final = 1 << 20  # what the cgroup of a pod keeps, such as kernel memory, is less


def record_oom_kill(
    settings: EvictionSettings, state: PolicyState, kill: OomKill, uid: str | None, now_seconds: float
) -> PolicyState:
    """Return the state after the kernel has killed; `uid` is the victim's pod.

    A kill at a pod's own limit brings the node nothing that it could not have had before, and every
    tenant can cause one: it is not waited for. Nor is a second kill of which nothing is known while a first
    is waited for: the kernel may go on killing, and that must not put off an eviction for ever.
    """
    if kill.scope is OomScope.OWN_LIMIT:
        return state
    if kill.pid is None and (are_unknown(state.oom_victims) or _has_risen(state, now_seconds)):
        return state  # the counters of the pods show whether it was another kill
    if kill.pid is not None and any(victim.pid == kill.pid for victim in state.oom_victims):
        return state
    victim = OomVictim(
        pid=kill.pid,
        victim_bytes=kill.victim_bytes if kill.pid is not None else None,
        uid=uid,
        grew_at_seconds=now_seconds,
        deadline_seconds=now_seconds + settings.in_flight_deadline_seconds,
    )
    return replace(state, oom_victims=(*state.oom_victims, victim))


def are_unknown(victims: Sequence[OomVictim]) -> bool:
    """Return whether a victim is waited for of which nothing is known, not even the pod."""
    return any(_is_unknown(victim) for victim in victims)


def found_in_pods(
    settings: EvictionSettings,
    state: PolicyState,
    held_bytes: Mapping[str, int],
    being_evicted: Collection[str],
    now_seconds: float,
    largest_bytes: Mapping[str, int] | None = None,
) -> PolicyState:
    """Return the state once the pods are known in which the kernel has killed, with what they hold, by uid.

    They take the place of the victims of which nothing was known. `largest_bytes` is the most that one
    process of each may hold (absent: all that the pod does). What a pod holds that is being evicted is
    credited already.
    If there were kills in pods a moment ago, or one is still waited for, the kernel goes on killing, and no
    such pod is waited for.
    """
    known = tuple(victim for victim in state.oom_victims if not _is_unknown(victim))
    is_rising = _has_risen(state, now_seconds) or any(victim.left_bytes for victim in known)
    state = replace(state, oom_struck_at_seconds=now_seconds)
    if is_rising:
        return replace(state, oom_victims=tuple(victim for victim in known if victim.left_bytes is None))
    passed_over = {victim.uid for victim in known} | set(being_evicted)
    deadline_seconds = min(
        (victim.deadline_seconds for victim in state.oom_victims),
        default=now_seconds + settings.in_flight_deadline_seconds,
    )
    most_bytes = {**held_bytes, **(largest_bytes or {})}
    found = tuple(
        OomVictim(
            pid=None,
            victim_bytes=None,
            uid=uid,
            grew_at_seconds=now_seconds,
            deadline_seconds=deadline_seconds,
            left_bytes=min(pod_bytes, most_bytes[uid]) if pod_bytes >= _GROWTH_BYTES else 0,
            pod_bytes=pod_bytes,
        )
        for uid, pod_bytes in held_bytes.items()
        if uid not in passed_over
    )
    return replace(state, oom_victims=(*known, *found))


def with_held_by_pods(
    state: PolicyState, held_bytes: Mapping[str, int | None], now_seconds: float
) -> PolicyState:
    """Return the state with what the pods of victims hold now, by uid; None: it could not be read.

    What a pod has taken again is no memory that a victim gives back.
    """
    victims = tuple(
        _holding(victim, held_bytes.get(victim.uid or ""), now_seconds) for victim in state.oom_victims
    )
    return replace(state, oom_victims=victims)


def still_dying(
    victims: Sequence[OomVictim], memory: Observation | None, now_seconds: float
) -> tuple[OomVictim, ...]:
    """Return the victims from which memory is still expected, with what is available now noted.

    A pod that has given back all is kept with them, as one that was waited for.
    """
    if not victims:
        return ()
    seen = victims if memory is None else tuple(_seen(victim, memory, now_seconds) for victim in victims)
    awaited = tuple(victim for victim in seen if _is_awaited(victim, now_seconds))
    if not awaited:
        return ()
    spent = tuple(
        replace(victim, left_bytes=0)
        for victim in seen
        if victim.left_bytes is not None and victim not in awaited
    )
    return (*awaited, *spent)


def _has_risen(state: PolicyState, now_seconds: float) -> bool:
    """Return whether the pods' counters of OOM kills have risen a moment ago."""
    at_seconds = state.oom_struck_at_seconds
    return at_seconds is not None and now_seconds - at_seconds < _RISING_SECONDS


def _is_unknown(victim: OomVictim) -> bool:
    return victim.pid is None and victim.left_bytes is None


def _is_awaited(victim: OomVictim, now_seconds: float) -> bool:
    if now_seconds >= victim.deadline_seconds or victim.left_bytes == 0:
        return False
    if victim.pod_key is not None:
        return now_seconds - victim.grew_at_seconds < _STUCK_SECONDS
    return victim.victim_bytes is not None or now_seconds - victim.grew_at_seconds < STILL_SECONDS


def credit_bytes(victim: OomVictim) -> int | None:
    """Return how much memory a victim still has to give back, None where that is not known."""
    if victim.left_bytes is not None:
        return victim.left_bytes
    if victim.victim_bytes is None:
        return None
    came_back = (victim.most_bytes or 0) - (victim.first_bytes or 0)
    return max(0, victim.victim_bytes - came_back)


def _holding(victim: OomVictim, held_bytes: int | None, now_seconds: float) -> OomVictim:
    if victim.left_bytes is None or victim.pod_bytes is None or held_bytes is None:
        return victim
    if held_bytes < _GROWTH_BYTES:
        return replace(victim, left_bytes=0)
    if held_bytes >= victim.pod_bytes - _GROWTH_BYTES:
        return victim
    left_bytes = max(0, victim.left_bytes - (victim.pod_bytes - held_bytes))
    return replace(victim, left_bytes=left_bytes, pod_bytes=held_bytes, grew_at_seconds=now_seconds)


def _seen(victim: OomVictim, memory: Observation, now_seconds: float) -> OomVictim:
    if victim.left_bytes is not None:
        return victim
    first, most = victim.first_bytes, victim.most_bytes
    if first is None or most is None:
        return replace(victim, first_bytes=memory.available, most_bytes=memory.available)
    if memory.available <= most + _GROWTH_BYTES:
        return victim
    return replace(victim, most_bytes=memory.available, grew_at_seconds=now_seconds)
