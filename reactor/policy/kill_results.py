"""What kills for hard memory thresholds have brought back, by which further ones are slowed down (storm.py).

A pod that is killed gives its memory to the node, or the memory turns up outside the pods: what a leak took,
a tmpfs that outlives its writer, page cache of a cgroup that is gone. Kills did not help where memory outside
has grown since by more than half of their credit, or by all that is missing, and by more than the pods took.
What pods hold that grow or are still dying is theirs: a second hog is killed at once, whatever became of the
first. What a victim leaves charged to its cgroup counts against its own kill, whenever it ends.

A pod that comes under a new name may be the hog again, or one that a controller starts anew while a leak
outside stands still. Then bystanders die for it: pods that were there and have not grown. So of what
these brought back what pods hold that came since is outside, unless other pods have grown by a quarter.

Growth outside the pods' parents before the kill, since memory was last calm, counts too, as far as the pods
have not grown: to make up for it takes several pods, each of which helps. So does growth of pods that are
never evicted: these, and those whose eviction has just failed, are outside, as it was when the kill was made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from reactor.model.decisions import Calm, Eviction, Inputs, PolicyState
from reactor.model.kills import HardMemoryKill, Slowdown, SlowReason
from reactor.model.pods import Pod, PodUsage, working_set_bytes
from reactor.model.quantity import bytes_text
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.rank import memory_of, memory_outside_pods, order_by_request, rank
from reactor.policy.thresholds import is_hard_memory, is_judged
from reactor.text import printable

_RATE_WINDOW_SECONDS = 60.0
_REMEMBERED_PAUSES = 6
# Below this the kernel's batched counters and what the system takes resemble a leak, and one small pod with a
# few files in memory would spare the hog after it. The more pods, the less of it can be noise.
_NOISE_BYTES = 6 << 20
_NOISE_SHARE = 4096  # of the capacity: 16 MiB of 64 GiB
_SEVERAL = 4  # kills in a row, of what most lies outside: it may be so much less
_BYSTANDERS = 2  # in a row, before what came since is the reason: one may be that of a hog that has come
_GROWN_SHARE = 4  # of the threshold, or of what pods hold that came since
_NEED_SHARE = 2  # of the threshold
# A process that waits for a CPU, or for its quota's next period, frees nothing for some 100 ms.
_STUCK_SECONDS = 1.0


class NodeAtThreshold(NamedTuple):
    """What a signal showed at a threshold, and the pods; `dying` are the uids of those killed already."""

    inputs: Inputs
    threshold: Threshold
    seen: Observation
    pods: Sequence[Pod]
    used: Mapping[str, PodUsage]
    dying: frozenset[str]

    @classmethod
    def of(cls, inputs: Inputs, threshold: Threshold) -> NodeAtThreshold:
        """Return what a threshold is decided by; its signal was observed."""
        dying = inputs.state.dying(inputs.now_seconds)
        return cls(inputs, threshold, inputs.seen(threshold), inputs.pods, inputs.snapshot.pods, dying)

    @property
    def pause_seconds(self) -> float:
        return self.inputs.settings.unhelpful_eviction_pause_seconds

    @property
    def wanted_bytes(self) -> int:
        return int(self.threshold.value.of(self.seen.capacity))

    @property
    def noise_bytes(self) -> int:
        return max(_NOISE_BYTES, self.seen.capacity // _NOISE_SHARE)

    def outside_bytes(self) -> int | None:
        """Return the memory outside the pods that evicting can bring back, None where it is not known."""
        pods = (pod for pod in self.pods if not self._is_kept(pod))  # up to the first that was not observed
        return memory_outside_pods(self.seen, pods, self.used, gone=self.dying)

    def uncharged_bytes(self, less_bytes: int = 0) -> int | None:
        """Return what of the memory outside the pods no pod that has ended has left in its cgroup either."""
        outside_bytes = self.outside_bytes()
        if outside_bytes is None:
            return None
        ended = self.used.keys() - {pod.uid for pod in self.pods}
        left_bytes = sum(working_set_bytes(self.used, uid) or 0 for uid in ended)
        return max(0, outside_bytes - left_bytes) - less_bytes

    def outgrown_bytes(self) -> int:
        """Return by how much memory outside the parents, and of pods never evicted, has outgrown the others.

        With page cache or without, whichever is less: one cgroup counts it as inactive sooner than another.
        """
        (before, kept_bytes), now = self.inputs.state.calm, self.inputs.snapshot.signals
        ours = (self.threshold.signal, Signal.ALLOCATABLE_MEMORY_AVAILABLE)
        seen = [at[one] for one in ours for at in (now, before) if one in at]
        if len(seen) < 4:
            return 0
        cached = [one.inactive_file_bytes or 0 for one in seen]
        used = [one.capacity - one.available for one in seen]
        node, pods = used[0] - used[1], used[2] - used[3]
        with_cache = node + cached[0] - cached[1] - (pods + cached[2] - cached[3])
        in_pods, known = max(0, pods), _never_evicted_bytes(self.inputs)
        kept = min(in_pods, known - kept_bytes) if known is not None else 0
        return max(0, min(node - pods, with_cache) + 2 * kept - in_pods)

    def living_bytes(self, kept: Collection[str] | None = None) -> int | None:
        """Return what the pods hold that are not being evicted, None where one was not observed.

        With `kept`, the pods that could not be evicted when a kill was made, these are the pods of that time.
        """
        is_kept = self._is_kept
        living = (pod for pod in self.pods if pod.uid not in self.dying and not is_kept(pod, kept))
        return memory_of(living, self.used)

    def came_bytes(self, since: HardMemoryKill) -> int:
        """Return what pods hold that came after a kill: the kernel numbers cgroups as they are made."""
        came = (pod for pod in self.pods if (pod.cgroup_inode or 0) > since.newest_inode > 0)
        return sum(working_set_bytes(self.used, pod.uid) or 0 for pod in came if pod.uid not in self.dying)

    def kept(self) -> tuple[str, ...]:
        return tuple(pod.uid for pod in self.pods if self._is_kept(pod))

    def moved_outside_bytes(self, kills: Iterable[HardMemoryKill]) -> Callable[[HardMemoryKill], int]:
        """Return by how much less would be outside if the pods were those that could be evicted at a kill.

        A pod whose eviction failed later could be evicted then; one that could not may be evicted now.
        """
        then = {uid for kill in kills for uid in kill.kept}
        moved = [
            pod for pod in self.pods if pod.could_not_be_ended or (pod.uid in then and not self._is_kept(pod))
        ]

        def of(kill: HardMemoryKill) -> int:
            return sum(
                (working_set_bytes(self.used, pod.uid) or 0)
                * (self._is_kept(pod) - self._is_kept(pod, kill.kept))
                for pod in moved
            )

        return of

    def holder(self) -> tuple[Pod, int] | None:
        """Return the pod that holds the most of those that can't be evicted, None where it is little."""
        held = [(working_set_bytes(self.used, pod.uid) or 0, pod) for pod in self.pods if self._is_kept(pod)]
        held_bytes, pod = max(held, key=lambda one: one[0], default=(0, None))
        return None if pod is None or held_bytes < self.wanted_bytes // _GROWN_SHARE else (pod, held_bytes)

    def _is_kept(self, pod: Pod, kept: Collection[str] | None = None) -> bool:
        """Return whether what a pod holds is outside the pods, now or for a kill; see `living_bytes`."""
        is_kept = pod.critical_because is not None
        if kept is not None:
            is_kept = pod.uid in kept or (is_kept and not pod.could_not_be_ended)
        return is_kept and pod.uid not in self.dying


def with_calm(inputs: Inputs) -> Inputs:
    """Return the inputs with what was observed, by which later kills are judged; no hard threshold is met."""
    kept_bytes = _never_evicted_bytes(inputs)
    if kept_bytes is None:
        return inputs
    return inputs.with_state(inputs.state._replace(calm=Calm(inputs.snapshot.signals, kept_bytes)))


def with_kill(
    inputs: Inputs, eviction: Eviction, held_bytes: int | None = None, *, process_bytes: int | None = None
) -> PolicyState:
    """Return the state after a kill, with what it is judged by later; evictions not judged change nothing.

    `inputs` has the state as it was before the eviction was in flight, and else what was decided on. A hog
    grows after that: `held_bytes` is what the pod held at the kill (None: not observed), `process_bytes` what
    the one process did that was killed, if the pod lives on (None: it does not).
    """
    settings, state, snapshot, _, now_seconds = inputs
    threshold = eviction.threshold
    if threshold is None or not is_judged(settings, threshold):
        return state
    known = (process_bytes, held_bytes, working_set_bytes(snapshot.pods, eviction.pod.uid))
    kill = HardMemoryKill(
        uid=eviction.pod.uid,
        signal=threshold.signal,
        at_seconds=now_seconds,
        credited_bytes=next((one for one in known if one is not None), None),
    )
    if threshold.signal in snapshot.signals:
        node = NodeAtThreshold.of(inputs, threshold)
        others = node if process_bytes is not None else node._replace(dying=node.dying | {eviction.pod.uid})
        pods_bytes = others.living_bytes()
        if pods_bytes is not None:
            pods_bytes = max(0, pods_bytes - (process_bytes or 0))
        outside_bytes = node.uncharged_bytes(node.outgrown_bytes())
        kill = kill._replace(outside_bytes=outside_bytes, pods_bytes=pods_bytes, kept=node.kept())
        if process_bytes is None:
            kill = _placed(kill, others, eviction)
    window_seconds = max(_RATE_WINDOW_SECONDS, _REMEMBERED_PAUSES * settings.unhelpful_eviction_pause_seconds)
    recent = [one for one in state.hard_memory_kills if now_seconds - one.at_seconds < window_seconds]
    return state._replace(hard_memory_kills=(*recent, kill))


def _placed(kill: HardMemoryKill, others: NodeAtThreshold, eviction: Eviction) -> HardMemoryKill:
    """Return the kill of a whole pod with its place among the pods.

    Its victim is a bystander if pods that came since took what the kill before brought back, and it was there
    then, and ranks no higher than the next pod did.
    """
    settings, state, shortage = others.inputs.settings, others.inputs.state, eviction.shortage
    left = [pod for pod in others.pods if pod.critical_because is None and pod.uid not in others.dying]
    ranking = rank(left, others.used, kill.signal, settings.layout, with_swap=settings.ranks_swap)
    kill = kill._replace(
        newest_inode=max((pod.cgroup_inode or 0 for pod in others.pods), default=0),
        next_place=tuple(map(int, order_by_request(ranking[0]))) if ranking else (),
    )
    if shortage is not None and state.hard_memory_kills:
        before = state.hard_memory_kills[-1]
        credited_bytes, (*first, last) = before.credited_bytes or 0, order_by_request(shortage.place)
        is_next = before.next_place <= (*first, last + min(others.noise_bytes, credited_bytes) // _SEVERAL)
        was_there = 0 < (eviction.pod.cgroup_inode or 0) <= before.newest_inode
        if was_there and is_next:
            is_undone = 2 * others.came_bytes(before) > credited_bytes
            kill = kill._replace(bystanders=before.bystanders + is_undone)
    return kill


def hopeless(inputs: Inputs, threshold: Threshold) -> frozenset[str]:
    """Return the victims whose memory a hard memory threshold is not to wait for, though they are not dead.

    A process that the kernel can't end (in a filesystem that hangs, frozen from above) keeps what is shared
    or locked for good. That spares the other pods, but for a hog among them: where less than half of the
    threshold is left, and they have grown by a quarter of it since the victim was first killed.
    """
    stuck = stuck_victims(inputs, threshold)
    if not stuck:
        return frozenset()
    node = NodeAtThreshold.of(inputs, threshold)
    first = {kill.uid: kill for kill in reversed(inputs.state.hard_memory_kills)}
    return frozenset(uid for uid in stuck if _pods_have_grown(first[uid], node))


def stuck_victims(inputs: Inputs, threshold: Threshold) -> frozenset[str]:
    """Return the victims that have freed little for long, if so little is left that it matters."""
    state, seen = inputs.state, inputs.seen(threshold)
    wanted_bytes = int(threshold.value.of(seen.capacity))
    if not is_hard_memory(threshold) or seen.available >= wanted_bytes // _NEED_SHARE:
        return frozenset()
    kills = {kill.uid: kill for kill in state.hard_memory_kills}
    return frozenset(
        uid
        for flight in state.in_flight
        if (kill := kills.get(uid := flight.uid or "")) is not None
        and inputs.now_seconds - kill.at_seconds >= _STUCK_SECONDS
        and 4 * (working_set_bytes(inputs.snapshot.pods, uid) or 0) > 3 * (kill.credited_bytes or 0)
    )


def with_left(state: PolicyState, uid: str, left_bytes: int) -> PolicyState:
    """Return the state after a victim has ended, with what stays charged to its cgroup.

    The cgroup may be gone before the next pass that could see it there.
    """
    kills = list(state.hard_memory_kills)
    index = _last_of(kills).get(uid)
    if index is None:
        return state
    kills[index] = kills[index]._replace(left_bytes=left_bytes)
    return state._replace(hard_memory_kills=tuple(kills))


def with_what_is_left(
    kills: tuple[HardMemoryKill, ...], used: Mapping[str, PodUsage], pods: Iterable[Pod]
) -> tuple[HardMemoryKill, ...]:
    """Return the kills with what is charged to their victims' cgroups now.

    Once such a cgroup is gone, what was left in it counts against no later kill and for no other signal.
    """
    listed = {pod.uid for pod in pods}
    found = list(kills)
    for uid, index in _last_of(kills).items():
        kill = found[index]
        if not kill.left_bytes and (uid in listed or uid not in used):  # as nearly all, on the way to a kill
            continue
        held_bytes = 0 if uid in listed else working_set_bytes(used, uid)
        if held_bytes is None and kill.left_bytes:
            for other, one in enumerate(found):
                is_judged_with_it = other <= index and one.signal is kill.signal
                if one.outside_bytes is not None and not is_judged_with_it:
                    found[other] = one._replace(outside_bytes=one.outside_bytes + kill.left_bytes)
        if kill.left_bytes != (held_bytes or 0):
            found[index] = kill._replace(left_bytes=held_bytes or 0)
    return kills if found == list(kills) else tuple(found)


def _last_of(kills: Iterable[HardMemoryKill]) -> dict[str, int]:
    """Return the place of each victim's last kill: a pod that was restarted is killed again."""
    return {kill.uid: index for index, kill in enumerate(kills)}


def slowdown_in_vain(
    node: NodeAtThreshold,
    kills: tuple[HardMemoryKill, ...],
    before: Slowdown | None,
    *,
    is_explained: bool | None,
) -> tuple[Slowdown | None, tuple[HardMemoryKill, ...]]:
    """Return how far kills for a threshold have to be apart because they don't help, and the kills judged.

    `before` is the slowdown that was in force for the signal until now. `is_explained`: the pods that can be
    evicted hold as much as is missing (None: one is unobserved).

    A slowdown stays in the same shortage, though less is missing, if pods have taken nothing since the last
    kill: as files while a tmpfs is unmounted, what others used may come back bit by bit. If all of it is what
    victims have left, it stays while more than noise of that is left, or as much as is missing.
    """
    pause_seconds, now_seconds = node.pause_seconds, node.inputs.now_seconds
    last_seconds = kills[-1].at_seconds if kills else -math.inf
    if is_explained is False:
        is_needless = bool(node.pods) and len(node.kept()) == len(node.pods)  # there is nothing to slow down
    else:
        is_over = before is None and now_seconds >= last_seconds + pause_seconds
        is_needless = bool(is_explained) and (not kills or is_over)
    if pause_seconds <= 0 or is_needless:
        return None, kills
    is_new = is_explained is False and before is not None and before.reason is not SlowReason.OUTSIDE_PODS
    since_seconds = now_seconds if before is None or is_new else before.since_seconds
    if is_explained is False:
        from_seconds = max(since_seconds, last_seconds)
        why = f"{bytes_text(node.outside_bytes() or 0)} are used outside the pods: evicting can't end this"
        return _slowdown(node, SlowReason.OUTSIDE_PODS, why, since_seconds, from_seconds), kills
    in_force = before if before is not None and now_seconds < before.until_seconds else None
    outside_bytes = node.uncharged_bytes() if is_explained else None
    if outside_bytes is None:  # a pod's memory is unobserved
        return in_force, kills
    if _pods_have_grown(kills[-1], node):
        return None, kills
    judged, credited_bytes, lost_bytes, is_left = _unhelpful(kills, node, outside_bytes)
    if not judged:
        left_bytes = sum(kill.left_bytes for kill in kills if kill.is_unhelpful)
        least_bytes = min(node.noise_bytes, node.threshold.missing(node.seen))
        is_gone = before is not None and before.is_left and left_bytes < least_bytes
        is_same = node.inputs.state.first_observed.get(node.threshold, now_seconds) <= last_seconds
        return None if is_gone or not is_same else in_force, kills
    what = "the last eviction" if len(judged) == 1 else f"the last {len(judged)} evictions"
    where = "by pods that came since" if _replaced_bytes(judged, node) else "outside the pods than before"
    why = (
        f"{what} should have freed {bytes_text(credited_bytes)}, but {bytes_text(lost_bytes)} more "
        f"are used {where}: evicting does not help"
    )
    found = _slowdown(node, SlowReason.UNHELPFUL, why, since_seconds, last_seconds)
    found = replace(found, is_left=is_left and (before is None or before.is_left))
    return found, tuple(kill._replace(is_unhelpful=True) if kill in judged else kill for kill in kills)


def _slowdown(
    node: NodeAtThreshold, reason: SlowReason, why: str, since_seconds: float, from_seconds: float
) -> Slowdown:
    """Return the slowdown for a pause, which names the pod that holds much and can't be evicted."""
    message = f"{why}; one eviction in {node.pause_seconds:g} s"
    holder = node.holder()
    if holder is not None:
        kept = "could not be evicted" if holder[0].could_not_be_ended else "is never evicted"
        message += f"; {bytes_text(holder[1])} are held by {printable(holder[0].key)}, which {kept}"
    return Slowdown(
        signal=node.threshold.signal,
        reason=reason,
        since_seconds=since_seconds,
        until_seconds=from_seconds + node.pause_seconds,
        message=message,
        held_by=holder and holder[0].key,
        held_by_bytes=holder and holder[1],
    )


def _unhelpful(
    kills: Iterable[HardMemoryKill], node: NodeAtThreshold, outside_bytes: int
) -> tuple[list[HardMemoryKill], int, int, bool]:
    """Return the last kills in vain, their credit, how much of it lies outside, and if victims left it."""
    dying_bytes = sum(working_set_bytes(node.used, uid) or 0 for uid in node.dying)
    missing_bytes = node.threshold.missing(node.seen) - dying_bytes
    latest: list[HardMemoryKill] = []
    credited_bytes = left_bytes = 0
    found: tuple[list[HardMemoryKill], int, int, bool] = ([], 0, 0, False)
    of_signal = [one for one in kills if one.signal is node.threshold.signal]
    moved_bytes = node.moved_outside_bytes(of_signal)
    for kill in reversed(of_signal):
        latest.append(kill)
        later_bytes = credited_bytes
        credited_bytes += kill.credited_bytes or 0
        left_bytes += kill.left_bytes
        if kill.outside_bytes is None:
            continue
        lost_bytes = outside_bytes + left_bytes - kill.outside_bytes - moved_bytes(kill)
        is_all = not found[0] and 0 < missing_bytes <= lost_bytes and lost_bytes >= node.noise_bytes
        replaced_bytes = _replaced_bytes(latest, node)
        lost_bytes += replaced_bytes
        is_most = 2 * lost_bytes > credited_bytes
        is_several = is_most and len(latest) >= _SEVERAL and credited_bytes
        if lost_bytes < node.noise_bytes // (_SEVERAL if is_several else 1):
            continue
        # What later victims held the pods have taken, too.
        taken_bytes = lost_bytes + replaced_bytes // _GROWN_SHARE - later_bytes
        have_taken_more = _pods_have_grown(kill, node, taken_bytes)
        if not have_taken_more and (is_most or (is_all and have_taken_more is False)):
            found = ([*latest], credited_bytes, lost_bytes, lost_bytes - left_bytes < node.noise_bytes)
    return found


def _replaced_bytes(latest: Sequence[HardMemoryKill], node: NodeAtThreshold) -> int:
    """Return what of that which bystanders brought back pods hold that came since the last of the kills."""
    is_row = latest[0].bystanders >= _BYSTANDERS
    passed_bytes = sum(kill.credited_bytes or 0 for kill in latest if kill.bystanders and is_row)
    return min(passed_bytes, node.came_bytes(latest[-1])) if passed_bytes else 0


def _pods_have_grown(kill: HardMemoryKill, node: NodeAtThreshold, by_bytes: int | None = None) -> bool | None:
    """Return whether the pods that live have grown by much since a kill; None: one was not observed."""
    before_bytes, now_bytes = kill.pods_bytes, node.living_bytes(kill.kept)
    if before_bytes is None or now_bytes is None:
        return None
    if by_bytes is None:
        by_bytes = node.wanted_bytes // _GROWN_SHARE + _replaced_bytes([kill], node)
    return now_bytes - before_bytes > by_bytes


def slowdown_by_rate(node: NodeAtThreshold, kills: Sequence[HardMemoryKill]) -> Slowdown | None:
    """Return the slowdown of a minute with as many evictions as are allowed, None before that."""
    most, now_seconds = node.inputs.settings.hard_memory_evictions_per_minute, node.inputs.now_seconds
    if most is None:
        return None
    recent = [kill.at_seconds for kill in kills if now_seconds - kill.at_seconds < _RATE_WINDOW_SECONDS]
    if len(recent) < most:
        return None
    return Slowdown(
        signal=node.threshold.signal,
        reason=SlowReason.RATE,
        since_seconds=recent[-1],
        until_seconds=recent[-most] + _RATE_WINDOW_SECONDS,
        message=f"{len(recent)} evictions for hard memory thresholds in the last minute, of {most} allowed",
    )


def _never_evicted_bytes(inputs: Inputs) -> int | None:
    """Return what the pods hold together that are never evicted, None where one was not read.

    What could not be read counts as none. A pod that could not be evicted a moment ago is none of them.
    """
    used, dying = inputs.snapshot.pods, inputs.state.dying(inputs.now_seconds)
    never = (pod for pod in inputs.pods if pod.critical_because is not None and not pod.could_not_be_ended)
    kept = {pod.uid for pod in never} - dying
    return sum(working_set_bytes(used, uid) or 0 for uid in kept) if used.keys() >= kept else None
