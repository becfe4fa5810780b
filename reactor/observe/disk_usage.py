"""What each pod takes of the node's filesystems: writable layers, logs, volumes.

A look goes through the pods' directories one by one, in whatever thread it is called in. It asks the
filesystem's project quota where a directory has one of its own, and counts the tree where it has none. A
directory whose filesystem has not allocated or freed a single block or inode since is not looked at again.
What is known is published pod by pod, so that a large pod delays no other one's numbers.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from reactor.kernel.libc import set_io_priority
from reactor.kernel.quota import project_of, project_usage
from reactor.model.pods import ContainerUsage, FilesystemUsage, Pod, PodUsage, StorageKind, StoragePlace
from reactor.model.signals import Resource
from reactor.observe.tree_usage import DirectoryBudget, TreeUsage

if TYPE_CHECKING:
    from collections.abc import Iterator

_DIRECTORIES_REMEMBERED: Final = 10_000
_TRUSTED_SECONDS: Final = 300.0
_SLICE_SECONDS: Final = 0.005
_SHARE_AT_REST: Final = 0.1
_SHARE_URGENT: Final = 0.5
_IDLE_CLASS: Final = 3 << 13
_DEFAULT_CLASS: Final = 0
_ON_DISK: Final = frozenset({Resource.EPHEMERAL_STORAGE, Resource.INODES})
_NEITHER_MEMORY_NOR_PROCESSES: Final = PodUsage(unreadable=frozenset({Resource.MEMORY, Resource.PIDS}))
_NOTHING: Final = PodUsage(ephemeral_storage_bytes=0)


class GivenUpError(Exception):
    """A look was given up: it hung, or nobody wants to know any more."""


@dataclass(frozen=True, slots=True)
class _Key:
    """A place of a pod, by the pod's uid."""

    uid: str
    place: StoragePlace


class _Place:
    """What is known of one place, and what its filesystem showed before it was looked at."""

    __slots__ = ("looked_at_seconds", "problem", "project", "shown", "tree", "usage")

    def __init__(self, tree: TreeUsage) -> None:
        self.tree = tree
        self.usage: FilesystemUsage | None = None
        self.problem: str | None = None
        self.project: int | None = None
        self.shown: tuple[int, int, int] | None = None
        self.looked_at_seconds = -math.inf


class Pace:
    """Holds a thread to a share of a CPU, in slices; once `stopped` it raises GivenUpError.

    `worked_seconds` is the CPU time that it has taken in all. What it waits for, a slow disk or a busy CPU,
    is no work. To be called by one thread alone.
    """

    def __init__(self) -> None:
        self.share = _SHARE_AT_REST
        self.stopped = False
        self.worked_seconds = 0.0
        self.progress_at_seconds = time.monotonic()
        self._slice_began_seconds: float | None = None

    def hurry(self) -> None:
        """Take a larger share from now on."""
        self.share = _SHARE_URGENT

    def __call__(self) -> None:
        """Sleep where the slice is over."""
        if self.stopped:
            raise GivenUpError
        now_seconds = time.thread_time()
        if self._slice_began_seconds is None:
            self._slice_began_seconds = now_seconds
        worked_seconds = now_seconds - self._slice_began_seconds
        self.progress_at_seconds = time.monotonic()
        if worked_seconds >= _SLICE_SECONDS:
            self.worked_seconds += worked_seconds
            time.sleep(worked_seconds * (1 / self.share - 1))
            self._slice_began_seconds = time.thread_time()
            self.progress_at_seconds = time.monotonic()


class DiskUsage:
    """Looks at what pods take; `usages` may be asked for in any thread at any time.

    `looking_at` is the path that is being looked at, None where none is.
    """

    def __init__(self, *, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self.looking_at: str | None = None
        self._clock_seconds = clock_seconds
        self._budget = DirectoryBudget(_DIRECTORIES_REMEMBERED)
        self._places: dict[_Key, _Place] = {}
        self._published: Mapping[str, PodUsage] = {}
        self._looking = threading.Lock()

    @property
    def places(self) -> int:
        """Return how many places are known."""
        return len(self._places)

    @property
    def problems(self) -> dict[str, str]:
        """Return which places could not be looked at, and why."""
        return {
            f"storage {key.place.path}": place.problem
            for key, place in tuple(self._places.items())
            if place.problem is not None
        }

    def usages(self, pods: Sequence[Pod]) -> dict[str, PodUsage]:
        """Return what is known of these pods, by uid.

        A pod that has no place of its own takes nothing. One that was never looked at is absent.
        """
        published = self._published
        found = {pod.uid: published.get(pod.uid) if pod.storage else _NOTHING for pod in pods}
        return {uid: usage for uid, usage in found.items() if usage is not None}

    def renewed(self) -> DiskUsage:
        """Return another one that has published the same, and knows nothing else."""
        other = DiskUsage(clock_seconds=self._clock_seconds)
        other._published = self._published
        return other

    def look(self, pods: Sequence[Pod], pace: Pace, held: Collection[str] = ()) -> None:
        """Look at all that these pods take, the small ones first; forget all others.

        Of those whose uid is in `held`, also while it looks, what was published stays as it is.
        Raises GivenUpError once `pace` is stopped. Takes as long as it takes: for a thread of its own.
        """
        with self._looking, _idle_io():
            wanted = {_Key(pod.uid, place): pod for pod in pods for place in pod.storage}
            for key in self._places.keys() - wanted.keys():
                self._places.pop(key).tree.forget()
            for key in wanted.keys() - self._places.keys():
                pace()
                self.looking_at = key.place.path
                self._places[key] = _Place(TreeUsage(key.place.path, self._budget))
                # Of all before the first is counted: who shares a project has no number of its own.
                self._places[key].project = _project_at(key.place.path)
            uids = {key.uid for key in wanted}
            self._published = {uid: one for uid, one in self._published.items() if uid in uids}
            for key in sorted(wanted, key=lambda key: _size(self._places[key])):
                pace()
                if key.uid in held:
                    continue
                self.looking_at = key.place.path
                if self._look_at(self._places[key], pace) and key.uid not in held:
                    self._publish(wanted[key])
            self.looking_at = None

    def _look_at(self, place: _Place, pace: Pace) -> bool:
        """Look at one place where that may tell something new; return whether it was looked at."""
        began_seconds = self._clock_seconds()
        try:
            shown = _shown(place.tree.path)
            known = place.usage is not None and place.shown == shown
            if known and began_seconds - place.looked_at_seconds < _TRUSTED_SECONDS:
                return False
            place.usage = self._by_quota(place)
            if place.usage is None:
                place.tree.look(pace)
                place.usage = place.tree.usage
        except OSError as error:
            place.usage, place.shown = None, None
            # A directory that is not there (yet) takes nothing, and is no problem.
            place.problem = None if isinstance(error, FileNotFoundError) else str(error)
            if place.problem is None:
                place.usage = FilesystemUsage(used_bytes=0, inodes_used=0)
        else:
            place.problem, place.shown, place.looked_at_seconds = None, shown, began_seconds
        return True

    def _by_quota(self, place: _Place) -> FilesystemUsage | None:
        """Return a place's usage as its filesystem counts it, None where it doesn't, or not for itself."""
        fd = os.open(place.tree.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            place.project = project_of(fd)  # it may have been given one since
            others = [other.project for other in self._places.values() if other is not place]
            if place.project is None or place.project in others:
                return None
            return project_usage(fd, place.project)
        except OSError:  # its quotas are off
            return None
        finally:
            os.close(fd)

    def _publish(self, pod: Pod) -> None:
        usages = {place: self._known(_Key(pod.uid, place)) for place in pod.storage}
        known = {place: usage for place, usage in usages.items() if usage is not None}
        if known:
            self._published = {**self._published, pod.uid: pod_usage(pod, known)}

    def _known(self, key: _Key) -> FilesystemUsage | None:
        """Return what is known of a place: as far as a first look has come, if that is all there is."""
        place = self._places[key]
        return place.usage or place.tree.usage


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
            joined[pod.uid] = replace(known, unreadable=known.unreadable | _ON_DISK)
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


def _size(place: _Place) -> float:
    """Return by how much to look at a place late: one never looked at may be of any size."""
    known = place.usage
    return math.inf if known is None or known.inodes_used is None else known.inodes_used


def _project_at(path: str) -> int | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return project_of(fd)
    finally:
        os.close(fd)


def _shown(path: str) -> tuple[int, int, int]:
    """Return what a path's filesystem shows, the same as long as nothing is allocated or freed on it."""
    found = os.statvfs(path)
    return found.f_fsid, found.f_bfree, found.f_ffree


@contextmanager
def _idle_io() -> Iterator[None]:
    """Have the calling thread's reads come after everybody else's, and undo it: threads are used again."""
    with suppress(OSError):
        set_io_priority(_IDLE_CLASS)
    try:
        yield
    finally:
        with suppress(OSError):
            set_io_priority(_DEFAULT_CLASS)
