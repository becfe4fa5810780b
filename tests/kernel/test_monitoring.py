"""A real Prometheus scrapes a real daemon: what rules and dashboard ask it for is answered."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reactor.lab.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.monitoring import OF_OTHERS, RULES, alerts, metrics_in, queries, tool
from tests.support.processes import hold
from tests.support.waiting import PATIENCE, eventually

HARD = {"evictionHard": {"memory.available": "64Mi", "pid.available": "5%", "nodefs.inodesFree": "1%"}}
# Empty where all is well, on a plain node, and before images were removed.
WITHOUT_DATA = {
    *("Signals that are not observed", "Thresholds that are ignored", "Sources that are lost"),
    *("Failures of parts", "Notifications", "Kubernetes", "Pods"),
}
OF_A_CLUSTER = {"reactor_kubernetes_connected", "reactor_kubernetes_untold_evictions"}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Prometheus:
    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"

    def get(self, path: str, **asked: str) -> Any:
        with urllib.request.urlopen(f"{self._address}{path}?{urllib.parse.urlencode(asked)}") as answer:  # noqa: S310
            return json.load(answer)["data"]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._address}/-/ready"):  # noqa: S310
                return True
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return what an expression gives now. Raises HTTPError for one that is invalid."""
        found: list[dict[str, Any]] = self.get("/api/v1/query", query=expression)["result"]
        return found


@contextmanager
def prometheus(directory: Path, target: int) -> Iterator[Prometheus]:
    """Run a Prometheus inside the block that scrapes a port of this machine once a second, with the rules."""
    program, port = tool("prometheus"), free_port()
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "reactor", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}],
    }
    directory.mkdir()
    (directory / "prometheus.yaml").write_text(json.dumps(configuration))
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={directory}/prometheus.yaml",
                f"--storage.tsdb.path={directory}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        made = Prometheus(port)
        eventually(made.is_ready, "prometheus is ready", 60)
        yield made
    finally:
        process.terminate()
        process.wait(30 * PATIENCE)


def test_each_alert_and_each_panel_is_answered_by_a_prometheus_that_scrapes_a_daemon(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path
) -> None:
    port = free_port()
    daemon.configure(HARD, {"metrics": f"127.0.0.1:{port}", "housekeepingInterval": "500ms"})
    daemon.start()
    with prometheus(tmp_path / "prometheus", port) as server:
        eventually(lambda: server.query("reactor_wake_to_kill_seconds_count == 0"), "a scrape before")
        assert -signal.SIGKILL == node.spawn(node.add_pod("hog"), hold(220)).wait(20)
        evictions = 'increase(reactor_evictions_total{outcome="killed", signal="memory.available"}[1m]) > 0'
        eventually(lambda: server.query(evictions), "the first eviction is an increase")

        for rule in alerts():
            server.query(rule["expr"])
        without = {title for title, query in queries() if not server.query(query)}
        assert without <= WITHOUT_DATA
        rules = [one for group in server.get("/api/v1/rules")["groups"] for one in group["rules"]]
        assert {"ok"} == {one["health"] for one in rules}
        firing = {one["name"] for one in rules if one["state"] == "firing"}
        assert firing <= {"ReactorSlowKill"}  # on a busy machine

        named = metrics_in([*(rule["expr"] for rule in alerts()), *(query for _, query in queries())])
        stored = metrics_in(server.get("/api/v1/label/__name__/values"))
        assert OF_A_CLUSTER == named - stored
        assert set() == {name for name in stored - named if not name.startswith(OF_OTHERS)}


def test_an_alert_fires_in_a_real_prometheus_when_a_reload_is_refused(
    node: VirtualNode, daemon: RunningDaemon, tmp_path: Path
) -> None:
    port = free_port()
    daemon.configure({}, {"metrics": f"127.0.0.1:{port}"})  # the kubelet's default thresholds
    daemon.start()
    with prometheus(tmp_path / "prometheus", port) as server:
        eventually(lambda: server.query("sum(reactor_signal_observed) >= 5"), "every signal is observed")
        eventually(lambda: not server.query("reactor_signal_observed == 0"), "none is not")
        expression = next(rule["expr"] for rule in alerts() if rule["alert"] == "ReactorReloadRefused")
        eventually(lambda: server.query("reactor_config_last_reload_successful == 1"), "a scrape")
        assert [] == server.query(expression)
        good = daemon.config_path.read_text()
        daemon.config_path.write_text("evictionHard: 5\n")
        daemon.signal(signal.SIGHUP)

        def state() -> str:
            rules = [one for group in server.get("/api/v1/rules")["groups"] for one in group["rules"]]
            return next(str(one["state"]) for one in rules if one["name"] == "ReactorReloadRefused")

        eventually(lambda: state() == "pending", "the alert waits for its five minutes")
        daemon.config_path.write_text(good)
        daemon.signal(signal.SIGHUP)
        eventually(lambda: state() == "inactive", "it is over")
