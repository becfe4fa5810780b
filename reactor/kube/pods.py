"""The pods of this node by uid, as last told; losing whoever tells them forgets none.

A mirror pod stands for a static one, which the kubelet started from a file: its uid is the API server's own,
while the cgroup bears the static pod's, which its annotation tells. Pods are known here by the uid of their
cgroup.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import trio

from reactor.config.decode import decode
from reactor.config.pod import MIRROR_ANNOTATION, pod_from_document
from reactor.config.scalars import Timestamp
from reactor.errors import ConfigError
from reactor.model.pods import Pod

EVICTED: Final = "Evicted"
FAILED: Final = "Failed"
PENDING: Final = "Pending"
_TERMINAL: Final = frozenset({FAILED, "Succeeded"})
_SCHEDULED: Final = "PodScheduled"
_DISRUPTED: Final = "DisruptionTarget"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPod:
    """A pod as it was last told of.

    `pod.uid` is that of its cgroup, `api_uid` that of the API server's object. Instants are seconds since
    1970. `unreadable_because`: the spec can't be read; `pod` is then what it last was, or is never evicted.
    """

    pod: Pod
    api_uid: str
    phase: str = ""
    reason: str = ""
    is_being_deleted: bool = False
    has_started: bool = False
    scheduled_at: float | None = None
    evicted_at: float | None = None
    unreadable_because: str | None = None

    @property
    def is_terminal(self) -> bool:
        """Return whether nothing of it will run any more."""
        return self.phase in _TERMINAL

    @property
    def is_evicted(self) -> bool:
        """Return whether its status says so."""
        return self.phase == FAILED and self.reason == EVICTED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metadata:
    name: str = ""
    namespace: str = "default"
    uid: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    deletion_timestamp: str | None = None


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
    conditions: tuple[_Condition, ...] = ()
    container_statuses: tuple[_ContainerStatus, ...] = ()
    init_container_statuses: tuple[_ContainerStatus, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Identity:
    metadata: _Metadata = field(default_factory=_Metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    status: _Status = field(default_factory=_Status)


def read_pod(document: Any, before: KnownPod | None = None) -> KnownPod:
    """Return the pod that a v1.Pod describes.

    Where its spec or status can't be read it is as `before`, or else protected. Raises ConfigError only
    where not even its name and uid can be read.
    """
    metadata = decode(document, _Identity).metadata
    cgroup_uid = metadata.annotations.get(MIRROR_ANNOTATION) or metadata.uid
    if not metadata.uid or not metadata.name:
        # Decoding names what is missing.
        return KnownPod(pod=pod_from_document(document), api_uid=metadata.uid)
    root = f"pod {metadata.namespace}/{metadata.name}"
    try:
        pod = replace(pod_from_document(document, root=root), uid=cgroup_uid)
        status = decode(document, _Told, root=root).status
    except ConfigError as error:
        why = "; ".join(map(str, error.problems))
        if before is not None:
            return replace(before, unreadable_because=why)
        spared = Pod(
            name=metadata.name,
            namespace=metadata.namespace,
            uid=cgroup_uid,
            critical_because="its spec can't be read",
        )
        return KnownPod(pod=spared, api_uid=metadata.uid, unreadable_because=why)
    return KnownPod(
        # The very same spec, where it is equal: whoever holds it need not look at it again.
        pod=before.pod if before is not None and before.pod == pod else pod,
        api_uid=metadata.uid,
        phase=status.phase,
        reason=status.reason,
        is_being_deleted=metadata.deletion_timestamp is not None,
        has_started=any(
            container.state.running is not None or container.state.terminated is not None
            for container in (*status.container_statuses, *status.init_container_statuses)
        ),
        scheduled_at=_since(status, _SCHEDULED),
        evicted_at=_since(status, _DISRUPTED) if status.reason == EVICTED else None,
    )


class PodStore:
    """Holds the pods that a watch or a poll hands it; a Sink. `on_change` is called where one differs.

    The mappings that it gives out never change: a worker thread may read them.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._known: Mapping[str, KnownPod] = {}
        self._specs: Mapping[str, Pod] = {}
        self._uids: dict[str, str] = {}  # the API server's to the cgroup's
        self._taken: set[str] = set()
        self._nameless: str | None = None
        self._changed = trio.Event()
        self.is_complete = False

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
        """Return which pods can't be read, and why."""
        found = {
            f"pod {known.pod.key}": known.unreadable_because
            for known in self._known.values()
            if known.unreadable_because is not None
        }
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
        try:
            before = self._known.get(self._uids.get(_uid(document), ""))
            known = read_pod(document, before)
        except ConfigError as error:
            self._nameless = "; ".join(map(str, error.problems))
            return
        uid = known.pod.uid
        self._taken.add(uid)
        if known != self._known.get(uid):
            self._uids[known.api_uid] = uid
            self._known = {**self._known, uid: known}
            self._tell()

    def drop(self, document: Any) -> None:
        """Note a pod that is gone."""
        uid = self._uids.pop(_uid(document), None)
        if uid in self._known:
            self._known = {other: known for other, known in self._known.items() if other != uid}
            self._tell()

    def listed(self) -> None:
        """Note that the list has ended: what was not in it is gone."""
        kept = {uid: known for uid, known in self._known.items() if uid in self._taken}
        is_news = len(kept) != len(self._known) or not self.is_complete
        self._known = kept
        self._uids = {known.api_uid: uid for uid, known in kept.items()}
        self._taken = set()
        self.is_complete = True
        if is_news:
            self._tell()

    def _tell(self) -> None:
        self._specs = {uid: known.pod for uid, known in self._known.items()}
        self._changed.set()
        self._changed = trio.Event()
        self._on_change()


def _since(status: _Status, kind: str) -> float | None:
    found = (one for one in status.conditions if one.type == kind and one.status == "True")
    condition = next(found, None)
    return None if condition is None else condition.last_transition_time


def _uid(document: Any) -> str:
    metadata = document.get("metadata") if isinstance(document, Mapping) else None
    uid = metadata.get("uid") if isinstance(metadata, Mapping) else None
    return uid if isinstance(uid, str) else ""
