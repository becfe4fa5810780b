"""Graceful node shutdown: which pods end in which order, and how long each may take.

Source: pkg/kubelet/nodeshutdown, groupByPriority and killPods. Pressure has no part in it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from reactor.model.pods import Pod
from reactor.model.settings import ShutdownGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownStep:
    """The pods of one group, which end side by side.

    The next step begins when they have ended, and after `group.seconds` at the latest. `place` is the
    group's among all, from 0 for the lowest priority.
    """

    place: int
    group: ShutdownGroup
    pods: tuple[Pod, ...]

    def grace_seconds(self, pod: Pod) -> int:
        return max(0, min(self.group.seconds, pod.termination_grace_period_seconds))


def shutdown_seconds(groups: Iterable[ShutdownGroup]) -> int:
    """Return how long a shutdown has to be held up for all groups; 0: there is nothing to hold it up for."""
    return sum(group.seconds for group in groups)


def shutdown_steps(groups: Iterable[ShutdownGroup], pods: Iterable[Pod]) -> tuple[ShutdownStep, ...]:
    """Return the steps of a shutdown, in their order; a group without a pod has none.

    A pod belongs to the group of the highest priority that is not above its own, below all of them to the
    lowest. It has its group's seconds or its own grace period, whichever is shorter. Static and critical pods
    are among them. Source: groupByPriority, killPods.
    """
    ordered = sorted(groups, key=lambda group: group.priority)
    if not ordered:
        return ()
    members: list[list[Pod]] = [[] for _ in ordered]
    for pod in pods:
        place = bisect_left(ordered, pod.priority, key=lambda group: group.priority)
        if place == len(ordered) or ordered[place].priority != pod.priority:
            place = max(0, place - 1)  # of several groups of one priority the first has its pods
        members[place].append(pod)
    return tuple(
        ShutdownStep(place=place, group=group, pods=tuple(some))
        for place, (group, some) in enumerate(zip(ordered, members, strict=True))
        if some
    )


def next_step(groups: Iterable[ShutdownGroup], pods: Iterable[Pod], after: int) -> ShutdownStep | None:
    """Return the first step after the place of the group that was ended last (-1: none), None without one.

    Asked with the pods as they are by then: one that came meanwhile ends with its group if that is to come.
    """
    return next((step for step in shutdown_steps(groups, pods) if step.place > after), None)
