"""What each pod takes of the node's filesystems: writable layers, logs, volumes, as the walker reports it.

What is known is published pod by pod, so that a large pod delays no other one's numbers. A count under way
is a lower bound: what has been found so far is there. It may show that a limit is exceeded, and it ranks its
pod at the place that the whole count would give it or behind, never before.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from reactor.disks.walk_messages import Add, Drop, Kind, MessageError, Report, Request
from reactor.model.pods import ContainerUsage, FilesystemUsage, Pod, PodUsage, StorageKind, StoragePlace
from reactor.model.signals import ON_DISK, Resource

_FRESH_SECONDS: Final = 300.0
_OVERDUE_SECONDS: Final = 120.0
_NEITHER_MEMORY_NOR_PROCESSES: Final = PodUsage(unreadable=frozenset({Resource.MEMORY, Resource.PIDS}))
_NOTHING: Final = PodUsage(ephemeral_storage_bytes=0)


@dataclass(frozen=True, slots=True)
class _Key:
    """A place of a pod, by the pod's uid."""

    uid: str
    place: StoragePlace


class _Place:
    """What is known of one place.

    `number` is the walker's (None: it is not asked about it), `usage` the last whole count, confirmed at
    `counted_seconds`. `so_far` is what the count under way has found (None: none is), in `directories`.
    `due_seconds` is since when a count is awaited (None: none is). `problem` says what could not be read,
    `is_failing` that it is the place itself.
    """

    __slots__ = (
        "counted_seconds",
        "directories",
        "due_seconds",
        "is_failing",
        "number",
        "problem",
        "so_far",
        "usage",
    )

    def __init__(self) -> None:
        self.number: int | None = None
        self.usage: FilesystemUsage | None = None
        self.counted_seconds = -math.inf
        self.so_far: FilesystemUsage | None = None
        self.directories = 0
        self.due_seconds: float | None = None
        self.problem: str | None = None
        self.is_failing = False

    def is_whole(self, now_seconds: float) -> bool:
        """Return whether what is known is a whole count, and fresh."""
        return self.usage is not None and now_seconds - self.counted_seconds < _FRESH_SECONDS

    def known(self, now_seconds: float) -> FilesystemUsage | None:
        """Return what the place takes at the least: the last whole count while it is fresh, or more."""
        whole = self.usage if self.is_whole(now_seconds) else None
        if whole is None or self.so_far is None:
            return whole or self.so_far
        return FilesystemUsage(
            used_bytes=max(whole.used_bytes or 0, self.so_far.used_bytes or 0),
            inodes_used=max(whole.inodes_used or 0, self.so_far.inodes_used or 0),
        )


@dataclass(frozen=True, slots=True)
class _Published:
    """What is said of a pod, and until when that is fresh."""

    usage: PodUsage
    fresh_until_seconds: float


class DiskUsage:
    """Knows what pods take; `assign` says what the walker is to be asked, `take` is given what it reports.

    `usages` may be asked for in any thread at any time, all else is for one.
    """

    def __init__(self, *, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self._clock_seconds = clock_seconds
        self._places: dict[_Key, _Place] = {}
        self._pods: dict[str, Pod] = {}
        self._by_number: dict[int, _Key] = {}
        self._disbelieved: list[int] = []
        self._next_number = 1
        self._pod_numbers: dict[str, int] = {}
        self._published: Mapping[str, _Published] = {}

    @property
    def places(self) -> int:
        """Return how many places are known."""
        return len(self._places)

    @property
    def problems(self) -> dict[str, str]:
        """Return which places could not be read, and which pods' counts take too long."""
        found = {
            f"storage {key.place.path}": place.problem
            for key, place in self._places.items()
            if place.problem is not None
        }
        now_seconds = self._clock_seconds()
        for uid, places in self._overdue(now_seconds).items():
            awaited_seconds = max(now_seconds - (place.due_seconds or now_seconds) for place in places)
            directories = sum(place.directories for place in places)
            found[f"storage of pod {self._pods[uid].key}"] = (
                f"not counted for {awaited_seconds:.0f} s: {directories} directories so far"
            )
        return found

    @property
    def overdue(self) -> int:
        """Return of how many pods a count takes too long."""
        return len(self._overdue(self._clock_seconds()))

    def usages(self, pods: Sequence[Pod]) -> dict[str, PodUsage]:
        """Return what is known of these pods, by uid.

        A pod that has no place of its own takes nothing. One of which nothing is known is absent.
        """
        now_seconds = self._clock_seconds()
        found = {}
        for pod in pods:
            published = self._published.get(pod.uid)
            if published is not None and now_seconds >= published.fresh_until_seconds:
                published = self._made_up(pod.uid)
            if not pod.storage:
                found[pod.uid] = _NOTHING
            elif published is not None:
                found[pod.uid] = published.usage
        return found

    def is_whole(self, pod: Pod) -> bool:
        """Return whether each of the pod's places was counted as a whole, lately."""
        now_seconds = self._clock_seconds()
        places = (self._places.get(_Key(pod.uid, place)) for place in pod.storage)
        return all(place is not None and place.is_whole(now_seconds) for place in places)

    def assign(self, pods: Sequence[Pod], without: Collection[str] = ()) -> list[Request]:
        """Return what the walker is to be told before it looks at all that these pods take.

        Places of other pods are forgotten. Those of pods whose uid is in `without`, and paths that are in
        it, are not asked about: what was published of them stays for a while.
        """
        self._pods = {pod.uid: pod for pod in pods}
        wanted = {_Key(pod.uid, place) for pod in pods for place in pod.storage}
        asked = {key for key in wanted if key.uid not in without and key.place.path not in without}
        requests: list[Request] = [Drop(number) for number in self._disbelieved]
        self._disbelieved.clear()
        for key in self._places.keys() - asked:
            place = self._places[key] if key in wanted else self._places.pop(key)
            if place.number is not None:
                requests.append(Drop(place.number))
                del self._by_number[place.number]
            place.number, place.so_far, place.due_seconds = None, None, None
        self._pod_numbers = {uid: number for uid, number in self._pod_numbers.items() if uid in self._pods}
        for pod in pods:
            for key in (_Key(pod.uid, place) for place in pod.storage):
                place = self._places.setdefault(key, _Place())
                if key in asked and place.number is None:
                    requests.append(
                        Add(self._numbered(key, place), self._pod_number(key.uid), key.place.path)
                    )
        self._publish_all()
        return requests

    def forget_walker(self) -> None:
        """Take note that the walker is gone: another one has to be told everything."""
        for place in self._places.values():
            place.number, place.so_far, place.directories = None, None, 0
        self._by_number.clear()
        self._disbelieved.clear()
        self._publish_all()

    def look_begins(self) -> None:
        """Take note that the walker is asked for a look."""
        now_seconds = self._clock_seconds()
        for key in self._by_number.values():
            place = self._places[key]
            if place.due_seconds is None:
                place.due_seconds = now_seconds

    def look_ended(self) -> None:
        """Take note that the walker has looked: what it did not speak of is as it was."""
        now_seconds = self._clock_seconds()
        for key in self._by_number.values():
            place = self._places[key]
            if place.so_far is None and not place.is_failing and place.usage is not None:
                place.counted_seconds, place.due_seconds = now_seconds, None
        self._publish_all()

    def path_of(self, number: int) -> str | None:
        """Return a place's path by its number, None where it is not asked about (any more)."""
        key = self._by_number.get(number)
        return None if key is None else key.place.path

    def take(self, report: Report, held: Collection[str] = ()) -> None:
        """Take what the walker reports of a place; of pods whose uid is in `held` it is not believed.

        Such a place is asked about again, since the walker reports what changed and nothing twice. Raises
        MessageError for a place that never was.
        """
        if not 0 < report.place < self._next_number:
            raise MessageError(f"got place {report.place}; accepted: 1 to {self._next_number - 1}")
        key = self._by_number.get(report.place)
        if key is None:
            return  # it was dropped meanwhile
        place = self._places[key]
        if key.uid in held:
            del self._by_number[report.place]
            place.number, place.so_far, place.due_seconds = None, None, None
            self._disbelieved.append(report.place)
            self._publish(key.uid)
            return
        found = FilesystemUsage(used_bytes=report.used_bytes, inodes_used=report.inodes)
        match report.kind:
            case Kind.SO_FAR:
                place.so_far, place.directories = found, report.directories
            case Kind.COUNTED:
                place.usage, place.counted_seconds = found, self._clock_seconds()
                place.so_far, place.due_seconds, place.is_failing = None, None, False
                place.problem = _unreadable(report)
            case Kind.FAILED:  # what it last took stands while that is fresh
                place.so_far, place.due_seconds, place.is_failing = None, None, True
                place.problem = f"{os.strerror(report.error_number)}: {key.place.path!r}"
            case _:
                return
        self._publish(key.uid)

    def _overdue(self, now_seconds: float) -> dict[str, list[_Place]]:
        """Return the places whose counts take too long, by their pods' uids."""
        found: dict[str, list[_Place]] = {}
        for key, place in self._places.items():
            if place.due_seconds is not None and now_seconds - place.due_seconds >= _OVERDUE_SECONDS:
                found.setdefault(key.uid, []).append(place)
        return found

    def _numbered(self, key: _Key, place: _Place) -> int:
        place.number = self._next_number
        self._next_number += 1
        self._by_number[place.number] = key
        return place.number

    def _pod_number(self, uid: str) -> int:
        if uid not in self._pod_numbers:
            self._pod_numbers[uid] = self._next_number
            self._next_number += 1
        return self._pod_numbers[uid]

    def _publish_all(self) -> None:
        self._published = {}
        for uid in self._pods:
            self._publish(uid)

    def _publish(self, uid: str) -> None:
        published = {other: usage for other, usage in self._published.items() if other != uid}
        usage = self._made_up(uid)
        self._published = published if usage is None else {**published, uid: usage}

    def _made_up(self, uid: str) -> _Published | None:
        """Return what is to be said of a pod, made up of what is known of its places (None: nothing)."""
        pod = self._pods.get(uid)
        if pod is None:
            return None
        now_seconds = self._clock_seconds()
        known: dict[StoragePlace, FilesystemUsage] = {}
        fresh_until_seconds = math.inf
        for place in pod.storage:
            found = self._places.get(_Key(uid, place))
            usage = None if found is None else found.known(now_seconds)
            if found is not None and usage is not None:
                known[place] = usage
                if found.is_whole(now_seconds):
                    fresh_until_seconds = min(fresh_until_seconds, found.counted_seconds + _FRESH_SECONDS)
        return _Published(pod_usage(pod, known), fresh_until_seconds) if known else None


def pod_usage(pod: Pod, usages: Mapping[StoragePlace, FilesystemUsage]) -> PodUsage:
    """Return a pod's usage, made up of that of its places.

    Its ephemeral storage is what its containers and its local volumes take; an emptyDir in memory is not
    part of it. Source: podLocalEphemeralStorageUsage.
    """
    by_kind: dict[StorageKind, dict[str, FilesystemUsage]] = {kind: {} for kind in StorageKind}
    for place, usage in usages.items():
        by_kind[place.kind][place.name] = usage
    layers, logs = by_kind[StorageKind.WRITABLE_LAYER], by_kind[StorageKind.LOGS]
    volumes = by_kind[StorageKind.VOLUME]
    local = [volumes[volume.name] for volume in pod.volumes if volume.is_local and volume.name in volumes]
    return PodUsage(
        ephemeral_storage_bytes=sum(
            usage.used_bytes or 0 for usage in (*layers.values(), *logs.values(), *local)
        ),
        containers=tuple(
            ContainerUsage(name=name, rootfs=layers.get(name), logs=logs.get(name))
            for name in dict.fromkeys((*layers, *logs))
        ),
        volumes=volumes,
    )


def with_storage(
    usages: Mapping[str, PodUsage], storage: Mapping[str, PodUsage], pods: Sequence[Pod]
) -> dict[str, PodUsage]:
    """Return what these pods use of memory and processes together with what they take of filesystems, by uid.

    What is in neither of the two has not been observed: that is unreadable, and not the same as none.
    """
    joined = dict(usages)
    for pod in pods:
        known, taken = usages.get(pod.uid, _NEITHER_MEMORY_NOR_PROCESSES), storage.get(pod.uid)
        if taken is None:
            joined[pod.uid] = replace(known, unreadable=known.unreadable | ON_DISK)
        else:
            joined[pod.uid] = replace(
                known,
                ephemeral_storage_bytes=taken.ephemeral_storage_bytes,
                containers=_joined(known.containers, taken.containers),
                volumes=taken.volumes,
                unreadable=known.unreadable | taken.unreadable,
            )
    return joined


def _joined(
    memory: Sequence[ContainerUsage], storage: Sequence[ContainerUsage]
) -> tuple[ContainerUsage, ...]:
    """Return what containers use of memory with what they take of filesystems, by name."""
    joined = {container.name: container for container in storage}
    for container in memory:
        taken = joined.get(container.name, container)
        joined[container.name] = replace(taken, memory_working_set_bytes=container.memory_working_set_bytes)
    return tuple(joined.values())


def _unreadable(report: Report) -> str | None:
    if not report.unreadable:
        return None
    return f"{report.unreadable} entries could not be read, the last: {os.strerror(report.error_number)}"
