"""The reactor's own journal to a scenario's steps: each decision's observations and ranked pods, OOM kills.

The journal holds the decisions that were news, and pods only where one was to be chosen; so the steps
are fewer than the passes were, and a pod is known from the first time that it was ranked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from reactor.config.pod import SOURCE_ANNOTATION
from reactor.errors import ConfigError, Problem
from reactor.model.oom import OomScope
from reactor.model.pods import is_critical_by_mark
from reactor.model.signals import RESOURCE, Resource, Signal
from reactor.simulate.scenario_file import at

_NONE: Final = "none"
_OOM_KILL: Final = "oom-kill"
_FILESYSTEMS: Final = {
    Signal.NODEFS_AVAILABLE: ("fs", "availableBytes", "capacityBytes"),
    Signal.NODEFS_INODES_FREE: ("fs", "inodesFree", "inodes"),
    Signal.IMAGEFS_AVAILABLE: ("imageFs", "availableBytes", "capacityBytes"),
    Signal.IMAGEFS_INODES_FREE: ("imageFs", "inodesFree", "inodes"),
    Signal.CONTAINERFS_AVAILABLE: ("containerFs", "availableBytes", "capacityBytes"),
    Signal.CONTAINERFS_INODES_FREE: ("containerFs", "inodesFree", "inodes"),
}


def steps_of_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a step for each decision and OOM kill, oldest first.

    Raises OSError, ConfigError where a line is no journal's.

    A line that a crash cut off at the end is passed over.
    """
    began: float | None = None
    latest = 0.0
    pods: dict[str, dict[str, Any]] = {}
    preferences: dict[str, str] = {}
    for number, document in _documents(path):
        try:
            seconds = datetime.fromisoformat(document["time"]).timestamp()
            began = seconds if began is None else began
            latest = max(latest, seconds - began)  # the clock may have been set back
            if document["kind"] == _OOM_KILL:
                yield {"at": at(latest), "oomKills": int(document["kills"])}
                continue
            ranked, preferred = _ranked(document), _preferences(document)
            news = {uid: pod for uid, pod in ranked.items() if pods.get(uid) != pod}
            pods |= news
            before = preferences
            preferences = {uid: one for uid, one in before.items() if uid not in ranked} | preferred
            step: dict[str, Any] = {"at": at(latest), "summary": _summary(document)}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            got = f"{type(error).__name__}: {error}"
            raise ConfigError([Problem(path=f"{path}:{number}", got=got, accepted="a decision")]) from error
        if news or preferences != before:
            step["pods"] = list(pods.values())
            if preferences:
                step["preferences"] = preferences
        yield step


def _documents(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                document = json.loads(line)
            except ValueError as error:
                if not line.endswith(b"\n"):
                    return
                raise ConfigError(
                    [Problem(path=f"{path}:{number}", got=repr(line[:60]), accepted="a line of JSON")]
                ) from error
            if isinstance(document, Mapping) and _is_wanted(document):
                yield number, document


def _is_wanted(document: Mapping[str, Any]) -> bool:
    """Return whether it is a decision over thresholds, or an OOM kill at the node's own limit."""
    if document.get("kind") == _OOM_KILL:
        return bool(document.get("scope") == OomScope.NODE)
    return document.get("kind") == "decision" and document.get("rule") is None


def _summary(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statistics that the decision went by."""
    node: dict[str, Any] = {}
    for name, seen in document["observations"].items():
        signal = Signal(name)
        if signal is Signal.MEMORY_AVAILABLE:
            node["memory"] = _memory(seen)
        elif signal is Signal.ALLOCATABLE_MEMORY_AVAILABLE:
            node["systemContainers"] = [{"name": "pods", "memory": _memory(seen)}]
        elif signal is Signal.PID_AVAILABLE:
            node["rlimit"] = {"maxpid": seen["capacity"], "curproc": seen["capacity"] - seen["available"]}
        elif signal is Signal.SWAP_AVAILABLE:
            node["swap"] = _swap(seen["available"], seen["capacity"])
        else:
            place, available, capacity = _FILESYSTEMS[signal]
            holder = node if place == "fs" else node.setdefault("runtime", {})
            holder.setdefault(place, {}).update({available: seen["available"], capacity: seen["capacity"]})
    resource = _resource(document)
    return {
        "node": node,
        "pods": [
            _usage(place, resource) for place in document.get("ranking") or () if place["usage"] is not None
        ],
    }


def _swap(available: int, capacity: int) -> dict[str, int]:
    return {"swapAvailableBytes": available, "swapUsageBytes": capacity - available}


def _memory(seen: Mapping[str, Any]) -> dict[str, int]:
    working_set = seen["capacity"] - seen["available"]
    memory = {"availableBytes": seen["available"], "workingSetBytes": working_set}
    if seen.get("inactive_file_bytes") is not None:
        memory["usageBytes"] = working_set + seen["inactive_file_bytes"]
    return memory


def _resource(document: Mapping[str, Any]) -> Resource:
    threshold = document.get("threshold")
    return Resource.MEMORY if threshold is None else RESOURCE[Signal(threshold["signal"])]


def _ranked(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the pods that were ranked, by uid, as v1.Pods."""
    resource = _resource(document)
    return {place["uid"]: _pod(place, resource) for place in document.get("ranking") or ()}


def _preferences(document: Mapping[str, Any]) -> dict[str, str]:
    """Return which of the pods that were ranked go first or last by the operator's lists, by uid."""
    places = document.get("ranking") or ()
    return {place["uid"]: place["preference"] for place in places if place.get("preference", _NONE) != _NONE}


def _pod(place: Mapping[str, Any], resource: Resource) -> dict[str, Any]:
    namespace, _, name = place["pod"].partition("/")
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "uid": place["uid"]}
    if is_critical_by_mark(place.get("critical_because"), place["priority"]):
        metadata["annotations"] = {SOURCE_ANNOTATION: "file"}  # whatever it was: never evicted
    container: dict[str, Any] = {"name": "all"}
    if place.get("request") and resource in {Resource.MEMORY, Resource.EPHEMERAL_STORAGE}:
        container["resources"] = {"requests": {resource.value: str(place["request"])}}
    return {
        "metadata": metadata,
        "spec": {"priority": place["priority"], "containers": [container]},
        "status": {"qosClass": place["qos_class"]},
    }


def _usage(place: Mapping[str, Any], resource: Resource) -> dict[str, Any]:
    namespace, _, name = place["pod"].partition("/")
    reference = {"podRef": {"name": name, "namespace": namespace, "uid": place["uid"]}}
    used = place["usage"]
    if resource is Resource.MEMORY:
        return {**reference, "memory": {"workingSetBytes": used}}
    if resource is Resource.PIDS:
        return {**reference, "process_stats": {"process_count": used}}
    if resource is Resource.SWAP:
        return {**reference, "swap": {"swapUsageBytes": used}}
    key = "usedBytes" if resource is Resource.EPHEMERAL_STORAGE else "inodesUsed"
    return {**reference, "containers": [{"name": "all", "rootfs": {key: used}, "logs": {key: 0}}]}
