"""The order in which the kernel's OOM killer takes pods, made that of the policy by oom_score_adj.

The kernel kills the process of the most points: its memory, and a thousandth of the limit that was met for
each point of oom_score_adj (oom_badness(), mm/oom_kill.c). "First only" is enough: the processes of the pod
that the policy would evict first have the highest score, and no other pod comes near it. The whole ranking
would have to be written again with each change of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reactor.model.pods import Pod
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


def most_of_others(used_bytes: int, room_bytes: int, limit_bytes: int) -> int:
    """Return the highest score that leaves a pod behind the first one whatever it still takes.

    `used_bytes` are the pod's, `room_bytes` what it may take until the limit of `limit_bytes` is met. Never
    below 0: a negative score is a privilege.
    """
    gap = 1000 * (used_bytes + room_bytes) // max(1, limit_bytes) + 2
    return max(0, (FIRST - gap) // _STEP * _STEP)
