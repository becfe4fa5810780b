"""What a recording keeps of pods and statistics: the fields that a decision depends on, and nothing else.

No environment, no image, no label of a pod gets into the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from reactor.config.pod import MIRROR_ANNOTATION, SOURCE_ANNOTATION

_TERMINAL: Final = frozenset({"Failed", "Succeeded"})


class _Keep:
    """Marks a value that is kept as it is."""


_KEEP: Final = _Keep()


def _keep(*names: str, **more: Any) -> dict[str, Any]:
    return {**dict.fromkeys(names, _KEEP), **more}


_RESOURCES: Final = _keep("requests", "limits")
_CONTAINER: Final = _keep("name", "restartPolicy", resources=_RESOURCES)
_POD: Final = {
    "metadata": _keep("name", "namespace", "uid", annotations=_keep(SOURCE_ANNOTATION, MIRROR_ANNOTATION)),
    "spec": _keep(
        "priority",
        "terminationGracePeriodSeconds",
        "tolerations",
        "overhead",
        resources=_RESOURCES,
        containers=_CONTAINER,
        initContainers=_CONTAINER,
    ),
    "status": _keep("qosClass"),
}
_MEMORY: Final = _keep("time", "availableBytes", "workingSetBytes", "usageBytes")
_FILESYSTEM: Final = _keep(
    "time", "availableBytes", "capacityBytes", "usedBytes", "inodesFree", "inodes", "inodesUsed"
)
_SUMMARY: Final = {
    "node": {
        "memory": _MEMORY,
        "fs": _FILESYSTEM,
        "runtime": {"imageFs": _FILESYSTEM, "containerFs": _FILESYSTEM},
        "rlimit": _keep("time", "maxpid", "curproc"),
        "systemContainers": _keep("name", memory=_MEMORY),
    },
    "pods": {
        "podRef": _keep("name", "namespace", "uid"),
        "memory": _MEMORY,
        "containers": _keep("name", memory=_MEMORY, rootfs=_FILESYSTEM, logs=_FILESYSTEM),
        "volume": _keep("name", "usedBytes", "inodesUsed"),
        "ephemeral-storage": _FILESYSTEM,
        "process_stats": _keep("process_count"),
    },
}


def reduced_summary(summary: Any) -> Any:
    """Return a stats/v1alpha1 Summary with what a scenario reads of it."""
    return _picked(summary, _SUMMARY)


def reduced_pod(pod: Any) -> Any:
    """Return a v1.Pod with what a scenario reads of it."""
    reduced = _picked(pod, _POD)
    spec = pod.get("spec") if isinstance(pod, Mapping) else None
    volumes = spec.get("volumes") if isinstance(spec, Mapping) else None
    if isinstance(volumes, list) and volumes:
        reduced["spec"]["volumes"] = [_volume(volume) for volume in volumes if isinstance(volume, Mapping)]
    return reduced


def is_active(pod: Any) -> bool:
    """Return whether anything of the pod may run; others take part in no decision."""
    status = pod.get("status") if isinstance(pod, Mapping) else None
    return not (isinstance(status, Mapping) and status.get("phase") in _TERMINAL)


def _volume(volume: Mapping[str, Any]) -> dict[str, Any]:
    """Return a volume with its kind; of what a kind says only an emptyDir's medium and limit count."""
    kinds = {"name": _KEEP, "emptyDir": _keep("medium", "sizeLimit")}
    return {key: _picked(value, kinds.get(key, {})) for key, value in volume.items()}


def _picked(document: Any, tree: Any) -> Any:
    if isinstance(tree, _Keep):
        return document
    if isinstance(document, list):
        return [_picked(item, tree) for item in document]
    if not isinstance(document, Mapping):
        return {}
    found = {key: _picked(document[key], tree[key]) for key in tree if document.get(key) is not None}
    return {key: value for key, value in found.items() if value not in ({}, [])}
