"""Whose limit it was that the kernel killed at, as seen from the node that is guarded."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from reactor.kernel.cgroup import CgroupTree
from reactor.model.oom import OomScope

_MACHINE: Final = "/"


class GuardedNode:
    """The node, "/" for the machine itself, and the parents of pods in it."""

    def __init__(self, node: str, parents: Iterable[str]) -> None:
        self.node = node
        found = {node}
        for parent in parents:
            cgroup = parent
            while cgroup != node and CgroupTree.contains(node, cgroup):
                found.add(cgroup)
                cgroup = os.path.dirname(cgroup)
        found.discard(_MACHINE)
        self.cgroups = tuple(sorted(found))

    @property
    def is_machine(self) -> bool:
        """Return whether the node is the machine itself."""
        return self.node == _MACHINE

    def holds(self, cgroup: str | None) -> bool:
        """Return whether a cgroup is the node or lies in it; where it is not known, whether all do."""
        if cgroup is None:
            return self.is_machine
        return self.is_machine or cgroup == self.node or CgroupTree.contains(self.node, cgroup)

    def scope(self, *, at_a_limit: bool, limit: str | None, victim: str | None) -> OomScope | None:
        """Return whose limit it was; None for what happened outside the node altogether.

        `limit` is the cgroup whose limit was met, None where its path is not known or where, without
        `at_a_limit`, the machine itself ran out.
        """
        if limit in self.cgroups or (self.is_machine and not at_a_limit):
            return OomScope.NODE
        if at_a_limit and self.holds(limit):
            return OomScope.OWN_LIMIT
        return OomScope.ABOVE_NODE if self.holds(victim) else None
