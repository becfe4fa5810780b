"""All pods: what the cgroup tree shows, with the specs that manifests give for some of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import trio

from reactor.errors import RefusedError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.procfs import PROC
from reactor.kernel.scheduling import Bounded
from reactor.model.pods import Pod
from reactor.model.settings import Settings
from reactor.threads import with_pauses
from reactor.workloads.cgroups import CgroupPods
from reactor.workloads.parents import matches_of

if TYPE_CHECKING:
    from reactor.workloads.manifests import Manifest, ManifestDirectory

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


class _Specified(NamedTuple):
    pod: Pod
    manifest: Manifest
    specified: Pod


class Workloads:
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
        self._tree = tree
        self._cgroups = CgroupPods(tree, settings, proc=proc, daemon=daemon)
        self._directory = _directory(settings.manifests_path)
        self._reading = Bounded(self._read_manifests, timeout_seconds)
        self._manifests: Mapping[str, Manifest] = {}
        self._refused: Mapping[str, str] = {}
        self._specified: dict[str, _Specified] = {}  # by the uid that a pod's cgroup gives it

    @property
    def problems(self) -> Mapping[str, str]:
        """Return what was refused or could not be read: cgroup or file to one line."""
        files = self._directory.problems if self._directory else {}
        unread = {} if self._reading.problem is None else {"manifests": self._reading.problem}
        return {**self._cgroups.problems, **files, **self._refused, **unread}

    @property
    def matches(self) -> Mapping[str, Sequence[str]]:
        return self._cgroups.matches

    def changed_fd(self) -> int:
        """Return what is readable once a cgroup has come or gone since the last refresh; -1: nothing is."""
        return self._cgroups.changed_fd()

    async def listed(self) -> tuple[Pod, ...]:
        """Return every pod, all of it read afresh (manifests where their files changed).

        Cgroups are read a few at a time in the loop itself, which goes first in between: a thread would hold
        the interpreter's lock for as long. Manifests lie on a disk, which may hang, and are read in a thread;
        where that takes too long those that were read before stand.
        """
        if self._directory is not None:
            await self._reading.ask()
        return self._with_specs(await with_pauses(self._cgroups.turns(), trio.lowlevel.checkpoint))

    def specified(self, pods: Iterable[Pod]) -> tuple[Pod, ...]:
        return tuple(pod for pod in pods if pod.cgroup in self._manifests)

    def refresh(self) -> tuple[Pod, ...]:
        """Return the pods that exist now; only of those that are new anything is read, and no disk."""
        return self._with_specs(self._cgroups.refresh())

    def _read_manifests(self) -> None:
        if self._directory is not None:
            refused: dict[str, str] = {}
            self._manifests = self._placed(self._directory.read(), refused)
            self._refused = refused

    def _with_specs(self, pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
        """Return the pods as their manifests describe them; one is built anew only if either has changed."""
        manifests = self._manifests
        if not manifests:
            return pods
        before, self._specified = self._specified, {}
        listed = []
        for pod in pods:
            manifest = manifests.get(pod.cgroup or "")
            if manifest is None:
                listed.append(pod)
                continue
            one = before.get(pod.uid)
            if one is None or one.manifest is not manifest or (one.pod is not pod and one.pod != pod):
                one = _Specified(pod, manifest, _with_spec(pod, manifest))
            elif one.pod is not pod:
                one = one._replace(pod=pod)  # which the next refresh finds the same
            self._specified[pod.uid] = one
            listed.append(one.specified)
        return tuple(listed)

    def _placed(self, manifests: tuple[Manifest, ...], refused: dict[str, str]) -> dict[str, Manifest]:
        """Return the manifests by cgroup; those that may not have the cgroup that they name are refused."""
        placed: dict[str, Manifest] = {}
        parents: Sequence[str] = ()
        if any(manifest.cgroup is None for manifest in manifests):
            parents = matches_of(self._tree, [parent.text for parent in self._cgroups.boundaries.parents])
        for manifest in manifests:
            cgroup = self._cgroup(manifest, parents)
            refusal = self._refusal(cgroup)
            if refusal is None and cgroup in placed:
                refusal = f"cgroup {cgroup!r}: {placed[cgroup].origin} is in it already"
            if refusal is None:
                placed[cgroup] = manifest
            else:
                refused[manifest.origin] = refusal
        return placed

    def _cgroup(self, manifest: Manifest, parents: Sequence[str]) -> str:
        """Return the cgroup that the manifest means: a unit is a child of one of the parents."""
        if manifest.cgroup is not None:
            return manifest.cgroup
        candidates = [f"{parent.rstrip('/')}/{manifest.unit}" for parent in parents]
        present = [
            cgroup for cgroup in candidates if self._refusal(cgroup) is None and self._tree.exists(cgroup)
        ]
        return next(iter(present or candidates), f"/{manifest.unit}")

    def _refusal(self, cgroup: str) -> str | None:
        refusal = self._cgroups.boundaries.refusal(cgroup)
        if refusal is not None:
            return refusal
        try:
            self._tree.path(cgroup)
        except RefusedError as error:
            return str(error)
        return None


def _directory(path: str | None) -> ManifestDirectory | None:
    if path is None:
        return None
    # What reads YAML takes 3 MiB, and most nodes have no manifests.
    from reactor.workloads.manifests import ManifestDirectory  # noqa: PLC0415

    return ManifestDirectory(path)


def _with_spec(pod: Pod, manifest: Manifest) -> Pod:
    """Return the pod as its manifest describes it.

    The uid keeps the inode: an evicted unit that is started again is another pod. What its cgroup says
    against evicting it counts all the same.
    """
    spec = manifest.pod
    _, _, inode = pod.uid.rpartition("#")
    return replace(
        spec,
        uid=f"{spec.uid}#{inode}",
        cgroup=pod.cgroup,
        cgroup_inode=pod.cgroup_inode,
        critical_because=spec.critical_because or pod.critical_because,
        preference=pod.preference,
        process_victim=pod.process_victim,
    )
