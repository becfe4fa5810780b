"""A real Prometheus on a port of this machine, with the rules of deploy/monitoring."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.monitoring import RULES
from tests.support.waiting import PATIENCE, eventually


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Prometheus:
    """What a running Prometheus answers."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"

    def get(self, path: str, **asked: str) -> Any:
        """Return the data of its answer. Raises HTTPError."""
        with urllib.request.urlopen(f"{self.address}{path}?{urllib.parse.urlencode(asked)}") as answer:  # noqa: S310
            return json.load(answer)["data"]

    def is_ready(self) -> bool:
        """Return whether it answers."""
        try:
            with urllib.request.urlopen(f"{self.address}/-/ready"):  # noqa: S310
                return True
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return what an expression gives now. Raises HTTPError for one that is invalid."""
        found: list[dict[str, Any]] = self.get("/api/v1/query", query=expression)["result"]
        return found

    def query_range(self, expression: str, start: float, end: float) -> list[dict[str, Any]]:
        """Return what an expression gave in each second. Raises HTTPError for one that is invalid."""
        asked = {"query": expression, "start": str(start), "end": str(end), "step": "1"}
        found: list[dict[str, Any]] = self.get("/api/v1/query_range", **asked)["result"]
        return found


@contextmanager
def prometheus(program: str, directory: Path, target: int) -> Iterator[Prometheus]:
    """Run a Prometheus inside the block that scrapes a port of this machine once a second, with the rules."""
    port = free_port()
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
                f"--web.external-url=http://127.0.0.1:{port}",
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
