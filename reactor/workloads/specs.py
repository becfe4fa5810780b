"""The pods that manifests describe: which cgroup each manifest means, and the pod in it as it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from reactor.errors import RefusedError
from reactor.kernel.cgroup import CgroupTree
from reactor.model.pods import Pod
from reactor.workloads.manifests import Manifest, ManifestDirectory
from reactor.workloads.parents import PodBoundaries, matches_of


class _Specified(NamedTuple):
    pod: Pod
    manifest: Manifest
    specified: Pod


class PodSpecs:
    """Knows the manifests in a directory. Nothing here raises: what is refused is in `problems`."""

    def __init__(self, tree: CgroupTree, boundaries: PodBoundaries, path: str) -> None:
        self._tree = tree
        self._boundaries = boundaries
        self._directory = ManifestDirectory(path)
        self._manifests: Mapping[str, Manifest] = {}
        self._refused: Mapping[str, str] = {}
        self._specified: dict[str, _Specified] = {}  # by the uid that a pod's cgroup gives it

    @property
    def problems(self) -> Mapping[str, str]:
        """Return what was refused or could not be read: cgroup or file to one line."""
        return {**self._directory.problems, **self._refused}

    def __contains__(self, cgroup: object) -> bool:
        """Return whether a manifest describes the pod in a cgroup."""
        return cgroup in self._manifests

    def read(self) -> None:
        """Read the manifests where their files have changed; for a thread."""
        refused: dict[str, str] = {}
        self._manifests = self._placed(self._directory.read(), refused)
        self._refused = refused

    def with_specs(self, pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
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
            parents = matches_of(self._tree, [parent.text for parent in self._boundaries.parents])
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
        refusal = self._boundaries.refusal(cgroup)
        if refusal is not None:
            return refusal
        try:
            self._tree.path(cgroup)
        except RefusedError as error:
            return str(error)
        return None


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
