"""Victims of the kernel's OOM killer: whose they are, and whether they have exited."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from typing import Final

from reactor.kernel.cgroup import CgroupTree
from reactor.model.decisions import Claim
from reactor.model.pods import Pod

_NONE: Final = -1


class OomVictims:
    """Holds a pidfd of each victim, by process id. Everything is at once; nothing raises.

    A pidfd taken after the kill may be that of a later process of the same number, or can't be had though
    the victim is there: such a victim is waited for until the policy gives it up.
    """

    def __init__(self) -> None:
        self._pidfds: dict[int, int] = {}

    def hold(self, pid: int) -> None:
        """Hold a victim; a second time is harmless."""
        if pid not in self._pidfds:
            try:
                self._pidfds[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                return  # it has exited already
            except OSError:
                self._pidfds[pid] = _NONE

    def exited(self, victims: Sequence[Claim]) -> frozenset[int]:
        """Return which of these victims have exited, and let go of all others than these.

        The memory of a process is given back before it counts as exited.
        """
        wanted = {victim.pid for victim in victims if victim.pid is not None}
        for pid in self._pidfds.keys() - wanted:
            _close(self._pidfds.pop(pid))
        poll = select.poll()
        for fd in self._pidfds.values():
            if fd != _NONE:
                poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(0)}
        return frozenset(pid for pid in wanted if pid not in self._pidfds or self._pidfds[pid] in ready)

    def close(self) -> None:
        """Close every descriptor. Harmless when repeated."""
        while self._pidfds:
            _close(self._pidfds.popitem()[1])


def _close(fd: int) -> None:
    if fd != _NONE:
        os.close(fd)


def pod_in(cgroup: str, pods: Sequence[Pod]) -> Pod | None:
    """Return the pod that a cgroup is or belongs to."""
    return next(
        (
            pod
            for pod in pods
            if pod.cgroup is not None and (pod.cgroup == cgroup or CgroupTree.contains(pod.cgroup, cgroup))
        ),
        None,
    )
