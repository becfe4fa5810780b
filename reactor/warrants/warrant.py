"""One warrant: what it was decided on, and what came of it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from reactor.errors import ReactorError
from reactor.kernel.bpf.records import CounterAddresses
from reactor.kernel.bpf.warrants import PLACES, SPARED, Result, WarrantProbe
from reactor.kernel.cgroup import CgroupTree
from reactor.model.decisions import Decision, PolicyState, Snapshot
from reactor.model.pods import Pod, PodUsage
from reactor.model.settings import EvictionSettings
from reactor.policy.decide import decide
from reactor.sources.ebpf_watch import PAGE_BYTES
from reactor.warrants.certainty import CertainVictim, without_reclaim


class WarrantResult:
    """What the kernel has written of one warrant, read anew each time until `keep`.

    The program that kills takes the claim first and writes all else after it, so a guard on another CPU may
    follow before that is there.
    """

    def __init__(self, read: Callable[[], Result]) -> None:
        """`read` returns what is written of the last warrant: this one, until the next takes its place."""
        self._read = read
        self._kept: Result | None = None

    def __call__(self) -> Result:
        return self._read() if self._kept is None else self._kept

    def keep(self) -> None:
        """Have it stay what it is: another warrant is about to take its place."""
        self._kept = self()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmedWarrant:
    """A warrant that was armed: for whom, and on what it was decided. `result` is its outcome.

    `level_bytes` is the working set at which the kernel sees the crossing.
    """

    generation: int
    victim: CertainVictim
    level_bytes: int
    armed_ns: int
    expires_ns: int
    settings: EvictionSettings
    state: PolicyState
    pods: Sequence[Pod]
    used: Mapping[str, PodUsage]
    decided_seconds: float
    result: WarrantResult

    def decision(self) -> Decision:
        """Return the decision that the warrant carries: that of the crossing, as the pods stood then."""
        crossed, settings = self.at_crossing(Snapshot()), without_reclaim(self.settings)
        return decide(settings, self.state, crossed, self.pods, self.decided_seconds)[1]

    def at_crossing(self, snapshot: Snapshot) -> Snapshot:
        """Return what was observed after the crossing with what was so at it.

        The victim is dying, or gone, and its memory coming back: the node was short of it all the same, and
        the kill is judged by what pods held when it was decided on.
        """
        signals = {**snapshot.signals, self.victim.threshold.signal: self.victim.crossing}
        return Snapshot(signals=signals, pods={**snapshot.pods, **self.used})

    def crossed_ns(self) -> int | None:
        return self.result().crossed_ns

    def signalled_ns(self) -> int | None:
        """Return when the kernel sent SIGKILL, None where it refused to."""
        result = self.result()
        return None if result.error else result.signalled_ns or time.monotonic_ns()

    def document(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        result = self.result()
        used_bytes = (result.value_pages - result.inactive_pages) * PAGE_BYTES
        return {
            "generation": self.generation,
            "armed_ns": self.armed_ns,
            "crossed_ns": result.crossed_ns,
            "signalled_ns": result.signalled_ns,
            "level_bytes": self.level_bytes,
            "working_set_bytes": None if result.crossed_ns is None else used_bytes,
            "pid": result.pid or None,
            "comm": result.comm or None,
            "refused": os.strerror(-result.error) if result.error else None,
        }


_LOG: Final = logging.getLogger("reactor.warrants")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPod:
    """A pod as the kernel knows it."""

    pod: Pod
    place: int
    addresses: CounterAddresses
    spared: tuple[tuple[int, int], ...]


class Found(NamedTuple):
    """Where the counters of a pod are, and what is spared of it: by cgroup id and level."""

    pod: Pod
    addresses: CounterAddresses
    spared: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class KernelPods:
    """The pods that are placed, by uid. A place is an index into the kernel's bounds."""

    tree: CgroupTree
    placed: dict[str, PlacedPod] = field(default_factory=dict)
    _uids: dict[int, str] = field(default_factory=dict)  # by the address of the pod's counter
    _free: list[int] = field(default_factory=lambda: list(range(PLACES - 1, -1, -1)))

    def is_missing(self, pod: Pod) -> bool:
        """Return whether the kernel does not know a pod as it is listed."""
        known = self.placed.get(pod.uid)
        return (
            known is None
            or known.addresses.cgroup_id != pod.cgroup_inode
            or known.pod.spared_cgroups != pod.spared_cgroups
        )

    def look_up(self, probe: WarrantProbe, pods: Sequence[Pod]) -> list[Found]:
        """Return where the counters of these pods are, of those that are there as they were listed.

        For a thread: the kernel's cgroup lock may be held.
        """
        found: list[Found] = []
        for pod in pods:
            if pod.cgroup is None or pod.cgroup_inode is None or len(pod.spared_cgroups) > SPARED:
                continue
            try:
                addresses = probe.counters(self.tree.path(pod.cgroup))
                spared = tuple(
                    (one.cgroup_id, one.level)
                    for one in (probe.counters(self.tree.path(cgroup)) for cgroup in pod.spared_cgroups)
                )
            except (OSError, ReactorError):
                continue  # gone, or being made: listed again soon
            if addresses.memory and addresses.cgroup_id == pod.cgroup_inode:
                found.append(Found(pod, addresses, spared))
        return found

    def put(self, probe: WarrantProbe, found: Found) -> None:
        """Have the kernel hold a pod to a bound. One that finds the map full stays unknown to it."""
        pod, addresses, spared = found
        self.remove(probe, pod.uid)
        earlier = self._uids.pop(addresses.memory, None)
        if earlier is not None:  # of a pod that is gone
            self._free.append(self.placed.pop(earlier).place)
        if not self._free:
            return
        place = self._free.pop()
        try:
            probe.place(addresses.memory, place)
        except OSError as error:
            self._free.append(place)
            _LOG.warning("pod %s is not known to the kernel: %s", pod.key, error)
            return
        self.placed[pod.uid] = PlacedPod(pod=pod, place=place, addresses=addresses, spared=spared)
        self._uids[addresses.memory] = pod.uid

    def remove(self, probe: WarrantProbe, uid: str) -> None:
        """Hold a pod to no bound any more, if the kernel knows it."""
        placed = self.placed.pop(uid, None)
        if placed is not None:
            del self._uids[placed.addresses.memory]
            probe.displace(placed.addresses.memory)
            self._free.append(placed.place)

    def clear(self) -> None:
        """Forget all pods: the programs are gone."""
        self.placed.clear()
        self._uids.clear()
        self._free = list(range(PLACES - 1, -1, -1))

    def are_spared_others(self, placed: PlacedPod) -> bool:
        """Return whether a spared cgroup of a pod is another by now, or gone."""
        try:
            found = [os.stat(self.tree.path(cgroup)).st_ino for cgroup in placed.pod.spared_cgroups]
        except OSError:
            return True
        return found != [cgroup_id for cgroup_id, _ in placed.spared]
