"""Where a pod's files lie on a plain Linux node: annotations of its manifest name the directories.

annotations:
reactor/volumes: scratch=/srv/batch/scratch, cache=/srv/batch/cache   # names of spec.volumes
reactor/rootfs: main=/var/lib/machines/batch                          # names of spec.containers
reactor/logs: main=/var/log/batch
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from reactor.errors import ConfigError, Problem
from reactor.model.pods import Pod, StorageKind, StoragePlace

ANNOTATIONS: Final = {
    "reactor/volumes": StorageKind.VOLUME,
    "reactor/rootfs": StorageKind.WRITABLE_LAYER,
    "reactor/logs": StorageKind.LOGS,
}


def storage_places(pod: Pod, annotations: Mapping[str, str], where: str) -> tuple[StoragePlace, ...]:
    """Return the places that a pod's annotations name. Raises ConfigError with every problem."""
    places: list[StoragePlace] = []
    problems: list[Problem] = []
    for key, kind in ANNOTATIONS.items():
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
