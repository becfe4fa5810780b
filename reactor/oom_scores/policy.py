"""Which pods the kernel's OOM killer must not take before the one that the policy evicts first.

The kernel kills the process of the most points: its memory, and a thousandth of the limit that was met for
each point of oom_score_adj (oom_badness(), mm/oom_kill.c). By the policy a pod comes before the first one as
soon as it uses so much: `overtakes_at_bytes`. A pod that its own score would bring there sooner is lowered to
the score by which its points are the first's at that usage. Nothing else is ever written:

    no score is raised   what is no pod's, a pod that came later, and one that may not be evicted come before
                         a pod as they would have, or sooner
    all or none          if one pod can't be lowered so far, the others keep their scores: between two pods
                         that both are lowered the one that grows dies first, between one that is and one that
                         is not it might not
    by differences       a pod is favoured by what the pods differ in, in what they use and request, and where
                         the limit is a part of the machine by that part of it: in an OOM kill of the machine
                         it weighs no more bytes than it does in one of that limit
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from reactor.model.pods import Pod
from reactor.model.signals import Resource

_MARK: Final = 7  # what is written ends in this digit: no person writes such a score, a kubelet one in ten
NEVER_KILLED: Final = -1000  # the kernel kills no process of this score
_STEP: Final = 10  # a hundredth of the limit: a smaller difference is none


class Processes(NamedTuple):
    """A pod, what it uses, and its processes: score of its own, and size in bytes, of each."""

    pod: Pod
    used_bytes: int
    found: Sequence[tuple[int, int]]


def scores_behind(
    first: Processes,
    others: Iterable[Processes],
    *,
    room_bytes: int,
    limit_bytes: int,
    machine_bytes: int,
) -> list[list[int]] | None:
    """Return the scores by which the processes of other pods come after the first pod's, or as they should.

    `limit_bytes` is the limit at which the kernel will kill, `room_bytes` what is left until that is met, and
    `machine_bytes` are the machine's memory and swap. None if one of the pods can't be put behind the first.
    """
    points = [points_bytes(own, size, limit_bytes) for own, size in first.found if own > NEVER_KILLED]
    if not points:
        return None
    found = []
    for pod, observed_bytes, processes in others:
        largest_bytes = max((size for _, size in processes), default=0)
        used_bytes = max(observed_bytes, largest_bytes)
        at_bytes = overtakes_at_bytes(
            pod, used_bytes, first.pod, first.used_bytes, room_bytes=room_bytes, limit_bytes=limit_bytes
        )
        highest = highest_score(max(points), at_bytes, used_bytes - largest_bytes, limit_bytes)
        scores = [score_to_write(own, highest, limit_bytes, machine_bytes) for own, _ in processes]
        if None in scores:
            return None
        found.append([score for score in scores if score is not None])
    return found


def points_bytes(score: int, resident_bytes: int, limit_bytes: int) -> int:
    return resident_bytes + score * limit_bytes // 1000


def overtakes_at_bytes(
    pod: Pod, used_bytes: int, first: Pod, first_used_bytes: int, *, room_bytes: int, limit_bytes: int
) -> int:
    """Return at which usage a pod comes before the first one by the policy.

    A little more than it can reach by taking all the room that is left until the limit is met, where that
    does not bring it before the first.
    """
    request_bytes = pod.requests.get(Resource.MEMORY, 0)
    first_excess_bytes = first_used_bytes - first.requests.get(Resource.MEMORY, 0)
    beyond_bytes = used_bytes + room_bytes + limit_bytes * _STEP // 1000
    if pod.preference != first.preference:
        at_bytes = 0 if pod.preference < first.preference else beyond_bytes
    elif pod.priority == first.priority:
        at_bytes = request_bytes + first_excess_bytes
    elif pod.priority < first.priority or first_excess_bytes <= 0:
        at_bytes = request_bytes
    else:
        at_bytes = beyond_bytes
    return min(at_bytes, beyond_bytes)


def highest_score(first_points_bytes: int, at_bytes: int, held_elsewhere_bytes: int, limit_bytes: int) -> int:
    """Return the score of a pod's processes by which it comes before the first one at this usage, not sooner.

    The kernel counts by processes: `held_elsewhere_bytes` are what the pod holds in others than its largest.
    """
    return (first_points_bytes - at_bytes + held_elsewhere_bytes) * 1000 // max(1, limit_bytes)


def score_to_write(own: int, highest: int, limit_bytes: int, machine_bytes: int) -> int | None:
    """Return what a process with this score of its own is to have, and `highest` at the most; never more.

    `machine_bytes` are the machine's memory and swap. None where it can't be so low.
    """
    if own - highest < _STEP:
        return own
    if highest < 0:  # a negative score is a privilege
        return None
    wanted = own - (own - highest) * limit_bytes // max(1, limit_bytes, machine_bytes)
    marked = wanted + (_MARK - wanted) % _STEP
    return marked if own - marked >= _STEP else own
