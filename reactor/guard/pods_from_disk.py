"""A list of pods for which a disk is read: in a thread, because the disk may hang."""

from __future__ import annotations

from collections.abc import Mapping

from reactor.bounded import Bounded
from reactor.guard.parts import PodList
from reactor.model.pods import Pod


class PodsFromDisk:
    """Lists pods beside the loop, and gives a list up that takes too long."""

    def __init__(self, pods: PodList, *, timeout_seconds: float) -> None:
        self._pods = pods
        self._bounded = Bounded(pods.pods, timeout_seconds)

    @property
    def problems(self) -> Mapping[str, str]:
        """Return what was refused or could not be read last time, and why."""
        why = self._bounded.problem
        return {**self._pods.problems, **({} if why is None else {"pods": why})}

    async def listed(self) -> tuple[Pod, ...] | None:
        """List the pods, all of it read afresh; None where that can't be had in time."""
        return await self._bounded.ask()

    def glance(self) -> tuple[Pod, ...]:
        """List the pods that exist now, from the cgroup tree alone; only new ones are read."""
        return self._pods.glance()
