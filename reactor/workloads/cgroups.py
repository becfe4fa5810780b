"""Pods of a plain Linux node: every cgroup directly below a parent is one, with the specs of manifests."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from reactor.workloads.parents import UNREAD, Children, NamedParents, Parents, PodBoundaries, all_spared
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


@dataclass(eq=False, slots=True)
class _Known:
    """What is known of a cgroup that may be a pod: `pod`, None where it is gone since it was listed.

    `is_listed`: its parent could be listed last.
    `is_as_read`: it is reported once what was read of it has changed, but its main process, and has not.
    `main` is as of the last `list`, `names` are with the units in a slice.
    """

    found: _Found
    came_seconds: float
    read_seconds: float
    pod: Pod | None = None
    problem: str | None = None
    is_listed: bool = True
    is_as_read: bool = False
    main: MainProcessFiles | None = None
    names: Sequence[Named] = ()

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
        self._main_process = partial(MainProcessFiles, proc, with_name=settings.pod_lists.wants_processes)
        self._honours_oomd = settings.pod_lists.honours_oomd
        self._known: dict[str, _Known] = {}  # by uid, in the order of the parents
        self._is_blind = False  # for want of descriptors: the hog may have come since
        self._is_whole = True  # none of them is gone, or could be there again unnoticed
        self._young: list[_Known] = []  # those that came last at the end
        self._pods: tuple[Pod, ...] = ()
        self._changes = DirectoryChanges(CONTENTS)
        self._unlisted: dict[str, str] = {}
        self._unmatched: Mapping[str, str] = {}
        self._listing = CachedListing[Parents]()
        self.matches: Mapping[str, Sequence[str]] = {}
        self._parents: Parents | None = None
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
        of_pods = {one.found.cgroup: one.problem for one in self._known.values()}
        named = {name: why for name, why in {**of_pods, **found}.items() if why is not None}
        return {**self._unlisted, **self._unmatched, **refused, **named}

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
        weight, began_seconds = 0, self._clock_seconds()
        self._take_changes()
        self._unlisted = {}
        self._list(again=True)
        for number, one in enumerate([one for one in self._known.values() if one.is_listed]):
            if weight >= _AT_A_TURN:
                yield
                weight = 0
            is_same = self._has_same_main_process(one, began_seconds, number)
            weight += 1
            # What is not trusted may have been given away.
            if not (is_same and one.is_as_read and one.found.is_trusted):
                weight += _AS_MANY - 1
                self._read_again(one, began_seconds)
        self._list()
        self._changes.keep(self._known)
        self._pods = self._present()
        self._unmatched = {}
        if self._exact_names is not None and self._pods:
            spared = [Named(cgroup, is_trusted=True) for cgroup in self.boundaries.spared]
            names = (name for one in self._known.values() for name in one.names)
            self._unmatched = dict(self._exact_names.problems([*names, *spared]))
        return self._pods

    def _has_same_main_process(self, one: _Known, now_seconds: float, number: int) -> bool:
        """Return whether a pod's main process is as it was when it was read last; read it again if not.

        The files of so many are held open as the limit of descriptors allows, by their `number`.
        """
        before = one.main
        if before is not None and before.are_as_read(now_seconds):
            return True
        one.main = files = self._main_process(one.found.directory, now_seconds)
        if number >= room_for(len(self._known)):
            files.close()
        return before is not None and before.main == files.main

    def _take_changes(self) -> None:
        """Note whose cgroups were written to since they were read."""
        changed = self._changes.changed()
        for uid in self._known if changed is None else changed:
            if uid in self._known:
                self._known[uid].is_as_read = False

    def _read_again(self, one: _Known, now_seconds: float) -> bool:
        """Read a pod, and note whether it is reported once that has changed; return whether it has."""
        is_watched, before = self._is_watched(one.found), one.pod  # before it is read
        one.problem, one.read_seconds = None, now_seconds
        one.pod = self._pod(one)
        one.is_as_read = is_watched and one.pod is not None and one.problem is None
        if one.pod is None:
            self._is_whole, one.problem, one.main, one.names = False, None, None, ()
        return one.pod != before

    def _is_watched(self, found: _Found) -> bool:
        """Return whether it is reported once what was read of a cgroup has changed, but its main process."""
        if not found.is_trusted or found.cgroup.endswith(SLICE):  # of these, more is read
            return False
        try:
            self._changes.watch(found.directory, found.uid)
        except OSError:  # it is gone, or no inotify is to be had: it is read each time, then
            return False
        return True

    def refresh(self) -> tuple[Pod, ...]:
        """Return the pods that exist now; of those known from before only the youngest may be read again.

        Who makes a cgroup writes what it asks for afterwards: systemd, a runtime. A pod that was read in
        between would be what it is not until the next `list`: it is read again once it was written to.

        The parents are listed where one of them has changed: cheap enough for the path from a wake to a kill,
        where a pod that came a moment ago may be the very one. For one thread.
        """
        is_changed = self._read_young()  # but those that come now
        if not self._list() and is_changed:
            self._pods = self._present()
        return self._with_specs(self._pods)

    def _present(self) -> tuple[Pod, ...]:
        pods = (one.pod for one in self._known.values() if one.pod is not None)
        return all_spared(pods) if self._is_blind else tuple(pods)

    def _with_specs(self, pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
        return pods if self._specs is None else self._specs.with_specs(pods)

    def _read_young(self) -> bool:
        """Read the youngest pods that are not watched, or were written to; return whether any has changed."""
        if not self._young:
            return False
        self._take_changes()
        now_seconds, is_changed = self._clock_seconds(), False
        for one in self._young[: -_MOST_READ_AGAIN - 1 : -1]:
            if one.pod is not None and not one.is_as_read and one.is_due(now_seconds):
                is_changed |= self._read_again(one, now_seconds)
        since = now_seconds - _SETTLES_SECONDS
        self._young = [one for one in self._young if one.came_seconds > since]
        return is_changed

    def _list(self, *, again: bool = False) -> bool:
        """List the parents, and read what has come; return whether pods may have come or gone."""
        search = partial(self._search, self._tree, self._unlisted, self._listing, again=again)
        lent, above = self._reserve.lent, self.boundaries.parents
        parents = self._listing.get(lambda: lent()(search().run)(above), again=again)
        if parents == self._parents and self._is_whole:
            return False
        self._parents, self.matches = parents, parents.matches
        lent()(self._take)(parents.children)
        self._pods = self._present()  # at once: a crossing may come before the others are read
        return True

    def _take(self, parents: Mapping[str, Children | None]) -> None:
        """Take over the cgroups below the parents; of one that can't be listed those that are known."""
        now_seconds, before, known = self._clock_seconds(), self._known, dict[str, _Known]()
        is_unseen = None in parents.values()
        for parent, children in parents.items():
            if children is None:
                found: Iterable[_Found] = [
                    one.found for one in before.values() if self._tree.holds(parent, one.found.cgroup)
                ]
            else:
                found = self._may_be_pods(children)
            for child in found:
                one = known[child.uid] = before.get(child.uid) or _Known(child, now_seconds, now_seconds)
                one.found, one.is_listed = child, children is not None
                if one.pod is None and self._read_again(one, now_seconds):
                    self._young.append(one)
                is_unseen |= one.pod is not None and one.pod.critical_because == UNREAD
        self._is_blind = is_unseen and not self._reserve.fill()
        # One that is gone, or can't be listed, may be there again without a change of the directory.
        self._is_whole = not (
            self._is_blind or None in parents.values() or any(one.pod is None for one in known.values())
        )
        self._known = known
        self._young = [one for one in self._young if known.get(one.found.uid) is one]

    def _may_be_pods(self, children: Children) -> Sequence[_Found]:
        """Return the cgroups below a parent that may be pods, by name."""
        prefix = children.cgroup.rstrip("/")
        found = ((name, f"{prefix}/{name}", inode) for name, inode in children.names)
        return [
            _Found(f"{cgroup}#{inode}", cgroup, inode, f"{children.directory}/{name}", children.is_trusted)
            for name, cgroup, inode in found
            if cgroup not in self.boundaries.spared
        ]

    def _pod(self, one: _Known) -> Pod | None:
        """Return the pod in a cgroup, None where it is gone since it was listed.

        One that can't be read stays as it was known; one that never could be is spared, since what it
        asked for and whether it may be evicted are not known.
        """
        found = one.found
        try:
            try:
                pod = self._read(one, found.directory)
            except OSError as error:
                if error.errno not in GONE or not self._is_renamed(found):
                    raise
            else:
                if not self._is_renamed(found):
                    return pod
            return self._read_renamed(one)
        except (OSError, ReactorError) as error:
            if isinstance(error, OSError) and error.errno in GONE:
                return None
            one.problem = str(error)
            unread = _pod(found, Attributes(), Listed(), UNKNOWN, request_bytes=0, limit_bytes=None)
            return one.pod or replace(unread, critical_because=UNREAD)

    def _is_renamed(self, found: _Found) -> bool:
        """Return whether a cgroup has not the path any more by which it was listed; on v2 none is renamed."""
        if self._tree.version is CgroupVersion.V2:
            return False
        try:
            return os.stat(found.directory).st_ino != found.inode
        except OSError:
            return True

    def _read_renamed(self, one: _Known) -> Pod:
        """Return the pod in a cgroup that was renamed since it was listed. Raises OSError, ReactorError."""
        with self._tree.open(one.found.cgroup, inode=one.found.inode) as directory:
            one.main = self._main_process(directory.path, self._clock_seconds())
            return self._read(one, directory.path)

    def _read(self, one: _Known, directory: str) -> Pod:
        """Return the pod in a cgroup. Raises OSError, ReactorError."""
        found = one.found
        attributes = read_attributes(directory, honours_oomd=self._honours_oomd)
        one.problem = "; ".join(attributes.problems) or None
        tree = self._tree
        request_bytes = tree.listed_memory_request_bytes(directory)
        limit_bytes = tree.listed_memory_limit_bytes(directory)
        # Who was given the cgroup, or a part of the tree, could ask for all of the node, and never exceed it.
        if request_bytes and not is_written_by_root(directory, tree.request_files):
            request_bytes = 0
        main = UNKNOWN if one.main is None else one.main.main
        units = tuple(held_in_slices(found.cgroup, directory)) if found.is_trusted else ()
        if self._exact_names is not None:
            one.names = [Named(name, found.is_trusted) for name in (found.cgroup, *units)]
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
