"""Prometheus metrics, made at each scrape of the guard's document and of the steward's own counts.

Names and help follow Prometheus' conventions (base units, `_total` on counters); promtool checks them in a
test. Amounts come in three units, so each unit has a metric of its own and the signal is a label. Counters
begin with the guard, and are kept when the steward restarts. They are there, at zero, before what they count
has happened: Prometheus sees an increase only of what was there before. There are no `_created` samples:
`process_start_time_seconds` says when they began.

What dashboards and alerts made for the kubelet read is there by the kubelet's own names as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product
from typing import Any, Final

from reactor.kernel.swap import SwapTraffic
from reactor.link.documents import BUCKETS_SECONDS, STAGES, Durations
from reactor.model.decisions import SlowReason
from reactor.model.signals import (
    FREED_TOGETHER,
    RESOURCE,
    LimitSignal,
    NodeCondition,
    Reclaim,
    Resource,
    RuleSignal,
    Signal,
)
from reactor.model.wakes import SourceHealth
from reactor.model.warrants import WarrantEnd
from reactor.reclaim.images import RemovedFor
from reactor.tell.prometheus import (
    Collector,
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    ProcessCollector,
)
from reactor.text import printable

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StewardReading:
    """What the steward adds to the guard's document.

    `parts` are its own, with their failures; `restart_loops` the pods in one, `overdue_pods` those whose
    files have not been counted for too long. `removed_images` are counted by what they were removed for,
    `notifications` by what has become of them. `problems` are the names of its own. `swap_traffic` is what
    has gone to swap and come back since the boot (None: no swap, or not counted).
    """

    parts: Mapping[str, int] = field(default_factory=dict)
    restart_loops: int = 0
    repeated_evictions: int = 0
    overdue_pods: int = 0
    removed_images: Mapping[RemovedFor, int] = field(default_factory=dict)
    notifications: Sequence[Document] = ()
    problems: Iterable[str] = ()
    swap_traffic: SwapTraffic | None = None


class Metrics:
    """All metrics, in a registry of their own; there are none before the first `read`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._scrape = _Scrape()
        ProcessCollector(pid=lambda: self._scrape.pid, registry=self.registry)
        self.registry.register(self._scrape)

    def read(self, reading: Document, steward: StewardReading | None = None) -> None:
        """Set the guard's document (`Reading.document`), and what the steward adds."""
        self._scrape.reading = reading
        self._scrape.steward = steward or StewardReading()


class _Scrape(Collector):
    def __init__(self) -> None:
        self.reading: Document | None = None
        self.steward = StewardReading()

    @property
    def pid(self) -> int | str:
        return "self" if self.reading is None else int(self.reading["pid"])

    def describe(self) -> Iterator[Metric]:
        """Name nothing in advance: the registry would otherwise collect once, before there is anything."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        reading, steward = self.reading, self.steward
        if reading is None:
            return
        yield from _tallied(reading["tally"])
        yield _gauge(
            "reactor_build_info",
            "Always 1; the version is a label.",
            ["version"],
            ((reading["version"],), 1),
        )
        yield from _amounts(reading["signals"])
        yield from _ages(reading["signals"])
        yield from _observed(reading["signals"], reading["unobserved"])
        yield from _conditions(reading["conditions"])
        yield from _sources(reading["sources"])
        yield _parts({**reading["parts"], **steward.parts})
        yield _oom_order(reading["oom_order"])
        yield _slowdowns(reading["slowdowns"])
        yield _gauge(
            "reactor_no_evictable_pod",
            "Whether a threshold for the signal is met while no pod can be evicted (1) or not (0).",
            ["signal"],
            *(((signal,), is_so) for signal, is_so in reading["no_victims"].items()),
        )
        yield _gauge(
            "reactor_storm_brake_held_bytes",
            "While evictions are slowed down: what the largest pod holds of those that can't be evicted.",
            ["pod"],
            *(((printable(pod),), held_bytes) for pod, held_bytes in reading["never_evicted"].items()),
        )
        yield _counter(
            "reactor_warrants",
            "Warrants for the kernel to kill at a crossing, by what became of them; served ones killed.",
            ["outcome"],
            _from_zero(product(WarrantEnd), reading["warrants"].items()),
        )
        yield GaugeMetricFamily("reactor_pods", "Pods that may be ranked.", reading["pods"])
        yield GaugeMetricFamily(
            "reactor_storage_overdue_pods",
            "Pods whose files should have been counted two minutes ago, and are not.",
            steward.overdue_pods,
        )
        yield GaugeMetricFamily(
            "reactor_evictions_in_flight",
            "Evictions in flight: ordered, and what they free is not free yet.",
            reading["in_flight"],
        )
        yield GaugeMetricFamily(
            "reactor_restart_loops",
            "Pods that are evicted again and again, because they are restarted each time.",
            steward.restart_loops,
        )
        yield CounterMetricFamily(
            "reactor_repeated_evictions",
            "Evictions of pods that were in a restart loop.",
            steward.repeated_evictions,
        )
        yield CounterMetricFamily(
            "reactor_journal_lines", "Lines written to the journal.", reading["journal"]["written"]
        )
        yield CounterMetricFamily(
            "reactor_journal_lost_lines",
            "Lines that the journal had to drop: its disk was full or too slow.",
            reading["journal"]["lost"],
        )
        yield CounterMetricFamily(
            "reactor_steward_refused_requests",
            "Requests of the steward that the guard refused: invalid, or too many.",
            reading["refused_requests"],
        )
        yield GaugeMetricFamily(
            "reactor_problems",
            "Problems at present, as `reactor status` lists them.",
            len({*reading["problems"], *steward.problems}),
        )
        if steward.swap_traffic is not None:
            yield _swap_traffic(steward.swap_traffic)
        yield _notifications(steward.notifications)
        yield from _as_the_kubelet(reading["tally"], steward.removed_images)
        for edge in ("start", "end"):
            yield GaugeMetricFamily(
                f"kubelet_graceful_shutdown_{edge}_time_seconds",
                f"Last graceful shutdown {edge} time since unix epoch in seconds",
                reading["shutdown"].get(edge, 0.0),
            )
        if reading["cluster"] is not None:
            yield from _cluster(reading["cluster"])


def _tallied(tally: Document) -> Iterator[Metric]:
    yield _counter(
        "reactor_evictions",
        "Evicted pods, by the signal that was low and the outcome.",
        ["signal", "outcome"],
        _from_zero(product((*Signal, *LimitSignal, *RuleSignal), _OUTCOMES), tally["evictions"]),
    )
    yield _counter(
        "reactor_rules_acted",
        "How often a rule of the operator's acted, also where no pod could be evicted.",
        ["rule", "action"],
        tally.get("rules", ()),
    )
    yield _counter(
        "reactor_rules_unhelpful",
        "How often a rule acted again for a cgroup in which its conditions had come back in the cool-down.",
        ["rule", "action"],
        tally.get("rules_unhelpful", ()),
    )
    yield _counter(
        "reactor_process_evictions",
        "Single processes of pods that were evicted, by the signal that was low and the outcome.",
        ["signal", "outcome"],
        _from_zero(product(_OF_PROCESSES, _PROCESS_OUTCOMES), tally["process_evictions"]),
    )
    yield _histogram(
        "reactor_stage_duration_seconds",
        "Time that each stage of an evicting pass took: wake (source to loop), observe, decide, kill, "
        "free (kill to memory back).",
        ["stage"],
        {(stage,): tally["stages"].get(stage, Durations().document()) for stage in STAGES},
    )
    yield _histogram(
        "reactor_wake_to_kill_seconds",
        "Time from a source's wake to the victim being killed.",
        [],
        {(): tally["wake_to_kill"]},
    )
    yield _histogram(
        "reactor_pass_duration_seconds",
        "Time that an evaluation pass took, from its start until its thresholds were armed again.",
        [],
        {(): tally["passes"]},
    )
    yield _counter(
        "reactor_config_reloads",
        "Reloads of the configuration, by whether the new one was taken or refused.",
        ["result"],
        tally["reloads"].items(),
    )
    yield GaugeMetricFamily(
        "reactor_config_refused",
        "1 where the configuration file was refused when it was read last: an earlier one is in force.",
        float(tally["configuration_refused"]),
    )
    yield GaugeMetricFamily(
        "reactor_config_last_reload_successful",
        "Whether the configuration was taken when it was read last, at a reload or at the start.",
        float(not tally["configuration_refused"]),
    )
    yield GaugeMetricFamily(
        "reactor_config_last_reload_success_timestamp_seconds",
        "When a configuration was taken last, at a reload or at the start.",
        tally["configured_unix_seconds"],
    )
    yield _counter(
        "reactor_oom_kills",
        "Processes that the kernel's OOM killer killed, by whose limit was met: the node's (it was faster "
        "than reactor), a pod's own, or one above the guarded node.",
        ["scope"],
        tally["oom_kills"].items(),
    )
    yield _counter(
        "reactor_evictions_unhelpful",
        "Evictions for hard memory thresholds that freed less than a quarter of their credit.",
        [],
        [(tally["unhelpful"],)],
    )
    yield _counter(
        "reactor_state_write_failures",
        "Writes of the state file that failed.",
        [],
        [(tally["state_failures"],)],
    )
    yield _counter(
        "reactor_reclaims",
        "Node-level reclaims before an eviction, by what was to be reclaimed and whether all succeeded.",
        ["kind", "outcome"],
        _from_zero(product(Reclaim, ("done", "failed")), tally["reclaims"]),
    )
    for resource, unit in ((Resource.EPHEMERAL_STORAGE, "bytes"), (Resource.INODES, "inodes")):
        yield _counter(
            f"reactor_reclaimed_{unit}",
            f"What a node-level reclaim has freed, as the node shows it, in {unit}.",
            ["kind"],
            _from_zero(
                product(Reclaim), [(kind, count) for of, kind, count in tally["reclaimed"] if of == resource]
            ),
        )


def _as_the_kubelet(tally: Document, removed_images: Mapping[RemovedFor, int]) -> Iterator[Metric]:
    """Yield what others' dashboards and alerts read, by the names and labels of pkg/kubelet/metrics."""
    evicted = Counter(dict.fromkeys((*Signal, *LimitSignal, *RuleSignal), 0))
    for signal, outcome, count in tally["evictions"]:
        evicted[signal] += count * (outcome not in _NOT_EVICTED)
    # A counter whose name lacks the suffix: without a type it keeps the name that it has at the kubelet.
    evictions = Metric(
        "kubelet_evictions", "Cumulative number of pod evictions by eviction signal.", "unknown"
    )
    for signal, count in evicted.items():
        evictions.add_sample("kubelet_evictions", {"eviction_signal": signal}, count)
    yield evictions
    yield _histogram(
        "kubelet_eviction_stats_age_seconds",
        "Time between when stats are collected, and when pod is evicted based on those stats by eviction "
        "signal.",
        ["eviction_signal"],
        {(signal,): durations for signal, durations in tally["stats_ages"].items()},
    )
    yield _counter(
        "kubelet_image_garbage_collected",
        "Total number of images garbage collected, whether through disk usage or image age.",
        ["reason"],
        [(reason, removed_images.get(reason, 0)) for reason in RemovedFor],
    )


# Outcomes of evictions that an alert may wait for; the others are there once they have happened.
_OUTCOMES: Final = ("killed", "terminated", "failed")
_PROCESS_OUTCOMES: Final = ("process-killed", "process-terminated", "failed")
_OF_PROCESSES: Final = tuple(signal for signal in Signal if RESOURCE[signal] in FREED_TOGETHER)


def _from_zero(expected: Iterable[tuple[str, ...]], counts: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Return counts by their labels, with a zero for what is expected and has not happened."""
    found: dict[tuple[str, ...], Any] = dict.fromkeys(expected, 0)
    for *labels, count in counts:
        found[tuple(labels)] = count
    return [(*labels, count) for labels, count in found.items()]


_NOT_EVICTED: Final = frozenset({"failed", "gone", "dry-run", "called off", "pre-empted"})


def _counter(name: str, text: str, labels: list[str], counts: Iterable[Sequence[Any]]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for *values, count in counts:
        family.add_metric(values, count)
    return family


def _histogram(
    name: str,
    text: str,
    labels: list[str],
    found: Mapping[tuple[str, ...], Document],
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, durations in found.items():
        sums = [float(count) for count in accumulate(durations["counts"])]
        family.add_metric(values, list(zip(_BOUNDS, sums, strict=True)), durations["sum_seconds"])
    return family


_BOUNDS: Final = (*(str(bound) for bound in BUCKETS_SECONDS), "+Inf")


def _gauge(
    name: str, text: str, labels: list[str], *samples: tuple[tuple[str, ...], float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _amounts(signals: Sequence[Document]) -> Iterator[Metric]:
    for unit in ("bytes", "inodes", "processes"):
        seen = [one for one in signals if one["unit"] == unit]
        yield _gauge(
            f"reactor_available_{unit}",
            f"What is available by the latest observation of a signal, in {unit}.",
            ["signal"],
            *(((one["signal"],), one["available"]) for one in seen),
        )
        yield _gauge(
            f"reactor_capacity_{unit}",
            f"A signal's capacity by its latest observation, in {unit}.",
            ["signal"],
            *(((one["signal"],), one["capacity"]) for one in seen),
        )
        yield _gauge(
            f"reactor_threshold_{unit}",
            f"The configured threshold at the present capacity, in {unit}.",
            ["signal", "kind"],
            *(
                ((one["signal"], threshold["kind"]), threshold["amount"])
                for one in seen
                for threshold in one["thresholds"]
            ),
        )


def _ages(signals: Sequence[Document]) -> Iterator[Metric]:
    yield _gauge(
        "reactor_observation_age_seconds",
        "How old the latest observation of a signal is.",
        ["signal"],
        *(((one["signal"],), one["age_seconds"]) for one in signals if one["age_seconds"] is not None),
    )


def _observed(signals: Sequence[Document], unobserved: Sequence[str]) -> Iterator[Metric]:
    yield _gauge(
        "reactor_signal_observed",
        "Whether a signal is observed (1), or has a threshold and is not (0): nothing is evicted for it.",
        ["signal"],
        *(((one["signal"],), 1.0) for one in signals),
        *(((signal,), 0.0) for signal in unobserved),
    )
    yield _gauge(
        "reactor_threshold_absurd",
        "1 for a threshold that is ignored: it is not below the present capacity. 0 for the others.",
        ["signal", "kind"],
        *(
            ((one["signal"], threshold["kind"]), float(threshold["absurd"]))
            for one in signals
            for threshold in one["thresholds"]
        ),
    )


def _conditions(in_force: Sequence[str]) -> Iterator[Metric]:
    yield _gauge(
        "reactor_node_condition",
        "Whether a node condition is in force (1) or not (0).",
        ["condition"],
        *(((condition,), condition in in_force) for condition in NodeCondition),
    )


def _oom_order(processes: Mapping[str, int]) -> Metric:
    return _gauge(
        "reactor_oom_order_processes",
        "Processes whose oom_score_adj is written for the OOM killer's order now.",
        ["pod"],
        *(((pod,), count) for pod, count in processes.items()),
    )


def _parts(parts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(
        "reactor_part_restarts",
        "Failures of parts that the daemon survived: a part was restarted, a job or a call given up.",
        labels=["part"],
    )
    for name, restarts in parts.items():
        family.add_metric([name], restarts)
    return family


def _notifications(notifications: Sequence[Document]) -> Metric:
    family = CounterMetricFamily(
        "reactor_notifications",
        "Events that operators were to be notified of, by what became of them: sent, failed (given up), "
        "dropped (too many waited), skipped (OOM kills at pods' own limits, more than 30 a minute).",
        labels=["channel", "result"],
    )
    for one in notifications:
        for result in ("sent", "failed", "dropped", "skipped"):
            family.add_metric([one["channel"], result], one[result])
    return family


def _swap_traffic(traffic: SwapTraffic) -> Metric:
    return _counter(
        "reactor_swap_traffic_bytes",
        "Bytes of the node that have come back from swap (in) and gone there (out) since the boot.",
        ["direction"],
        [("in", traffic.in_bytes), ("out", traffic.out_bytes)],
    )


def _slowdowns(reasons: Sequence[str]) -> Metric:
    return _gauge(
        "reactor_storm_brake",
        "Whether evictions for a threshold are slowed down (1) or not (0), by reason.",
        ["reason"],
        *(((reason,), reason in reasons) for reason in SlowReason),
    )


def _sources(sources: Sequence[Document]) -> Iterator[Metric]:
    yield _gauge(
        "reactor_source_state",
        "1 for the state that a source of wakes is in, 0 for the others.",
        ["source", "state"],
        *(
            ((source["name"], health), source["health"] == health)
            for source in sources
            for health in SourceHealth
        ),
    )
    for name, text, key in (
        ("reactor_source_wakes", "Wakes by source.", "wakes"),
        (
            "reactor_source_lost_events",
            "Events that the kernel dropped before a source could read them.",
            "lost",
        ),
    ):
        family = CounterMetricFamily(name, text, labels=["source"])
        for source in sources:
            family.add_metric([source["name"]], source[key])
        yield family


def _cluster(cluster: Document) -> Iterator[Metric]:
    yield _gauge(
        "reactor_kubernetes_connected",
        "Whether the watch at the API server or the kubelet is connected (1) or not (0).",
        ["watch"],
        *(((name,), is_well) for name, is_well in cluster["watches"].items()),
    )
    yield GaugeMetricFamily(
        "reactor_kubernetes_untold_evictions",
        "Evictions whose status or event the API server does not have yet.",
        cluster["untold_evictions"],
    )
    yield _gauge(
        "kubelet_node_name",
        "The node's name. The count is always 1.",
        ["node"],
        ((cluster["node"],), 1),
    )
