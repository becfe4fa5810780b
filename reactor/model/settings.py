"""What a configuration comes down to once it is read: settings of the policy and of the daemon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from reactor.errors import ConfigError
from reactor.model.name_patterns import fences
from reactor.model.pod_lists import PodLists
from reactor.model.rules import Rule
from reactor.model.signals import Filesystem, Layout, Signal
from reactor.model.thresholds import Threshold, ThresholdValue


class EventKind(StrEnum):
    """What has happened.

    `EVICTION`: a pod was evicted, or could not be. `OOM_KILL`: the kernel's OOM killer has killed.
    `SOURCE_LOST`: a source of wakes has failed, and another stands in for it, or only the ticker is left.
    `NO_VICTIM`: a threshold is met and no pod can be evicted. `TEST`: an operator tries the notifications.
    """

    EVICTION = "eviction"
    OOM_KILL = "oom-kill"
    SOURCE_LOST = "source-lost"
    NO_VICTIM = "no-victim"
    TEST = "test"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageGcSettings:
    """When unused images are removed for the sake of the image filesystem; ages in seconds, 0 is off."""

    high_threshold_percent: int = 85
    low_threshold_percent: int = 80
    minimum_age_seconds: float = 120.0
    maximum_age_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionSettings:
    """What `policy.decide` goes by.

    `thresholds` are in configuration order, hard before soft, derived ones (allocatable memory,
    containerfs) included. `max_pod_grace_period_seconds` below zero leaves soft evictions the pod's own
    grace period. `evictions_per_minute` None is without bound, and does not count for hard memory thresholds,
    which have `hard_memory_evictions_per_minute`; those that turn out not to help are one in
    `unhelpful_eviction_pause_seconds`, as are those for soft memory thresholds (0: not slowed down).
    `minimum_victim` is what a pod has to hold to be worth a hard memory eviction, in bytes or as a share of
    what is missing (None: anything).
    With `soft_in_time` a soft eviction for memory that would not be in time comes before its grace period is
    over. With `ranks_swap` a pod's memory in swap counts where pods are ranked for memory.
    With `reclaims_memory` the caller can reclaim memory that no pod holds (`Decision.memory_reclaim`), and
    pods' own for `soft_reclaim_seconds` before the first soft eviction (`Decision.soft_reclaim`; 0: not).
    With `reclaims_ended_only` it can do so only in cgroups of pods that have ended, as on cgroup v1.
    `commands_for` are the filesystems for which commands are configured that free something.
    With `evicts_holders_only` a pod is evicted for a filesystem only if files are known there that are
    removed with the pod. With `rechecks_disks` the caller observes the filesystem itself after a reclaim,
    and a pod is evicted only if that shows the threshold as met.
    """

    thresholds: tuple[Threshold, ...] = ()
    layout: Layout = Layout.SINGLE
    pressure_transition_period_seconds: float = 300.0
    max_pod_grace_period_seconds: int = 0
    local_storage_capacity_isolation: bool = True
    kernel_memcg_notification: bool = False
    image_gc: ImageGcSettings = field(default_factory=ImageGcSettings)
    evictions_per_minute: int | None = None
    hard_memory_evictions_per_minute: int | None = None
    unhelpful_eviction_pause_seconds: float = 0.0
    minimum_victim: ThresholdValue | None = None
    in_flight_deadline_seconds: float = 10.0
    reclaims_memory: bool = False
    reclaims_ended_only: bool = False
    soft_reclaim_seconds: float = 0.0
    soft_in_time: bool = False
    ranks_swap: bool = False
    commands_for: frozenset[Filesystem] = frozenset()
    evicts_holders_only: bool = False
    rechecks_disks: bool = False

    @property
    def counts_swap(self) -> bool:
        """Return whether each pass asks what pods have in swap: for a threshold, or to rank by it.

        For a rule it is asked when that acts.
        """
        return self.ranks_swap or any(one.signal is Signal.SWAP_AVAILABLE for one in self.thresholds)


Command = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimSettings:
    """The commands that free something of each filesystem before a pod is evicted.

    Each may take `timeout_seconds`; those of one filesystem are run `pause_seconds` apart, or more.
    """

    commands: Mapping[Filesystem, tuple[Command, ...]] = field(default_factory=dict)
    timeout_seconds: float = 30.0
    pause_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """Where events are POSTed: `url`, or what is in the file `url_path`, of which one is None.

    The file `token_path` holds a bearer token, `ca_path` the server's authorities; None: the system's.
    """

    url: str | None = None
    url_path: str | None = None
    token_path: str | None = None
    ca_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationSettings:
    """What operators are notified by of evictions, the kernel's OOM kills and lost sources.

    `commands` are run for each event of a kind. Each of them, and each attempt at the webhook, may take
    `timeout_seconds`. With `journald` events are entries of systemd's journal, where there is one; with
    `wall` they are written to the terminals of those who are logged in, with `desktop` shown on desktops.
    """

    commands: Mapping[EventKind, tuple[Command, ...]] = field(default_factory=dict)
    timeout_seconds: float = 30.0
    webhook: WebhookSettings | None = None
    journald: bool = True
    wall: bool = False
    desktop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HookSettings:
    """What is done before a soft eviction, all at once and within `timeout_seconds`.

    `commands` are run, `urls` are POSTed to, with `prekill` systemd's prekill hooks are called.
    """

    commands: tuple[Command, ...] = ()
    urls: tuple[str, ...] = ()
    prekill: bool = False
    timeout_seconds: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.commands or self.urls or self.prekill)


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSettings:
    """Where decisions are written and how much of them is kept: `files` files of `max_bytes` each."""

    path: str = "/var/log/reactor/journal.jsonl"
    max_bytes: int = 16 << 20
    files: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RealtimeSettings:
    """How the daemon stays awake under pressure; each part may be refused by the kernel, and is reported.

    `fifo_priority` 0 leaves the scheduling policy alone; `oom_score_adj` None leaves the score alone.
    """

    fifo_priority: int = 50
    lock_memory: bool = True
    oom_score_adj: int | None = -999


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartLoopSettings:
    """How many evictions of one pod within how long are a restart loop."""

    evictions: int = 3
    within_seconds: float = 600.0


class EbpfLoader(StrEnum):
    """Who makes the eBPF programs; libbpf needs the kernel's BTF, BCC its headers.

    By libbpf they hook the kernel's functions with trampolines, or with kprobes where it has none.
    """

    AUTO = "auto"
    LIBBPF = "libbpf"
    KPROBE = "kprobe"
    BCC = "bcc"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """Which sources may be used; the ticker always is."""

    ebpf: bool = True
    ebpf_loader: EbpfLoader = EbpfLoader.AUTO
    memcg: bool = True
    memory_high: bool = True
    psi: bool = True
    processes: bool = True


class OomOrderMode(StrEnum):
    """Whose order the kernel's OOM killer takes pods in while memory is short: the policy's, or its own."""

    POLICY = "policy"
    LEAVE = "leave"


class Ranking(StrEnum):
    """By what pods are ranked for memory: their working set, or that and what they have in swap."""

    MEMORY = "memory"
    MEMORY_AND_SWAP = "memory+swap"


class MemoryAvailable(StrEnum):
    """What `memory.available` is: capacity less the working set, or what the kernel's MemAvailable counts."""

    WORKING_SET = "workingSet"
    MEM_AVAILABLE = "memAvailable"


class SystemdOomd(StrEnum):
    """What systemd's units say of systemd-oomd: nothing that counts here, or rules in its place."""

    IGNORE = "ignore"
    REPLACE = "replace"


class SoftEviction(StrEnum):
    """When soft evictions come: after the grace period, or for memory sooner if that would not be in time."""

    UPSTREAM = "upstream"
    IN_TIME = "inTime"


class KernelKill(StrEnum):
    """Whether the kernel itself kills for hard memory thresholds, at the crossing and under a warrant."""

    OFF = "off"
    HARD = "hard"


class Role(StrEnum):
    """Whether the kubelet evicts too (`ALONGSIDE`), or its eviction is switched off (`SOLE`)."""

    ALONGSIDE = "alongside"
    SOLE = "sole"


class TaintedBy(StrEnum):
    """Who taints the node under pressure: reactor, or the cluster's node controller by the conditions."""

    REACTOR = "reactor"
    NODE_CONTROLLER = "nodeController"


class PodOrigin(StrEnum):
    """Who is asked for the node's pods."""

    API = "api"
    KUBELET = "kubelet"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """How the reactor takes part in a cluster.

    `node_name` None is NODE_NAME from the environment, else the host's name. `kubeconfig_path` None takes
    the credentials that a pod is given. `kubelet_ca_path` None is the system's authorities; the kubelet's
    certificate is checked only if `kubelet_verified`, its configuration only by `reactor doctor`. A TTL
    of 0 keeps evicted pods. `lease_namespace` None is the pod's own, "off" none; in `lease_seconds` the Lease
    is renewed four times.
    """

    node_name: str | None = None
    kubeconfig_path: str | None = None
    role: Role = Role.ALONGSIDE
    tainted_by: TaintedBy = TaintedBy.REACTOR
    pods_from: PodOrigin = PodOrigin.API
    kubelet_url: str = "https://127.0.0.1:10250"
    kubelet_ca_path: str | None = None
    kubelet_verified: bool = True
    kubelet_config_path: str = "/var/lib/kubelet/config.yaml"
    evicted_pod_ttl_seconds: float = 0.0
    lease_namespace: str | None = None
    lease_seconds: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownGroup:
    """Pods of this priority and above, up to the next group's, end within so many seconds at a shutdown."""

    priority: int
    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that `reactor run` goes by.

    `node_cgroup` is relative to the hierarchy's root, None is the machine itself. `pod_parents` are the
    cgroups (relative likewise, or patterns of them) whose children are pods, and the only ones in which
    anything is ever killed.
    On a plain node `pod_lists` say who of them is never evicted, who first, who last.
    Of pods in manifests the kernel's OOM killer gets the scores if `pod_oom_scores`.
    `filesystems` names a path on each filesystem to be watched; what it leaves out is found.
    `by_layout` holds the policy's settings for every layout if the devices are to show which one it is;
    it is empty where a layout is configured. `reserved_memory_bytes` is kept from pods for the system: the
    pods' cgroup, where it has no limit of its own, may use all else of the node. `kubernetes` None is a
    plain Linux node. `runtime_endpoint` None finds the container runtime's socket; of each container of
    a pod that is still to run `dead_containers_kept` dead ones are kept when space is reclaimed;
    `static_pods_path` is where the kubelet finds its static pods. On a plain node podman's images are
    removed if `podman`; `podman_socket` None is its own unit's, if that is there. `shutdown_groups` are empty
    where a shutdown of the node is not held up for its pods. The time left is estimated `time_left_within` of
    a hard memory threshold, and in any case while a soft one is met. `rules` are the operator's own,
    `systemd_oomd` whether those of systemd's units count as well.
    """

    eviction: EvictionSettings = field(default_factory=EvictionSettings)
    node_cgroup: str | None = None
    pod_parents: tuple[str, ...] = ()
    pod_lists: PodLists = field(default_factory=PodLists)
    memory_available: MemoryAvailable = MemoryAvailable.WORKING_SET
    reserved_memory_bytes: int = 0
    manifests_path: str | None = None
    pod_oom_scores: bool = True
    filesystems: Mapping[Filesystem, str] = field(default_factory=dict)
    by_layout: Mapping[Layout, EvictionSettings] = field(default_factory=dict)
    housekeeping_interval_seconds: float = 10.0
    metrics_address: tuple[str, int] | None = ("127.0.0.1", 9753)
    socket_path: str = "/run/reactor/reactor.sock"
    state_path: str = "/run/reactor/state.json"
    journal: JournalSettings = field(default_factory=JournalSettings)
    realtime: RealtimeSettings = field(default_factory=RealtimeSettings)
    sources: SourceSettings = field(default_factory=SourceSettings)
    oom_order: OomOrderMode = OomOrderMode.LEAVE
    kernel_kill: KernelKill = KernelKill.OFF
    time_left_within: ThresholdValue | None = None
    kubernetes: KubernetesSettings | None = None
    reclaim: ReclaimSettings = field(default_factory=ReclaimSettings)
    runtime_endpoint: str | None = None
    dead_containers_kept: int = 1
    static_pods_path: str | None = None
    podman: bool = True
    podman_socket: str | None = None
    restart_loop: RestartLoopSettings = field(default_factory=RestartLoopSettings)
    black_box: bool = False
    notifications: NotificationSettings = field(default_factory=NotificationSettings)
    hooks: HookSettings = field(default_factory=HookSettings)
    shutdown_groups: tuple[ShutdownGroup, ...] = ()
    rules: tuple[Rule, ...] = ()
    systemd_oomd: SystemdOomd = SystemdOomd.IGNORE
    dry_run: bool = False
    stand_by: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def measured_parents(self) -> tuple[str, ...]:
        """Return the cgroups whose counters hold what all pods use: of a pattern that is its fence.

        None lies below another, since usage counts whole subtrees. Empty where a pattern begins at the root,
        which holds all else of the machine as well.
        """
        found = fences(self.pod_parents)
        if "/" in found and "/" not in self.pod_parents:
            return ()
        below = [f"{one.rstrip('/')}/" for one in found]
        return tuple(one for one in found if one == "/" or not one.startswith(tuple(below)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Settings and their text. `refused` is why the file was not taken, None where it was.

    `config_dir` is where its drop-ins are, if any.
    """

    settings: Settings
    text: str
    config_dir: Path | None = None
    refused: ConfigError | None = None
