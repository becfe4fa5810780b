"""The pods of this node by the uids of their cgroups, as last reported; losing their source forgets none.

No field of one pod changes what is known of another. What a tenant writes makes a pod critical in no other
way than by a priority, which the API server's admission grants: see `mirror_claim`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import trio

from reactor.config.decode import decode
from reactor.config.lenient import decode_leniently
from reactor.config.pod import (
    HASH_ANNOTATION,
    MIRROR_ANNOTATION,
    SOURCE_ANNOTATION,
    pod_as_far_as_readable,
    pod_from_document,
)
from reactor.config.scalars import Timestamp
from reactor.errors import ConfigError
from reactor.link.listings import is_label
from reactor.model.pods import Pod, PodSource
from reactor.model.settings import PodOrigin

_MOST_OWNERS: Final = 16
_MOST_ENDED: Final = 1_000  # the control plane leaves 12,500, and a tenant may have them all on one node
_MOST_LABELS: Final = 64  # what is held of a pod; one beyond that is as good as none, which widens nothing


class MirrorClaim(NamedTuple):
    """The uids of the static pod that a pod says to mirror, and of the Node that it says to be owned by."""

    uid: str
    node_uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerReference:
    """A v1.OwnerReference."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PodMetadata:
    """What a pod's metadata show of its identity."""

    name: str = ""
    namespace: str = "default"
    uid: str = ""
    owner_references: tuple[OwnerReference, ...] = ()
    deletion_timestamp: str | None = None
    generation: int = 0

    @property
    def controller(self) -> OwnerReference | None:
        """Return the owner that controls the pod, None where there is none, or more than one."""
        found = [owner for owner in self.owner_references if owner.controller]
        return found[0] if len(found) == 1 else None


def read_metadata(document: Any) -> tuple[PodMetadata, Mapping[str, Any]]:
    """Return what a v1.Pod's metadata show, as far as they can be read, and its annotations unread.

    Of many owners none is read: a mirror has one, and of another pod they are not asked for.
    """
    raw = document.get("metadata") if isinstance(document, Mapping) else None
    if not isinstance(raw, Mapping):
        return PodMetadata(), {}
    owners, annotations = raw.get("ownerReferences"), raw.get("annotations")
    if isinstance(owners, list) and len(owners) > _MOST_OWNERS:
        raw = {**raw, "ownerReferences": None}
    return decode_leniently(raw, PodMetadata), annotations if isinstance(annotations, Mapping) else {}


def mirror_claim(metadata: PodMetadata, annotations: Mapping[str, Any], node_name: str) -> MirrorClaim | None:
    """Return which static pod of this node a pod of the API server's mirrors, None where it mirrors none.

    The node's uid is left to be compared.
    """
    mirrored = annotations.get(MIRROR_ANNOTATION)
    if not isinstance(mirrored, str) or not mirrored or mirrored != annotations.get(HASH_ANNOTATION):
        return None
    owner = metadata.controller
    if owner is None or (owner.api_version, owner.kind, owner.name) != ("v1", "Node", node_name):
        return None
    return MirrorClaim(mirrored, owner.uid) if _is_named_for(metadata, node_name) else None


def static_source(metadata: PodMetadata, annotations: Mapping[str, Any], node_name: str) -> PodSource:
    """Return where a pod of the kubelet's own list is from: the API server, or else it is a static one."""
    if annotations.get(HASH_ANNOTATION) != metadata.uid or not _is_named_for(metadata, node_name):
        return PodSource.API
    return source_of(annotations.get(SOURCE_ANNOTATION))


def source_of(annotation: object) -> PodSource:
    """Return what the kubelet's annotation of a pod's source says; one that is missing says nothing."""
    if not isinstance(annotation, str):
        return PodSource.API
    named = (PodSource.API, PodSource.FILE, PodSource.HTTP)
    return next((source for source in named if source == annotation), PodSource.OTHER)


def _is_named_for(metadata: PodMetadata, node_name: str) -> bool:
    # generatePodName: the node's name in lower case. A node without a name has no mirror.
    return bool(node_name) and metadata.name.endswith(f"-{node_name.lower()}")


EVICTED: Final = "Evicted"
TERMINATED: Final = "Terminated"  # upstream's word for a pod that is ended for a shutdown of the node
FAILED: Final = "Failed"
PENDING: Final = "Pending"
SUCCEEDED: Final = "Succeeded"
_SHOWN: Final = 5
_TERMINAL: Final = frozenset({FAILED, SUCCEEDED})
DISRUPTION_TARGET: Final = "DisruptionTarget"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPod:
    """A pod as it was last reported.

    `pod.uid` is that of its cgroup, `api_uid` that of the API server's object; they differ for a mirror pod,
    which `claim` names; `labels` are its first 64; `source` is where the kubelet has it from. Instants are
    seconds since 1970.
    `is_disrupted`: its status has the condition DisruptionTarget. `generation` counts the changes of its spec
    (0: the server, older than 1.33, does not).
    `unreadable_because`: the spec can't be read as a whole; `pod` is then what it last was, or what can be
    read of it, all else as if it were not given.
    """

    pod: Pod
    api_uid: str
    claim: MirrorClaim | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    source: PodSource = PodSource.API
    phase: str = ""
    reason: str = ""
    message: str = ""
    is_being_deleted: bool = False
    has_started: bool = False
    evicted_at: float | None = None
    is_disrupted: bool = False
    generation: int = 0
    unreadable_because: str | None = None

    @property
    def is_terminal(self) -> bool:
        """Return whether nothing of it will run any more."""
        return self.phase in _TERMINAL

    @property
    def is_evicted(self) -> bool:
        """Return whether its status says so."""
        return self.has_failed_for(EVICTED)

    def has_failed_for(self, reason: str) -> bool:
        return self.phase == FAILED and self.reason == reason


@dataclass(frozen=True, slots=True, kw_only=True)
class _Condition:
    type: str = ""
    status: str = ""
    last_transition_time: Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Present:
    """A state of which only its being there counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    running: _Present | None = None
    terminated: _Present | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ContainerStatus:
    state: _State = field(default_factory=_State)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Status:
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[_Condition, ...] = ()
    container_statuses: tuple[_ContainerStatus, ...] = ()
    init_container_statuses: tuple[_ContainerStatus, ...] = ()


def read_pod(
    document: Any,
    before: KnownPod | None = None,
    *,
    node_name: str = "",
    origin: PodOrigin = PodOrigin.API,
) -> KnownPod:
    """Return the pod that a v1.Pod describes, by its own uid.

    Where its spec can't be read it is as `before`, or else as far as it can be. Raises ConfigError only where
    not even its name and uid can be read.
    """
    metadata, annotations = read_metadata(document)
    if not metadata.uid or not metadata.name:
        # Decoding names what is missing.
        return KnownPod(pod=pod_from_document(document), api_uid=metadata.uid)
    root = f"pod {metadata.namespace}/{metadata.name}"
    spec, status, unreadable_because = document.get("spec"), document.get("status"), None
    try:
        # No annotation is taken along: none of them says anything of the spec.
        pod = pod_from_document(_reduced(metadata, spec, status), root=root)
        reported = decode(status or {}, _Status, root=f"{root}.status")
    except ConfigError as error:
        unreadable_because = "; ".join(map(str, error.problems[:_SHOWN]))
        reported = decode_leniently(status, _Status)
        pod = pod_as_far_as_readable(metadata.name, metadata.namespace, metadata.uid, spec, status)
        if before is not None:
            pod = before.pod
    source = PodSource.API
    if origin is PodOrigin.KUBELET:
        source = static_source(metadata, annotations, node_name)
        pod = replace(pod, critical_because=pod.critical_because or source.critical_because)
    return KnownPod(
        # The very same spec, where it is equal: a holder need not read it again.
        pod=before.pod if before is not None and before.pod == pod else pod,
        api_uid=metadata.uid,
        claim=mirror_claim(metadata, annotations, node_name) if origin is PodOrigin.API else None,
        labels=_labels(document),
        source=source,
        phase=reported.phase,
        reason=reported.reason,
        message=reported.message,
        is_being_deleted=metadata.deletion_timestamp is not None,
        has_started=any(
            container.state.running is not None or container.state.terminated is not None
            for container in (*reported.container_statuses, *reported.init_container_statuses)
        ),
        evicted_at=_since(reported, DISRUPTION_TARGET) if reported.reason == EVICTED else None,
        is_disrupted=any(
            one.type == DISRUPTION_TARGET and one.status == "True" for one in reported.conditions
        ),
        generation=metadata.generation,
        unreadable_because=unreadable_because,
    )


def _labels(document: Mapping[str, Any]) -> Mapping[str, str]:
    """Return a pod's first labels that are of the server's form."""
    raw = document["metadata"].get("labels")
    if not isinstance(raw, Mapping):
        return {}
    return {key: value for key, value in islice(raw.items(), _MOST_LABELS) if is_label(key, value)}


def _reduced(metadata: PodMetadata, spec: Any, status: Any) -> Mapping[str, Any]:
    who = {"name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid}
    return {"metadata": who, "spec": spec, "status": status}


class PodStore:
    """Holds the pods that a watch or a poll hands it; a Sink. `on_change` is called where one differs.

    A pod is known by the uid of its cgroup: its own, but for a mirror pod the static pod's. A mirror's claim
    counts only where no other pod has that uid, no other mirror claims it, and all pods have been listed; of
    two claims neither counts, and each of those mirrors is a pod like any other, which changes no other pod's
    spec.

    All that may run are held. Of those that have ended 1,000 are, evicted ones rather than others: the guard
    takes 2,000 pods, and whoever finds no room is a pod without a spec.

    The mappings that it gives out never change: a worker thread may read them.
    """

    def __init__(
        self,
        on_change: Callable[[], None] = lambda: None,
        *,
        node_name: str = "",
        origin: PodOrigin = PodOrigin.API,
    ) -> None:
        self._on_change = on_change
        self._node_name = node_name
        self._node_uid = ""
        self._origin = origin
        self._reported: dict[str, KnownPod] = {}  # by their own uids
        self._known: Mapping[str, KnownPod] = {}
        self._specs: Mapping[str, Pod] = {}
        self._taken: set[str] = set()
        self._nameless: str | None = None
        self._contested: Mapping[str, str] = {}
        self._changed = trio.Event()
        self.is_complete = False
        self.label_keys: frozenset[str] = frozenset()  # a change of another label is no news

    @property
    def known(self) -> Mapping[str, KnownPod]:
        """Return every pod by the uid of its cgroup."""
        return MappingProxyType(self._known)

    @property
    def specs(self) -> Mapping[str, Pod]:
        """Return every pod's spec by the uid of its cgroup."""
        return self._specs

    @property
    def problems(self) -> Mapping[str, str]:
        """Return which pods can't be read, or claim another's cgroup, and why."""
        found = {
            f"pod {known.pod.key}": f"unreadable fields count as missing: {known.unreadable_because}"
            for known in self._known.values()
            if known.unreadable_because is not None
        }
        found |= self._contested
        return found if self._nameless is None else {**found, "a pod of this node": self._nameless}

    async def wait_changed(self) -> None:
        """Wait until anything differs."""
        await self._changed.wait()

    def listing(self) -> None:
        """Note that a list begins."""
        self._taken = set()
        self._nameless = None

    def take(self, document: Any) -> None:
        """Note a pod that is there, or has changed."""
        before = self._reported.get(_uid(document))
        try:
            reported = read_pod(document, before, node_name=self._node_name, origin=self._origin)
        except ConfigError as error:
            self._nameless = "; ".join(map(str, error.problems[:_SHOWN]))
            return
        self._taken.add(reported.api_uid)
        if reported != before and self._has_room(reported, before):
            self._reported[reported.api_uid] = reported
            self._resolve(is_news=before is None or self._shown(reported) != self._shown(before))

    def drop(self, document: Any) -> None:
        """Note a pod that is gone."""
        if self._reported.pop(_uid(document), None) is not None:
            self._resolve()

    def listed(self) -> None:
        """Note that the list has ended: what was not in it is gone."""
        kept = {uid: reported for uid, reported in self._reported.items() if uid in self._taken}
        is_news = len(kept) != len(self._reported) or not self.is_complete
        self._reported = kept
        self._taken = set()
        self.is_complete = True
        if is_news:
            self._resolve()

    def node_is(self, uid: str) -> None:
        """Note the uid of this node's object; empty where it is not known."""
        if uid != self._node_uid:
            self._node_uid = uid
            self._resolve()

    def labels_of(self, known: KnownPod) -> Mapping[str, str]:
        """Return those of a pod's labels that are asked for."""
        return {key: value for key, value in known.labels.items() if key in self.label_keys}

    def _has_room(self, reported: KnownPod, before: KnownPod | None) -> bool:
        """Return whether a pod is to be held; one that was held and has ended takes the first one's place."""
        if not reported.is_terminal or (before is not None and before.is_terminal):
            return True
        ended = [one for one in self._reported.values() if one.is_terminal]
        if len(ended) >= _MOST_ENDED:
            others = [one for one in ended if not one.is_evicted]
            if before is None and not (others and reported.is_evicted):
                return False
            del self._reported[(others or ended)[0].api_uid]
        self._reported.pop(reported.api_uid, None)  # from here on in the order in which they ended
        return True

    def _shown(self, known: KnownPod) -> KnownPod:
        return replace(known, labels=self.labels_of(known))

    def _resolve(self, *, is_news: bool = True) -> None:
        """Find again which cgroup is whose, and report it where it is news."""
        known = dict(self._reported)
        contested: dict[str, str] = {}
        for uid, mirrors in self._claims().items():
            claimants = [one.pod.key for one in mirrors]
            if uid in self._reported:
                claimants.append(f"{self._reported[uid].pod.key}, whose uid it is")
            if len(claimants) == 1:
                del known[mirrors[0].api_uid]
                known[uid] = _as_mirror(mirrors[0], uid, self._known.get(uid))
            else:
                shown = ", ".join(claimants[-_SHOWN:])
                contested[f"cgroup {uid:.80}"] = (
                    f"{len(claimants)} pods claim it, and none by being its mirror: {shown}"
                )
        self._known, self._contested = known, contested
        self._specs = {uid: one.pod for uid, one in known.items()}
        if not is_news:
            return
        self._changed.set()
        self._changed = trio.Event()
        self._on_change()

    def _claims(self) -> Mapping[str, list[KnownPod]]:
        """Return the mirror pods of this node by the uids of the static pods that they say to be of.

        Before all pods are listed there are none: it is not known yet whose own uid is claimed.
        """
        found: dict[str, list[KnownPod]] = {}
        for reported in self._reported.values() if self.is_complete else ():
            if reported.claim is not None and self._node_uid in {"", reported.claim.node_uid}:
                found.setdefault(reported.claim.uid, []).append(reported)
        return found


def _as_mirror(reported: KnownPod, uid: str, before: KnownPod | None) -> KnownPod:
    """Return a mirror pod by the uid of the static pod's cgroup."""
    pod = replace(reported.pod, uid=uid, critical_because=PodSource.MIRROR.critical_because)
    same = before is not None and before.pod == pod
    return replace(reported, pod=before.pod if before is not None and same else pod, source=PodSource.MIRROR)


def _since(status: _Status, kind: str) -> float | None:
    found = (one for one in status.conditions if one.type == kind and one.status == "True")
    condition = next(found, None)
    return None if condition is None else condition.last_transition_time


def _uid(document: Any) -> str:
    metadata = document.get("metadata") if isinstance(document, Mapping) else None
    uid = metadata.get("uid") if isinstance(metadata, Mapping) else None
    return uid if isinstance(uid, str) else ""
