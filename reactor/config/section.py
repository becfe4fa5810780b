"""The `reactor:` section as it is written; its keys are documented in docs/configuration.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NewType

from reactor.config.decode import CONVERTER, REMOVED, Removed, check_document, register_scalar, strict
from reactor.config.rules import (
    MarkedCondition,
    MarkedTaint,
    ReclaimAmount,
    ReclaimTime,
    RuleName,
    TransitionTime,
    WrittenCondition,
    rule_problems,
)
from reactor.config.scalars import Count, Seconds, as_quantity
from reactor.errors import Refused
from reactor.model.name_patterns import REGEX, is_pattern, matcher
from reactor.model.pod_lists import BUILT_IN_NEVER, PodEntry, ProcessVictimEntry, VictimUnit
from reactor.model.rules import (
    DEFAULT_RECLAIM,
    DEFAULT_TRANSITION_SECONDS,
    Mark,
    RankedBy,
    Rule,
    RuleAction,
)
from reactor.model.settings import (
    EbpfLoader,
    HookSettings,
    JournalSettings,
    KernelKill,
    KubernetesSettings,
    MemoryAvailable,
    NotificationSettings,
    OomOrderMode,
    PodOrigin,
    Ranking,
    RealtimeSettings,
    RestartLoopSettings,
    Role,
    SoftEviction,
    SystemdOomd,
    TaintedBy,
)
from reactor.model.signals import Filesystem, Layout
from reactor.model.thresholds import ThresholdValue
from reactor.web_address import ACCEPTED, read_web_address

ProtectingRule = NewType("ProtectingRule", PodEntry)
PreferringRule = NewType("PreferringRule", PodEntry)
ProcessRule = NewType("ProcessRule", ProcessVictimEntry)
Name = NewType("Name", PodEntry)
BuiltIn = NewType("BuiltIn", str)
PodPriority = NewType("PodPriority", int)

_KEYS: Final = ("unit", "cgroup", "process", "trusting")
_ACCEPTED: Final = (
    "a unit's name such as postgresql.service, a cgroup's path such as /system.slice/db-*, or a mapping of "
    "unit, cgroup, process and trusting"
)
_CLUSTER_KEYS: Final = ("namespace", "labels")
_NAMESPACES: Final = re.compile(r"[a-z0-9*?\[\]!-]{1,63}")
_LABEL_KEY: Final = re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z._/-]{0,251}[0-9A-Za-z])?")
_LABEL_VALUE: Final = re.compile(r"|[0-9A-Za-z](?:[0-9A-Za-z._-]{0,61}[0-9A-Za-z])?")
_NEVER: Final = "never"
_VICTIM: Final = "victim"
_MOST_SPARED: Final = 64
_LONGEST_PROCESS: Final = 15  # TASK_COMM_LEN without its end
_PRIORITIES: Final = range(-(2**31), 2**31)

CgroupPath = NewType("CgroupPath", str)
ParentPath = NewType("ParentPath", str)
AbsolutePath = NewType("AbsolutePath", str)
Address = NewType("Address", str)
Endpoint = NewType("Endpoint", str)
HttpsUrl = NewType("HttpsUrl", str)
NodeName = NewType("NodeName", str)
Namespace = NewType("Namespace", str)
Commands = NewType("Commands", tuple[tuple[str, ...], ...])
WebUrl = NewType("WebUrl", str)
Interval = NewType("Interval", float)
Size = NewType("Size", int)
Positive = NewType("Positive", int)
FifoPriority = NewType("FifoPriority", int)
OomScore = NewType("OomScore", int)
HookTime = NewType("HookTime", float)
LeaseTime = NewType("LeaseTime", float)
SoftReclaimTime = NewType("SoftReclaimTime", float)

_SHORTEST_INTERVAL_SECONDS = 0.01
_MOST_COMPONENTS = 16
_LONGEST_SOFT_RECLAIM_SECONDS = 60.0
_LONGEST_HOOK_SECONDS = 60.0
_LEASE_SECONDS: Final = (20.0, 3600.0)


def _protecting(raw: Any, _: type) -> ProtectingRule:
    rule = _rule(raw)
    if rule.unit is None and rule.cgroup is None:
        raise Refused(
            raw, "a unit or a cgroup beside the process: every process can take any name, and so hide"
        )
    return ProtectingRule(rule)


def _process_rule(raw: Any, kind: type) -> ProcessRule:
    """Return in which pods one process is killed: by names that count, as this spares all else of them.

    `unit: tree` beside a cgroup is what is killed, and no unit's name: that has a suffix.
    """
    if not isinstance(raw, Mapping):
        return ProcessRule(ProcessVictimEntry(pods=_protecting(raw, kind)))
    if "cgroup" in raw and raw.get("unit") in list(VictimUnit) and _VICTIM not in raw:
        raw = {**{key: value for key, value in raw.items() if key != "unit"}, _VICTIM: raw["unit"]}
    own, of_cluster = (_NEVER, _VICTIM), any(raw.get(key) is not None for key in _CLUSTER_KEYS)
    accepted = (*(_CLUSTER_KEYS if of_cluster else (*_KEYS, *_CLUSTER_KEYS)), *own)
    for key in raw:
        if key not in accepted:
            beside = " beside a namespace or labels" if of_cluster else ""
            raise Refused(key, f"one of {', '.join(accepted)}{beside}")
    who = {key: value for key, value in raw.items() if key not in own and value is not None}
    pods = _in_namespace(who) if of_cluster else _protecting(who, kind)
    never = [] if raw.get(_NEVER) is None else raw[_NEVER]
    if not isinstance(never, list) or len(never) > _MOST_SPARED:
        raise Refused(never, f"a list of {_MOST_SPARED} names of processes at most", at=_NEVER)
    names = tuple(_process(one, f"{_NEVER}[{index}]") for index, one in enumerate(never))
    unit = raw.get(_VICTIM, VictimUnit.PROCESS)
    if not isinstance(unit, str) or unit not in set(VictimUnit):
        raise Refused(unit, f"one of {', '.join(VictimUnit)}", at=_VICTIM)
    return ProcessRule(ProcessVictimEntry(pods=pods, never=names, unit=VictimUnit(unit)))


def _in_namespace(raw: Mapping[Any, Any]) -> PodEntry:
    """Return pods of a Kubernetes node: a namespace's, as an operator gives it out, all or by labels."""
    namespace, labels = raw.get("namespace"), raw.get("labels", {})
    if namespace is None:
        raise Refused(raw, "a namespace beside the labels: whoever writes a pod writes any labels")
    if not isinstance(namespace, str) or _NAMESPACES.fullmatch(namespace) is None:
        accepted = "a namespace's name, or a glob such as agents-*, of 63 characters at most"
        raise Refused(namespace, accepted, at="namespace")
    if not isinstance(labels, Mapping) or ("labels" in raw and not labels):
        raise Refused(labels, "a mapping of labels' keys to their values, one at least", at="labels")
    for key, value in labels.items():
        if not isinstance(key, str) or _LABEL_KEY.fullmatch(key) is None:
            accepted = "a label's key such as app.kubernetes.io/name, of 253 characters at most"
            raise Refused(key, accepted, at="labels")
        if not isinstance(value, str) or _LABEL_VALUE.fullmatch(value) is None:
            accepted = "a label's whole value, as a string of 63 characters at most: no pattern"
            raise Refused(value, accepted, at=f"labels.{key}")
    return PodEntry(namespace=namespace, labels=tuple(sorted(labels.items())))


def _preferring(raw: Any, _: type) -> PreferringRule:
    rule = _rule(raw)
    if rule.is_trusting:
        raise Refused(raw, "no trusting: this list counts by any name")
    return PreferringRule(rule)


def _name(raw: Any, _: type) -> Name:
    if not isinstance(raw, str):
        raise Refused(raw, _ACCEPTED)
    return Name(_of_text(raw))


def _built_in(raw: Any, _: type) -> BuiltIn:
    if raw not in BUILT_IN_NEVER:
        raise Refused(raw, f"one of {', '.join(BUILT_IN_NEVER)}")
    return BuiltIn(raw)


def _priority(raw: Any, _: type) -> PodPriority:
    if isinstance(raw, bool) or not isinstance(raw, int) or raw not in _PRIORITIES:
        raise Refused(raw, "a whole number of 32 bits such as 1000")
    return PodPriority(raw)


def _rule(raw: Any) -> PodEntry:
    if isinstance(raw, str):
        return _of_text(raw)
    if not isinstance(raw, Mapping):
        raise Refused(raw, _ACCEPTED)
    given = {key: value for key, value in raw.items() if value is not None}
    for key in given:
        if key not in _KEYS:
            raise Refused(key, f"one of {', '.join(_KEYS)}")
    trusting = given.pop("trusting", False)
    if not isinstance(trusting, bool):
        raise Refused(trusting, "true or false", at="trusting")
    if not given:
        raise Refused(raw, _ACCEPTED)
    return PodEntry(
        unit=_unit(given["unit"], "unit") if "unit" in given else None,
        cgroup=_cgroup_path(given["cgroup"], "cgroup") if "cgroup" in given else None,
        process=_process(given["process"]) if "process" in given else None,
        is_trusting=trusting,
    )


def _of_text(text: str) -> PodEntry:
    return PodEntry(cgroup=_cgroup_path(text)) if text.startswith("/") else PodEntry(unit=_unit(text))


def _unit(raw: Any, at: str = "") -> str:
    if isinstance(raw, str) and raw.startswith(REGEX):
        return _expression(raw, at)
    if not isinstance(raw, str) or not raw or "/" in raw or not raw.isprintable():
        accepted = "a unit's name, a glob such as nginx*.service, or ~ and a regular expression, without /"
        raise Refused(raw, accepted, at=at)
    return raw


def _expression(raw: str, at: str) -> str:
    try:
        matcher(raw)
    except ValueError as error:
        raise Refused(raw, str(error), at=at) from None
    return raw


def _cgroup_path(raw: Any, at: str = "") -> str:
    if isinstance(raw, str) and raw.startswith(REGEX):
        return _expression(raw, at)
    if not isinstance(raw, str) or not raw.startswith("/") or not raw.isprintable() or ".." in raw.split("/"):
        accepted = "a cgroup's path from the hierarchy's root, such as /system.slice/db-*, without .."
        raise Refused(raw, accepted, at=at)
    return "/" + "/".join(part for part in raw.split("/") if part not in {"", "."})


def _process(raw: Any, at: str = "process") -> str:
    if isinstance(raw, str) and raw.startswith(REGEX):
        return _expression(raw, at)
    is_name = isinstance(raw, str) and raw and raw.isprintable()
    if not is_name or (len(raw) > _LONGEST_PROCESS and not set("*?[") & set(raw)):
        accepted = (
            "a process's name of 15 characters at most as in /proc/PID/comm, a glob, or ~ and an expression"
        )
        raise Refused(raw, accepted, at=at)
    return str(raw)


def _cgroup(raw: Any, _: type) -> CgroupPath:
    if not isinstance(raw, str) or not raw.startswith("/") or "\0" in raw or ".." in raw.split("/"):
        raise Refused(raw, "a cgroup's path from the hierarchy's root, such as /system.slice, without ..")
    return CgroupPath("/" + "/".join(part for part in raw.split("/") if part not in {"", "."}))


def _one_cgroup(raw: Any, kind: type) -> CgroupPath:
    if isinstance(raw, str) and is_pattern(raw):
        raise Refused(raw, "the path of one cgroup: patterns are for pods.parents alone")
    return _cgroup(raw, kind)


def _parent(raw: Any, kind: type) -> ParentPath:
    if isinstance(raw, str) and is_pattern(raw):
        if "**" in raw:
            raise Refused(raw, "* for each component: there is no **, and a * matches no /")
        if not raw.isprintable() or raw.count("/") > _MOST_COMPONENTS or _is_unclosed(raw):
            accepted = (
                f"a pattern of {_MOST_COMPONENTS} components at most, in which *, ? and [...] stand for "
                "parts of one, such as /user.slice/user-*.slice"
            )
            raise Refused(raw, accepted)
    return ParentPath(_cgroup(raw, kind))


def _is_unclosed(raw: str) -> bool:
    """Return whether a [ stands in a component that has no ] for it."""
    return any("[" in part and not re.search(r"\[!?[^/]+\]", part) for part in raw.split("/"))


def _path(raw: Any, _: type) -> AbsolutePath:
    if not isinstance(raw, str) or not raw.startswith("/") or "\0" in raw:
        raise Refused(raw, "an absolute path")
    return AbsolutePath(raw)


def _endpoint(raw: Any, _: type) -> Endpoint:
    path = raw.removeprefix("unix://") if isinstance(raw, str) else ""
    if not path.startswith("/") or "\0" in path:
        raise Refused(raw, "a Unix socket's path such as unix:///run/containerd/containerd.sock")
    return Endpoint(path)


def _address(raw: Any, _: type) -> Address:
    accepted = "an address and a port such as 127.0.0.1:9753, or off"
    found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\s]+):([0-9]{1,5})", raw) if isinstance(raw, str) else None
    is_off = raw == "off" or raw is False  # what YAML 1.1 makes of off
    if not is_off and (found is None or int(found[2]) > 65535):
        raise Refused(raw, accepted)
    return Address("off" if is_off else raw)


def _https_url(raw: Any, _: type) -> HttpsUrl:
    pattern = r"https://(\[[0-9a-fA-F:.]+\]|[^:/\s@?#]+)(:[0-9]{1,5})?/?"
    if not isinstance(raw, str) or re.fullmatch(pattern, raw) is None:
        raise Refused(raw, "an address such as https://127.0.0.1:10250")
    return HttpsUrl(raw.rstrip("/"))


def _web_url(raw: Any, _: type) -> WebUrl:
    if not isinstance(raw, str) or read_web_address(raw) is None:
        got = "a text that is no address (not shown: it may hold a secret)" if isinstance(raw, str) else raw
        raise Refused(got, ACCEPTED)
    return WebUrl(raw)


def _node_name(raw: Any, _: type) -> NodeName:
    name = str(raw) if isinstance(raw, int) and not isinstance(raw, bool) else raw
    pattern = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
    if not isinstance(name, str) or len(name) > 253 or re.fullmatch(pattern, name) is None:
        raise Refused(raw, "a node's name in lower case, such as worker-1.example.com")
    return NodeName(name)


def _namespace(raw: Any, _: type) -> Namespace:
    name = "off" if raw is False else raw  # what YAML 1.1 makes of off
    if not isinstance(name, str) or re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name) is None:
        raise Refused(raw, "a namespace's name, or off")
    return Namespace(name)


def _commands(raw: Any, _: type) -> Commands:
    """Return one or more commands: a list of strings is one, a list of such lists several."""
    several = raw if isinstance(raw, list) and raw and all(isinstance(one, list) for one in raw) else [raw]
    for command in several:
        words = isinstance(command, list) and all(
            isinstance(word, str) and "\0" not in word for word in command
        )
        if not words or not command or not command[0].startswith("/"):
            accepted = "a list of strings that begins with a program's absolute path, or a list of such lists"
            raise Refused(command, accepted)
    return Commands(tuple(map(tuple, several)))


def _interval(raw: Any, _: type) -> Interval:
    seconds = CONVERTER.structure(raw, Seconds)
    if seconds < _SHORTEST_INTERVAL_SECONDS:
        raise Refused(raw, "a duration of 10ms or more")
    return Interval(seconds)


def _soft_reclaim_time(raw: Any, _: type) -> SoftReclaimTime:
    seconds = CONVERTER.structure(raw, Seconds)
    if seconds > _LONGEST_SOFT_RECLAIM_SECONDS:
        raise Refused(raw, "a duration of 1m or less: soft evictions wait for it")
    return SoftReclaimTime(seconds)


def _hook_time(raw: Any, _: type) -> HookTime:
    seconds = CONVERTER.structure(raw, Seconds)
    if not _SHORTEST_INTERVAL_SECONDS <= seconds <= _LONGEST_HOOK_SECONDS:
        raise Refused(raw, "a duration of 10ms to 1m: a pod that is to end waits for it")
    return HookTime(seconds)


def _lease_time(raw: Any, _: type) -> LeaseTime:
    seconds = CONVERTER.structure(raw, Seconds)
    if not _LEASE_SECONDS[0] <= seconds <= _LEASE_SECONDS[1] or not seconds.is_integer():
        raise Refused(raw, "whole seconds, 20s to 1h: it is renewed four times as often")
    return LeaseTime(seconds)


def _size(raw: Any, _: type) -> Size:
    size = as_quantity(raw).value
    if size < 4096:
        raise Refused(raw, "a size of 4Ki or more")
    return Size(size)


def _within(low: int, high: int) -> Any:
    def hook(raw: Any, _: type) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int) or not low <= raw <= high:
            raise Refused(raw, f"a whole number from {low} to {high}")
        return raw

    return hook


_HOOKS: Final[Sequence[tuple[Any, Callable[[Any, type], Any]]]] = (
    (ProtectingRule, _protecting),
    (PreferringRule, _preferring),
    (ProcessRule, _process_rule),
    (Name, _name),
    (BuiltIn, _built_in),
    (PodPriority, _priority),
    (CgroupPath, _one_cgroup),
    (ParentPath, _parent),
    (AbsolutePath, _path),
    (Address, _address),
    (Endpoint, _endpoint),
    (HttpsUrl, _https_url),
    (WebUrl, _web_url),
    (NodeName, _node_name),
    (Namespace, _namespace),
    (Commands, _commands),
    (Interval, _interval),
    (SoftReclaimTime, _soft_reclaim_time),
    (HookTime, _hook_time),
    (LeaseTime, _lease_time),
    (Size, _size),
    (Positive, _within(1, 1_000_000)),
    (FifoPriority, _within(0, 99)),
    (OomScore, _within(-1000, 1000)),
)
for _scalar, _hook in _HOOKS:
    register_scalar(CONVERTER, _scalar, _hook)


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class _Pods:
    parents: tuple[ParentPath, ...] = ()
    manifests: AbsolutePath | None = None
    oom_score_adj: bool = True
    never: tuple[ProtectingRule, ...] = ()
    avoid: tuple[ProtectingRule, ...] = ()
    prefer: tuple[PreferringRule, ...] = ()
    priorities: Mapping[Name, PodPriority] = field(default_factory=dict)
    process_victims: tuple[ProcessRule, ...] = ()
    may_evict: tuple[BuiltIn, ...] = ()
    managed_oom_preference: bool = field(default=True, metadata={"key": "managedOOMPreference"})


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class _Journal:
    path: AbsolutePath = AbsolutePath(JournalSettings().path)
    max_size: Size = Size(JournalSettings().max_bytes)
    files: Positive = Positive(JournalSettings().files)


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class _Realtime:
    fifo_priority: FifoPriority = FifoPriority(RealtimeSettings().fifo_priority)
    lock_memory: bool = True
    oom_score_adj: OomScore | None = field(
        default=OomScore(RealtimeSettings().oom_score_adj or 0), metadata={"key": "oomScoreAdj"}
    )


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources:
    ebpf: bool = True
    memcg: bool = True
    memory_high: bool = True
    psi: bool = True
    processes: bool = True


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class _RestartLoop:
    evictions: Positive = Positive(RestartLoopSettings().evictions)
    within: Interval = Interval(RestartLoopSettings().within_seconds)


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class _Runtime:
    endpoint: Endpoint | None = None
    keep_dead_containers: Count = Count(1)


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class _Podman:
    images: bool = True
    socket: Endpoint | None = None


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class _Ebpf:
    loader: EbpfLoader = EbpfLoader.AUTO


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class _Kubelet:
    url: HttpsUrl = HttpsUrl(KubernetesSettings().kubelet_url)
    ca_file: AbsolutePath | None = None
    insecure: bool = False
    config: AbsolutePath = AbsolutePath(KubernetesSettings().kubelet_config_path)


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class Kubernetes:
    """What makes the node a Kubernetes node; without it nothing is asked of any API server."""

    node_name: NodeName | None = None
    kubeconfig: AbsolutePath | None = None
    role: Role = Role.ALONGSIDE
    taints: TaintedBy = TaintedBy.REACTOR
    pods: PodOrigin = PodOrigin.API
    kubelet: _Kubelet = field(default_factory=_Kubelet)
    evicted_pod_ttl: Seconds = field(default=Seconds(0.0), metadata={"key": "evictedPodTTL"})
    lease_namespace: Namespace | None = None
    lease_duration: LeaseTime = LeaseTime(KubernetesSettings().lease_seconds)


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class _Webhook:
    url: WebUrl | None = None
    url_file: AbsolutePath | None = None
    token_file: AbsolutePath | None = None
    ca_file: AbsolutePath | None = None


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class _BeforeEviction:
    commands: Commands = Commands(())
    urls: tuple[WebUrl, ...] = ()
    prekill: bool = False
    timeout: HookTime | None = None

    def settings(self) -> HookSettings:
        """Return them as the daemon has them."""
        return HookSettings(
            commands=self.commands,
            urls=tuple(self.urls),
            prekill=self.prekill,
            timeout_seconds=self.timeout or 0.0,
        )


def _hook_problems(raw: Mapping[str, Any]) -> Iterator[Refused]:
    has_hook = any(raw.get(key) for key in ("commands", "urls", "prekill"))
    if not has_hook:
        yield Refused(dict(raw), "one of commands, urls and prekill: true, with a timeout")
    elif raw.get("timeout") is None:
        yield Refused("nothing", "a duration such as 2s, the one time limit of all hooks", at="timeout")


check_document(_BeforeEviction, _hook_problems)


def _webhook_problems(raw: Mapping[str, Any]) -> Iterator[Refused]:
    given = [key for key in ("url", "urlFile") if raw.get(key) is not None]
    if len(given) != 1:
        yield Refused(" and ".join(given) or "neither url nor urlFile", "one of url and urlFile")
    url = raw.get("url")
    address = read_web_address(url) if isinstance(url, str) else None
    if address is not None and not address.is_private and raw.get("tokenFile") is not None:
        accepted = "with a url of https, or of http to this machine: others would read the token"
        yield Refused(raw["tokenFile"], accepted, at="tokenFile")


check_document(_Webhook, _webhook_problems)


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRule:
    """One rule of the operator's own."""

    name: RuleName
    cgroups: tuple[ParentPath, ...]
    when: tuple[WrittenCondition, ...]
    for_: Seconds = field(metadata={"key": "for"})
    action: RuleAction
    by: RankedBy = RankedBy.MEMORY
    cooldown: Seconds = Seconds(60.0)
    amount: ReclaimAmount = ReclaimAmount(DEFAULT_RECLAIM)
    timeout: ReclaimTime = ReclaimTime(5.0)
    condition: MarkedCondition | None = None
    taint: MarkedTaint | None = None
    transition_period: TransitionTime = TransitionTime(DEFAULT_TRANSITION_SECONDS)

    def rule(self) -> Rule:
        """Return it as the policy has it."""
        conditions = tuple(one.condition() for one in self.when)
        because = f"rule {self.name}: {'; '.join(map(str, conditions))}"
        mark = Mark(self.condition or "", self.taint or "", because)
        return Rule(
            name=self.name,
            cgroups=tuple(self.cgroups),
            conditions=conditions,
            for_seconds=self.for_,
            action=self.action,
            by=self.by,
            cooldown_seconds=self.cooldown,
            amount=self.amount,
            reclaim_seconds=self.timeout,
            mark=mark if self.condition or self.taint else None,
            transition_seconds=self.transition_period,
        )


check_document(WrittenRule, rule_problems)


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Every key of the section."""

    node_cgroup: CgroupPath | None = None
    pods: _Pods = field(default_factory=_Pods)
    filesystems: Mapping[Filesystem, AbsolutePath] = field(default_factory=dict)
    layout: Layout | None = None
    memory_available: MemoryAvailable = MemoryAvailable.WORKING_SET
    ranking: Ranking = Ranking.MEMORY
    housekeeping_interval: Interval = Interval(10.0)
    reclaim: Mapping[Filesystem, Commands] = field(default_factory=dict)
    reclaim_timeout: Interval = Interval(30.0)
    reclaim_pause: Interval = Interval(60.0)
    reclaim_before_soft: SoftReclaimTime = SoftReclaimTime(0.0)
    evictions_per_minute: Positive | None = None
    hard_memory_evictions_per_minute: Positive = Positive(300)
    unhelpful_eviction_pause: Seconds = Seconds(10.0)
    minimum_victim_bytes: ThresholdValue | None = None
    in_flight_deadline: Seconds = Seconds(10.0)
    metrics: Address = Address("127.0.0.1:9753")
    socket: AbsolutePath = AbsolutePath("/run/reactor/reactor.sock")
    state_file: AbsolutePath = AbsolutePath("/run/reactor/state.json")
    journal: _Journal = field(default_factory=_Journal)
    realtime: _Realtime = field(default_factory=_Realtime)
    sources: _Sources = field(default_factory=_Sources)
    ebpf: _Ebpf = field(default_factory=_Ebpf)
    oom_order: OomOrderMode = OomOrderMode.LEAVE
    kernel_kill: KernelKill = KernelKill.OFF
    soft_eviction: SoftEviction = SoftEviction.UPSTREAM
    time_left_within: ThresholdValue | None = None
    kubernetes: Kubernetes | None = None
    runtime: _Runtime = field(default_factory=_Runtime)
    podman: _Podman = field(default_factory=_Podman)
    restart_loop: _RestartLoop = field(default_factory=_RestartLoop)
    black_box: bool = False
    on_eviction: Commands = Commands(())
    on_oom_kill: Commands = field(default=Commands(()), metadata={"key": "onOOMKill"})
    on_source_lost: Commands = Commands(())
    on_no_victim: Commands = Commands(())
    webhook: _Webhook | None = None
    before_eviction: _BeforeEviction | None = None
    journald: bool = NotificationSettings().journald
    wall: bool = NotificationSettings().wall
    desktop: bool = NotificationSettings().desktop
    notify_timeout: Interval = Interval(NotificationSettings().timeout_seconds)
    rules: tuple[WrittenRule, ...] = ()
    systemd_oomd: SystemdOomd = SystemdOomd.IGNORE
    dry_run: bool = False


REMOVED[Section, "brake"] = Removed(
    because="lowering memory.high while a victim dies gained nothing measurable on most kernels",
    accepted="kernelKill: hard, with which the kernel itself kills the pod at the crossing (cgroup v2, eBPF)",
)
