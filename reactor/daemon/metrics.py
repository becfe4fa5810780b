"""Prometheus metrics: what is counted as it happens, and what is read off the daemon at each scrape.

Names and help follow Prometheus' conventions (base units, `_total` on counters); promtool checks them in a
test. Amounts come in three units, so each unit has a metric of its own and the signal is a label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import reactor
from reactor.brake.braking import BrakeReading
from reactor.daemon.prometheus import (
    Collector,
    CollectorRegistry,
    Counter,
    CounterMetricFamily,
    Gauge,
    GaugeMetricFamily,
    Histogram,
    Metric,
    ProcessCollector,
)
from reactor.daemon.record import Ending, PassRecord
from reactor.daemon.supervisor import PartState
from reactor.model.decisions import PolicyState, SlowReason
from reactor.model.oom import OomKill, OomScope
from reactor.model.settings import EvictionSettings
from reactor.model.signals import RESOURCE, NodeCondition, Resource, Signal
from reactor.model.thresholds import Observation
from reactor.model.wakes import SourceHealth, SourceState

# From 100 us: a crossing is answered in less than a millisecond when all is well, in seconds when not.
BUCKETS_SECONDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
_UNIT: Final = {
    Resource.MEMORY: "bytes",
    Resource.EPHEMERAL_STORAGE: "bytes",
    Resource.INODES: "inodes",
    Resource.PIDS: "processes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a scrape reads off the daemon. `observations` with their times on the clock of `now_seconds`."""

    now_seconds: float
    settings: EvictionSettings
    state: PolicyState
    observations: dict[Signal, Observation]
    sources: tuple[SourceState, ...]
    pods: int
    storage_overdue_pods: int = 0
    brake: BrakeReading = field(default_factory=BrakeReading)
    journal_written: int = 0
    journal_lost: int = 0
    restart_loops: int = 0
    repeated_evictions: int = 0
    parts: tuple[PartState, ...] = ()


class Metrics:
    """All metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._evictions = Counter(
            "reactor_evictions",
            "Pods that were ended, by the signal that was low and how the eviction came out.",
            ["signal", "outcome"],
            registry=self.registry,
        )
        self._stages = Histogram(
            "reactor_stage_duration_seconds",
            "Time that each stage of an evicting pass took: wake (source to loop), observe, decide, kill, "
            "free (kill to memory back).",
            ["stage"],
            buckets=BUCKETS_SECONDS,
            registry=self.registry,
        )
        self._kill_latency = Histogram(
            "reactor_wake_to_kill_seconds",
            "Time from a source's wake to the victim being killed.",
            buckets=BUCKETS_SECONDS,
            registry=self.registry,
        )
        self._passes = Histogram(
            "reactor_pass_duration_seconds",
            "Time that an evaluation pass took, from its start until its thresholds were armed anew.",
            buckets=BUCKETS_SECONDS,
            registry=self.registry,
        )
        self._reloads = Counter(
            "reactor_config_reloads",
            "Reloads of the configuration, by whether the new one was taken or refused.",
            ["result"],
            registry=self.registry,
        )
        for result in ("taken", "refused"):
            self._reloads.labels(result)
        self._refused = Gauge(
            "reactor_config_refused",
            "1 where the configuration file was refused when it was read last: an earlier one is in force.",
            registry=self.registry,
        )
        self._oom_kills = Counter(
            "reactor_oom_kills",
            "Processes that the kernel's OOM killer ended, by whose limit was met: the node's (it was faster "
            "than reactor), a pod's own, or one above the guarded node.",
            ["scope"],
            registry=self.registry,
        )
        for scope in OomScope:
            self._oom_kills.labels(scope)
        self._unhelpful = Counter(
            "reactor_evictions_unhelpful",
            "Evictions for hard memory thresholds that brought back less than a quarter of their credit.",
            registry=self.registry,
        )
        self._state_failures = Counter(
            "reactor_state_write_failures",
            "Writes of the state file that failed.",
            registry=self.registry,
        )

        self._reclaims = Counter(
            "reactor_reclaims",
            "Node-level reclaims before an eviction, by what was to be given back and whether all went well.",
            ["kind", "outcome"],
            registry=self.registry,
        )
        self._freed = {
            resource: Counter(
                f"reactor_reclaimed_{_UNIT[resource]}",
                f"What the node had more of after a node-level reclaim, in {_UNIT[resource]}.",
                ["kind"],
                registry=self.registry,
            )
            for resource in (Resource.EPHEMERAL_STORAGE, Resource.INODES)
        }

    def read_from(self, read: Callable[[], Reading]) -> None:
        """Take all that is not counted here from `read` at each scrape."""
        self.registry.register(_Scrape(read))

    def observe_pass(self, record: PassRecord) -> None:
        """Count one pass, and the stages of one that evicted."""
        times = record.times
        self._passes.observe((times.done_ns - times.started_ns) / 1e9)
        for given in record.reclaimed:
            self._reclaims.labels(given.kind, "failed" if given.problems else "done").inc()
            resource = Resource.INODES if given.resource is Resource.INODES else Resource.EPHEMERAL_STORAGE
            self._freed[resource].labels(given.kind).inc(max(0, given.freed or 0))
        if record.dry_run:
            return
        self._unhelpful.inc(len(record.decision.unhelpful))
        if not record.endings:
            return
        self._stages.labels("wake").observe(max(0, times.started_ns - times.woke_ns) / 1e9)
        self._stages.labels("observe").observe((times.observed_ns - times.started_ns) / 1e9)
        self._stages.labels("decide").observe((times.decided_ns - times.observed_ns) / 1e9)
        if times.killed_ns is not None:
            self._stages.labels("kill").observe((times.killed_ns - times.decided_ns) / 1e9)
            self._kill_latency.observe((times.killed_ns - times.woke_ns) / 1e9)

    def observe_ending(self, record: PassRecord, ending: Ending) -> None:
        """Count one eviction that came to its end."""
        del record
        self._evictions.labels(ending.eviction.signal, ending.outcome).inc()
        if ending.killed_ns is not None and ending.freed_ns is not None:
            self._stages.labels("free").observe((ending.freed_ns - ending.killed_ns) / 1e9)

    def count_reload(self, *, taken: bool) -> None:
        """Count a reload of the configuration."""
        self._reloads.labels("taken" if taken else "refused").inc()
        self._refused.set(0 if taken else 1)

    def refuse_configuration(self) -> None:
        """Show that the file on disk is refused and an earlier configuration in force."""
        self._refused.set(1)

    def count_oom_kill(self, kill: OomKill) -> None:
        """Count what the kernel killed."""
        self._oom_kills.labels(kill.scope).inc(kill.kills)

    def count_state_failure(self) -> None:
        """Count a failed write of the state file."""
        self._state_failures.inc()


class _Scrape(Collector):
    def __init__(self, read: Callable[[], Reading]) -> None:
        self._read = read

    def describe(self) -> Iterator[Metric]:
        """Name nothing in advance: the registry would otherwise collect once, before there is anything."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        reading = self._read()
        yield _gauge(
            "reactor_build_info",
            "Always 1; the version is a label.",
            ["version"],
            ((reactor.__version__,), 1),
        )
        yield from _amounts(reading)
        yield from _ages(reading)
        yield from _conditions(reading)
        yield from _sources(reading.sources)
        yield from _parts(reading.parts)
        yield from _brake(reading.brake)
        yield from _slowdowns(reading.state)
        yield GaugeMetricFamily("reactor_pods", "Pods that may be ranked.", reading.pods)
        yield GaugeMetricFamily(
            "reactor_storage_overdue_pods",
            "Pods whose files are not counted yet although that was due two minutes ago.",
            reading.storage_overdue_pods,
        )
        yield GaugeMetricFamily(
            "reactor_evictions_in_flight",
            "Evictions ordered whose resource is not back yet.",
            len(reading.state.in_flight),
        )
        yield GaugeMetricFamily(
            "reactor_restart_loops",
            "Pods that are evicted again and again, because they are started again each time.",
            reading.restart_loops,
        )
        yield CounterMetricFamily(
            "reactor_repeated_evictions",
            "Evictions of pods that were in a restart loop.",
            reading.repeated_evictions,
        )
        yield CounterMetricFamily(
            "reactor_journal_lines", "Lines written to the journal.", reading.journal_written
        )
        yield CounterMetricFamily(
            "reactor_journal_lost_lines",
            "Lines that the journal had to drop: its disk was full or too slow.",
            reading.journal_lost,
        )


def _gauge(
    name: str, text: str, labels: list[str], *samples: tuple[tuple[str, ...], float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _amounts(reading: Reading) -> Iterator[Metric]:
    for unit in ("bytes", "inodes", "processes"):
        seen = {
            signal: one for signal, one in reading.observations.items() if _UNIT[RESOURCE[signal]] == unit
        }
        yield _gauge(
            f"reactor_available_{unit}",
            f"What a signal last showed as available, in {unit}.",
            ["signal"],
            *(((signal,), one.available) for signal, one in seen.items()),
        )
        yield _gauge(
            f"reactor_capacity_{unit}",
            f"The capacity that a signal's available {unit} are out of.",
            ["signal"],
            *(((signal,), one.capacity) for signal, one in seen.items()),
        )
        yield _gauge(
            f"reactor_threshold_{unit}",
            f"The configured threshold at the present capacity, in {unit}.",
            ["signal", "kind"],
            *(
                (
                    (threshold.signal, "hard" if threshold.is_hard else "soft"),
                    float(threshold.value.of(seen[threshold.signal].capacity)),
                )
                for threshold in reading.settings.thresholds
                if threshold.signal in seen
            ),
        )


def _ages(reading: Reading) -> Iterator[Metric]:
    yield _gauge(
        "reactor_observation_age_seconds",
        "How old the latest observation of a signal is.",
        ["signal"],
        *(
            ((signal,), max(0.0, reading.now_seconds - one.taken_at_seconds))
            for signal, one in reading.observations.items()
            if one.taken_at_seconds is not None
        ),
    )


def _conditions(reading: Reading) -> Iterator[Metric]:
    yield _gauge(
        "reactor_node_condition",
        "Whether a node condition is in force (1) or not (0).",
        ["condition"],
        *(((condition,), condition in reading.state.conditions) for condition in NodeCondition),
    )


def _brake(brake: BrakeReading) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "reactor_brake_engaged", "Cgroups whose memory.high the brake holds down now.", len(brake.on)
    )
    yield CounterMetricFamily("reactor_brake_engagements", "How often the brake was engaged.", brake.times)
    yield CounterMetricFamily(
        "reactor_brake_seconds", "How long the brake was engaged, summed over cgroups.", brake.seconds
    )


def _parts(parts: tuple[PartState, ...]) -> Iterator[Metric]:
    family = CounterMetricFamily(
        "reactor_part_restarts",
        "Failures of a part of the daemon, each survived: a part was restarted, a job or a call given up.",
        labels=["part"],
    )
    for part in parts:
        family.add_metric([part.name], part.restarts)
    yield family


def _slowdowns(state: PolicyState) -> Iterator[Metric]:
    in_force = {one.reason for one in state.slowdowns}
    yield _gauge(
        "reactor_storm_brake",
        "Whether evictions for hard memory thresholds are slowed down (1) or not (0), by reason.",
        ["reason"],
        *(((reason,), reason in in_force) for reason in SlowReason),
    )


def _sources(sources: tuple[SourceState, ...]) -> Iterator[Metric]:
    yield _gauge(
        "reactor_source_state",
        "1 for the state that a source of wakes is in, 0 for the others.",
        ["source", "state"],
        *(((source.name, health), source.health is health) for source in sources for health in SourceHealth),
    )
    for name, text, values in (
        ("reactor_source_wakes", "Wakes that a source gave.", {one.name: one.wakes for one in sources}),
        (
            "reactor_source_lost_events",
            "Events that the kernel dropped before a source could read them.",
            {one.name: one.lost for one in sources},
        ),
    ):
        family = CounterMetricFamily(name, text, labels=["source"])
        for source, value in values.items():
            family.add_metric([source], value)
        yield family
