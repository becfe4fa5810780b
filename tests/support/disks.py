"""Filesystems of a few hundred MiB on loop devices, pods that fill them, and a daemon that guards them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.processes import MIB


def leave(disk: Path, mib: int) -> Path:
    """Fill a disk but for so many MiB; return the file that does it."""
    ballast = disk / "ballast"
    found = os.statvfs(disk)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - mib * MIB)
    return ballast


def occupied_bytes(file: Path) -> int:
    """Return what the file takes of its filesystem; 0 before it is there."""
    return file.stat().st_blocks * 512 if file.exists() else 0


class Guarded:
    """A virtual node whose disk is `disk`: pods with a volume on it, and the daemon over them."""

    def __init__(self, node: VirtualNode, daemon: RunningDaemon, disk: Path, manifests: Path) -> None:
        self.node = node
        self.daemon = daemon
        self.disk = disk
        self.manifests = manifests

    def add_pod(
        self,
        name: str,
        *,
        priority: int = 0,
        volume: Mapping[str, Any] | None = None,
        limits: Mapping[str, str] | None = None,
        requests: Mapping[str, str] | None = None,
        where: str = "reactor/volumes",
        path: Path | None = None,
    ) -> Path:
        """Make a pod with a directory of its own, charged as `where` says; return the directory."""
        if path is None:  # one that is given is not touched: it may hang
            path = self.disk / name
            path.mkdir()
        cgroup = self.node.add_pod(name)
        owner = "scratch" if where == "reactor/volumes" else "main"
        manifest = {
            "metadata": {
                "name": name,
                "annotations": {"reactor/cgroup": cgroup, where: f"{owner}={path}"},
            },
            "spec": {
                "priority": priority,
                "containers": [
                    {"name": "main", "resources": {"limits": limits or {}, "requests": requests or {}}}
                ],
                "volumes": [{"name": "scratch", "emptyDir": dict(volume or {})}],
            },
        }
        (self.manifests / f"{name}.json").write_text(json.dumps(manifest))
        return path

    def start(self, configuration: Mapping[str, Any], section: Mapping[str, Any] | None = None) -> None:
        """Start the daemon with thresholds for this disk."""
        self.daemon.configure(
            {"evictionPressureTransitionPeriod": "1s", **configuration},
            {
                "filesystems": {"nodefs": str(self.disk)},
                "housekeepingInterval": "1s",
                "pods": {"manifests": str(self.manifests)},
                **(section or {}),
            },
        )
        self.daemon.start()

    def run(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        """Run a command in a pod."""
        return self.node.spawn(f"{self.node.cgroup}/{name}", command)

    def evicted(self) -> list[str]:
        """Return who was evicted, in order."""
        return [
            one["pod"].rpartition("/")[2] for line in self.daemon.evictions() for one in line["evictions"]
        ]

    def messages(self) -> list[str]:
        """Return the messages of the evictions."""
        return [one["message"] for line in self.daemon.evictions() for one in line["evictions"]]

    def problem(self) -> str:
        """Return what is said of evictions that are slowed down; nothing where none is."""
        return str(self.daemon.status()["problems"].get("evictions", ""))

    def under_pressure(self) -> bool:
        """Return whether DiskPressure is in force."""
        return any(
            one["in_force"]
            for one in self.daemon.status()["conditions"]
            if one["condition"] == "DiskPressure"
        )
