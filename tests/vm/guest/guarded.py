"""`reactor run` as systemd's service, and the real units in a slice that it guards."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from reactor.tell.status_socket import ask
from tests.support import waiting

HERE: Final = Path(__file__).resolve().parent
BIN: Final = Path(sys.executable).parent / "reactor"
UNIT: Final = HERE.parent / "deploy" / "reactor.service"
CONFIG: Final = Path("/etc/reactor/config.yaml")
JOURNAL: Final = Path("/var/log/reactor/journal.jsonl")
DROP_IN: Final = Path("/run/systemd/system/reactor.service.d/test.conf")
SLICE: Final = "guarded.slice"
SLICE_MIB: Final = 512
SLICE_UNIT: Final = Path("/run/systemd/system") / SLICE
SLICE_PROPERTIES: Final = Path("/run/systemd/system.control") / f"{SLICE}.d"  # of `systemctl set-property`
RUNTIME: Final = Path("/run/reactor")
CGROUP: Final = f"/{SLICE}"
MIB: Final = 1 << 20
V2: Final = Path("/sys/fs/cgroup/cgroup.controllers").exists()
MEMORY: Final = Path("/sys/fs/cgroup" if V2 else "/sys/fs/cgroup/memory")
# For what the kernel or systemd is known to do. Under emulation, beside other load, all of it takes up to 45
# times as long; what holds sooner is not waited for.
SECONDS: Final = 240.0


def run(*command: str | Path, check: bool = True) -> str:
    """Run a command and return what it printed; an AssertionError shows it all where it fails."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, timeout=2 * SECONDS
    )
    assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def eventually(true: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    """Wait until it is true; fail, with the service's own words, where it doesn't become so."""
    try:
        waiting.eventually(true, what, seconds, pause_seconds=0.1)
    except AssertionError as error:
        log = run("journalctl", "-u", "reactor", "-n", "30", "--no-pager", check=False)
        raise AssertionError(f"{error}\n{log}") from error


def answer(*command: str) -> str:
    """Return what a command of reactor's printed; asked again where the daemon outlasts its patience."""
    printed: list[str] = []

    def is_answered() -> bool:
        printed.append(run(BIN, *command, check=False))
        return bool(printed[-1])

    eventually(is_answered, f"an answer to {command}")
    return printed[-1]


def prop(unit: str, name: str) -> str:
    """Return one property of a unit."""
    return run("systemctl", "show", "--value", "--property", name, unit).strip()


class Unit:
    """A unit of systemd's, and the cgroup of it."""

    def __init__(self, unit: str, path: str) -> None:
        self.unit = unit
        self.path = path

    @property
    def pod(self) -> str:
        """Return what the daemon calls it."""
        return f"cgroup/{self.unit}"

    @property
    def cgroup(self) -> Path:
        return MEMORY / self.path.lstrip("/")


class Tenant(Unit):
    """A real unit in the guarded slice, or in a slice of it: `within`."""

    def __init__(
        self, name: str, *load: str, properties: Mapping[str, str] | None = None, within: str = SLICE
    ) -> None:
        directory = CGROUP if within == SLICE else f"{CGROUP}/{within}"
        super().__init__(f"{name}.service", f"{directory}/{name}.service")
        settings = {"TasksMax": "infinity", "TimeoutStopSec": "60", **(properties or {})}
        options = [f"--property={key}={value}" for key, value in settings.items()]
        command = [sys.executable, "-S", HERE / "load.py", *load]
        run("systemd-run", "--quiet", "--no-block", f"--unit={name}", f"--slice={within}", *options, *command)
        self.mib = int(load[1]) if load[0] == "hold" else 0

    def usage_bytes(self) -> int:
        name = "memory.current" if V2 else "memory.usage_in_bytes"
        try:
            return int((self.cgroup / name).read_text())
        except OSError:
            return 0

    def holds_its_memory(self) -> bool:
        return self.usage_bytes() >= self.mib * MIB

    def is_alive(self) -> bool:
        return prop(self.unit, "ActiveState") == "active"

    def result(self) -> str:
        """Return systemd's word for how it ended: success, signal, oom-kill."""
        return prop(self.unit, "Result")


class Service:
    """reactor.service, as it is shipped, with the interpreter of this virtual environment."""

    def configure(self, configuration: Mapping[str, Any], section: Mapping[str, Any] | None = None) -> None:
        """Write /etc/reactor/config.yaml: the slice is the node, the ticker too slow to be of use."""
        defaults = {"nodeCgroup": CGROUP, "housekeepingInterval": "300s", "metrics": "off"}
        document = {**configuration, "reactor": {**defaults, **(section or {})}}
        CONFIG.parent.mkdir(exist_ok=True)
        CONFIG.write_text(json.dumps(document))

    def start(self, *drop_in: str) -> None:
        """Start it; `drop_in` are lines for its [Service] section. Returns once it said that it is ready."""
        run("cp", UNIT, "/run/systemd/system/reactor.service")
        DROP_IN.parent.mkdir(exist_ok=True)
        lines = [
            "[Service]",
            "ExecStart=",
            f"ExecStart={BIN} run --config {CONFIG}",
            f"TimeoutStartSec={SECONDS:.0f}s",
            *drop_in,
        ]
        DROP_IN.write_text("\n".join(lines) + "\n")
        self._started = time.time()
        run("systemctl", "daemon-reload")
        run("systemctl", "start", "reactor.service")

    def stop(self) -> None:
        run("systemctl", "stop", "reactor.service")

    def kill(self, signal_name: str) -> None:
        run("systemctl", "kill", "--kill-whom=main", f"--signal={signal_name}", "reactor.service")

    def prop(self, name: str) -> str:
        return prop("reactor.service", name)

    def status(self) -> dict[str, Any]:
        """Return what `reactor status` shows, without starting one: under emulation that takes a second.

        Asked again where the guard got no CPU to answer: of a single one a pod of higher priority takes all.
        """
        answers: list[dict[str, Any]] = []

        def is_answered() -> bool:
            answers.append(ask(RUNTIME / "reactor.sock", {"command": "status"}, patience_seconds=SECONDS))
            return "the guard has not answered" not in answers[-1].get("error", "")

        eventually(is_answered, "an answer of the guard")
        return answers[-1]

    def source(self, name: str) -> tuple[str, str]:
        """Return a source's health and the detail to it, as `reactor status` shows them."""
        return {one["name"]: (one["health"], one["detail"]) for one in self.status()["sources"]}[name]

    def armed_after(self, name: str) -> None:
        """Wait until a source is armed."""
        eventually(lambda: self.source(name)[0] == "armed", f"{name} armed")

    def log(self) -> str:
        """Return what it has said since its last `start`."""
        return run("journalctl", "-u", "reactor", "--no-pager", "-o", "cat", f"--since=@{self._started:.0f}")

    def lines(self) -> list[dict[str, Any]]:
        """Return the journal, but for a line that is still being written."""
        try:
            lines = JOURNAL.read_text().splitlines(keepends=True)
            return [json.loads(line) for line in lines if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def evictions(self) -> list[dict[str, Any]]:
        """Return the decisions that evicted somebody."""
        return [line for line in self.lines() if line["kind"] == "decision" and line["evictions"]]

    def evicted(self) -> list[str]:
        """Return who was evicted, in order."""
        return [eviction["pod"] for line in self.evictions() for eviction in line["evictions"]]

    def was_woken_by(self, name: str, decision: dict[str, Any]) -> bool:
        """Tell whether a source told of the shortage that a decision is about.

        Near a threshold the loop looks every 10 ms, too, and on a slow machine it may be the first to see it:
        then the source has told of how near it was.
        """
        woken_by = {wake["source"] for wake in decision["wakes"]}
        wakes = {one["name"]: one["wakes"] for one in self.status()["sources"]}
        return name in woken_by or (woken_by == {"glance"} and wakes[name] > 0)

    def oom_kills(self) -> list[dict[str, Any]]:
        """Return the journal's lines about the kernel's own OOM killer."""
        return [line for line in self.lines() if line["kind"] == "oom-kill"]

    def two_more_passes(self) -> None:
        """Wait for a pass that began after this was called, and for its end."""
        passes = self.status()["passes"]
        eventually(lambda: self.status()["passes"] > passes + 1, "two more passes")

    def wait_for_eviction(self) -> dict[str, Any]:
        """Return the first decision that evicted somebody."""
        eventually(lambda: bool(self.evictions()), "an eviction")
        return self.evictions()[0]


def start_slice() -> None:
    """Make the guarded slice, with its limit."""
    text = f"[Slice]\nMemoryMax={SLICE_MIB}M\nMemoryAccounting=yes\nTasksAccounting=yes\n"
    if not SLICE_UNIT.exists() or SLICE_UNIT.read_text() != text:
        SLICE_UNIT.write_text(text)
        run("systemctl", "daemon-reload")
    run("systemctl", "start", SLICE)


def is_clear() -> bool:
    """Return whether nothing is left that `clear` would end or forget."""
    left = [
        MEMORY / SLICE,
        MEMORY / "system.slice/reactor.service",
        SLICE_PROPERTIES,
        DROP_IN.parent,
        RUNTIME,
    ]
    return not any(path.exists() for path in left) and not any(JOURNAL.parent.glob("*"))


def clear() -> None:
    """End the service and everything in the slice, and forget what they wrote."""
    run("systemctl", "stop", "reactor.service", check=False)
    run("systemctl", "kill", "--signal=SIGKILL", SLICE, check=False)
    run("systemctl", "stop", SLICE, check=False)
    if SLICE_PROPERTIES.exists():
        run("systemctl", "revert", SLICE, check=False)
    run("systemctl", "reset-failed", check=False)
    for path in JOURNAL.parent.glob("*"):
        path.unlink()
    for path in (RUNTIME, DROP_IN.parent):
        shutil.rmtree(path, ignore_errors=True)
