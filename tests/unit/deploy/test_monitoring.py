"""Each alert fires and stays silent, by promtool; each metric that rules and dashboard name is there."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from reactor.guard.node import Node
from reactor.guard.reports import Reports
from reactor.kernel.swap import SwapTraffic
from reactor.model.settings import Settings
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation, Observed, Threshold, ThresholdValue
from reactor.model.wakes import SourceHealth, SourceState
from reactor.sources.catalogue import SOURCES
from reactor.tell.metrics import CollectorRegistry, Metrics, StewardReading
from tests.support.monitoring import (
    OF_OTHERS,
    ROOT,
    RULES,
    alerts,
    dashboard,
    document,
    metrics_in,
    panels,
    queries,
    rules,
    tool,
)
from tests.support.prometheus import free_port, prometheus
from tests.support.readings import reading_of
from tests.support.running_threads import running
from tests.support.waiting import eventually

INSTANCE = "db-7:9753"
RISING, FLAT = "0+1x90", "5+0x90"  # by one a minute: 15 in 15 minutes


@dataclass(frozen=True, kw_only=True)
class Case:
    """Series by which an alert fires (each with its values), and others by which it stays silent.

    `labels` are the alert's beside its severity and instance, `value` is its value as it is printed. An alert
    `of_all` nodes together names no instance.
    """

    fires: dict[str, str]
    silent: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)
    value: str = "1"
    of_all: bool = False


def gauge(name: str, labels: dict[str, str] | None = None, *, bad: int = 1, good: int = 0) -> Case:
    series = _series(name, labels or {})
    return Case(
        fires={series: f"{bad}x90"}, silent={series: f"{good}x90"}, labels=labels or {}, value=str(bad)
    )


def counter(name: str, labels: dict[str, str] | None = None, *, shown: set[str] | None = None) -> Case:
    labels = labels or {}
    series = _series(name, labels)
    kept = {key: value for key, value in labels.items() if shown is None or key in shown}
    return Case(fires={series: RISING}, silent={series: FLAT}, labels=kept, value="15")


def _series(name: str, labels: dict[str, str]) -> str:
    inside = ", ".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{inside}}}"


def kills(*, slow_of_two: int, value: str) -> Case:
    """Two kills a minute, of which so many took longer than 5 ms; none did where all is well."""
    count, fast = "reactor_wake_to_kill_seconds_count{}", 'reactor_wake_to_kill_seconds_bucket{le="0.005"}'
    return Case(
        fires={count: "0+2x90", fast: f"0+{2 - slow_of_two}x90"},
        silent={count: "0+2x90", fast: "0+2x90"},
        value=value,
        of_all=True,
    )


_KERNELS = 'reactor_oom_kills_total{scope="node"}'
_EVICTED = 'reactor_evictions_total{signal="memory.available", outcome="killed"}'
_LEASE = 'kube_lease_renew_time{lease="b", namespace="reactor-system"}'  # in seconds since 1970

CASES = {
    "ReactorDown": gauge("up", {"job": "reactor"}, bad=0, good=1),
    "ReactorLeaseLapsed": Case(
        fires={_LEASE: "0x90"},
        silent={_LEASE: "0+60x90"},
        labels={"lease": "b", "namespace": "reactor-system"},
    ),
    "ReactorKernelWasFaster": counter("reactor_oom_kills_total", {"scope": "node"}),
    "ReactorSourceDegraded": gauge("reactor_source_state", {"source": "ebpf", "state": "degraded"}),
    "ReactorNoPods": gauge("reactor_pods", bad=0, good=3),
    "ReactorThresholdAbsurd": gauge(
        "reactor_threshold_absurd", {"signal": "memory.available", "kind": "hard"}
    ),
    "ReactorReloadRefused": gauge("reactor_config_last_reload_successful", bad=0, good=1),
    "ReactorObservationStale": gauge(
        "reactor_signal_observed", {"signal": "memory.available"}, bad=0, good=1
    ),
    "ReactorEvictionUntold": gauge("reactor_kubernetes_untold_evictions", bad=3),
    "ReactorRestartLoop": gauge("reactor_restart_loops", bad=2),
    "ReactorStormBrake": gauge("reactor_storm_brake", {"reason": "outside-pods"}),
    "ReactorNoEvictablePod": gauge("reactor_no_evictable_pod", {"signal": "memory.available"}),
    "ReactorRuleUnhelpful": replace(
        counter("reactor_rules_unhelpful_total", {"rule": "thrash", "action": "evict"}), value="60"
    ),
    "ReactorJournalLinesLost": counter("reactor_journal_lost_lines_total"),
    "ReactorSlowKill": Case(
        fires={
            "reactor_wake_to_kill_seconds_count{}": "0+2x90",
            'reactor_wake_to_kill_seconds_bucket{le="0.01"}': "0+1x90",
        },
        silent={
            "reactor_wake_to_kill_seconds_count{}": "0+2x90",
            'reactor_wake_to_kill_seconds_bucket{le="0.01"}': "0+2x90",
        },
        value="15",
    ),
    "ReactorEvicted": counter(
        "reactor_evictions_total", {"outcome": "killed", "signal": "memory.available"}, shown=set()
    ),
    "ReactorEvictionFailed": counter(
        "reactor_evictions_total", {"outcome": "failed", "signal": "memory.available"}, shown={"outcome"}
    ),
    "ReactorPartFailing": counter("reactor_part_restarts_total", {"part": "metrics"}),
    "ReactorNotificationsLost": counter(
        "reactor_notifications_total", {"channel": "webhook", "result": "dropped"}, shown={"channel"}
    ),
    "ReactorProblems": gauge("reactor_problems", bad=2),
    # Of two kills a minute for 80 minutes one is slow; then none, and then one in two hundred.
    "ReactorKillTimeBudgetFast": kills(slow_of_two=1, value="50%"),
    "ReactorKillTimeBudgetSlow": kills(slow_of_two=1, value="50%"),
    "ReactorKernelFasterBudgetFast": Case(
        fires={_KERNELS: "0+2x90", _EVICTED: "0+3x90"},
        silent={_KERNELS: "0x90", _EVICTED: "7x90"},
        value="40%",
        of_all=True,
    ),
    "ReactorKernelFasterBudgetSlow": Case(
        fires={_KERNELS: "0+2x90"},  # nothing was evicted: there is no such series
        silent={_KERNELS: "7x90", _EVICTED: "7x90"},
        value="100%",
        of_all=True,
    ),
    "ReactorUnneededEviction": counter(
        "reactor_in_time_evictions_total", {"result": "not-needed"}, shown=set()
    ),
}
# What says that all is well: nothing fires by it.
WELL = {
    'reactor_oom_kills_total{scope="own-limit"}': RISING,
    'reactor_source_state{source="ebpf", state="armed"}': "1x90",
    'reactor_notifications_total{channel="webhook", result="sent"}': RISING,
    'reactor_part_restarts_total{part="once"}': "0x40 1x50",
    'up{job="node-exporter"}': "0x90",
    'kube_lease_renew_time{lease="b", namespace="kube-node-lease"}': "0x90",
    "reactor_journal_lines_total{}": RISING,
    "reactor_config_refused{}": "0x90",
}
NAMES = sorted(CASES)


def _at(minutes: int, name: str, *expected: dict[str, Any]) -> dict[str, Any]:
    return {"eval_time": f"{minutes}m", "alertname": name, "exp_alerts": list(expected)}


def _of_instance(series: dict[str, str], instance: str = INSTANCE) -> list[dict[str, str]]:
    def named(one: str) -> str:
        return one.replace("{", f'{{instance="{instance}", ', 1).replace(", }", "}")

    return [{"series": named(one), "values": values} for one, values in series.items()]


def _rendered(text: str, labels: dict[str, str], value: str) -> str:
    """Return an annotation as Prometheus renders it. A label that the alert lacks stays as it is written."""
    for key, label in labels.items():
        text = text.replace(f"{{{{ $labels.{key} }}}}", label)
    text = text.replace("{{ $externalURL }}", "")  # promtool has none
    return re.sub(r"{{ \$value( \| humanize(Percentage)?)? }}", value, text)


def promtool_test(directory: Path, *tests: dict[str, Any], every: str = "1m") -> None:
    """Run promtool; it evaluates all groups at one interval, whatever their own."""
    file = directory / "test.json"
    file.write_text(
        json.dumps({"rule_files": [str(RULES)], "evaluation_interval": every, "tests": list(tests)})
    )
    done = subprocess.run(
        [tool("promtool"), "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _rule(name: str) -> dict[str, Any]:
    return next(rule for rule in alerts() if rule["alert"] == name)


def promtool_test_fires(directory: Path, *names: str) -> None:
    """Run promtool: each of these fires by what its own instance has, by nothing else, and not too soon."""
    series, tests = [], []
    for name in names:
        rule, case, instance = _rule(name), CASES[name], f"{name.lower()}:9753"
        labels = {**case.labels, **rule["labels"], **({} if case.of_all else {"instance": instance})}
        texts = {key: _rendered(text, labels, case.value) for key, text in rule["annotations"].items()}
        series += _of_instance(case.fires, instance)
        if "for" in rule or case.of_all:
            tests.append(_at(0, name))
        tests.append(_at(80, name, {"exp_labels": labels, "exp_annotations": texts}))
    promtool_test(directory, {"interval": "1m", "input_series": series, "alert_rule_test": tests})


@pytest.mark.parametrize("name", [name for name in NAMES if CASES[name].of_all])
def test_alert_of_all_nodes_fires_with_its_words_and_not_before_its_time(name: str, tmp_path: Path) -> None:
    promtool_test_fires(tmp_path, name)


def test_alerts_of_a_node_fire_with_their_words_and_not_before_their_time_each_for_its_own(
    tmp_path: Path,
) -> None:
    promtool_test_fires(tmp_path, *(name for name in NAMES if not CASES[name].of_all))


def test_the_first_failures_of_a_part_are_not_lost_though_its_series_begins_with_them(
    tmp_path: Path,
) -> None:
    name, case = "ReactorPartFailing", CASES["ReactorPartFailing"]
    rule = _rule(name)
    labels = {**case.labels, **rule["labels"], "instance": INSTANCE}
    texts = {key: _rendered(text, labels, "4") for key, text in rule["annotations"].items()}
    fired = {"exp_labels": labels, "exp_annotations": texts}
    # An hour without, then four between two scrapes, of which no increase knows, and no more.
    failures = {'reactor_part_restarts_total{part="metrics"}': "_x60 4+0x40"}
    series = _of_instance({**failures, 'up{job="reactor"}': "1x120"})
    tests = [_at(59, name), _at(60, name, fired), _at(74, name, fired), _at(90, name)]
    promtool_test(tmp_path, {"interval": "1m", "input_series": series, "alert_rule_test": tests})


def test_no_alert_fires_where_all_is_well(tmp_path: Path) -> None:
    series: dict[str, str] = dict(WELL)
    for case in CASES.values():
        series |= case.silent
    tests = [_at(minutes, name) for name in NAMES for minutes in (1, 30, 80)]
    promtool_test(
        tmp_path, {"interval": "1m", "input_series": _of_instance(series), "alert_rule_test": tests}
    )


def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    checked = subprocess.run(
        [tool("promtool"), "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_each_alert_has_a_case_a_severity_its_words_and_a_page_that_says_what_to_do() -> None:
    page = (ROOT / "docs/operations/alerts.md").read_text(encoding="utf-8")
    for rule in alerts():
        assert rule["alert"] in CASES
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert {"summary", "description", "runbook", "runbook_url"} == set(rule["annotations"])
        section = page.partition(f"\n## {rule['alert']}\n")[2].partition("\n## ")[0]
        words = re.findall(r"\w+", re.sub(r"\]\([^)]*\)", "", section))
        assert words == re.findall(r"\w+", rule["annotations"]["runbook"])


def test_without_a_base_the_address_of_an_alert_is_its_page_in_the_prometheus_that_raised_it(
    tmp_path: Path,
) -> None:
    """That the page opens is not shown here: the pages are in files of the whole package."""
    with prometheus(tool("prometheus"), tmp_path / "prometheus", free_port()) as server:
        eventually(lambda: server.get("/api/v1/alerts")["alerts"], "nothing is there to be scraped")
        (alert,) = server.get("/api/v1/alerts")["alerts"]
    assert f"{server.address}/alerts?search=ReactorDown" == alert["annotations"]["runbook_url"]
    assert "ReactorDown" == alert["labels"]["alertname"]


def test_with_a_base_each_alert_has_an_address_that_opens(tmp_path: Path) -> None:
    """The command is the one at the top of rules.yaml; the pages are served by a web server."""
    text = RULES.read_text(encoding="utf-8")
    (expression,) = re.findall(r"^#   sed -i '(.*)' rules.yaml$", text, re.MULTILINE)
    with http_server(ROOT / "docs") as address:
        here = expression.replace("https://wiki.example.com/reactor", address)
        mine = tmp_path / "rules.yaml"
        mine.write_text(text)
        subprocess.run(["sed", "-i", here, mine], check=True)
        groups = YAML(typ="safe").load(mine)["groups"]
        rules = [rule for group in groups for rule in group["rules"] if "alert" in rule]
        links = [rule["annotations"]["runbook_url"] for rule in rules]
        assert len(links) == len(set(links)) == len(alerts())
        for rule, link in zip(rules, links, strict=True):
            with urllib.request.urlopen(link) as page:  # noqa: S310  # the server above
                assert f"\n## {rule['alert']}\n" in page.read().decode()
            assert link.endswith(f"#{rule['alert'].lower()}")


@contextmanager
def http_server(directory: Path) -> Iterator[str]:
    """Serve a directory on loopback; yield the address."""
    with HTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(directory))) as server:
        server.timeout = 0.05

        def serve(ended: threading.Event) -> None:
            while not ended.is_set():
                server.handle_request()

        with running([serve]):
            yield f"http://127.0.0.1:{server.server_port}"


def test_the_operators_rules_are_the_same() -> None:
    custom = document("prometheusrule.yaml")
    assert ("monitoring.coreos.com/v1", "PrometheusRule") == (custom["apiVersion"], custom["kind"])
    assert custom["spec"]["groups"] == document("rules.yaml")["groups"]


def exported() -> set[str]:
    """Return the names of all metrics that there are, of a node in a cluster."""
    threshold = Threshold(
        signal=Signal.MEMORY_AVAILABLE, value=ThresholdValue(text="64Mi", amount=Fraction(64 << 20))
    )
    one = Observation(available=1, capacity=2, taken_at_seconds=0)
    reading = reading_of(
        threshold,
        seen={
            Signal.MEMORY_AVAILABLE: one,
            Signal.NODEFS_INODES_FREE: one,
            Signal.PID_AVAILABLE: one,
        },
        sources=(SourceState(name="psi", health=SourceHealth.ARMED),),
        kubernetes={"node": "a", "watches": {"pods": True}, "untold_evictions": 0},
        dry_run=True,
    )
    metrics = Metrics()
    metrics.read(
        reading,
        StewardReading(
            parts={"a": 1},
            swap_traffic=SwapTraffic(in_bytes=1, out_bytes=2),
            notifications=[{"channel": "wall", "sent": 0, "failed": 0, "dropped": 0, "skipped": 0}],
        ),
    )
    families = list(metrics.registry.collect())
    return {f"{one.name}_total" if one.type == "counter" else one.name for one in families}


@pytest.mark.parametrize(("is_dry", "value"), [(True, 1.0), (False, None)])
def test_a_dry_run_is_a_series_and_its_absence_is_none(*, is_dry: bool, value: float | None) -> None:
    settings = Settings(dry_run=is_dry)
    node = Reports(settings=settings, known=Node(observed=Observed(stale_seconds=1.0)))
    metrics = Metrics()
    metrics.read({**reading_of(), "dry_run": node.status()["dry_run"]}, StewardReading())
    assert metrics.short.get_sample_value("reactor_dry_run") == value
    assert metrics.registry.get_sample_value("reactor_dry_run") == value


def test_what_is_recorded_is_used_by_an_alert_or_is_a_figure_of_its_own() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    used = {name for rule in rules() for name in re.findall(r"reactor:\w+:\w+", rule["expr"])}
    assert used <= recorded
    assert recorded - used == {"reactor:wake_to_kill_seconds:p99_1d"}


def test_budgets_burn_by_the_numbers_and_not_by_a_single_slow_kill(tmp_path: Path) -> None:
    """One in two hundred is within the budget; few kills say nothing of one in a hundred."""
    count, fast = "reactor_wake_to_kill_seconds_count{}", 'reactor_wake_to_kill_seconds_bucket{le="0.005"}'
    budgets = ("ReactorKillTimeBudgetFast", "ReactorKillTimeBudgetSlow")
    silent = [_at(minutes, name) for name in budgets for minutes in (60, 400)]
    within = _of_instance({count: "0+200x420", fast: "0+199x420"})
    few = _of_instance({count: "0x32 1x388", fast: "0x420"})
    promtool_test(
        tmp_path,
        *(
            {
                "interval": "1m",
                "input_series": series,
                "alert_rule_test": silent,
                "promql_expr_test": recorded,
            }
            for series, recorded in (
                (within, [_value("reactor:slow_kills:ratio6h", "400m", 0.005)]),
                (few, [_value("sum_over_time(reactor:kills:increase5m[3d]) < bool 2", "400m", 1)]),
            )
        ),
        every="5m",
    )


def test_a_dry_run_is_no_race_that_the_kernel_wins(tmp_path: Path) -> None:
    series = {_KERNELS: RISING, "reactor_dry_run{}": "1x90"}
    names = ("ReactorKernelWasFaster", "ReactorKernelFasterBudgetFast", "ReactorKernelFasterBudgetSlow")
    tests = [_at(80, name) for name in names]
    promtool_test(
        tmp_path, {"interval": "1m", "input_series": _of_instance(series), "alert_rule_test": tests}
    )


def test_recordings_are_of_all_nodes_of_a_job_together(tmp_path: Path) -> None:
    """Two nodes, one fast and one slow: half of the kills; the 99th percentile is the slow node's."""
    name = "reactor_wake_to_kill_seconds"
    series = []
    for node, bounds in (("a", ("0.001", "0.005", "0.05", "+Inf")), ("b", ("0.05", "+Inf"))):
        for bound in ("0.001", "0.005", "0.05", "+Inf"):
            values = "0+1x90" if bound in bounds else "0x90"
            one = f'{name}_bucket{{job="reactor", instance="{node}", le="{bound}"}}'
            series.append({"series": one, "values": values})
        series.append({"series": f'{name}_count{{job="reactor", instance="{node}"}}', "values": "0+1x90"})
    labels = '{job="reactor"}'
    recorded = [
        _value("reactor:kills:increase5m", "60m", 10, f"reactor:kills:increase5m{labels}"),
        _value("reactor:slow_kills:ratio1h", "80m", 0.5, f"reactor:slow_kills:ratio1h{labels}"),
        _value("reactor:wake_to_kill_seconds:p99_1d > bool 0.04", "80m", 1, labels),
    ]
    promtool_test(tmp_path, {"interval": "1m", "input_series": series, "promql_expr_test": recorded})


def _value(expression: str, at: str, value: float, labels: str = "") -> dict[str, Any]:
    """Return the test of an expression that has one sample."""
    is_name = re.fullmatch(r"[\w:]+", expression) is not None
    sample = {"labels": labels or (expression if is_name else "{}"), "value": value}
    return {"expr": expression, "eval_time": at, "exp_samples": [sample]}


def test_each_metric_in_rules_and_panels_is_exported_and_each_exported_one_is_in_them() -> None:
    named = metrics_in([*(rule["expr"] for rule in rules()), *(query for _, query in queries())])
    there = exported()
    assert set() == named - there
    assert set() == {name for name in there - named if not name.startswith(OF_OTHERS)}


def ordinary_node(metrics: Metrics, **more: Any) -> None:
    """Have metrics of a Kubernetes node with the kubelet's thresholds, at rest, or as `more` has it."""
    signals = [
        Signal.MEMORY_AVAILABLE,
        Signal.NODEFS_AVAILABLE,
        Signal.NODEFS_INODES_FREE,
        Signal.IMAGEFS_AVAILABLE,
        Signal.PID_AVAILABLE,
    ]
    percent = ThresholdValue(text="5%", percent=Fraction(1, 20))
    armed = {"ebpf", "ebpf-oom", "ebpf-pids", "psi", "processes", "ticker"}
    at_rest: dict[str, Any] = {
        "sources": tuple(
            SourceState(name=one.name, health=SourceHealth.ARMED if one.name in armed else SourceHealth.OFF)
            for one in SOURCES
        ),
        "parts": [{"name": f"of the guard {number}", "restarts": 0} for number in range(33)],
        "no_victims": dict.fromkeys(signals, 0),
    }
    metrics.read(
        reading_of(
            *(Threshold(signal=signal, value=percent) for signal in signals),
            seen={signal: Observation(available=1 << 20, capacity=1 << 30) for signal in signals},
            kubernetes={"node": "a", "watches": {"pods": True, "node": True}, "untold_evictions": 0},
            **{**at_rest, **more},
        ),
        StewardReading(
            parts={f"of the steward {number}": 0 for number in range(30)},
            notifications=[{"channel": "journald", "sent": 0, "failed": 0, "dropped": 0, "skipped": 0}],
        ),
    )


def series(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    """Return the values of a scrape by name and labels."""
    samples = (one for family in registry.collect() for one in family.samples)
    return {(one.name, str(sorted(one.labels.items()))): one.value for one in samples}


def test_a_scrape_of_an_ordinary_node_has_at_most_150_series_and_each_is_one_of_all() -> None:
    metrics = Metrics()
    ordinary_node(metrics)
    short, every = series(metrics.short), series(metrics.registry)
    print(f"{len(short)} of {len(every)}")
    assert len(short) <= 150
    assert short.keys() <= every.keys()
    assert 450 < len(every)
    left_out = {name for name, _ in every.keys() - short.keys() if every[name, _]}
    assert left_out <= {"reactor_signal_observed", "reactor_source_state"}


def test_what_is_not_at_rest_is_in_the_short_form() -> None:
    metrics = Metrics()
    ordinary_node(
        metrics,
        parts=[{"name": "journal", "restarts": 1}, {"name": "loop", "restarts": 0}],
        no_victims={Signal.MEMORY_AVAILABLE: 1, Signal.PID_AVAILABLE: 0},
        kernel_kill={"counted": {"served": 2}},
        sources=(
            SourceState(name="ebpf", health=SourceHealth.DEGRADED, lost=3),
            SourceState(name="psi", health=SourceHealth.OFF, wakes=4),
        ),
    )
    value = metrics.short.get_sample_value
    assert value("reactor_part_restarts_total", {"part": "journal"}) == 1
    assert value("reactor_part_restarts_total", {"part": "loop"}) is None
    assert value("reactor_no_evictable_pod", {"signal": "memory.available"}) == 1
    assert value("reactor_warrants_total", {"outcome": "served"}) == 2
    assert value("reactor_source_state", {"source": "ebpf", "state": "degraded"}) == 1
    assert value("reactor_source_state", {"source": "ebpf", "state": "armed"}) is None
    assert value("reactor_source_lost_events_total", {"source": "ebpf"}) == 3
    assert value("reactor_source_wakes_total", {"source": "psi"}) == 4


def test_what_rules_and_panels_select_by_a_bucket_is_in_the_short_form() -> None:
    metrics = Metrics()
    ordinary_node(metrics)
    expressions = [*(rule["expr"] for rule in alerts()), *(query for _, query in queries())]
    asked = {
        found for text in expressions for found in re.findall(r'(reactor_\w+_bucket)\{le="([^"]+)"', text)
    }
    assert asked
    shown = {
        (one.name, one.labels["le"])
        for family in metrics.short.collect()
        for one in family.samples
        if "le" in one.labels
    }
    assert asked <= shown


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    """Held to what its import and its schema want of a dashboard, its variables, panels and targets."""
    board = dashboard()
    assert {"uid", "title", "schemaVersion", "panels", "templating", "time"} <= board.keys()
    assert board["schemaVersion"] >= 36
    assert "id" not in board
    variables = {one["name"]: one["type"] for one in board["templating"]["list"]}
    assert variables == {"datasource": "datasource", "job": "query", "instance": "query"}

    everything = board["panels"]
    assert len(everything) == len({panel["id"] for panel in everything})
    for panel in panels():
        assert panel["type"] in {"stat", "timeseries"}
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert {"defaults", "overrides"} == panel["fieldConfig"].keys()
        assert len(panel["targets"]) == len({target["refId"] for target in panel["targets"]})
        for target in panel["targets"]:
            assert 'job="$job"' in target["expr"]
            assert 'instance=~"$instance"' in target["expr"]
    titles = [panel["title"] for panel in panels()]
    assert len(titles) == len(set(titles))


def test_panels_do_not_overlap_and_stay_within_the_grid() -> None:
    cells = []
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        assert 0 <= at["x"] < at["x"] + at["w"] <= 24
        cells.append(
            {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        )
    assert all(not one & other for one, other in combinations(cells, 2))
