"""What the kernel's OOM killer has killed is in flight as an eviction is: no pod is evicted for its memory.

Right after an OOM kill nothing is available yet, although the victim alone may bring back all that is
missing. Where its size is known, what it has not given back yet is credited to the node until it has exited.
If only the kill is known (cgroup v1 names no victim), no pod is evicted while the node's available memory
grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from reactor.model.decisions import OomVictim, PolicyState
from reactor.model.oom import OomKill, OomScope
from reactor.model.settings import EvictionSettings
from reactor.model.thresholds import Observation

# A victim of which nothing is known is waited for as long as more comes back within this time. A process
# that waits for a CPU, or for its quota's next period, gives back nothing for 100 ms and more.
STILL_SECONDS: Final = 0.25
_GROWTH_BYTES: Final = 1 << 20


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
    if any(victim.pid == kill.pid for victim in state.oom_victims):
        return state
    victim = OomVictim(
        pid=kill.pid,
        victim_bytes=kill.victim_bytes if kill.pid is not None else None,
        uid=uid,
        grew_at_seconds=now_seconds,
        deadline_seconds=now_seconds + settings.in_flight_deadline_seconds,
    )
    return replace(state, oom_victims=(*state.oom_victims, victim))


def still_dying(
    victims: Sequence[OomVictim], memory: Observation | None, now_seconds: float
) -> tuple[OomVictim, ...]:
    """Return the victims from which memory is still expected, with what is available now noted."""
    if not victims:
        return ()
    seen = victims if memory is None else tuple(_seen(victim, memory, now_seconds) for victim in victims)
    return tuple(
        victim
        for victim in seen
        if now_seconds < victim.deadline_seconds
        and (victim.victim_bytes is not None or now_seconds - victim.grew_at_seconds < STILL_SECONDS)
    )


def credit_bytes(victim: OomVictim) -> int | None:
    """Return how much memory a victim still has to give back, None where that is not known."""
    if victim.victim_bytes is None:
        return None
    came_back = (victim.most_bytes or 0) - (victim.first_bytes or 0)
    return max(0, victim.victim_bytes - came_back)


def _seen(victim: OomVictim, memory: Observation, now_seconds: float) -> OomVictim:
    first, most = victim.first_bytes, victim.most_bytes
    if first is None or most is None:
        return replace(victim, first_bytes=memory.available, most_bytes=memory.available)
    if memory.available <= most + _GROWTH_BYTES:
        return victim
    return replace(victim, most_bytes=memory.available, grew_at_seconds=now_seconds)
