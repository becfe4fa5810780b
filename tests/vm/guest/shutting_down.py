"""Units of different priority in the guarded slice, and what is known of a shutdown that ends them."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from guarded import JOURNAL, MEMORY, SLICE, V2, Service, prop, run

DROP_IN_OF_LOGIND: Final = Path("/etc/systemd/logind.conf.d/zz-reactor.conf")
TIMES: Final = JOURNAL.with_name("graceful_node_shutdown_state")
PAUSE: Final = "import time; time.sleep(3600)"
IGNORES_SIGTERM: Final = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
)
TAKES_LONG: Final = (
    "import signal, time; signal.signal(signal.SIGTERM, lambda *_: time.sleep(1800)); time.sleep(3600)"
)
ENDS_BY_ITSELF: Final = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(3600)"
)


def by_priority(*groups: tuple[int, int]) -> dict[str, Any]:
    """Return the kubelet's keys for groups of a priority and a time in seconds each."""
    return {
        "evictionHard": {"memory.available": "50Mi"},
        "shutdownGracePeriodByPodPriority": [
            {"priority": priority, "shutdownGracePeriodSeconds": seconds} for priority, seconds in groups
        ],
    }


class Unit:
    """A unit in the guarded slice, of a priority. With `remains` systemd keeps what it knows of its end."""

    def __init__(self, name: str, script: str, priority: int, *, remains: bool = True) -> None:
        self.name = f"{name}.service"
        remain = "yes" if remains else "no"
        options = (f"--property=RemainAfterExit={remain}", "--property=TimeoutStopSec=5")
        command = (sys.executable, "-S", "-c", script)
        run("systemd-run", "--quiet", f"--unit={name}", f"--slice={SLICE}", *options, *command)
        space = "user" if V2 else "trusted"
        os.setxattr(MEMORY / SLICE / self.name, f"{space}.reactor.priority", str(priority).encode())

    def ended_by(self) -> str:
        """Return the signal or exit status that ended its process."""
        return prop(self.name, "ExecMainStatus")

    def ended_at(self) -> int:
        return int(prop(self.name, "ExecMainExitTimestampMonotonic"))


def state() -> str:
    """Return how the shutdown stands, as `reactor status` shows it."""
    return str(shown()["state"])


def shown() -> dict[str, Any]:
    """Return what `reactor status` shows of shutdowns."""
    found: dict[str, Any] = Service().status()["shutdown"]
    return found


def lines() -> list[dict[str, Any]]:
    """Return the journal's lines of shutdowns; one that a lost power supply has cut is none."""
    found = []
    for line in JOURNAL.read_text(errors="replace").splitlines() if JOURNAL.exists() else []:
        with suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return [line for line in found if line["kind"] == "shutdown"]
