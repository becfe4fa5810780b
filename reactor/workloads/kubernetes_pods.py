"""Pods of a Kubernetes node: those in the kubelet's cgroup tree, each with its spec where one is known.

The tree says who is there; the API server (or the kubelet) and the runtime say what is known of them. Each
of the two may be gone for as long as it likes: what they reported last stands, and a pod that neither ever
reported is ranked by what the node itself shows of it (_unspecified). Neither is asked here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import trio

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_memory import MemoryCounters
from reactor.kernel.directories import CachedListing
from reactor.kernel.files import GONE, Reserve
from reactor.kernel.procfs import PROC, read_meminfo, read_name, read_oom_score_adj
from reactor.kernel.scheduling import Bounded
from reactor.model.pods import (
    SYSTEM_CRITICAL_PRIORITY,
    Inventory,
    NodeFiles,
    Pod,
    PodSource,
    QosClass,
    RuntimePod,
    StoragePlace,
)
from reactor.model.settings import Settings
from reactor.model.signals import Resource
from reactor.policy.admission import GUARANTEED, SANDBOX, requested_bytes
from reactor.policy.list_entries import namespaced_victim
from reactor.workloads.kubelet_storage import KubeletStorage, NodePaths
from reactor.workloads.kubepods import (
    ContainerCgroup,
    PodCgroup,
    container_cgroups,
    is_config_hash,
    partition_of,
    pod_cgroups,
)
from reactor.workloads.parents import UNREAD, PodBoundaries, all_spared

_NAME: Final = "pause"
_MOST_BYTES: Final = 16 << 20
UNKNOWN_NAMESPACE: Final = "kubepods"
_SYSTEM_NAMESPACE: Final = "kube-system"

# Returns the oom_score_adj that a process in a cgroup has of its own, whatever reactor has written for the
# sake of the OOM killer's order. Raises OSError, ReactorError.
OwnScore = Callable[[int, str], int]

_STARTING_SECONDS: Final = 60.0
_SHOWN: Final = 5
_TIMEOUT_SECONDS: Final = 5.0
_AT_A_TURN: Final = 4
_MIRROR: Final = PodSource.MIRROR.critical_because
_STATIC: Final = "static pod"
_IN_PARTITION: Final = "in the system partition (kubepods/system), which has a limit of its own"

Specs = Mapping[str, Pod]  # by uid


def spared_cgroups(
    tree: CgroupTree,
    containers: Sequence[ContainerCgroup],
    sandbox_ids: Collection[str],
    before: Collection[str],
    *,
    proc: Path = PROC,
) -> tuple[str, ...]:
    """Return what is to be spared of a pod's cgroups, given the oldest first; `before` is what was so far.

    These hold no process of the pod's own: its pause container and the runtime's monitors. They are spared
    when the pod is killed: a sandbox that dies behind the runtime's back leaves its shim. But a sandbox may
    be more than a pause container: with gVisor or Kata all of the pod runs in it, and sparing it would spare
    the pod. So whatever else is known of it, what is spared holds one process and hardly any memory; and each
    listing checks that again, since what is small may grow. `sandbox_ids` are those that the runtime reports.

        the runtime reports sandboxes   they alone are candidates, for no other reason is a container spared;
                                        of two that are up the younger one is the pod's: the kubelet stops
                                        the other
        it does not (yet, or any more)  the oldest container whose process has the score that the runtime
                                        gives to sandboxes, and that no process without CAP_SYS_RESOURCE can
                                        give to itself
        nor has any that score          the oldest of several containers, if its process is called `pause`: a
        (the runtime lacks the right    sandbox is there before all others, and stays spared when left alone.
        itself)                         A tenant chooses what a process is called, but not to be older; if a
                                        runtime makes no sandboxes, one that poses as a sandbox is spared
                                        until it is listed the next time, grown

    At most one container of a pod is spared, and what can't be read at present is as it was.
    """
    monitors = [
        one.cgroup for one in containers if one.is_monitor and _is_small(tree, one, one.cgroup in before)
    ]
    own = [one for one in containers if not one.is_monitor]
    candidates: list[tuple[ContainerCgroup, Callable[[int], bool]]]
    if sandbox_ids:
        candidates = [(one, lambda _: True) for one in reversed(own) if one.id in sandbox_ids]
    else:
        candidates = [(one, lambda pid: read_oom_score_adj(pid, proc) == SANDBOX) for one in own]
        # Alone it may be what an eviction has left: that is no pod that lives again.
        oldest = [one for one in own[:1] if len(own) > 1 or one.cgroup in before]
        candidates += [(one, lambda pid: read_name(pid, proc) == _NAME) for one in oldest]
    sandbox = next(
        (one.cgroup for one, evidence in candidates if _is_pause(tree, one, evidence, one.cgroup in before)),
        None,
    )
    spared = {*monitors, sandbox}
    return tuple(one.cgroup for one in containers if one.cgroup in spared)


def _is_pause(
    tree: CgroupTree,
    container: ContainerCgroup,
    evidence: Callable[[int], bool],
    was: bool,  # noqa: FBT001
) -> bool:
    """Return whether a container is one small process, for which the evidence speaks."""
    try:
        pids = tree.processes(container.cgroup)
        if len(pids) != 1 or not evidence(pids[0]):
            return False
    except (OSError, ReactorError):
        return was
    return _is_small(tree, container, was)


def _is_small(tree: CgroupTree, container: ContainerCgroup, was: bool) -> bool:  # noqa: FBT001
    try:
        with closing(MemoryCounters(tree, container.cgroup)) as counters:
            return counters.usage_bytes() <= _MOST_BYTES
    except (OSError, ReactorError):
        return was


# A pod of which no spec is known, by its cgroups, its processes and its log directory.
#
# That is so if the API server could not be reached since the reactor first started on this node, or while
# a pod is newer than what the API server has reported. `containers` are without its pause container. Such a
# pod takes part in the ranking like any other:
#
#     QoS class    from the path of its cgroup
#     request      Guaranteed: its limit, which is the same. Burstable: memory.min if the kubelet sets it,
#                  else what the oom_score_adj of each container's first process comes from. BestEffort:
#                  none
#     name         from the runtime, else from the kubelet's directory of its logs
#     priority     0, since nothing on the node shows it
#
# but for what may be critical, which is never evicted. As critical counts, without its spec,
#
#     a static pod          its uid is the hash of its manifest, a manifest in the static pods' directory
#                           has its uid, or its uid is none of the API server's (no UUID) and the runtime
#                           has the annotations that the kubelet gives a static pod; whether its mirror
#                           exists or not
#     a pod of kube-system  in which pods of the priority system-cluster-critical live
#     a score of -997       a pod of the priority system-node-critical, or a Guaranteed one
#     a Guaranteed pod      the same, if the runtime was not allowed to set that score
#
# The first two are none that a tenant can make: uids are the API server's, files and cgroups the kubelet's,
# kube-system the operator's. A Guaranteed pod is one that a tenant can make, by requests that equal limits.
# So that counts only for as long as is not known: a pod that the API server still does not list though it
# reports all the others (`is_unlisted`) was deleted there, and is evicted like any other.
#
# Every other pod can be evicted: a node on which none can be is lost with all its pods.


def _static_because(found: PodCgroup, reported: RuntimePod | None, files: NodeFiles) -> str | None:
    if is_config_hash(found.uid) or found.uid in files.static_uids:
        return _STATIC
    return None if reported is None else reported.source.critical_because


def _perhaps_critical_because(
    found: PodCgroup, namespace: str, scores: Sequence[int], *, is_unlisted: bool
) -> str | None:
    if namespace == _SYSTEM_NAMESPACE:
        return f"in {_SYSTEM_NAMESPACE}, its spec unknown"
    is_guaranteed = found.qos_class is QosClass.GUARANTEED
    has_score = any(score <= GUARANTEED for score in scores)
    # Of a pod that is not Guaranteed the kubelet gives that score by its priority alone: no listing counts.
    if (has_score and not is_guaranteed) or (not is_unlisted and is_guaranteed):
        return "Guaranteed or node-critical, its spec unknown"
    return None


def _request_bytes(tree: CgroupTree, found: PodCgroup, scores: Sequence[int], capacity_bytes: int) -> int:
    if found.qos_class is QosClass.BEST_EFFORT:
        return 0
    try:
        if found.qos_class is QosClass.GUARANTEED:
            return tree.memory_limit_bytes(found.cgroup) or 0
        kept_bytes = tree.memory_request_bytes(found.cgroup)
    except ReactorError:
        kept_bytes = 0
    return kept_bytes or sum(requested_bytes(score, capacity_bytes) or 0 for score in scores)


class _Known(NamedTuple):
    """A pod as it was made, and from what: a spec or none, the sandboxes that the runtime reported."""

    pod: Pod
    inode: int
    spec: Pod | None
    sandboxes: tuple[str, ...]
    first_seen_seconds: float


@dataclass(eq=False)
class KubernetesPods:
    """Lists the node's pods. Nothing here raises: what can't be read is in `problems`.

    `specs`, by the uids of cgroups, `runtime` and `files` return what is known at present, without waiting;
    `is_complete` whether the source of specs has listed all and still reports changes; `take_waiting` takes
    over what was sent by now; `own_score` reads what oom_score_adj a process has of its own. A pod keeps the
    spec that it had while its cgroup is there: deleting its object changes nothing of what runs. What the
    list of an earlier configuration has `known` is read again, but for its spec.
    """

    tree: CgroupTree
    settings: Settings
    _: KW_ONLY
    specs: Callable[[], Specs] = dict
    runtime: Callable[[], Inventory] = dict
    files: Callable[[], NodeFiles] = NodeFiles
    is_complete: Callable[[], bool] = lambda: False
    take_waiting: Callable[[], object] = bool
    own_score: OwnScore | None = None
    paths: NodePaths = field(default_factory=NodePaths)
    known: Mapping[str, _Known] = field(default_factory=dict)
    clock_seconds: Callable[[], float] = time.monotonic
    timeout_seconds: float = _TIMEOUT_SECONDS

    def __post_init__(self) -> None:
        tree, settings = self.tree, self.settings
        self._parents = settings.pod_parents
        self._boundaries = PodBoundaries(tree, settings.pod_parents, settings.node_cgroup, self.paths.proc)
        self._storage = KubeletStorage(tree, self.paths)
        self._capacity_bytes = 0
        self._inventory: Inventory = {}
        self.known = {uid: one._replace(inode=0) for uid, one in self.known.items()}
        self._problems: Mapping[str, str] = {}
        self._listing = CachedListing[list[PodCgroup]]()
        self._reserve = Reserve()
        self._is_blind = False
        self._finding = Bounded(self._places, self.timeout_seconds)

    @property
    def problems(self) -> Mapping[str, str]:
        """Return what could not be read when last listed, and whose spec is missing: one line each."""
        found = {"pods' files": self._finding.problem, "pods' cgroups": self._listing.unwatched_because}
        return {**self._problems, **{name: why for name, why in found.items() if why is not None}}

    def changed_fd(self) -> int:
        return self._listing.fileno()

    async def listed(self) -> tuple[Pod, ...]:
        """Return every pod, all of it read afresh.

        Cgroups are read a few at a time in the loop itself, which goes first in between: a thread would hold
        the interpreter's lock for as long, and write what refreshes write. Where pods' files lie is read from
        a disk, which may hang, in a thread; where that takes too long they lie where they lay.
        """
        for _ in self._turns(afresh=True):
            await trio.lowlevel.checkpoint()
        places = await self._finding.ask()
        self.known = {
            uid: _with_places(one, (places or {}).get(uid, one.pod.storage))
            for uid, one in self.known.items()
        }
        return self.refresh()

    def refresh(self) -> tuple[Pod, ...]:
        """Return the pods that exist now; only of those that are new anything is read, and no disk.

        As new counts, too, one whose spec has come or changed, one whose sandbox the runtime reports now, and
        one that is starting: its pause container may not have been there yet. The kubelet's cgroups are
        listed where one was made or removed. For one thread.
        """
        for _ in self._turns(afresh=False):
            pass
        pods = tuple(one.pod for one in self.known.values())
        return all_spared(pods) if self._is_blind else pods

    def _places(self) -> Mapping[str, tuple[StoragePlace, ...]]:
        return self._storage.places({uid: one.pod for uid, one in self.known.items()})

    def _turns(self, *, afresh: bool) -> Iterator[None]:
        """Bring up to date what is known; yield after every few pods that are read."""
        now_seconds = self.clock_seconds()
        problems: dict[str, str] = {} if afresh else dict(self._problems)
        known, unlisted, lent = dict[str, _Known](), dict[str, str](), self._reserve.lent
        listed = self._listing.get(lent()(partial(self._found, unlisted)), again=afresh)
        if not self.specs().keys() >= {found.uid for found in listed}:
            self.take_waiting()  # what makes it critical may lie there
        specs, inventory = self.specs(), self.runtime()
        is_new, self._inventory = inventory is not self._inventory, inventory  # a sandbox may be new
        for found in listed:
            before = self.known.get(found.uid)
            spec = _in_force(specs.get(found.uid), None if before is None else before.spec)
            if before is not None and not afresh and _stands(before, found, spec, now_seconds):
                reported = inventory.get(found.uid) if is_new else None
                if reported is None or reported.sandboxes == before.sandboxes:
                    known[found.uid] = before
                    continue
            reported = inventory.get(found.uid)
            first_seen_seconds = before.first_seen_seconds if before else now_seconds
            is_unlisted = now_seconds - first_seen_seconds > _STARTING_SECONDS and self.is_complete()
            pod = lent()(self._pod)(found, spec, reported, before, problems, is_unlisted=is_unlisted)
            if len(known) % _AT_A_TURN == _AT_A_TURN - 1:
                yield
            if pod is not None:
                sandboxes = () if reported is None else reported.sandboxes
                known[found.uid] = _Known(pod, found.inode, spec, sandboxes, first_seen_seconds)
        missing = _missing_specs(known) if afresh else {}
        self.known, self._problems = known, {**problems, **unlisted, **missing}
        self._is_blind = not self._reserve.fill() and (
            bool(unlisted) or any(one.pod.critical_because == UNREAD for one in known.values())
        )

    def _found(self, unlisted: dict[str, str]) -> list[PodCgroup]:
        """Return the pods' cgroups; where a parent can't be listed, those that were known below it."""
        found: list[PodCgroup] = []
        for parent in self._parents:
            try:
                found += pod_cgroups(self.tree, parent, self._listing.watch)
            except FileNotFoundError:
                continue  # of two cgroup drivers a node has one; or the kubelet has not started yet
            except (OSError, ReactorError) as error:
                # Out of descriptors, say: the very moment at which a pod may have to be evicted.
                unlisted[parent] = str(error)
                self._listing.invalidate()
                found += [
                    PodCgroup(uid, one.pod.qos_class, one.pod.cgroup or "", one.inode)
                    for uid, one in self.known.items()
                    if self.tree.contains(parent, one.pod.cgroup or "")
                ]
        return found

    def _pod(
        self,
        found: PodCgroup,
        spec: Pod | None,
        reported: RuntimePod | None,
        before: _Known | None,
        problems: dict[str, str],
        *,
        is_unlisted: bool,
    ) -> Pod | None:
        """Return a pod, None where it is gone. One that can't be read stays as it was known."""
        try:
            inside = container_cgroups(self.tree, found.cgroup)
            spared = spared_cgroups(
                self.tree,
                inside,
                reported.sandboxes if reported else (),
                before.pod.spared_cgroups if before else (),
                proc=self.paths.proc,
            )
            own = [one for one in inside if one.cgroup not in spared]
            pod = spec or self._unspecified(found, own, reported, is_unlisted=is_unlisted)
        except (OSError, ReactorError) as error:
            if isinstance(error, OSError) and error.errno in GONE:
                return None
            problems[found.cgroup] = str(error)
            if before is not None:
                return before.pod
            inside, spared, own = (), (), []
            name, qos_class = f"pod{found.uid}", found.qos_class
            unread = Pod(name=name, namespace=UNKNOWN_NAMESPACE, uid=found.uid, qos_class=qos_class)
            pod = spec or replace(unread, critical_because=UNREAD)
        critical_because = (
            pod.critical_because
            or self._boundaries.spared.get(found.cgroup)
            # Whatever a listing says of it: the kubelet alone makes cgroups, and such a uid of static pods.
            or (_STATIC if is_config_hash(found.uid) else None)
        )
        partition = None if critical_because else partition_of(found.cgroup, self._parents)
        lists = self.settings.pod_lists
        names = {} if reported is None else reported.containers
        return replace(
            pod,
            uid=found.uid,
            cgroup=found.cgroup,
            cgroup_inode=found.inode,
            critical_because=critical_because if partition is None else _IN_PARTITION,
            # Without a spec a namespace is a guess: by names of files, or what the runtime was told.
            process_victim=None if spec is None else namespaced_victim(lists, spec.namespace, spec.labels),
            partition=partition,
            container_cgroups={names.get(one.id, one.id): one.cgroup for one in own},
            spared_cgroups=spared,
            storage=before.pod.storage if before is not None else (),
        )

    def _unspecified(
        self,
        found: PodCgroup,
        containers: Sequence[ContainerCgroup],
        reported: RuntimePod | None,
        *,
        is_unlisted: bool,
    ) -> Pod:
        """Return a pod of which no spec is known, see above. Raises OSError if the pod is gone."""
        if not self._capacity_bytes:
            self._capacity_bytes = read_meminfo(self.paths.proc).total_bytes
        files = self.files()
        scores = [one for one in map(self._score, containers) if one is not None]
        namespace, name = files.names.get(found.uid, (UNKNOWN_NAMESPACE, f"pod{found.uid}"))
        if reported is not None:
            namespace, name = reported.namespace, reported.name
        request_bytes = _request_bytes(self.tree, found, scores, self._capacity_bytes)
        return Pod(
            name=name,
            namespace=namespace,
            uid=found.uid,
            qos_class=found.qos_class,
            critical_because=_static_because(found, reported, files)
            or _perhaps_critical_because(found, namespace, scores, is_unlisted=is_unlisted),
            requests={Resource.MEMORY: request_bytes} if request_bytes else {},
            cgroup=found.cgroup,
        )

    def _score(self, container: ContainerCgroup) -> int | None:
        """Return the score of a container's first process, None where there is none or it can't be read."""
        try:
            pids = self.tree.processes(container.cgroup)
            if not pids:
                return None
            if self.own_score is not None:
                return self.own_score(pids[0], container.cgroup)
            return read_oom_score_adj(pids[0], self.paths.proc)
        except (OSError, ReactorError):
            return None


def _stands(before: _Known, found: PodCgroup, spec: Pod | None, now_seconds: float) -> bool:
    """Return whether what was known of a pod need not be read again, the runtime's report apart."""
    if before.inode != found.inode or before.spec is not spec:
        return False
    return bool(before.pod.spared_cgroups) or now_seconds - before.first_seen_seconds > _STARTING_SECONDS


def _in_force(listed: Pod | None, before: Pod | None) -> Pod | None:
    """Return a pod's spec, which outlives its object; a mirror's claim ends with the mirror.

    No server makes a mirror of a pod, or takes away that by which it is critical: its priority, its source.
    """
    if before is None:
        return listed
    if listed is None:
        return None if before.critical_because == _MIRROR else before
    why = before.critical_because
    was_critical = why not in {None, _MIRROR} or before.priority >= SYSTEM_CRITICAL_PRIORITY
    is_less = was_critical and listed.critical_because is None
    return before if is_less or listed.critical_because == _MIRROR != why else listed


def _with_places(known: _Known, places: tuple[StoragePlace, ...]) -> _Known:
    if known.pod.storage == places:
        return known
    return known._replace(pod=replace(known.pod, storage=places))


def _missing_specs(known: Mapping[str, _Known]) -> dict[str, str]:
    missing = sorted(one.pod.key for one in known.values() if one.spec is None)
    if not missing:
        return {}
    shown = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
    return {
        "specs": f"{len(missing)} pods are ranked without their spec, by what their cgroups tell: {shown}"
    }
