"""What below the parents of pods can never be a pod."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from reactor.errors import RefusedError
from reactor.kernel.cgroup import CgroupTree, own_cgroup, stewards_beside
from reactor.kernel.cgroup_directory import cgroup_components
from reactor.kernel.procfs import PROC
from reactor.model.name_patterns import PodParent


class PodBoundaries:
    """The parents of pods, and the cgroups below them that can never be pods: `spared`, cgroup to reason.

    `daemon` is the daemon's cgroup if this is another process; None: this process is the daemon.
    """

    def __init__(
        self,
        tree: CgroupTree,
        parents: Sequence[str],
        node_cgroup: str | None,
        proc: Path = PROC,
        *,
        daemon: str | None = None,
    ) -> None:
        self.parents = tuple(map(PodParent, dict.fromkeys(parents)))
        own = daemon or own_cgroup(tree, proc / "self/cgroup")
        init = own_cgroup(tree, proc / "1/cgroup")
        spared: dict[str, str] = {}
        for cgroup, what in (
            *((parent.fence, "a configured parent of pods") for parent in self.parents),
            (node_cgroup, "the node's own cgroup"),
            (init, "init's cgroup"),
            (None if own is None else stewards_beside(own), "reactor's steward"),
            (own, "reactor's own cgroup"),
        ):
            if cgroup is not None:
                spared |= dict.fromkeys(_upwards(cgroup), what)
        self.spared: Mapping[str, str] = spared

    def refusal(self, cgroup: str) -> str | None:
        """Return why the cgroup can't be a pod, None if it can."""
        try:
            parts = cgroup_components(cgroup)
        except RefusedError as error:
            return str(error)
        if not parts or not any(parent.is_parent(os.path.dirname(cgroup)) for parent in self.parents):
            parents = ", ".join(parent.text for parent in self.parents) or "none is configured"
            return f"cgroup {cgroup!r}: not a child of a parent of pods ({parents})"
        what = self.spared.get(cgroup)
        return None if what is None else f"cgroup {cgroup!r}: is or holds {what}"


def _upwards(cgroup: str) -> tuple[str, ...]:
    """Return the cgroup and everything above it but the root."""
    parts = cgroup.strip("/").split("/")
    return tuple("/" + "/".join(parts[:count]) for count in range(len(parts), 0, -1))
