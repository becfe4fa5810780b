"""What the loop needs of the layers below, as it calls them; a test or a virtual node brings its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from reactor.model.kills import OomKill
from reactor.model.pods import Pod, PodUsage
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.reclaim.reclaims import Reclaims

if TYPE_CHECKING:
    pass


class NodeReader(Protocol):
    """Observes the node; what can't be read is absent from the answer and named in `problems`."""

    @property
    def problems(self) -> Mapping[str, str]:
        """What could not be read last time, and why."""

    def memory(self) -> Mapping[Signal, Observation]:
        """Read the memory signals, through descriptors that are open already."""

    def processes(self) -> Mapping[Signal, Observation]:
        """Read the process signal."""

    def swap(self) -> Mapping[Signal, Observation]:
        """Read swap.available; nothing where the node has no swap."""


class PodUsages(Protocol):
    """Observes what pods use; one that vanished is absent from the answer."""

    @property
    def vanished(self) -> frozenset[str]:
        """The uids of the pods that turned out to be gone since `track`: absent, but not unknown."""

    def track(self, pods: Sequence[Pod]) -> None:
        """Hold the counters of these pods open, and of no others."""

    def memory(self) -> Mapping[str, PodUsage]:
        """Read what each pod uses of memory, by uid."""

    def full(self) -> Mapping[str, PodUsage]:
        """Read all that is known to be used, by uid."""

    def of(self, uids: Iterable[str], *, with_processes: bool = False) -> Mapping[str, PodUsage]:
        """Read what these pods use of memory, and how many tasks they have where that is asked for."""

    def charged_bytes(self, uids: Iterable[str]) -> Mapping[str, int]:
        """Read what is charged to these pods, page cache included; what can't be read is absent."""

    def shared_memory_bytes(self, uid: str) -> int | None:
        """Read how much of a pod's memory is shared or tmpfs; None where that can't be had."""

    def note_swap(self) -> None:
        """Read what of each pod is in swap, for those who ask later; nothing where the machine has none."""

    def active_file_bytes(self, uid: str) -> int | None:
        """Read how much of a pod's working set is page cache; None where that can't be had."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything that one run of the loop is made of.

    `populated` tells whether a pod's cgroup has processes. `arm_memory` arms the memory thresholds again by
    the memory signals as just observed. `oom_kills` returns the kernel's own kills that were not reported
    yet, without waiting. `oom_struck` returns in which of these pods the kernel has killed since it was
    asked last, by their cgroups' counters; `recount_oom_kills` takes those counters as they stand.
    `most_of_one_process` returns how much of what a pod holds one process of it may. `check_disk` observes
    the filesystem of a threshold, of which so much was reported, before a pod is evicted for it; None: what
    was reported is enough.
    """

    node: NodeReader
    usages: PodUsages
    pods: PodList
    reclaims: Reclaims
    populated: Callable[[Pod], bool]
    arm_memory: Callable[[Mapping[Signal, Observation]], None]
    oom_kills: Callable[[], Sequence[OomKill]] = tuple
    oom_struck: Callable[[Sequence[Pod]], Sequence[str]] = lambda _: ()
    recount_oom_kills: Callable[[Sequence[Pod]], None] = lambda _: None
    most_of_one_process: Callable[[Pod, int], int] = lambda _, held_bytes: held_bytes
    check_disk: Callable[[Threshold, Observation], Awaitable[Mapping[Signal, Observation]]] | None = None
