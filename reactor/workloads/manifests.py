"""Full specs for pods of a plain Linux node: a directory of v1.Pod files that name their cgroup.

    metadata:
      name: database
      annotations:
        reactor/cgroup: /system.slice/database.service   # or: reactor/unit: database.service

Further annotations name the directories of the pod's files:

        reactor/volumes: scratch=/srv/batch/scratch, cache=/srv/batch/cache   # names of spec.volumes
        reactor/rootfs: main=/var/lib/machines/batch                          # names of spec.containers
        reactor/logs: main=/var/log/batch

Only reactor reads the specs; another program starts the processes of the cgroup.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from reactor.config.documents import ONLY_OURS, directory_exposure, exposed_because, load_documents
from reactor.config.pod import annotations_of, pod_from_document
from reactor.errors import ConfigError, Problem, RefusedError
from reactor.kernel.cgroup import CgroupTree
from reactor.model.pods import Pod, StorageKind, StoragePlace
from reactor.plain import read_with_status
from reactor.workloads.parents import PodBoundaries
from reactor.workloads.search import matches_of

CGROUP_ANNOTATION: Final = "reactor/cgroup"
UNIT_ANNOTATION: Final = "reactor/unit"
SUFFIXES: Final = (".yaml", ".yml", ".json")
_LARGEST_BYTES: Final = 1 << 20
_ACCEPTED_ANNOTATION: Final = f"one of the annotations {CGROUP_ANNOTATION} and {UNIT_ANNOTATION}"

_STORAGE_ANNOTATIONS: Final = {
    "reactor/volumes": StorageKind.VOLUME,
    "reactor/rootfs": StorageKind.WRITABLE_LAYER,
    "reactor/logs": StorageKind.LOGS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A pod's spec, where it was read, and either the cgroup or the unit that the pod runs in."""

    pod: Pod
    origin: str
    cgroup: str | None = None
    unit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """What a file held when it last had this identity."""

    identity: tuple[int, int, int]
    manifests: tuple[Manifest, ...] = ()
    problems: tuple[str, ...] = ()


class ManifestDirectory:
    """Reads a directory's manifests; a file only when its time of change, size or inode changed.

    Nothing here raises. A document that is wrong costs only itself; but a file that has become wrong counts
    as it last was right, and an unreadable directory likewise. A file that was removed counts no more.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._files: dict[str, _File] = {}
        self._unreadable: str | None = None

    @property
    def problems(self) -> Mapping[str, str]:
        """Return what is wrong with the directory and its files: path to one line."""
        problems = {
            str(self._path / name): "; ".join(file.problems)
            for name, file in self._files.items()
            if file.problems
        }
        return problems if self._unreadable is None else {str(self._path): self._unreadable, **problems}

    def read(self) -> tuple[Manifest, ...]:
        """Return every manifest, in the order of the files' names."""
        try:
            found = dict(self._listed())
        except OSError as error:
            self._unreadable = str(error)
        else:
            self._unreadable = None
            self._files = {
                name: self._file(name, identity, self._files.get(name))
                for name, identity in sorted(found.items())
            }
        return tuple(manifest for file in self._files.values() for manifest in file.manifests)

    def _listed(self) -> Iterator[tuple[str, tuple[int, int, int]]]:
        if (exposed := directory_exposure(self._path)) is not None:
            raise OSError(f"does not count: {exposed}")
        with os.scandir(self._path) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIXES) and not entry.name.startswith("."):
                    try:
                        found = entry.stat()
                    except FileNotFoundError:
                        continue  # removed since, or a symlink to nowhere
                    yield entry.name, (found.st_ctime_ns, found.st_size, found.st_ino)

    def _file(self, name: str, identity: tuple[int, int, int], before: _File | None) -> _File:
        if before is not None and before.identity == identity:
            return before
        path = self._path / name
        manifests: list[Manifest] = []
        problems: list[str] = []
        try:
            for index, document in enumerate(load_documents(_text(path), str(path))):
                if document is None:  # nothing between two `---`
                    continue
                try:
                    manifests.append(_manifest(document, f"{path}[{index}]"))
                except ConfigError as error:
                    problems += map(str, error.problems)
        except ConfigError as error:
            problems += map(str, error.problems)
        except (OSError, ValueError) as error:
            problems.append(str(error))
        if problems and before is not None and before.manifests:
            manifests[:] = before.manifests
        return _File(identity=identity, manifests=tuple(manifests), problems=tuple(problems))


def _text(path: Path) -> str:
    """Return a file's text, by which pods are spared and directories emptied. Raises OSError, ValueError."""
    raw, found = read_with_status(path, _LARGEST_BYTES, may_be_pipe=False)
    if (exposed := exposed_because(path, found)) is not None:
        raise ValueError(f"does not count: {exposed}; accepted: {ONLY_OURS}")
    return raw.decode()


def _manifest(document: object, origin: str) -> Manifest:
    annotations = annotations_of(document, root=origin)
    cgroup, unit = annotations.get(CGROUP_ANNOTATION), annotations.get(UNIT_ANNOTATION)
    kind = document.get("kind", "Pod") if isinstance(document, dict) else None
    if kind != "Pod":
        raise ConfigError([Problem(path=f"{origin}.kind", got=repr(kind), accepted="Pod")])
    if (cgroup is None) == (unit is None):
        where, got = f"{origin}.metadata.annotations", "neither" if cgroup is None else "both"
        raise ConfigError([Problem(path=where, got=got, accepted=_ACCEPTED_ANNOTATION)])
    pod = pod_from_document(document, root=origin)
    pod = replace(pod, storage=storage_places(pod, annotations, f"{origin}.metadata.annotations"))
    return Manifest(pod=pod, origin=origin, cgroup=cgroup, unit=unit)


def storage_places(pod: Pod, annotations: Mapping[str, str], where: str) -> tuple[StoragePlace, ...]:
    """Return the places that a pod's annotations name. Raises ConfigError with every problem."""
    places: list[StoragePlace] = []
    problems: list[Problem] = []
    for key, kind in _STORAGE_ANNOTATIONS.items():
        owners = pod.volumes if kind is StorageKind.VOLUME else pod.containers
        names = [owner.name for owner in owners]
        ending = {volume.name for volume in pod.volumes if volume.is_empty_dir and owners is pod.volumes}
        for item in filter(None, (part.strip() for part in annotations.get(key, "").split(","))):
            name, _, path = item.partition("=")
            accepted = _refusal(name, path, names, {(place.kind, place.name) for place in places}, kind)
            if accepted is None:
                path = os.path.normpath(path)
                places.append(StoragePlace(kind=kind, name=name, path=path, ends_with_pod=name in ending))
            else:
                problems.append(Problem(path=f'{where}["{key}"]', got=repr(item), accepted=accepted))
    problems += _overlaps(places, where)
    if problems:
        raise ConfigError(problems)
    return tuple(places)


def _refusal(
    name: str,
    path: str,
    names: Collection[str],
    taken: Collection[tuple[StorageKind, str]],
    kind: StorageKind,
) -> str | None:
    """Return what would be accepted, None where this is."""
    if name not in names:
        what = "volumes" if kind is StorageKind.VOLUME else "containers"
        return f"NAME=/PATH, with NAME one of the pod's {what}: {', '.join(names) or 'it has none'}"
    if (kind, name) in taken:
        return "each name once"
    parts = [part for part in path.split("/") if part not in {"", "."}]
    # What lies there is counted as the pod's, and an emptyDir is emptied with it: never a whole system.
    if not path.startswith("/") or ".." in parts or len(parts) < 2:
        return "NAME=/PATH, with an absolute path of two directories at least, without .."
    return None


def _overlaps(places: list[StoragePlace], where: str) -> Iterator[Problem]:
    """Yield places that lie within another one of the pod: what is in both would be counted twice."""
    for place in places:
        for other in places:
            if place is not other and f"{place.path}/".startswith(f"{other.path}/"):
                yield Problem(
                    path=where, got=repr(place.path), accepted=f"a directory outside {other.path!r}"
                )
                break


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
