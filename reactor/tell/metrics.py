"""Prometheus metrics, made at each scrape of the guard's document and of the steward's own counts.

`_TABLE` has each metric's kind, name, labels and help, and `_samples` its samples. Names and help follow
Prometheus' conventions (base units, `_total` on counters); promtool checks them in a test. Amounts come in
three units, so each unit has a metric of its own and the signal is a label.
Counters begin with the guard, and are kept when the steward restarts. They are there, at zero, before what
they count has happened: Prometheus sees an increase only of what was there before. There are no `_created`
samples: `process_start_time_seconds` says when they began.

What dashboards and alerts made for the kubelet read is there by the kubelet's own names as well.

That is some 460 series a node, of which a fleet stores 300 that never move. A scrape therefore gets the short
form, of 150 on an ordinary node, unless it asks for all of them (`_short`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product
from typing import Any, Final

from reactor.kernel.swap import SwapTraffic
from reactor.link.documents import BUCKETS_SECONDS, CONFIGURATION, STAGES, Durations, Outcome
from reactor.model.kills import SlowReason, WarrantEnd
from reactor.model.signals import (
    FREED_TOGETHER,
    RESOURCE,
    LimitSignal,
    Reclaim,
    Resource,
    RuleSignal,
    Signal,
)
from reactor.model.wakes import SourceHealth
from reactor.processes import HollowModule, replaced
from reactor.reclaim.images import RemovedFor
from reactor.text import printable

_UNUSED: Final[tuple[str, ...]] = (
    "gzip",
    "http.server",
    "prometheus_client.asgi",
    "prometheus_client.decorator",
    "prometheus_client.gc_collector",
    "prometheus_client.platform_collector",
    "socketserver",
    "ssl",
    "urllib.error",
    "urllib.request",
    "wsgiref.simple_server",
)

Document = Mapping[str, Any]
_Sample = Sequence[Any]  # the labels' values, and a number or durations


# prometheus_client without the web servers that it brings along.
#
# Its exposition module imports servers and clients for HTTP and WSGI, with e-mail's parser, OpenSSL and all:
# 7 MiB of a daemon that is to stay below 40. None of it is used here: the names of those modules are
# replaced, for as long as the import lasts, by empty classes, and so are those of its own that would bring
# `inspect` or count each collection of garbage. Everything in reactor imports prometheus_client
# from here.


with replaced({name: HollowModule(name) for name in _UNUSED}):
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector

__all__ = [
    "Collector",
    "CollectorRegistry",
    "CounterMetricFamily",
    "GaugeMetricFamily",
    "HistogramMetricFamily",
    "Metric",
    "ProcessCollector",
    "choose_encoder",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StewardReading:
    """What the steward adds to the guard's document.

    `parts` are its own, with their failures; `restart_loops` the pods in one, `overdue_pods` those whose
    files have not been counted for too long. `removed_images` are counted by what they were removed for,
    `notifications` by what has become of them. `problems` are the names of its own. `swap_traffic` is what
    has gone to swap and come back since the boot (None: no swap, or not counted). `pod_oom_kills` are counted
    by pod and scope.
    """

    parts: Mapping[str, int] = field(default_factory=dict)
    restart_loops: int = 0
    repeated_evictions: int = 0
    overdue_pods: int = 0
    removed_images: Mapping[RemovedFor, int] = field(default_factory=dict)
    notifications: Sequence[Document] = ()
    problems: Iterable[str] = ()
    swap_traffic: SwapTraffic | None = None
    pod_oom_kills: Mapping[tuple[str, str], int] = field(default_factory=dict)


class Metrics:
    """All metrics in `registry`, their short form in `short`; there are none before the first `read`."""

    def __init__(self) -> None:
        self._read = _Read()
        self.registry, self.short = (
            self._registry(_Scrape(self._read, is_short=form)) for form in (False, True)
        )

    def _registry(self, scrape: _Scrape) -> CollectorRegistry:
        registry = CollectorRegistry()
        ProcessCollector(pid=lambda: self._read.pid, registry=registry)
        registry.register(scrape)
        return registry

    def read(self, reading: Document, steward: StewardReading | None = None) -> None:
        """Set the guard's document, and what the steward adds."""
        self._read.reading = reading
        self._read.steward = steward or StewardReading()


class _Read:
    """What was read last, for either form."""

    def __init__(self) -> None:
        self.reading: Document | None = None
        self.steward = StewardReading()

    @property
    def pid(self) -> int | str:
        return "self" if self.reading is None else int(self.reading["pid"])


class _Scrape(Collector):
    def __init__(self, read: _Read, *, is_short: bool) -> None:
        self._read = read
        self._is_short = is_short

    def describe(self) -> Iterator[Metric]:
        """Name nothing in advance: the registry would otherwise collect once, before there is anything."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        if self._read.reading is None:
            return
        samples = _samples(self._read.reading, self._read.steward)
        if self._is_short:
            samples = _short(samples, self._read.reading)
        for row in _ROWS:
            found = samples[row.name]
            if found is not None:
                shown = _SHORT_BOUNDS.get(row.name, _BOUNDS) if self._is_short else _BOUNDS
                yield row.family(found if row.labels else [(found,)], shown)


class _Untyped(Metric):
    """A counter whose name lacks the suffix: without a type it keeps the name that it has at the kubelet."""

    def __init__(self, name: str, text: str, *, labels: Sequence[str]) -> None:
        super().__init__(name, text, "unknown")
        self._labels = labels

    def add_metric(self, labels: Sequence[str], value: float) -> None:
        self.add_sample(self.name, dict(zip(self._labels, labels, strict=True)), value)


_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily | _Untyped
_KINDS: Final[Mapping[str, type[_Family]]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
    "untyped": _Untyped,
}
_BOUNDS: Final = (*(str(bound) for bound in BUCKETS_SECONDS), "+Inf")


@dataclass(frozen=True, slots=True)
class _Row:
    kind: type[_Family]
    name: str
    labels: Sequence[str]
    text: str

    @classmethod
    def parse(cls, head: str, text: str) -> _Row:
        """Return a row of the table: `kind name{labels}`, and the help."""
        kind, _, name = head.partition(" ")
        name, _, labels = name.rstrip("}").partition("{")
        return cls(_KINDS[kind], name, labels.split(",") if labels else [], text)

    def family(self, samples: Iterable[_Sample], shown: Collection[str]) -> Metric:
        """Return the metric with these samples; of a histogram's bounds those that are `shown`."""
        family = self.kind(self.name, self.text, labels=self.labels)
        for *labels, value in samples:
            if isinstance(family, HistogramMetricFamily):
                sums = [float(count) for count in accumulate(value["counts"])]
                buckets = [one for one in zip(_BOUNDS, sums, strict=True) if one[0] in shown]
                family.add_metric(labels, buckets, value["sum_seconds"])
            else:
                family.add_metric(labels, value)
        return family


# A metric a line; help that begins with a blank goes on.
_TABLE: Final = """\
counter reactor_evictions{signal,outcome}: Evicted pods, by the signal that was low and the outcome.
counter reactor_rules_acted{rule,action}:
    How often a rule of the operator's acted, also where no pod could be evicted.
counter reactor_rules_unhelpful{rule,action}:
    How often a rule acted again for a cgroup in which its conditions had come back in the cool-down.
counter reactor_process_evictions{signal,outcome}:
    Single processes of pods that were evicted, by the signal that was low and the outcome.
histogram reactor_stage_duration_seconds{stage}:
    Time that each stage of an evicting pass took: wake (source to loop), observe, decide, kill, free
    (kill to memory back).
histogram reactor_wake_to_kill_seconds: Time from a source's wake to the victim being killed.
histogram reactor_pass_duration_seconds:
    Time that an evaluation pass took, from its start until its thresholds were armed again.
counter reactor_config_reloads{result}:
    Reloads of the configuration, by whether the new one was taken or refused.
gauge reactor_config_refused:
    1 where the configuration file was refused when it was read last: an earlier one is in force.
gauge reactor_config_last_reload_successful:
    Whether the configuration was taken when it was read last, at a reload or at the start.
gauge reactor_config_last_reload_success_timestamp_seconds:
    When a configuration was taken last, at a reload or at the start.
counter reactor_oom_kills{scope}:
    Processes that the kernel's OOM killer killed, by whose limit was met: the node's (it was faster
    than reactor), a pod's own, or one above the guarded node.
counter reactor_pod_oom_kills{pod,scope}:
    Processes of a pod that the kernel's OOM killer killed, by whose limit was met; counted from the
    steward's start on.
counter reactor_evictions_unhelpful: Evictions that did not help, and slow down the next ones.
counter reactor_state_write_failures: Writes of the state file that failed.
counter reactor_reclaims{kind,outcome}:
    Node-level reclaims before an eviction, by what was to be reclaimed and whether all succeeded.
counter reactor_reclaimed_bytes{kind}: What a node-level reclaim has freed, as the node shows it, in bytes.
counter reactor_reclaimed_inodes{kind}: What a node-level reclaim has freed, as the node shows it, in inodes.
gauge reactor_build_info{version}: Always 1; the version is a label.
gauge reactor_dry_run: 1 in a dry run, in which no pod is evicted; else there is no such series.
gauge reactor_available_bytes{signal}: What is available by the latest observation of a signal, in bytes.
gauge reactor_capacity_bytes{signal}: A signal's capacity by its latest observation, in bytes.
gauge reactor_threshold_bytes{signal,kind}: The configured threshold at the present capacity, in bytes.
gauge reactor_available_inodes{signal}: What is available by the latest observation of a signal, in inodes.
gauge reactor_capacity_inodes{signal}: A signal's capacity by its latest observation, in inodes.
gauge reactor_threshold_inodes{signal,kind}: The configured threshold at the present capacity, in inodes.
gauge reactor_available_processes{signal}:
    What is available by the latest observation of a signal, in processes.
gauge reactor_capacity_processes{signal}: A signal's capacity by its latest observation, in processes.
gauge reactor_threshold_processes{signal,kind}:
    The configured threshold at the present capacity, in processes.
gauge reactor_observation_age_seconds{signal}: How old the latest observation of a signal is.
gauge reactor_signal_observed{signal}:
    Whether a signal is observed (1), or has a threshold and is not (0): nothing is evicted for it.
gauge reactor_threshold_absurd{signal,kind}:
    1 for a threshold that is ignored: it is not below the present capacity. 0 for the others.
gauge reactor_node_condition{condition}: Whether a node condition is in force (1) or not (0).
gauge reactor_source_state{source,state}: 1 for the state that a source of wakes is in, 0 for the others.
counter reactor_source_wakes{source}: Wakes by source.
counter reactor_source_lost_events{source}: Events that the kernel dropped before a source could read them.
counter reactor_part_restarts{part}:
    Failures of parts that the daemon survived: a part was restarted, a job or a call given up.
gauge reactor_oom_order_processes{pod}:
    Processes of the first pod in the OOM killer's order, and of others, whose oom_score_adj it has written.
gauge reactor_storm_brake{reason}:
    Whether evictions for a threshold are slowed down (1) or not (0), by reason.
gauge reactor_no_evictable_pod{signal}:
    Whether a threshold for the signal is met while no pod can be evicted (1) or not (0).
gauge reactor_storm_brake_held_bytes{pod}:
    While evictions are slowed down: what the largest pod holds of those that can't be evicted.
counter reactor_warrants{outcome}:
    Warrants for the kernel to kill at a crossing, by what became of them; served ones killed.
gauge reactor_time_left_seconds{signal,bound}:
    Time until the hard threshold of a memory signal is crossed, as estimated: likely, earliest, latest.
    Absent while memory is not short or the time is not foreseeable.
counter reactor_in_time_evictions{result}:
    Soft evictions that came before their grace period was over, by whether the hard threshold would have been
    crossed within it (needed), only if the pod had grown on (presumed), not, but the soft one would have been
    met throughout (sooner), or not even that (not-needed).
gauge reactor_pods: Pods that may be ranked.
gauge reactor_storage_overdue_pods: Pods whose files should have been counted two minutes ago, and are not.
gauge reactor_evictions_in_flight: Evictions in flight: ordered, and what they free is not free yet.
gauge reactor_restart_loops: Pods that are evicted again and again, because they are restarted each time.
counter reactor_repeated_evictions: Evictions of pods that were in a restart loop.
counter reactor_journal_lines: Lines written to the journal.
counter reactor_journal_lost_lines: Lines that the journal had to drop: its disk was full or too slow.
counter reactor_steward_refused_requests:
    Requests of the steward that the guard refused: invalid, or too many.
gauge reactor_problems: Problems at present, as `reactor status` lists them.
counter reactor_swap_traffic_bytes{direction}:
    Bytes of the node that have come back from swap (in) and gone there (out) since the boot.
counter reactor_notifications{channel,result}:
    Events that operators were to be notified of, by what became of them: sent, failed (given up),
    dropped (too many waited), skipped (OOM kills at pods' own limits, more than 30 a minute).
untyped kubelet_evictions{eviction_signal}: Cumulative number of pod evictions by eviction signal.
histogram kubelet_eviction_stats_age_seconds{eviction_signal}:
    Time between when stats are collected, and when pod is evicted based on those stats by eviction
    signal.
counter kubelet_image_garbage_collected{reason}:
    Total number of images garbage collected, whether through disk usage or image age.
gauge kubelet_graceful_shutdown_start_time_seconds:
    Last graceful shutdown start time since unix epoch in seconds
gauge kubelet_graceful_shutdown_end_time_seconds: Last graceful shutdown end time since unix epoch in seconds
gauge reactor_kubernetes_connected{watch}:
    Whether the watch at the API server or the kubelet is connected (1) or not (0).
gauge reactor_kubernetes_untold_evictions: Evictions whose status or event the API server does not have yet.
gauge kubelet_node_name{node}: The node's name. The count is always 1.
"""
_ROWS: Final = tuple(_Row.parse(*line.split(": ", 1)) for line in re.sub(r"\n +", " ", _TABLE).splitlines())


# Outcomes of evictions that an alert may wait for; the others are there once they have happened.
_OUTCOMES: Final = (Outcome.KILLED, Outcome.TERMINATED, Outcome.FAILED)
_PROCESS_OUTCOMES: Final = (Outcome.PROCESS_KILLED, Outcome.PROCESS_TERMINATED, Outcome.FAILED)
_OF_PROCESSES: Final = tuple(signal for signal in Signal if RESOURCE[signal] in FREED_TOGETHER)
_NOT_EVICTED: Final = frozenset(
    {Outcome.FAILED, Outcome.GONE, Outcome.DRY_RUN, Outcome.CALLED_OFF, Outcome.PRE_EMPTED}
)
_EVICTED_FOR: Final = (*Signal, *LimitSignal, *RuleSignal)
_BOUNDS_OF_TIME: Final = (
    ("earliest", "earliest_seconds"),
    ("likely", "seconds"),
    ("latest", "latest_seconds"),
)
_IN_TIME: Final = ("needed", "presumed", "sooner", "not-needed")


def _samples(reading: Document, steward: StewardReading) -> dict[str, Any]:
    """Return the samples of each metric, or its number if it has no labels; None: it has none."""
    tally, cluster, sources = reading["tally"], reading["kubernetes"], reading["sources"]
    swap, shutdown, slowdowns = steward.swap_traffic, reading["shutdown_times"], reading["slowdowns"]
    is_refused = CONFIGURATION in reading["problems"]
    return {
        "reactor_evictions": _from_zero(product(_EVICTED_FOR, _OUTCOMES), tally["evictions"]),
        "reactor_rules_acted": tally["rules"],
        "reactor_rules_unhelpful": tally["rules_unhelpful"],
        "reactor_process_evictions": _from_zero(
            product(_OF_PROCESSES, _PROCESS_OUTCOMES), tally["process_evictions"]
        ),
        "reactor_stage_duration_seconds": [
            (stage, tally["stages"].get(stage, Durations().document())) for stage in STAGES
        ],
        "reactor_wake_to_kill_seconds": tally["wake_to_kill"],
        "reactor_pass_duration_seconds": tally["passes"],
        "reactor_config_reloads": tally["reloads"].items(),
        "reactor_config_refused": float(is_refused),
        "reactor_config_last_reload_successful": float(not is_refused),
        "reactor_config_last_reload_success_timestamp_seconds": tally["configured_unix_seconds"],
        "reactor_oom_kills": reading["oom_kills"]["counted"].items(),
        "reactor_pod_oom_kills": [(*of, count) for of, count in steward.pod_oom_kills.items()],
        "reactor_evictions_unhelpful": tally["unhelpful"],
        "reactor_state_write_failures": reading["state_failures"],
        "reactor_reclaims": _from_zero(product(Reclaim, ("done", "failed")), tally["reclaims"]),
        "reactor_reclaimed_bytes": _reclaimed(tally, Resource.EPHEMERAL_STORAGE),
        "reactor_reclaimed_inodes": _reclaimed(tally, Resource.INODES),
        "reactor_build_info": [(reading["version"], 1)],
        "reactor_dry_run": 1.0 if reading["dry_run"] else None,
        **_of_signals(reading["signals"]),
        "reactor_node_condition": [(one["condition"], one["in_force"]) for one in reading["conditions"]],
        "reactor_source_state": [
            (source["name"], health, source["health"] == health)
            for source in sources
            for health in SourceHealth
        ],
        "reactor_source_wakes": [(source["name"], source["wakes"]) for source in sources],
        "reactor_source_lost_events": [(source["name"], source["lost"]) for source in sources],
        "reactor_part_restarts": {
            **{one["name"]: one["restarts"] for one in reading["parts"]},
            **steward.parts,
        }.items(),
        "reactor_oom_order_processes": _oom_order(reading["oom_order"]),
        "reactor_storm_brake": [
            (reason, any(one["reason"] == reason for one in slowdowns)) for reason in SlowReason
        ],
        "reactor_no_evictable_pod": reading["no_victims"].items(),
        "reactor_storm_brake_held_bytes": {
            printable(one["held_by"]): one["held_by_bytes"] for one in slowdowns if one["held_by"] is not None
        }.items(),
        "reactor_warrants": _from_zero(product(WarrantEnd), reading["kernel_kill"]["counted"].items()),
        **_time_left(reading["time_left"]),
        "reactor_pods": reading["pods"],
        "reactor_storage_overdue_pods": steward.overdue_pods,
        "reactor_evictions_in_flight": len(reading["in_flight"]),
        "reactor_restart_loops": steward.restart_loops,
        "reactor_repeated_evictions": steward.repeated_evictions,
        "reactor_journal_lines": reading["journal"]["written"],
        "reactor_journal_lost_lines": reading["journal"]["lost"],
        "reactor_steward_refused_requests": reading["processes"]["steward"]["refused_requests"],
        "reactor_problems": len({*reading["problems"], *steward.problems}),
        "reactor_swap_traffic_bytes": swap and [("in", swap.in_bytes), ("out", swap.out_bytes)],
        "reactor_notifications": [
            (one["channel"], result, one[result])
            for one in steward.notifications
            for result in ("sent", "failed", "dropped", "skipped")
        ],
        "kubelet_evictions": _evicted(tally["evictions"]),
        "kubelet_eviction_stats_age_seconds": tally["stats_ages"].items(),
        "kubelet_image_garbage_collected": [
            (reason, steward.removed_images.get(reason, 0)) for reason in RemovedFor
        ],
        "kubelet_graceful_shutdown_start_time_seconds": shutdown.get("start", 0.0),
        "kubelet_graceful_shutdown_end_time_seconds": shutdown.get("end", 0.0),
        "reactor_kubernetes_connected": cluster and cluster["watches"].items(),
        "reactor_kubernetes_untold_evictions": cluster and cluster["untold_evictions"],
        "kubelet_node_name": cluster and [(cluster["node"], 1)],
    }


# Of the short form. What it leaves out says nothing (a gauge at its rest, an event that this node's
# configuration rules out), or is there from the first time on that it is not zero.
_MANY: Final = ("0.001", "0.0025", "0.005", "0.01", "0.025", "0.1", "1.0", "+Inf")
_SHORT_BOUNDS: Final = {
    "reactor_wake_to_kill_seconds": _MANY,
    "reactor_pass_duration_seconds": ("0.001", "0.01", "0.1", "1.0", "+Inf"),
    "reactor_stage_duration_seconds": ("+Inf",),
    "kubelet_eviction_stats_age_seconds": ("1.0", "10.0", "+Inf"),
}
_AT_REST: Final[Mapping[str, float]] = {
    "reactor_threshold_absurd": 0.0,
    "reactor_signal_observed": 1.0,
    "reactor_no_evictable_pod": 0.0,
    "reactor_source_state": 0.0,
    "reactor_oom_order_processes": 0.0,
    "reactor_source_lost_events": 0.0,
    "reactor_part_restarts": 0.0,
    "reactor_warrants": 0.0,
}
_ALWAYS_RECLAIMED: Final = frozenset({Reclaim.CONTAINERS, Reclaim.IMAGES})


def _short(samples: Mapping[str, Any], reading: Document) -> dict[str, Any]:
    """Return the samples without those that a fleet need not store."""
    possible = {one["signal"] for one in reading["signals"] if one["thresholds"]}
    if reading["kubernetes"]:
        possible |= set(LimitSignal)  # a pod's own limits
    soft = {
        one["signal"] for one in reading["signals"] for each in one["thresholds"] if each["kind"] == "soft"
    }
    idle = {source["name"] for source in reading["sources"] if source["health"] == SourceHealth.OFF}
    reclaimed = _ALWAYS_RECLAIMED if reading["kubernetes"] else frozenset()

    def may_come(signal: str, outcome: str) -> bool:
        gracefully = outcome in {Outcome.TERMINATED, Outcome.PROCESS_TERMINATED}
        return signal in possible and (not gracefully or signal in soft or signal in set(LimitSignal))

    kept: dict[str, Callable[..., bool]] = {
        **{name: lambda *one, rest=rest: one[-1] != rest for name, rest in _AT_REST.items()},
        "reactor_source_state": lambda _, state, value: bool(value) and state != SourceHealth.OFF,
        "reactor_source_wakes": lambda source, count: bool(count) or source not in idle,
        "reactor_evictions": lambda signal, outcome, count: bool(count) or may_come(signal, outcome),
        "reactor_process_evictions": lambda signal, outcome, count: bool(count) or may_come(signal, outcome),
        "kubelet_evictions": lambda signal, count: bool(count) or signal in possible,
        **{
            name: lambda kind, *rest: bool(rest[-1]) or kind in reclaimed
            for name in ("reactor_reclaims", "reactor_reclaimed_bytes", "reactor_reclaimed_inodes")
        },
    }
    return {
        name: found if name not in kept else [one for one in found if kept[name](*one)]
        for name, found in samples.items()
    }


def _of_signals(signals: Sequence[Document]) -> dict[str, list[_Sample]]:
    """Return what there is of signals and their thresholds, the amounts by unit."""
    observed = [one for one in signals if one["available"] is not None]
    found: dict[str, list[_Sample]] = {
        "reactor_signal_observed": [(one["signal"], float(one["available"] is not None)) for one in signals],
        "reactor_observation_age_seconds": [
            (one["signal"], one["age_seconds"]) for one in observed if one["age_seconds"] is not None
        ],
        "reactor_threshold_absurd": [
            (one["signal"], threshold["kind"], float(threshold["absurd"]))
            for one in observed
            for threshold in one["thresholds"]
        ],
    }
    for unit in ("bytes", "inodes", "processes"):
        seen = [one for one in observed if one["unit"] == unit]
        found[f"reactor_available_{unit}"] = [(one["signal"], one["available"]) for one in seen]
        found[f"reactor_capacity_{unit}"] = [(one["signal"], one["capacity"]) for one in seen]
        found[f"reactor_threshold_{unit}"] = [
            (one["signal"], threshold["kind"], threshold["amount"])
            for one in seen
            for threshold in one["thresholds"]
        ]
    return found


def _reclaimed(tally: Document, resource: Resource) -> list[_Sample]:
    return _from_zero(
        product(Reclaim), [(kind, count) for of, kind, count in tally["reclaimed"] if of == resource]
    )


def _evicted(evictions: Iterable[_Sample]) -> Iterable[_Sample]:
    """Return how many pods were evicted by signal, as the kubelet counts them."""
    found = Counter(dict.fromkeys(_EVICTED_FOR, 0))
    for signal, outcome, count in evictions:
        found[signal] += count * (outcome not in _NOT_EVICTED)
    return found.items()


def _oom_order(order: Document) -> list[_Sample]:
    """Return how many processes the first pod has, and of how many others a score was written."""
    first = 0 if order["first"] is None else order["first"]["processes"]
    return [("first", first), ("others", order["others"])]


def _time_left(found: Document | None) -> dict[str, list[_Sample]]:
    if found is None:
        return {"reactor_time_left_seconds": [], "reactor_in_time_evictions": []}
    return {
        "reactor_time_left_seconds": [
            (one["threshold"].partition("<")[0], bound, one[key])
            for one in found["signals"]
            for bound, key in _BOUNDS_OF_TIME
            if one["seconds"] is not None
        ],
        "reactor_in_time_evictions": [(one, found["in_time"][one.replace("-", "_")]) for one in _IN_TIME],
    }


def _from_zero(expected: Iterable[tuple[str, ...]], counts: Iterable[_Sample]) -> list[_Sample]:
    """Return counts by their labels, with a zero for what is expected and has not happened."""
    found: dict[tuple[str, ...], Any] = dict.fromkeys(expected, 0)
    for *labels, count in counts:
        found[tuple(labels)] = count
    return [(*labels, count) for labels, count in found.items()]
