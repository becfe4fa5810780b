"""The `reactor:` section as it is written; its keys are documented in docs/configuration.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reactor.config.decode import strict
from reactor.config.scalars import Count, Seconds
from reactor.config.section_scalars import (
    AbsolutePath,
    Address,
    CgroupPath,
    Commands,
    Endpoint,
    FifoPriority,
    HttpsUrl,
    Interval,
    NodeName,
    OomScore,
    Positive,
    Size,
)
from reactor.model.settings import (
    BrakeMode,
    EbpfLoader,
    JournalSettings,
    KubernetesSettings,
    PodOrigin,
    RealtimeSettings,
    RestartLoopSettings,
    Role,
)
from reactor.model.signals import Filesystem, Layout
from reactor.model.thresholds import ThresholdValue


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class _Pods:
    parents: tuple[CgroupPath, ...] = ()
    manifests: AbsolutePath | None = None


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
    pods: PodOrigin = PodOrigin.API
    kubelet: _Kubelet = field(default_factory=_Kubelet)
    evicted_pod_ttl: Seconds = field(default=Seconds(0.0), metadata={"key": "evictedPodTTL"})


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Every key of the section."""

    node_cgroup: CgroupPath | None = None
    pods: _Pods = field(default_factory=_Pods)
    filesystems: Mapping[Filesystem, AbsolutePath] = field(default_factory=dict)
    layout: Layout | None = None
    housekeeping_interval: Interval = Interval(10.0)
    reclaim: Mapping[Filesystem, Commands] = field(default_factory=dict)
    reclaim_timeout: Interval = Interval(30.0)
    reclaim_pause: Interval = Interval(60.0)
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
    brake: BrakeMode = BrakeMode.OFF
    kubernetes: Kubernetes | None = None
    runtime: _Runtime = field(default_factory=_Runtime)
    podman: _Podman = field(default_factory=_Podman)
    restart_loop: _RestartLoop = field(default_factory=_RestartLoop)
    dry_run: bool = False
