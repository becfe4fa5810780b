"""The order in which the kernel's OOM killer takes pods, made that of the policy by oom_score_adj.

The kernel kills the process of the most points: its memory, and a thousandth of the limit that was met for
each point of oom_score_adj (oom_badness(), mm/oom_kill.c). So a score that is lower by a pod's request makes
the points its usage above the request, by which pods of one priority are ranked, and goes on doing so when no
guard is there that could write another one:

    the first         1000, less its request
    its contenders    the same, with what their requests are: pods of no higher priority that may take so much
                      until the limit is met that they come before the first. Whoever does is killed
    all others        so far behind that nothing they can take brings them before the first
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reactor.model.pods import Pod
from reactor.model.signals import Resource
from reactor.policy.oom_score import SANDBOX

FIRST: Final = 1000  # the highest there is
_STEP: Final = 50  # few different scores, so that what was written is told from what was not


def first_of(ranked: Sequence[Pod]) -> Pod | None:
    """Return the pod that is to go first, None where no pod may be evicted."""
    return next((pod for pod in ranked if pod.critical_because is None), None)


def may_be_raised(score: int) -> bool:
    """Return whether a process of the first pod may be given the highest score.

    One that the kernel may not kill keeps its score, as does one that is protected like a pause container or
    a container runtime.
    """
    return score > SANDBOX


def score_by_request(request_bytes: int, limit_bytes: int) -> int:
    """Return the score by which a pod's points are its usage above what it requests, and a constant.

    The highest one where the limit is not known.
    """
    return FIRST if limit_bytes <= 0 else max(0, FIRST - -(-1000 * request_bytes // limit_bytes))


def is_contender(pod: Pod, used_bytes: int, first: Pod, first_used_bytes: int, room_bytes: int) -> bool:
    """Return whether a pod may come before the first one by taking what is left until the limit is met."""
    if pod.critical_because is not None or pod.priority > first.priority:
        return False
    excess_bytes = used_bytes - pod.requests.get(Resource.MEMORY, 0)
    return excess_bytes + room_bytes > first_used_bytes - first.requests.get(Resource.MEMORY, 0)


def most_of_others(used_bytes: int, room_bytes: int, limit_bytes: int) -> int:
    """Return the highest score that leaves a pod behind the first one whatever it still takes.

    `used_bytes` are the pod's, `room_bytes` what it may take until the limit of `limit_bytes` is met. Never
    below 0: a negative score is a privilege.
    """
    gap = 1000 * (used_bytes + room_bytes) // max(1, limit_bytes) + 2
    return max(0, (FIRST - gap) // _STEP * _STEP)
