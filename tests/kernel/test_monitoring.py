"""A real Prometheus scrapes a real daemon: what rules and dashboard ask it for is answered."""

from __future__ import annotations

import signal
from pathlib import Path

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.monitoring import OF_OTHERS, alerts, metrics_in, queries, rules, tool
from tests.support.processes import hold
from tests.support.prometheus import free_port, prometheus
from tests.support.waiting import eventually

HARD = {"evictionHard": {"memory.available": "64Mi", "pid.available": "5%", "nodefs.inodesFree": "1%"}}
# Empty where all is well, on a plain node, on a machine without swap, and before images were removed.
WITHOUT_DATA = {
    *("Signals that are not observed", "Thresholds that are ignored", "Sources that are lost"),
    *("Failures of parts", "Notifications", "Kubernetes", "Swap traffic"),
    *("Soft evictions in time", "Time until the hard memory threshold", "OOM kills by pod"),
    *("Events that the kernel dropped", "Reclaims", "Reclaimed bytes", "Reclaimed inodes"),
    *(
        "Evictions that were not needed, 7 d",
        "Most problems, 10 nodes",
        "Nodes without a wake from the kernel",
    ),
}
ELSEWHERE = {
    *("reactor_kubernetes_connected", "reactor_kubernetes_untold_evictions"),  # on a cluster
    *("reactor_rules_acted_total", "reactor_rules_unhelpful_total"),  # where there are rules
    "reactor_swap_traffic_bytes_total",  # where there is swap
    "reactor_dry_run",  # in a dry run
    "reactor_storm_brake_held_bytes",  # while evictions are slowed down
    *("reactor_time_left_seconds", "reactor_in_time_evictions_total"),  # with a soft threshold
    "reactor_pod_oom_kills_total",  # once the kernel has killed
    # Of the short form, while all is well.
    *("reactor_part_restarts_total", "reactor_source_lost_events_total", "reactor_warrants_total"),
    *("reactor_signal_observed", "reactor_threshold_absurd", "reactor_no_evictable_pod"),
    *("reactor_oom_order_processes", "reactor_process_evictions_total"),
    *("reactor_reclaims_total", "reactor_reclaimed_bytes_total", "reactor_reclaimed_inodes_total"),
}


def test_each_alert_and_each_panel_is_answered_by_a_prometheus_that_scrapes_a_daemon(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path
) -> None:
    port = free_port()
    daemon.configure(HARD, {"metrics": f"127.0.0.1:{port}", "housekeepingInterval": "500ms"})
    daemon.start()
    with prometheus(tool("prometheus"), tmp_path / "prometheus", port) as server:
        eventually(lambda: server.query("reactor_wake_to_kill_seconds_count == 0"), "a scrape before")
        assert -signal.SIGKILL == node.spawn(node.add_pod("hog"), hold(220)).wait(60)
        evictions = 'increase(reactor_evictions_total{outcome="killed", signal="memory.available"}[1m]) > 0'
        eventually(lambda: server.query(evictions), "the first eviction is an increase")

        for rule in alerts():
            server.query(rule["expr"])
        answered = {title for title, query in queries() if server.query(query)}
        assert {title for title, _ in queries()} - answered <= WITHOUT_DATA
        loaded = [one for group in server.get("/api/v1/rules")["groups"] for one in group["rules"]]
        later = {str(one["alert"]) for one in alerts() if "Budget" in one["alert"]}
        later |= {str(one["record"]) for one in rules() if "record" in one} | {"ReactorUnneededEviction"}
        assert {"ok"} == {one["health"] for one in loaded if one["name"] not in later}
        assert later <= {
            one["name"] for one in loaded if one["health"] in {"ok", "unknown"}
        }  # in five minutes
        firing = {one["name"] for one in loaded if one.get("state") == "firing"}
        assert firing <= {"ReactorEvicted", "ReactorSlowKill"}  # the kill was slow: on a busy machine
        told = 'ALERTS{alertname="ReactorEvicted", alertstate="firing"}'
        eventually(lambda: server.query(told), "the eviction is an alert")

        named = metrics_in([*(rule["expr"] for rule in rules()), *(query for _, query in queries())])
        stored = metrics_in(server.get("/api/v1/label/__name__/values"))
        assert named - stored <= ELSEWHERE
        assert set() == {name for name in stored - named if not name.startswith(OF_OTHERS)}


def test_an_alert_fires_in_a_real_prometheus_when_a_reload_is_refused(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path
) -> None:
    port = free_port()
    daemon.configure({}, {"metrics": f"127.0.0.1:{port}"})  # the kubelet's default thresholds
    daemon.start()
    with prometheus(tool("prometheus"), tmp_path / "prometheus", port) as server:
        eventually(
            lambda: server.query("count(reactor_observation_age_seconds) >= 5"), "every signal is observed"
        )
        eventually(lambda: not server.query("reactor_signal_observed == 0"), "none is not")
        expression = next(rule["expr"] for rule in alerts() if rule["alert"] == "ReactorReloadRefused")
        eventually(lambda: server.query("reactor_config_last_reload_successful == 1"), "a scrape")
        assert [] == server.query(expression)
        good = daemon.config_path.read_text()
        daemon.config_path.write_text("evictionHard: 5\n")
        daemon.signal(signal.SIGHUP)

        def state() -> str:
            loaded = [one for group in server.get("/api/v1/rules")["groups"] for one in group["rules"]]
            return next(str(one["state"]) for one in loaded if one["name"] == "ReactorReloadRefused")

        eventually(lambda: state() == "pending", "the alert waits for its five minutes")
        daemon.config_path.write_text(good)
        daemon.signal(signal.SIGHUP)
        eventually(lambda: state() == "inactive", "it is over")
