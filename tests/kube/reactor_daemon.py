"""`reactor run` on the cluster's node, as its unit would start it, with the rights that deploy/ gives."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cgroups import IS_V1
from cluster import REACTOR_USER, Cluster
from control_plane import ControlPlane
from deployed import NAMESPACE, collection, manifests
from machine import Program, wait_until

from tests.support.json_lines import json_lines

# The pods may use 640 MiB: 512 of them until this is met.
HARD: Final[Mapping[str, str]] = {"memory.available": "128Mi"}
# Met by any pod, for longer than a test takes.
PRESSED: Final[Mapping[str, Any]] = {
    "evictionSoft": {"memory.available": "600Mi"},
    "evictionSoftGracePeriod": {"memory.available": "1h"},
    "evictionHard": {"memory.available": "64Mi"},
}
_READY_SECONDS: Final = 30.0


def grant_rights(cluster: Cluster | ControlPlane) -> None:
    """Give REACTOR_USER the roles that deploy/ gives its service account, and nothing else."""
    cluster.api.create_unless_there("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    for body in manifests():
        if body["kind"] in {"ClusterRoleBinding", "RoleBinding"}:
            body["metadata"]["name"] = "reactor-test"
            body["subjects"] = [
                {"kind": "User", "name": REACTOR_USER, "apiGroup": "rbac.authorization.k8s.io"}
            ]
        elif body["kind"] not in {"ClusterRole", "Role"}:
            continue
        cluster.api.create_unless_there(collection(body), body)


class Reactor:
    """The daemon, its files in a directory of its own; to be configured, started, and stopped or killed."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self.journal_path = directory / "journal.jsonl"
        self.config_path = directory / "reactor.json"
        self.environment: dict[str, str] = {}
        self.program: Program | None = None
        path = cluster.machine.logs / "reactor.log"
        self._log_before = len(path.read_text(errors="replace")) if path.exists() else 0

    def configure(self, thresholds: Mapping[str, Any], section: Mapping[str, Any] | None = None) -> None:
        """Write the configuration: the kubelet's keys, and those of reactor's own section."""
        kubernetes = {
            "nodeName": self.cluster.node.name,
            "kubeconfig": str(self.cluster.reactor_kubeconfig()),
            "role": "sole",
        }
        given = dict(section or {})
        document = {
            "evictionPressureTransitionPeriod": "3s",
            **thresholds,
            "reactor": {
                "nodeCgroup": self.cluster.node.cgroup,
                "metrics": "off",
                "housekeepingInterval": "2s",
                "socket": str(self.directory / "reactor.sock"),
                "stateFile": str(self.directory / "state.json"),
                "journal": {"path": str(self.journal_path)},
                **given,
                "kubernetes": {**kubernetes, **given.get("kubernetes", {})},
            },
        }
        self.config_path.write_text(json.dumps(document, indent=2))

    def start(self, *arguments: str) -> None:
        """Start the daemon and wait until it answers, its sources armed."""
        self._run(*arguments)
        self.wait_guards()

    def stand_by(self) -> None:
        """Start it as the successor of the one that guards the node now."""
        self._run("--stand-by")

    def wait_guards(self) -> None:
        """Wait until it answers, its sources armed."""
        assert self.program is not None
        self.program.wait_ready(self._guards, _READY_SECONDS)

    def stop(self) -> int:
        """End it by SIGTERM and return its exit status."""
        return 0 if self.program is None else self.program.stop()

    def kill(self) -> None:
        """End it as a crash would."""
        assert self.program is not None
        self.program.kill()

    def reload(self) -> None:
        """Have it read its configuration anew."""
        assert self.program is not None
        self.program.signal(signal.SIGHUP)

    def log(self) -> str:
        """Return what it and those before it have written to standard error."""
        return "" if self.program is None else self.program.log()[self._log_before :]

    def lines(self) -> list[dict[str, Any]]:
        """Return the journal."""
        return json_lines(self.journal_path)

    def evictions(self) -> list[dict[str, Any]]:
        """Return the decisions in the journal that evict a pod."""
        return [line for line in self.lines() if line["kind"] == "decision" and line["evictions"]]

    def evicted(self) -> list[str]:
        """Return the names of the pods that it evicted, in order.

        A decision is written when its pods have ended: there is one to wait for.
        """
        wait_until(self.evictions, "the journal tells of an eviction")
        return [each["pod"].rpartition("/")[2] for line in self.evictions() for each in line["evictions"]]

    def status(self) -> dict[str, Any]:
        """Return what `reactor status` says."""
        return self._ask("status")

    def explain(self, pod: str) -> dict[str, Any]:
        """Return what `reactor explain` says of a pod."""
        return self._ask("explain", pod)

    def _run(self, *arguments: str) -> None:
        self.program = self.cluster.machine.start(
            "reactor",
            [sys.executable, "-P", "-m", "reactor", "run", "--config", self.config_path, *arguments],
            self.environment,
        )

    def _ask(self, *question: str) -> dict[str, Any]:
        socket = str(self.directory / "reactor.sock")
        answer = subprocess.run(
            [sys.executable, "-m", "reactor", *question, "--output", "json", "--socket", socket],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        document: dict[str, Any] = json.loads(answer.stdout)
        return document

    def rss_mib(self) -> float:
        """Return its resident memory."""
        assert self.program is not None
        text = Path(f"/proc/{self.program.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) / 1024

    def keep_log(self) -> None:
        """Keep journal and configuration with the programs' logs: the directory is the test's."""
        for path in (self.journal_path, self.config_path):
            if path.exists():
                shutil.copy(path, self.cluster.machine.logs / path.name)

    def _guards(self) -> bool:
        try:
            sources = {each["name"]: each["health"] for each in self.status()["sources"]}
        except (subprocess.CalledProcessError, KeyError):
            return False
        return sources.get("memcg-eventfd" if IS_V1 else "ebpf") == "armed"
