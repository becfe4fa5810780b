"""What rules cost while nothing happens: the guard's share of a CPU with each set of rules, and with none.

    python -m bench.rules [--seconds 180] [--rounds 1] [--results DIRECTORY]      (root)

The cgroups have limits and no processes; they are in the node and no pods. Sets of rules take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.figures import collected
from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.testbed.allocator import compiled_tool
from reactor.testbed.crossing import about
from reactor.testbed.daemon_process import DaemonProcess
from reactor.testbed.virtual_node import VirtualNode, ended_by_signals

MIB: Final = 1 << 20
_RULES: Final = 100
_CGROUPS: Final = 1000
_LIMIT_BYTES: Final = 64 * MIB
_THRESHOLDS: Final = {"evictionHard": {"memory.available": "100Mi"}}
# By then all cgroups were observed once, and how often they are from then on follows from what that cost.
_SETTLED_SECONDS: Final = 75.0
_PRESSURE: Final = {"pressure": "memory full", "avg10": "60%"}
_USAGE: Final = {"usage": "95%"}
NONE: Final = "no rules"


def sets_of_rules(node: str) -> Mapping[str, list[dict[str, Any]]]:
    """Return what is measured, by what it is called."""
    return {
        NONE: [],
        "pressure, each for all": _rules(_PRESSURE, lambda _: f"{node}/units/group-*/*"),
        "pressure, each for 10 other ones": _rules(_PRESSURE, lambda one: f"{node}/units/group-{one}/*"),
        "usage, each for all": _rules(_USAGE, lambda _: f"{node}/units/group-*/*"),
        "usage, each for 10 other ones": _rules(_USAGE, lambda one: f"{node}/units/group-{one}/*"),
    }


def _rules(condition: Mapping[str, str], cgroups: Callable[[int], str]) -> list[dict[str, Any]]:
    return [
        {
            "name": f"r{number}",
            "cgroups": [cgroups(number)],
            "when": [condition],
            "for": "30s",
            "action": "report",
        }
        for number in range(_RULES)
    ]


def measured(directory: Path, seconds: float, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield what is known after each turn: by set of rules the percent of a CPU, turn by turn."""
    tree, tool = CgroupTree.discover(), compiled_tool()
    found: dict[str, Any] = {}
    with VirtualNode(tree, 1024 * MIB, f"reactor-bench-{os.getpid()}") as node:
        for above in ("pods", "units", *(f"units/group-{number}" for number in range(_RULES))):
            node.add_pod(above)
        for number in range(_CGROUPS):
            node.add_pod(f"units/group-{number % _RULES}/unit-{number}", limit_bytes=_LIMIT_BYTES)
        node.spawn(node.add_pod("pods/one"), [str(tool), "idle"])
        for _ in range(rounds):
            for name, rules in sets_of_rules(node.cgroup).items():
                section = {"rules": rules, "pods": {"parents": [f"{node.cgroup}/pods"]}}
                before = _machine_stall_seconds()
                with DaemonProcess(tool, directory, node.cgroup, _THRESHOLDS, section) as daemon:
                    time.sleep(_SETTLED_SECONDS)
                    percent = _cpu_percent(daemon.pid, seconds)
                    about_turn = {
                        "cpu_percent": percent,
                        "every_seconds": _paces(daemon),
                        "triggers": _triggers(daemon),
                        "machine_stalled_seconds": round(_machine_stall_seconds() - before, 3),
                    }
                found.setdefault(name, []).append(about_turn)
                print(f"bench-rules: {name}: {about_turn}", file=sys.stderr, flush=True)
                yield {"rules": _RULES, "cgroups": _CGROUPS, "seconds": seconds, "turns": dict(found)}


def _cpu_percent(pid: int, seconds: float) -> float:
    """Return the share of a CPU that a process takes, its threads that have ended included."""
    before, began = _cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return round(100 * (_cpu_seconds(pid) - before) / (time.monotonic() - began), 3)


def _cpu_seconds(pid: int) -> float:
    fields = (
        Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    )
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _machine_stall_seconds() -> float:
    """Return for how long some task of the machine has waited for memory so far."""
    some = Path("/proc/pressure/memory").read_text(encoding="ascii").splitlines()[0]
    return int(some.rpartition("total=")[2]) / 1e6


def _status(daemon: DaemonProcess) -> Mapping[str, Any]:
    command = [
        sys.executable,
        "-m",
        "reactor",
        "status",
        "--output",
        "json",
        "--socket",
        str(daemon.status_socket),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def _paces(daemon: DaemonProcess) -> list[float | None]:
    """Return how often cgroups are observed, in seconds: the least and the most of the rules'."""
    paces = {rule["every_seconds"] for rule in _status(daemon)["rules"]}
    known = sorted(pace for pace in paces if pace is not None)
    return [*known[:1], *known[-1:]] if known else [None] * bool(paces)


def _triggers(daemon: DaemonProcess) -> str | None:
    """Return what the source of the kernel's own triggers says of itself."""
    sources = {one["name"]: one for one in _status(daemon)["sources"]}
    one = sources.get("rule-pressure")
    return None if one is None else f"{one['health']}: {one['detail']}"


def main() -> int:
    """Measure, print and store; return the exit status. If interrupted, what was measured until then."""
    parser = argparse.ArgumentParser(prog="bench-rules", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=180.0, help="for how long each turn is (180)")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each set of rules (1)")
    parser.add_argument("--results", type=Path, default=Path("bench-results"))
    wanted = parser.parse_args()
    if os.geteuid() != 0:
        print("bench-rules: needs root, to make cgroups", file=sys.stderr)
        return 2
    try:
        with ended_by_signals(), tempfile.TemporaryDirectory(prefix="reactor-bench-") as name:
            turns = measured(Path(name), wanted.seconds, wanted.rounds)
            found = collected(about(CgroupTree.discover().version), turns)
    except KeyboardInterrupt:
        return 130
    except (ReactorError, OSError, subprocess.SubprocessError) as error:
        print(f"bench-rules: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=2))
    wanted.results.mkdir(parents=True, exist_ok=True)
    when = str(found["about"]["date"]).replace(":", "").partition("+")[0]
    (wanted.results / f"rules-{when}.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 130 if "interrupted" in found["about"] else 0


if __name__ == "__main__":
    sys.exit(main())
