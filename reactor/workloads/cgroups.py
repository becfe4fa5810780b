"""Pods of a plain Linux node: every cgroup directly below a parent is one, with the specs of manifests."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import trio

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.directories import CONTENTS, CachedListing, DirectoryChanges
from reactor.kernel.files import GONE, Reserve, room_for
from reactor.kernel.procfs import PROC
from reactor.kernel.scheduling import Bounded
from reactor.model.pod_lists import Preference
from reactor.model.pods import SYSTEM_CRITICAL_PRIORITY, Pod, QosClass
from reactor.model.settings import Settings
from reactor.model.signals import Resource
from reactor.policy.list_entries import ExactNames
from reactor.policy.lists import Listed, Lists, Named
from reactor.threads import with_pauses, without_pause
from reactor.workloads.attributes import (
    NEVER_KILLED,
    SLICE,
    UNKNOWN,
    Attributes,
    MainProcess,
    MainProcessFiles,
    held_in_slices,
    is_written_by_root,
    read_attributes,
)
from reactor.workloads.parents import Children, NamedParents, Parents, PodBoundaries
from reactor.workloads.search import Search

if TYPE_CHECKING:
    from reactor.workloads.manifests import PodSpecs

NAMESPACE: Final = "cgroup"
_TIMEOUT_SECONDS: Final = 5.0
_MONITOR: Final = re.compile(r"libpod-conmon-[0-9a-f]{64}\.scope")
# How long a new cgroup may still be written to by who made it: one that is not watched is read again by each
# refresh until then. How many a refresh reads again: who can make thousands is not to make it long.
_SETTLES_SECONDS: Final = 1.0
_MOST_READ_AGAIN: Final = 8
# What a cgroup asks for is written right after it was made. Later it needs to be read again only where the
# last time is this long ago: not twice on the way to a kill.
_BEING_MADE_SECONDS: Final = 0.1
_READ_AGAIN_SECONDS: Final = 0.01
_AT_A_TURN: Final = 48  # pods that are as they were, each in 7 us
_AS_MANY: Final = 16  # as long as these takes one that is read anew


class _Found(NamedTuple):
    """A cgroup as a directory listing shows it; a recreated one has another inode, and so another uid.

    A tuple, since a listing of 1000 lies on the path from a wake to a kill.
    """

    uid: str
    cgroup: str
    inode: int
    directory: str
    is_trusted: bool  # root chose its name


@dataclass(slots=True)
class _Young:
    """When a pod came and was last read."""

    came_seconds: float
    read_seconds: float

    def is_due(self, now_seconds: float) -> bool:
        """Return whether it may be another than it was when it was read."""
        is_being_made = now_seconds - self.came_seconds < _BEING_MADE_SECONDS
        return is_being_made or now_seconds - self.read_seconds >= _READ_AGAIN_SECONDS


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


class CgroupPods:
    """Lists pods from the cgroup tree. Nothing here raises: what can't be read is in `problems`."""

    def __init__(
        self,
        tree: CgroupTree,
        settings: Settings,
        *,
        proc: Path = PROC,
        daemon: str | None = None,
        clock_seconds: Callable[[], float] = time.monotonic,
        timeout_seconds: float = _TIMEOUT_SECONDS,
    ) -> None:
        self._tree = tree
        self._reserve = Reserve()
        self._clock_seconds = clock_seconds
        self.boundaries = PodBoundaries(tree, settings.pod_parents, settings.node_cgroup, proc, daemon=daemon)
        self._search = Search if any(one.is_pattern for one in self.boundaries.parents) else NamedParents
        self._lists = Lists(settings.pod_lists)
        self._exact_names = ExactNames.of(settings.pod_lists)
        self._names: dict[str, Sequence[Named]] = {}  # by uid, with the units in slices
        self._main_process = partial(MainProcessFiles, proc, with_name=settings.pod_lists.wants_processes)
        self._honours_oomd = settings.pod_lists.honours_oomd
        self._main: dict[str, MainProcessFiles] = {}  # by uid, as of the last `list`
        self._known: dict[str, Pod] = {}
        self._pods: tuple[Pod, ...] = ()
        self._found: dict[str, _Found] = {}  # by uid, the children of the parents
        self._listed_from: Mapping[str, Sequence[_Found] | None] | None = None  # that nothing is left out of
        self._as_read: dict[str, Pod] = {}  # by uid, those that `_changes` says are as they were read
        self._changes = DirectoryChanges(CONTENTS)
        self._young: dict[str, _Young] = {}  # by uid, those that came last at the end
        self._problems: Mapping[str, str] = {}
        self._listing = CachedListing[Parents]()
        self.matches: Mapping[str, Sequence[str]] = {}
        self._parents: Parents | None = None
        self._children: Mapping[str, Sequence[_Found] | None] = {}
        self._specs = _specs(tree, self.boundaries, settings.manifests_path)
        self._reading = None if self._specs is None else Bounded(self._specs.read, timeout_seconds)

    @property
    def problems(self) -> Mapping[str, str]:
        """Return what could not be read, or was refused, when last listed: cgroup or file to one line."""
        found = {
            "pods' cgroups": self._listing.unwatched_because,
            "manifests": None if self._reading is None else self._reading.problem,
        }
        refused = {} if self._specs is None else self._specs.problems
        return {**self._problems, **refused, **{name: why for name, why in found.items() if why is not None}}

    def changed_fd(self) -> int:
        return self._listing.fileno()

    async def listed(self) -> tuple[Pod, ...]:
        """Return every pod, all of it read afresh (manifests where their files changed).

        Cgroups are read a few at a time in the loop itself, which goes first in between: a thread would hold
        the interpreter's lock for as long. Manifests lie on a disk, which may hang, and are read in a thread;
        where that takes too long those that were read before stand.
        """
        if self._reading is not None:
            await self._reading.ask()
        return self._with_specs(await with_pauses(self.turns(), trio.lowlevel.checkpoint))

    def specified(self, pods: Iterable[Pod]) -> tuple[Pod, ...]:
        return () if self._specs is None else tuple(pod for pod in pods if pod.cgroup in self._specs)

    def list(self) -> tuple[Pod, ...]:
        """Return every pod, its request, limit and attributes read afresh, as of no manifest."""
        return without_pause(self.turns())

    def turns(self) -> Generator[None, None, tuple[Pod, ...]]:
        """Return every pod, as `list` does; yield after every few.

        Between two turns there may be refreshes: what they have found is not lost.
        """
        weight = 0
        began_seconds = self._clock_seconds()
        problems: dict[str, str] = {}
        read: dict[str, Pod | None] = {}
        self._take_changes()
        by_parent = self._by_parent(problems, again=True)
        for found in chain.from_iterable(some for some in by_parent.values() if some is not None):
            if weight >= _AT_A_TURN:
                yield
                weight = 0
            uid = found.uid
            is_same = self._has_same_main_process(found, began_seconds)
            pod = self._as_read.get(uid) if found.is_trusted else None  # it may have been given away
            if pod is None or not is_same:
                weight += _AS_MANY - 1
                pod = self._watched_pod(found, self._known.get(uid), problems)
            weight += 1
            read[uid] = pod
        for uid, young in self._young.items():
            if young.read_seconds > began_seconds:  # by a refresh, and maybe after it was read here
                read.pop(uid, None)
            elif uid in read:
                young.read_seconds = began_seconds
        pods = self._listed(self._by_parent(problems), problems, read)
        self._changes.keep(self._known)
        if self._exact_names is not None and pods:
            problems |= self._unmatched(self._exact_names, pods)
        return pods

    def _has_same_main_process(self, found: _Found, now_seconds: float) -> bool:
        """Return whether a pod's main process is as it was when it was read last; read it again if not."""
        before = self._main.get(found.uid)
        if before is not None and before.are_as_read(now_seconds):
            return True
        self._main[found.uid] = files = self._main_process(found.directory, now_seconds)
        if len(self._main) > room_for(len(self._found)):
            files.close()
        return before is not None and before.main == files.main

    def _take_changes(self) -> None:
        """Note whose cgroups were written to since they were read."""
        changed = self._changes.changed()
        for uid in tuple(self._as_read) if changed is None else changed:
            self._as_read.pop(uid, None)

    def _watched_pod(self, found: _Found, before: Pod | None, problems: dict[str, str]) -> Pod | None:
        """Return what `_pod` does, and note whether it is reported once that has changed."""
        is_watched = self._is_watched(found)  # before it is read
        pod = self._pod(found, before, problems)
        self._as_read.pop(found.uid, None)
        if pod is not None and is_watched and found.cgroup not in problems:
            self._as_read[found.uid] = pod
        return pod

    def _is_watched(self, found: _Found) -> bool:
        """Return whether it is reported once what was read of a cgroup has changed, but its main process."""
        if not found.is_trusted or found.cgroup.endswith(SLICE):  # of these, more is read
            return False
        try:
            self._changes.watch(found.directory, found.uid)
        except OSError:  # it is gone, or no inotify is to be had: it is read each time, then
            return False
        return True

    def _unmatched(self, names: ExactNames, pods: Iterable[Pod]) -> Iterator[tuple[str, str]]:
        present = {pod.uid for pod in pods}
        self._names = {uid: named for uid, named in self._names.items() if uid in present}
        spared = [Named(cgroup, is_trusted=True) for cgroup in self.boundaries.spared]
        return names.problems([*(one for named in self._names.values() for one in named), *spared])

    def refresh(self) -> tuple[Pod, ...]:
        """Return the pods that exist now; of those known from before only the youngest may be read again.

        Who makes a cgroup writes what it asks for afterwards: systemd, a runtime. A pod that was read in
        between would be what it is not until the next `list`: it is read again once it was written to.

        The parents are listed where one of them has changed: cheap enough for the path from a wake to a kill,
        where a pod that came a moment ago may be the very one. For one thread.
        """
        problems = dict(self._problems)
        children = self._by_parent(problems)
        changed = self._changed_young(problems)
        if children is self._listed_from and not changed and problems == self._problems:
            return self._with_specs(self._pods)
        return self._with_specs(self._reserve.lent()(self._listed)(children, problems, changed))

    def _with_specs(self, pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
        return pods if self._specs is None else self._specs.with_specs(pods)

    def _changed_young(self, problems: dict[str, str]) -> dict[str, Pod | None]:
        """Return by uid which of the youngest pods are not as known: not watched, or written to since."""
        changed: dict[str, Pod | None] = {}
        if not self._young:
            return changed
        self._take_changes()
        now_seconds = self._clock_seconds()
        for uid, young in islice(reversed(self._young.items()), _MOST_READ_AGAIN):
            if uid in self._found and uid not in self._as_read and young.is_due(now_seconds):
                young.read_seconds = now_seconds
                pod = self._watched_pod(self._found[uid], self._known[uid], problems)
                if pod != self._known[uid]:
                    changed[uid] = pod
        since = now_seconds - _SETTLES_SECONDS
        self._young = {uid: one for uid, one in self._young.items() if one.came_seconds > since}
        return changed

    def _by_parent(
        self, problems: dict[str, str], *, again: bool = False
    ) -> Mapping[str, Sequence[_Found] | None]:
        """Return the children of each parent, None of one that can't be listed, which is in `problems`."""
        search = partial(self._search, self._tree, problems, self._listing, again=again)
        lent, above = self._reserve.lent, self.boundaries.parents
        parents = self._listing.get(lambda: lent()(search().run)(above), again=again)
        if parents != self._parents:
            self._parents, self.matches = parents, parents.matches
            self._children = {
                parent: None if children is None else self._may_be_pods(children)
                for parent, children in parents.children.items()
            }
            self._found = {one.uid: one for found in self._children.values() for one in found or ()}
        return self._children

    def _listed(
        self,
        children: Mapping[str, Sequence[_Found] | None],
        problems: dict[str, str],
        read: Mapping[str, Pod | None],
    ) -> tuple[Pod, ...]:
        """Return the pods among these: as `read` has them by uid, None where one has gone, else as known."""
        known = self._known
        now_seconds = self._clock_seconds()
        pods: dict[str, Pod] = {}
        for parent, found in children.items():
            if found is None:
                pods |= {uid: pod for uid, pod in known.items() if self._tree.holds(parent, pod.cgroup or "")}
                continue
            for child in found:
                pod = read.get(child.uid, known.get(child.uid))
                if pod is None and child.uid not in read:
                    pod = self._watched_pod(child, None, problems)
                if pod is not None:
                    pods[child.uid] = pod
        for known_of in (self._main, self._as_read, self._young):
            for uid in known_of.keys() - pods.keys():
                del known_of[uid]
        self._young |= {uid: _Young(now_seconds, now_seconds) for uid in pods if uid not in known}
        self._known = pods
        self._problems = problems
        self._pods = tuple(pods.values())
        # One that is listed and could not be read may be there again without a change of the directory.
        is_whole = all(
            found is not None and all(one.uid in pods for one in found) for found in children.values()
        )
        self._listed_from = children if is_whole else None
        return self._pods

    def _may_be_pods(self, children: Children) -> Sequence[_Found]:
        """Return the cgroups below a parent that may be pods, by name."""
        prefix = children.cgroup.rstrip("/")
        found = ((name, f"{prefix}/{name}", inode) for name, inode in children.names)
        return [
            _Found(f"{cgroup}#{inode}", cgroup, inode, f"{children.directory}/{name}", children.is_trusted)
            for name, cgroup, inode in found
            if cgroup not in self.boundaries.spared
        ]

    def _pod(self, found: _Found, before: Pod | None, problems: dict[str, str]) -> Pod | None:
        """Return the pod in a cgroup, None where it is gone since it was listed.

        One that can't be read stays as it was known; one that never could be is spared, since what it
        asked for and whether it may be evicted are not known.
        """
        try:
            try:
                pod = self._read(found, found.directory, problems)
            except OSError as error:
                if error.errno not in GONE or not self._is_renamed(found):
                    raise
            else:
                if not self._is_renamed(found):
                    return pod
            return self._read_renamed(found, problems)
        except (OSError, ReactorError) as error:
            if isinstance(error, OSError) and error.errno in GONE:
                return None
            problems[found.cgroup] = str(error)
            unread = _pod(found, Attributes(), Listed(), UNKNOWN, request_bytes=0, limit_bytes=None)
            return before or replace(unread, critical_because="its cgroup can't be read")

    def _is_renamed(self, found: _Found) -> bool:
        """Return whether a cgroup has not the path any more by which it was listed; on v2 none is renamed."""
        if self._tree.version is CgroupVersion.V2:
            return False
        try:
            return os.stat(found.directory).st_ino != found.inode
        except OSError:
            return True

    def _read_renamed(self, found: _Found, problems: dict[str, str]) -> Pod:
        """Return the pod in a cgroup that was renamed since it was listed. Raises OSError, ReactorError."""
        with self._tree.open(found.cgroup, inode=found.inode) as directory:
            path = directory.path
            self._main[found.uid] = self._main_process(path, self._clock_seconds())
            return self._read(found, path, problems)

    def _read(self, found: _Found, directory: str, problems: dict[str, str]) -> Pod:
        """Return the pod in a cgroup. Raises OSError, ReactorError."""
        attributes = read_attributes(directory, honours_oomd=self._honours_oomd)
        if attributes.problems:
            problems[found.cgroup] = "; ".join(attributes.problems)
        tree = self._tree
        request_bytes = tree.listed_memory_request_bytes(directory)
        limit_bytes = tree.listed_memory_limit_bytes(directory)
        # Who was given the cgroup, or a part of the tree, could ask for all of the node, and never exceed it.
        if request_bytes and not is_written_by_root(directory, tree.request_files):
            request_bytes = 0
        main = self._main[found.uid].main if found.uid in self._main else UNKNOWN
        units = tuple(held_in_slices(found.cgroup, directory)) if found.is_trusted else ()
        if self._exact_names is not None:
            self._names[found.uid] = [Named(one, found.is_trusted) for one in (found.cgroup, *units)]
        pod = _pod(
            found,
            attributes,
            self._listed_as(found, units, main),
            main,
            request_bytes=request_bytes,
            limit_bytes=limit_bytes,
        )
        return replace(pod, spared_cgroups=_monitors(found.cgroup, units))

    def _listed_as(self, found: _Found, units: Sequence[str], main: MainProcess) -> Listed:
        """Return what the operator's lists say of the pod; a slice is spared for a unit in it."""
        listed = self._lists.of(Named(found.cgroup, found.is_trusted, main.name))
        if listed.never_because is None:
            for inner in units:
                because = self._lists.never_because(Named(inner, is_trusted=True))
                if because is not None:
                    return listed._replace(never_because=f"holds {inner}: {because}")
        return listed


def _specs(tree: CgroupTree, boundaries: PodBoundaries, path: str | None) -> PodSpecs | None:
    if path is None:
        return None
    # What reads YAML takes 3 MiB, and most nodes have no manifests.
    from reactor.workloads.manifests import PodSpecs  # noqa: PLC0415

    return PodSpecs(tree, boundaries, path)


def _pod(
    found: _Found,
    attributes: Attributes,
    listed: Listed,
    main: MainProcess,
    *,
    request_bytes: int,
    limit_bytes: int | None,
) -> Pod:
    # More than the limit can't be used, so it can't be asked for; v2 knows memory.low=max.
    request_bytes = request_bytes if limit_bytes is None else min(request_bytes, limit_bytes)
    priority = attributes.priority if listed.priority is None else listed.priority
    return Pod(
        name=os.path.basename(found.cgroup),
        namespace=NAMESPACE,
        uid=found.uid,
        priority=priority,
        qos_class=_qos_class(request_bytes, limit_bytes),
        critical_because=_critical_because(attributes, listed, main, priority),
        preference=Preference.AVOID if attributes.avoid else listed.preference,
        process_victim=listed.process_victim,
        requests={Resource.MEMORY: request_bytes} if request_bytes else {},
        cgroup=found.cgroup,
        cgroup_inode=found.inode,
    )


def _monitors(cgroup: str, units: Sequence[str]) -> tuple[str, ...]:
    """Return podman's monitors among a slice's units, which report to podman how their containers ended.

    A monitor ends with its container. Killed together, podman would call the container running for ever.
    """
    own = (unit for unit in units if unit.rpartition("/")[0] == cgroup)
    return tuple(sorted(unit for unit in own if _MONITOR.fullmatch(unit.rpartition("/")[2])))


def _qos_class(request_bytes: int, limit_bytes: int | None) -> QosClass:
    if request_bytes > 0 and request_bytes == limit_bytes:
        return QosClass.GUARANTEED
    return QosClass.BURSTABLE if request_bytes > 0 or limit_bytes is not None else QosClass.BEST_EFFORT


def _critical_because(attributes: Attributes, listed: Listed, main: MainProcess, priority: int) -> str | None:
    if listed.never_because is not None:
        return listed.never_because
    if attributes.omit:
        return "user.oomd_omit"
    if priority >= SYSTEM_CRITICAL_PRIORITY:
        return f"priority {priority}"
    if main.is_unkillable:
        return f"oom_score_adj {NEVER_KILLED.decode()} of its main process"
    return None
