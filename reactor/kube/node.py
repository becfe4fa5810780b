"""The node object: its conditions and taints, read from a watch, and the patches that change them.

Beside a kubelet the conditions are of types of the reactor's own: the kubelet overwrites MemoryPressure and
its like at every status that it sends, while it leaves types that it does not know alone. The taints are
upstream's, since pods tolerate those; which of them the reactor has set is written down in an annotation.

The cluster's node controller makes these taints itself, from the kubelet's conditions, and takes away those
for which no such condition stands; but only with the effect NoSchedule (doNoScheduleTaintingPass). So beside
a kubelet each taint is set with PreferNoSchedule as well: that one stays. With the kubelet's types in use
(role: sole) the node controller's taints follow from the conditions, and can be left to it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from reactor.config.decode import decode
from reactor.kube.documents import instant
from reactor.model.rules import Mark, Marks
from reactor.model.settings import KubernetesSettings, Role, TaintedBy
from reactor.model.signals import NodeCondition

NODE_NAME: Final = "NODE_NAME"
TAINTS_ANNOTATION: Final = "reactor/taints"
OWN_PREFIX: Final = "reactor/"
_NO_SCHEDULE: Final = "NoSchedule"
_EFFECTS: Final = {
    Role.SOLE: (_NO_SCHEDULE,),
    Role.ALONGSIDE: (_NO_SCHEDULE, "PreferNoSchedule"),
}
TAINT_KEYS: Final = {
    NodeCondition.MEMORY_PRESSURE: "node.kubernetes.io/memory-pressure",
    NodeCondition.DISK_PRESSURE: "node.kubernetes.io/disk-pressure",
    NodeCondition.PID_PRESSURE: "node.kubernetes.io/pid-pressure",
}
# In the words of pkg/kubelet/nodestatus/setters.go, with the reactor's name for the kubelet's.
_REASONS: Final = {
    (NodeCondition.MEMORY_PRESSURE, True): (
        "ReactorHasInsufficientMemory",
        "has insufficient memory available",
    ),
    (NodeCondition.MEMORY_PRESSURE, False): ("ReactorHasSufficientMemory", "has sufficient memory available"),
    (NodeCondition.DISK_PRESSURE, True): ("ReactorHasDiskPressure", "has disk pressure"),
    (NodeCondition.DISK_PRESSURE, False): ("ReactorHasNoDiskPressure", "has no disk pressure"),
    (NodeCondition.PID_PRESSURE, True): ("ReactorHasInsufficientPID", "has insufficient PID available"),
    (NodeCondition.PID_PRESSURE, False): ("ReactorHasSufficientPID", "has sufficient PID available"),
}


_NOT_OBSERVED: Final = {
    NodeCondition.MEMORY_PRESSURE: ("ReactorDoesNotObserveMemory", "can't observe the memory"),
    NodeCondition.DISK_PRESSURE: ("ReactorDoesNotObserveDisk", "can't observe a filesystem"),
    NodeCondition.PID_PRESSURE: ("ReactorDoesNotObservePID", "can't observe the process ids"),
}


SHUTDOWN_TYPE: Final = f"{OWN_PREFIX}NodeShutdown"
_SHUTDOWN_TAINT: Final = "reactor/node-shutdown"
_NO_MARKS: Final = Marks()
_OUT_OF_SERVICE_TAINT: Final = "node.kubernetes.io/out-of-service"
_SHUTDOWN_REASON: Final = "ReactorNodeShutdown"
_MARKED_REASON: Final = "ReactorRuleHolds"
_NOT_OF_RULES: Final = frozenset({SHUTDOWN_TYPE, *(f"{OWN_PREFIX}{one}" for one in NodeCondition)})


class TaintId(NamedTuple):
    """What distinguishes a node's taints."""

    key: str
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """A v1.Taint."""

    key: str = ""
    effect: str = ""
    value: str | None = None
    time_added: str | None = None

    @property
    def id(self) -> TaintId:
        """Return what distinguishes it from others."""
        return TaintId(self.key, self.effect)

    def document(self) -> dict[str, str]:
        """Return it as the server has it."""
        document = {"key": self.key, "effect": self.effect, "value": self.value, "timeAdded": self.time_added}
        return {key: value for key, value in document.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A v1.NodeCondition, as far as it is compared."""

    type: str = ""
    status: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeObject:
    """A v1.Node, as far as it is read."""

    resource_version: str
    uid: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    conditions: tuple[Condition, ...] = ()

    @property
    def own_taints(self) -> frozenset[TaintId]:
        """Return which taints the reactor has set."""
        noted = self.annotations.get(TAINTS_ANNOTATION, "")
        parted = (one.partition(":") for one in noted.split(",") if one)
        return frozenset(TaintId(key, effect or _NO_SCHEDULE) for key, _, effect in parted)

    @property
    def is_out_of_service(self) -> bool:
        """Return whether an operator has declared that the node is down, so that its pods may run elsewhere.

        Source: KEP-2268, non-graceful node shutdown.
        """
        return any(taint.key == _OUT_OF_SERVICE_TAINT for taint in self.taints)

    def is_in_force(self, condition: NodeCondition) -> bool | None:
        """Return whether the node has a condition of the kubelet's type; None where that is not said."""
        said = {"True": True, "False": False}
        return next((said.get(one.status) for one in self.conditions if one.type == condition), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metadata:
    resource_version: str = ""
    uid: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spec:
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Status:
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    metadata: _Metadata
    spec: _Spec = field(default_factory=_Spec)
    status: _Status = field(default_factory=_Status)


def node_name(settings: KubernetesSettings) -> str:
    """Return this node's name at the API server: as configured, as in the environment, or the host's."""
    return settings.node_name or os.environ.get(NODE_NAME) or socket.gethostname().lower()


def read_node(document: Any) -> NodeObject:
    """Return the node that a v1.Node describes. Raises ConfigError."""
    node = decode(document, _Node, root="node")
    return NodeObject(
        resource_version=node.metadata.resource_version,
        uid=node.metadata.uid,
        annotations=node.metadata.annotations,
        taints=node.spec.taints,
        conditions=node.status.conditions,
    )


def condition_type(condition: NodeCondition, role: Role) -> str:
    return condition.value if role is Role.SOLE else f"{OWN_PREFIX}{condition.value}"


def status_event(condition: NodeCondition, *, is_in_force: bool) -> str:
    """Return the reason of the event that upstream writes when a condition changes."""
    return _REASONS[condition, is_in_force][0].replace("Reactor", "Node", 1)


def conditions_patch(  # noqa: PLR0913 - all that a node may show
    node: NodeObject,
    wanted: Collection[NodeCondition],
    role: Role,
    now_unix_seconds: float,
    *,
    heartbeat: bool = False,
    unknown: Collection[NodeCondition] = (),
    is_shutting_down: bool = False,
    marks: Marks | None = None,
) -> dict[str, Any] | None:
    """Return the patch of the node's status after which its conditions are as wanted; None where they are.

    Of the `unknown` ones it can't be said whether they are in force. With `heartbeat` all of them are written
    in any case, with a new lastHeartbeatTime. Conditions are merged by their type: others stay as they are.
    With the kubelet's types in use (role: sole) those of reactor's own, left of another role, are removed.
    A node that shuts down has one more: Ready, which says so beside upstream's manager, is the kubelet's.
    `marks` are those of rules (None: not known yet): a condition that no rule stands for any more is removed.
    """
    at = instant(now_unix_seconds)
    before = {condition.type: condition for condition in node.conditions}
    changed = []
    for condition in NodeCondition:
        reason, text = _REASONS[condition, condition in wanted]
        status = "True" if condition in wanted else "False"
        if condition in unknown:
            status, (reason, text) = "Unknown", _NOT_OBSERVED[condition]
        new = Condition(type=condition_type(condition, role), status=status, reason=reason)
        was = before.get(new.type)
        if new == was and not heartbeat:
            continue
        document = {
            "type": new.type,
            "status": new.status,
            "reason": new.reason,
            "message": f"reactor {text}",
            "lastHeartbeatTime": at,
        }
        if was is None or was.status != new.status:
            document["lastTransitionTime"] = at
        changed.append(document)
    if role is Role.SOLE:
        own = (condition_type(condition, Role.ALONGSIDE) for condition in NodeCondition)
        changed += [{"type": one, "$patch": "delete"} for one in own if one in before]
    changed += _shutdown_condition(before.get(SHUTDOWN_TYPE), at, is_shutting_down=is_shutting_down)
    if marks is not None:
        changed += _marked_conditions(before, marks, at)
    return {"status": {"conditions": changed}} if changed else None


def _marked_conditions(before: Mapping[str, Condition], marks: Marks, at: str) -> list[dict[str, str]]:
    """Return what is to be changed of the conditions that rules put on the node; there is no False one."""
    shown = {f"{OWN_PREFIX}{one.condition}": one.because for one in marks.shown if one.condition}
    left = {f"{OWN_PREFIX}{one.condition}" for one in marks.left}
    ours = {one for one in before if one.startswith(OWN_PREFIX)} - _NOT_OF_RULES
    changed = [{"type": one, "$patch": "delete"} for one in sorted(ours - shown.keys() - left)]
    return changed + [
        {
            "type": one,
            "status": "True",
            "reason": _MARKED_REASON,
            "message": because,
            "lastHeartbeatTime": at,
            "lastTransitionTime": at,
        }
        for one, because in shown.items()
        if one not in before or (before[one].status, before[one].reason) != ("True", _MARKED_REASON)
    ]


def _shutdown_condition(was: Condition | None, at: str, *, is_shutting_down: bool) -> list[dict[str, str]]:
    """Return what is to be changed of the condition that says so; without a shutdown there is none."""
    if not is_shutting_down:
        return [] if was is None else [{"type": SHUTDOWN_TYPE, "$patch": "delete"}]
    if was is not None and was.status == "True":
        return []
    return [
        {
            "type": SHUTDOWN_TYPE,
            "status": "True",
            "reason": _SHUTDOWN_REASON,
            "message": "node is shutting down",  # upstream's, of Ready
            "lastHeartbeatTime": at,
            "lastTransitionTime": at,
        }
    ]


def _unknown_taints(node: NodeObject, marks: Marks | None) -> frozenset[TaintId]:
    """Return the taints of the reactor's own that stay as they are, since an earlier run's rules may hold."""
    present = node.own_taints & {taint.id for taint in node.taints}
    if marks is not None:
        return present & _marked_taints(marks.left)
    own = {*TAINT_KEYS.values(), _SHUTDOWN_TAINT}
    return frozenset(one for one in present if one.key not in own)


def clean_status_patch(node: NodeObject) -> dict[str, Any] | None:
    """Return the patch after which the node has no condition of the reactor's own types; None if so.

    MemoryPressure and its like stay: the kubelet sets them by itself again (role: sole).
    """
    ours = sorted({one.type for one in node.conditions if one.type.startswith(OWN_PREFIX)})
    if not ours:
        return None
    return {"status": {"conditions": [{"type": one, "$patch": "delete"} for one in ours]}}


def contested_taints(
    node: NodeObject,
    wanted: Collection[NodeCondition],
    role: Role,
    tainted_by: TaintedBy = TaintedBy.REACTOR,
    marks: Marks | None = None,
) -> frozenset[TaintId]:
    """Return the taints of the wanted conditions, and of rules, that another writer keeps from being there.

    These are the taints that another writer has removed, or that the node controller has still to set, which
    knows none of rules.
    """
    present = {taint.id for taint in node.taints}
    absent = _pressure_taints(wanted, role) - present
    removed = (_marked_taints(marks.shown if marks else ()) - present) & node.own_taints
    return removed | (absent if tainted_by is TaintedBy.NODE_CONTROLLER else absent & node.own_taints)


def _marked_taints(marks: Iterable[Mark]) -> frozenset[TaintId]:
    return frozenset(TaintId(*one.taint.split(":", 1)) for one in marks if one.taint)


def _pressure_taints(wanted: Collection[NodeCondition], role: Role) -> frozenset[TaintId]:
    return frozenset(
        TaintId(TAINT_KEYS[condition], effect) for condition in wanted for effect in _EFFECTS[role]
    )


def taints_patch(
    node: NodeObject,
    wanted: Collection[NodeCondition],
    role: Role,
    now_unix_seconds: float,
    *,
    left: Collection[TaintId] = (),
    is_shutting_down: bool = False,
    marks: Marks | None = _NO_MARKS,
) -> dict[str, Any] | None:
    """Return the merge patch after which the node's taints are as wanted; None where nothing is to change.

    A taint that was set by others counts as set, and is not the reactor's to remove. Of the `left` ones none
    is set now, and the reactor's own stay its own. The list is replaced as a whole, so the patch names the
    version that it was read at: a change in between makes the server refuse it (409). `marks` are those of
    rules; None: not known yet, so that no taint is removed that may be one's.
    """
    due = set(_pressure_taints(wanted, role))
    due |= _marked_taints(marks.shown if marks else ())
    due |= _unknown_taints(node, marks)
    if is_shutting_down:
        due.add(TaintId(_SHUTDOWN_TAINT, _NO_SCHEDULE))
    present = {taint.id for taint in node.taints}
    missing = due - present - set(left)
    ours = node.own_taints
    removed = (ours & present) - due
    still_ours = (ours & due & (present | set(left))) | missing
    if not missing and not removed and still_ours == ours:
        return None
    taints: Sequence[Taint] = [
        *(taint for taint in node.taints if taint.id not in removed),
        *(
            Taint(key=key, effect=effect, time_added=instant(now_unix_seconds))
            for key, effect in sorted(missing)
        ),
    ]
    return {
        "metadata": {
            "resourceVersion": node.resource_version,
            "annotations": {TAINTS_ANNOTATION: ",".join(map(":".join, sorted(still_ours))) or None},
        },
        "spec": {"taints": [taint.document() for taint in taints] or None},
    }
