"""All pods: what the cgroup tree shows, with the specs that manifests give for some of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import trio

from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.procfs import PROC
from reactor.kernel.scheduling import Bounded
from reactor.model.pods import Pod
from reactor.model.settings import Settings
from reactor.threads import with_pauses
from reactor.workloads.cgroups import CgroupPods
from reactor.workloads.parents import PodBoundaries

if TYPE_CHECKING:
    from reactor.workloads.manifests import PodSpecs

_TIMEOUT_SECONDS: Final = 5.0


class PodList(Protocol):
    """Finds the pods."""

    @property
    def problems(self) -> Mapping[str, str]:
        """What was refused or could not be read last time, and why."""

    def changed_fd(self) -> int:
        """Return what is readable once a cgroup has come or gone since the last refresh; -1: nothing is."""

    async def listed(self) -> tuple[Pod, ...] | None:
        """List the pods, all of it read afresh, while the loop goes first; None where that can't be had."""

    def refresh(self) -> tuple[Pod, ...]:
        """List the pods that exist now, from the cgroup tree alone; only new ones are read."""


class Workloads(CgroupPods):
    """Lists pods. Nothing here raises: what is refused or can't be read is in `problems`, all else stands."""

    def __init__(
        self,
        tree: CgroupTree,
        settings: Settings,
        *,
        proc: Path = PROC,
        daemon: str | None = None,
        timeout_seconds: float = _TIMEOUT_SECONDS,
    ) -> None:
        super().__init__(tree, settings, proc=proc, daemon=daemon)
        self._specs = _specs(tree, self.boundaries, settings.manifests_path)
        self._reading = None if self._specs is None else Bounded(self._specs.read, timeout_seconds)

    @property
    def problems(self) -> Mapping[str, str]:
        """Return what was refused or could not be read: cgroup or file to one line."""
        refused = {} if self._specs is None else self._specs.problems
        late = None if self._reading is None else self._reading.problem
        unread = {} if late is None else {"manifests": late}
        return {**super().problems, **refused, **unread}

    async def listed(self) -> tuple[Pod, ...]:
        """Return every pod, all of it read afresh (manifests where their files changed).

        Cgroups are read a few at a time in the loop itself, which goes first in between: a thread would hold
        the interpreter's lock for as long. Manifests lie on a disk, which may hang, and are read in a thread;
        where that takes too long those that were read before stand.
        """
        if self._reading is not None:
            await self._reading.ask()
        return self._with_specs(await with_pauses(self.turns(), trio.lowlevel.checkpoint))

    def specified(self, pods: Iterable[Pod]) -> tuple[Pod, ...]:
        return () if self._specs is None else tuple(pod for pod in pods if pod.cgroup in self._specs)

    def refresh(self) -> tuple[Pod, ...]:
        return self._with_specs(super().refresh())

    def _with_specs(self, pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
        return pods if self._specs is None else self._specs.with_specs(pods)


def _specs(tree: CgroupTree, boundaries: PodBoundaries, path: str | None) -> PodSpecs | None:
    if path is None:
        return None
    # What reads YAML takes 3 MiB, and most nodes have no manifests.
    from reactor.workloads.manifests import PodSpecs  # noqa: PLC0415

    return PodSpecs(tree, boundaries, path)
