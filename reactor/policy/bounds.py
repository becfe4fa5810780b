"""Which pods' memory a decision needs, while of all others only a bound is known.

To read a pod's working set takes several times as long as to read its charge, which bounds it from above. Of
two pods that are alike the one that holds more ranks first, so a bound is the best place that a pod can have.
Pods are read in the order of these places, until none that is left can come before the first that was read.

Sums over pods are settled at their other end, as if the pods that were not read held nothing. If evictions
would not be slowed down then, they are not: the more the pods hold, the less is outside them.

A working set is no less than the charge without inactive page cache, and all that of the pods lies in their
parents, of which it is known. So what of the parents' charge is in no pod's charge bounds the memory outside.

What no bound settles asks for all pods: a slowdown in force, memory outside that may be reclaimed first, a
victim that does not die, no pod that may be evicted, and whatever is not memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from fractions import Fraction
from itertools import repeat
from typing import Final, NamedTuple

from reactor.model.decisions import Inputs, PolicyState, Snapshot
from reactor.model.kills import SlowReason
from reactor.model.pods import Pod, PodUsage
from reactor.model.settings import EvictionSettings
from reactor.model.signals import MEMORY_SIGNALS, Resource, Signal
from reactor.model.thresholds import Threshold
from reactor.policy.claims import candidates, is_memory_awaited
from reactor.policy.decide import Due, kept_because, observed
from reactor.policy.holds import least_worth_bytes, left_by_ended_bytes, may_be_due
from reactor.policy.kill_results import stuck_victims
from reactor.policy.storm import memory_slowdowns, with_slowdowns
from reactor.policy.thresholds import is_hard_memory

_MOST_FOR_A_SUM: Final = 8
_MOST_OF_THOSE_ALIKE: Final = 4
_NOTHING: Final = PodUsage(memory_working_set_bytes=0)
# A pod's, or the best that one of many alike can have: then the last is their number, not -1.
_Place = tuple[bool, int, bool, int, int, int, int]


class Standing(NamedTuple):
    """What decides a pod's place for memory beside its usage."""

    position: int
    preference: int
    priority: int
    request_bytes: int

    def place(self, amount: int, minimum_bytes: Fraction | int, alike: int = -1) -> _Place:
        """Return the place in the ranking that it has with so much: least first."""
        position, preference, priority, request = self
        is_small, is_within = amount < minimum_bytes, amount <= request
        return is_small, preference, is_within, priority, request - amount, position, alike


class Standings(NamedTuple):
    """How `pods` stand, by uid those that may be evicted. `alike`: the first of them, and the uids of all.

    Of pods that stand alike the one with the most ranks first: their largest bound says where that may be.
    """

    pods: Sequence[Pod]
    listed: Mapping[str, Pod]
    evictable: Mapping[str, Standing]
    alike: Sequence[tuple[Standing, Sequence[str]]]
    could_not_be_ended: Sequence[str]


def standings(pods: Sequence[Pod]) -> Standings:
    """Return how the pods stand. It changes when the pods do."""
    evictable: dict[str, Standing] = {}
    alike: dict[tuple[int, ...], list[str]] = {}
    for index, pod in enumerate(pods):
        if pod.critical_because is None:
            how = (int(pod.preference), pod.priority, pod.requests.get(Resource.MEMORY, 0))
            evictable[pod.uid] = Standing(index, *how)
            alike.setdefault(how, []).append(pod.uid)
    return Standings(
        pods=pods,
        listed={pod.uid: pod for pod in pods},
        evictable=evictable,
        alike=[(evictable[uids[0]], uids) for uids in alike.values()],
        could_not_be_ended=[pod.uid for pod in pods if pod.could_not_be_ended],
    )


class Bounded(NamedTuple):
    """The inputs of a decision, as far as they are known, and how their pods stand.

    Of the snapshot `bounds` are the most that each pod can hold that was not read, `pods` what the others do,
    both by uid. A pod in neither has gone. Whoever reads a pod moves it from the one to the other. `likely`
    are read first. Of those in `charged` the bound is what is charged to the pod, with no swap in it.
    """

    inputs: Inputs
    standings: Standings
    likely: Collection[str] = ()
    charged: AbstractSet[str] = frozenset()


def unsettled(known: Bounded, *, heads: int = 1) -> Iterator[str | Due | None]:
    """Yield the pods (their uids) to be read, and at the end what is due, None if all are to be read.

    The decision is the same by then as if all had been read, but for the places in the ranking after `heads`.
    """
    yield (yield from _until_settled(known, heads))


def _until_settled(known: Bounded, heads: int) -> Generator[str, None, Due | None]:
    """Yield the pods to be read; return what is due, None if all are to be read."""
    bounds = known.inputs.snapshot.bounds
    due = observed(known.inputs)
    inputs, fresh = due.inputs, due.thresholds
    if not any(map(is_hard_memory, inputs.state.first_observed)):  # by these later kills are judged
        yield from bounds.keys() & known.standings.listed.keys() - known.standings.evictable.keys()
    memory = [threshold for threshold in fresh if threshold.signal in MEMORY_SIGNALS]
    if not fresh and not any(map(is_hard_memory, inputs.state.thresholds_met)):
        return due.with_slowdowns()
    known = Bounded(inputs, known.standings, known.likely, known.charged)
    if len(memory) < len(fresh) or _asks_for_all(known, memory):
        return None
    yield from (uid for uid in _asked_by_name(known) if uid in bounds)
    if any(stuck_victims(inputs, one) for one in memory):
        return None
    slowed = yield from _slowdowns(known)
    if slowed is None:
        return None
    inputs = inputs.with_state(slowed)
    for threshold in memory:
        if kept_because(inputs, threshold) is None and not (yield from _first(known, threshold, heads)):
            return None
    return Due(inputs, due.absurd, fresh, due.before)


def _slowdowns(known: Bounded) -> Generator[str, None, PolicyState | None]:
    """Have the largest pods read until they alone are enough; return the state with the slowdowns.

    None if a few are not enough. How many kills there were in a minute is not asked of the pods.
    """
    bounds = known.inputs.snapshot.bounds
    found = _at_least(known)
    uids = bounds.keys() & known.standings.evictable.keys()
    # Which pod is large whose own charge was not read is not known.
    left = uids if found is None and (not known.charged or uids <= known.charged) else ()
    for uid in heapq.nlargest(_MOST_FOR_A_SUM, left, key=bounds.__getitem__):
        yield uid
        found = _at_least(known)
        if found is not None:
            break
    return found


def _asks_for_all(known: Bounded, memory: Sequence[Threshold]) -> bool:
    if any(one.reason is not SlowReason.RATE for one in memory_slowdowns(known.inputs.state)):
        return True
    return any(_may_be_reclaimed(known, one) for one in memory)


def _may_be_reclaimed(known: Bounded, threshold: Threshold) -> bool:
    """Return whether so much may lie outside the pods that it is reclaimed before an eviction."""
    settings, state, snapshot, _, now_seconds = known.inputs
    if not may_be_due(settings, state, now_seconds, now_seconds) or is_memory_awaited(state):
        return False
    bounds, used, seen = snapshot.bounds, snapshot.pods, known.inputs.seen(threshold)
    worth_bytes = least_worth_bytes(threshold, seen)
    if settings.reclaims_ended_only and left_by_ended_bytes(state, bounds, used) < worth_bytes:
        return False
    parents = snapshot.signals.get(Signal.ALLOCATABLE_MEMORY_AVAILABLE, seen)
    if parents.is_mem_available or parents.inactive_file_bytes is None:
        return True
    listed = known.standings.listed
    charged_bytes = sum(map(bounds.__getitem__, known.charged & bounds.keys() & listed.keys()))
    read = (used[uid].memory_working_set_bytes or 0 for uid in used.keys() & listed.keys())
    least_bytes = max(0, charged_bytes - parents.inactive_file_bytes) + sum(read)
    outside_bytes = parents.capacity - parents.available - least_bytes
    return outside_bytes >= worth_bytes


def _asked_by_name(known: Bounded) -> list[str]:
    """Return the pods, by uid, that are asked for whatever they hold: the likely ones first.

    The others are victims, what came after the first kill, and pods that could not be evicted.
    """
    state = known.inputs.state
    found = [*known.likely, *(claim.uid for claim in state.claims if claim.uid is not None)]
    if state.hard_memory_kills:
        found += known.inputs.snapshot.bounds.keys() - known.standings.listed.keys()
        found += known.standings.could_not_be_ended
        if any(kill.bystanders for kill in state.hard_memory_kills):
            first = min(filter(None, (kill.newest_inode for kill in state.hard_memory_kills)), default=0)
            found += [pod.uid for pod in known.standings.pods if (pod.cgroup_inode or 0) > first]
        for kill in state.hard_memory_kills:
            found += [kill.uid, *kill.kept]
    return found


def _surely_held(known: Bounded) -> int:
    """Return what the pods hold together, at the least, that may be evicted and were not read."""
    snapshot = known.inputs.snapshot
    seen = (one for one in snapshot.signals.values() if not one.is_mem_available)
    inactive_bytes = [one.inactive_file_bytes for one in seen if one.inactive_file_bytes is not None]
    uids = known.charged & snapshot.bounds.keys() & known.standings.evictable.keys()
    charged_bytes = sum(map(snapshot.bounds.__getitem__, uids))
    return max(0, charged_bytes - min(inactive_bytes, default=charged_bytes))


def _at_least(known: Bounded) -> PolicyState | None:
    """Return the state with the slowdowns if pods hold no more than is known; None if one is for that."""
    found = if_others_hold(known, _surely_held(known))
    if any(one.reason is not SlowReason.RATE for one in memory_slowdowns(found)):
        return None
    return found


def if_others_hold(known: Bounded, others_bytes: int) -> PolicyState:
    """Return the state with the slowdowns if pods that may be evicted and were not read hold so much in all.

    A pod that was not read, or has gone since it was listed, adds nothing else to a sum: it is left out. One
    that may be evicted stays in, so that there is one if there is, and holds what all of them do.
    """
    settings, state, snapshot, _, now_seconds = known.inputs
    listed, used, bounds = known.standings.listed, dict(snapshot.pods), snapshot.bounds
    uids = dict.fromkeys((*used, *(kill.uid for kill in state.hard_memory_kills)))
    for uid in known.standings.evictable:
        if uid in bounds or not others_bytes:
            uids[uid] = None
            if others_bytes:
                used[uid] = PodUsage(memory_working_set_bytes=others_bytes)
            break
    pods = [listed[uid] for uid in uids if uid in listed]
    for pod in pods:
        used.setdefault(pod.uid, _NOTHING)
    lowest = Snapshot(signals=snapshot.signals, pods=used)
    return with_slowdowns(Inputs(settings, state, lowest, pods, now_seconds))[0].state


def _first(known: Bounded, threshold: Threshold, heads: int) -> Generator[str, None, bool]:
    """Have the pods read that may be the first in the ranking; return whether there is one to evict."""
    inputs, pods = known.inputs, known.standings.pods
    bounds = inputs.snapshot.bounds
    minimum = inputs.settings.minimum_victim
    minimum_bytes: Fraction | int = 0
    if minimum is not None and is_hard_memory(threshold):
        minimum_bytes = minimum.of(threshold.missing(inputs.seen(threshold)))
    evictable, alike = known.standings.evictable, [*known.standings.alike]
    taken: Collection[str] = ()
    if inputs.state.claims:
        taken = evictable.keys() - {pod.uid for pod in candidates(inputs, threshold)}
    places = _places(known, taken, minimum_bytes)
    heapq.heapify(places)
    found = 0
    while places and found < heads:
        *_, position, number = places[0]
        if number >= 0:
            heapq.heappop(places)
            first, uids = alike[number]
            left = [uid for uid in uids if uid in bounds and uid not in taken]
            left.sort(key=bounds.__getitem__, reverse=True)
            for uid in left[:_MOST_OF_THOSE_ALIKE]:
                heapq.heappush(places, evictable[uid].place(bounds[uid], minimum_bytes))
            others = left[_MOST_OF_THOSE_ALIKE:]
            if others:
                heapq.heappush(places, first.place(bounds[others[0]], minimum_bytes, len(alike)))
                alike.append((first, others))
            continue
        uid = pods[position].uid
        if uid not in bounds:
            found += 1
            heapq.heappop(places)
            continue
        yield uid
        amount = _read_bytes(inputs, uid)
        if amount is None:  # it has gone, or can't be read, which makes it the last
            heapq.heappop(places)
        else:
            heapq.heapreplace(places, evictable[uid].place(amount, minimum_bytes))
    return bool(found)


def _places(known: Bounded, taken: Collection[str], minimum_bytes: Fraction | int) -> list[_Place]:
    """Return the places of the pods that were read, and the best that one of the others can have.

    On the way to a kill: no loop over all pods but in C.
    """
    evictable, inputs = known.standings.evictable, known.inputs
    used, bounds = inputs.snapshot.pods, inputs.snapshot.bounds
    places = [
        evictable[uid].place(amount, minimum_bytes)
        for uid in used.keys() & evictable.keys() - taken
        if (amount := _read_bytes(inputs, uid)) is not None
    ]
    for number, (first, uids) in enumerate(known.standings.alike):
        left = [uid for uid in uids if uid not in taken] if taken else uids
        most_bytes = max(map(bounds.get, left, repeat(-1)), default=-1)
        if most_bytes >= 0:
            places.append(first.place(most_bytes, minimum_bytes, number))
    return places


def _read_bytes(inputs: Inputs, uid: str) -> int | None:
    """Return what a pod is ranked by that was read; None if it has gone, or its number can't be read."""
    used = inputs.snapshot.pods.get(uid)
    if used is None or Resource.MEMORY in used.unreadable:
        return None
    swap_bytes = used.swap_bytes if inputs.settings.ranks_swap else None
    return (used.memory_working_set_bytes or 0) + (swap_bytes or 0)


def completed(settings: EvictionSettings, snapshot: Snapshot, read: Mapping[str, PodUsage]) -> Snapshot:
    """Return what a decision was made by, with what was `read` after it of the pods that had a bound alone.

    Each held no more than its bound at the decision, and is taken to: so the ranking of all has the same
    first pod. One that has gone since is known by its bound.
    """
    late = {
        uid: _at_most(used, snapshot.bounds[uid], with_swap=settings.ranks_swap)
        if uid in snapshot.bounds
        else used
        for uid, used in read.items()
    }
    return snapshot._replace(pods={**late, **snapshot.pods})


def _at_most(used: PodUsage, most_bytes: int, *, with_swap: bool) -> PodUsage:
    if used.memory_working_set_bytes is None:
        return used
    swap_bytes = used.swap_bytes
    if with_swap and swap_bytes is not None:
        swap_bytes = min(swap_bytes, most_bytes)
        most_bytes -= swap_bytes
    held_bytes = min(used.memory_working_set_bytes, most_bytes)
    return used._replace(memory_working_set_bytes=held_bytes, swap_bytes=swap_bytes)
