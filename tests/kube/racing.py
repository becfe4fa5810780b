"""One lap of the race: a hog in a pod of its own, what it crossed and when, and what became of it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import images
from cluster import Cluster, is_running, namespaced
from machine import wait_until
from node import MIB

from reactor.testbed.allocator import Record, compiled_tool

_CGROUPS: Final = Path("/sys/fs/cgroup/memory")
_LAP_SECONDS: Final = 60.0
# Back is back to what was used before, give or take what the kernel keeps in per-CPU batches.
_BACK_SLACK_BYTES: Final = 8 * MIB


@dataclass(frozen=True, kw_only=True)
class Lap:
    """What one hog measured; None is what did not happen within a minute. Times are from the crossing."""

    stopped_ms: float | None
    killed_ms: float | None
    back_ms: float | None
    overshoot_mib: float | None
    pod_phase: str
    pod_reason: str


class Course:
    """The node on which every contender runs: a hog of `rate_bytes` a second through `level_bytes`."""

    def __init__(self, cluster: Cluster, *, level_bytes: int, prefill_bytes: int, rate_bytes: int) -> None:
        self._cluster = cluster
        self._level_bytes = level_bytes
        self._prefill_bytes = prefill_bytes
        self._rate_bytes = rate_bytes
        self._pods = namespaced(cluster, "race")
        self._kubepods = _CGROUPS / cluster.node.cgroup.lstrip("/") / "kubepods"
        self._records = cluster.machine.state / "records"
        self._records.mkdir()
        self._laps = 0

    def calm(self, seconds: float) -> None:
        """Wait until the node is as if nothing had been."""
        self._pods.remove()
        wait_until(self._is_calm, "no pressure on the node", seconds)

    def run(self) -> Lap:
        """Let a hog loose and return what became of it."""
        self._laps += 1
        name = f"hog-{self._laps}"
        usage = self._kubepods / "memory.usage_in_bytes"
        watermark = self._kubepods / "memory.max_usage_in_bytes"
        with Record(self._records, f"{name}.hog") as hog, Record(self._records, f"{name}.end") as end:
            self._create(name, hog.path, usage)
            self._pods.wait(name, is_running, "runs")
            pids = [self._process(name, container) for container in ("hog", "canary")]
            before_bytes = int(usage.read_text())
            watermark.write_text("0")
            back = str(before_bytes + _BACK_SLACK_BYTES)
            command = [compiled_tool(), "observe", end.path, usage, back, str(int(_LAP_SECONDS * 1000))]
            with subprocess.Popen(
                [*map(str, command), *map(str, pids)], stdin=subprocess.DEVNULL
            ) as observer:
                wait_until(lambda: end.words()[0] > 0, "the observer watches")
                hog.go()
                observer.wait(2 * _LAP_SECONDS)
            lap = self._lap(hog, end, int(watermark.read_text()))
        wait_until(lambda: self._pods.get(name)["status"]["phase"] != "Running", "the pod has ended", 30)
        status = self._pods.get(name)["status"]
        return Lap(**{**lap, "pod_phase": status["phase"], "pod_reason": status.get("reason", "")})

    def _lap(self, hog: Record, end: Record, peak_bytes: int) -> dict[str, Any]:
        _, crossed_ns, _, last_ns, *_ = hog.words()
        _, _, killed_ns, back_ns, *_ = end.words()
        crossed = peak_bytes >= self._level_bytes
        return {
            "stopped_ms": (last_ns - crossed_ns) / 1e6 if crossed and killed_ns else None,
            "killed_ms": (killed_ns - crossed_ns) / 1e6 if crossed and killed_ns else None,
            "back_ms": (back_ns - crossed_ns) / 1e6 if crossed and back_ns else None,
            "overshoot_mib": (peak_bytes - self._level_bytes) / MIB if crossed else None,
        }

    def _create(self, name: str, record: Path, usage: Path) -> None:
        total_bytes = self._pods_limit() - 64 * MIB
        amounts = (self._level_bytes, self._prefill_bytes, total_bytes, self._rate_bytes)
        image = {"image": images.LOAD, "imagePullPolicy": "Never"}
        mounts = [
            {"name": "records", "mountPath": str(self._records)},
            {"name": "usage", "mountPath": "/usage", "readOnly": True},
        ]
        hog = {
            "name": "hog",
            **image,
            "command": ["/allocator", "allocate", str(record), f"/usage/{usage.name}", *map(str, amounts)],
            "volumeMounts": mounts,
        }
        canary = {"name": "canary", **image, "command": ["/allocator", "canary"]}
        volumes = [
            {"name": "records", "hostPath": {"path": str(self._records)}},
            {"name": "usage", "hostPath": {"path": str(usage.parent)}},
        ]
        self._pods.create(name, [], spec={"containers": [hog, canary], "volumes": volumes})

    def _process(self, name: str, container: str) -> int:
        """Return the process of a container, as it is numbered outside it."""
        statuses = self._pods.get(name)["status"]["containerStatuses"]
        ids = {each["name"]: each["containerID"].rpartition("/")[2] for each in statuses}
        path = _CGROUPS / self._pods.cgroup(name).lstrip("/") / ids[container] / "cgroup.procs"
        return int(path.read_text().split()[0])

    def _pods_limit(self) -> int:
        return int((self._kubepods / "memory.limit_in_bytes").read_text())

    def _is_calm(self) -> bool:
        node = self._cluster.node.state()
        conditions = {each["type"]: each["status"] for each in node["status"]["conditions"]}
        return conditions["MemoryPressure"] == "False" and not node["spec"].get("taints")
