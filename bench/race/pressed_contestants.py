"""Who runs the courses under pressure: the reactor's rules, and what people would pick instead.

Each as it is shipped, and with the lowest limits and the shortest times that it takes. The peers run in the
enclosure, where the node is the machine; systemd-oomd, which hears of units from systemd alone, runs as its
unit, with the enclosure's /proc/meminfo, and the node lies in a unit of systemd's. The replays of a session
are run as shipped alone, and by the reactor with and without `processVictims`.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from bench.race.contestants import (
    FETCH,
    NOHANG_FASTEST,
    Contestant,
    Entrant,
    Ground,
    Programs,
    Role,
    at_its_post,
    earlyoom,
    nohang,
    oomd,
)
from bench.race.heat import Track
from bench.race.pressed import MEMORY_BYTES, SESSION_MEMORY_BYTES, SESSION_SCOPE, SWAP_BYTES
from reactor.errors import RefusedError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.swap import machine_swap
from reactor.sources.catalogue import RULE_PRESSURE
from reactor.testbed.allocator import MIB
from reactor.testbed.daemon_process import DaemonProcess

_GROUND: Final = Ground(memory_bytes=MEMORY_BYTES, swap_bytes=SWAP_BYTES)
_SYSTEMD_OOMD: Final = Path("/usr/lib/systemd/systemd-oomd")
_SYSTEMD: Final = Path("/run/systemd/system")
_OOMD_CONF: Final = Path("/run/systemd/oomd.conf.d/99-reactor-race.conf")
_OOMD_DROP_IN: Final = _SYSTEMD / "systemd-oomd.service.d/99-reactor-race.conf"
_KILL: Final = {"ManagedOOMSwap": "kill", "ManagedOOMMemoryPressure": "kill"}
_PATIENCE_SECONDS: Final = 120.0
_SETTLED_SECONDS: Final = 15.0  # the steward has started by then, and eBPF programs are loaded
_HARD: Final = {"memory.available": "100Mi"}
_NODE: Final = "{node}"  # in cgroups of rules and of pods
# One tree of the session goes, by its own agent, instead of the whole scope.
TREE: Final = {
    "pods": {"parents": [_NODE], "processVictims": [{"unit": SESSION_SCOPE, "victim": "tree"}]},
}
# What docs/pressure.md has for systemd-oomd's two defaults, with the node in the place of the machine.
OOMD_RULES: Final[Sequence[Mapping[str, Any]]] = (
    {
        "name": "swap-used-limit",
        "cgroups": [_NODE],
        "when": [{"swapUsed": "90%"}, {"usage": "90%"}],
        "for": "0s",
        "action": "evictWorst",
        "by": "swap",
        "cooldown": "15s",
    },
    {
        "name": "node-memory-pressure",
        "cgroups": [_NODE],
        "when": [{"pressure": "memory full", "avg10": "60%"}],
        "for": "30s",
        "action": "evictWorst",
        "by": "pgscan",
        "cooldown": "15s",
    },
)
_TWO_FIFTHS: Final = {"stall": "4s", "within": "10s"}
# What it has for a node with swap that stalls, and for a container that thrashes under its own limit.
PAGE_RULES: Final[Sequence[Mapping[str, Any]]] = (
    {
        "name": "node-stalls",
        "cgroups": [_NODE],
        "when": [{"pressure": "memory some", **_TWO_FIFTHS}, {"usage": "90%"}],
        "for": "5s",
        "action": "evictWorst",
        "by": "growth",
        "cooldown": "30s",
    },
    {
        "name": "pod-thrashes",
        "cgroups": [f"{_NODE}/*"],
        "when": [
            {"events": "max", "atLeast": 100, "within": "30s"},
            {"pressure": "memory full", **_TWO_FIFTHS},
        ],
        "for": "30s",
        "action": "evict",
        "cooldown": "2m",
    },
)
_STALL: Final = {"stall": "200ms", "within": "1s"}
FASTEST_RULES: Final[Sequence[Mapping[str, Any]]] = (
    {
        "name": "node-stalls",
        "cgroups": [_NODE],
        "when": [{"pressure": "memory some", **_STALL}, {"usage": "90%"}],
        "for": "2s",  # the least that growth is counted for
        "action": "evictWorst",
        "by": "growth",
        "cooldown": "5s",
    },
    {
        "name": "pod-stalls",
        "cgroups": [f"{_NODE}/*"],
        "when": [{"events": "max", "atLeast": 20, "within": "10s"}, {"pressure": "memory full", **_STALL}],
        "for": "0s",
        "action": "evict",
        "cooldown": "5s",
    },
)
_NOHANG_PSI: Final = {
    "hard_threshold_min_swap": "100 %",
    "soft_threshold_min_swap": "100 %",
    "psi_checking_enabled": "True",
    "psi_path": "{node}/memory.pressure",
    "psi_excess_duration": "0",
    "soft_threshold_max_psi": "10",
    "hard_threshold_max_psi": "10",
    **NOHANG_FASTEST,
}


def pressed_field(version: CgroupVersion, programs: Programs) -> tuple[list[Contestant], dict[str, str]]:
    """Return who can take part, and who can't and why.

    Raises RefusedError where the machine has no cgroup v2, or too little swap.
    """
    if version is not CgroupVersion.V2:
        raise RefusedError("the courses swap and thrash need cgroup v2: pressure and swap of cgroups")
    swap_bytes = machine_swap().total_bytes
    if swap_bytes < SWAP_BYTES:
        raise RefusedError(
            f"the courses swap and thrash need {SWAP_BYTES // MIB} MiB of swap; the machine has "
            f"{swap_bytes // MIB}: mkswap and swapon a file"
        )
    taken = [
        _reactor("reactor-default", _HARD, ()),
        _reactor("reactor-memory-swap", _HARD, (), {"ranking": "memory+swap"}),
        _reactor("reactor-rules", {}, PAGE_RULES),
        _reactor("reactor-oomd-rules", {}, OOMD_RULES),
        _reactor("reactor-rules-fastest", {}, FASTEST_RULES),
        _no_daemon(_GROUND),
    ]
    left_out: dict[str, str] = {}
    if program := programs.find("earlyoom"):
        fastest = ("-m", "2,2", "-s", "100,100", "-r", "0", "-p")
        taken += [
            earlyoom("earlyoom", program, ("-r", "3600"), _GROUND),
            earlyoom("earlyoom-fastest", program, fastest, _GROUND),
        ]
    else:
        left_out["earlyoom"] = FETCH.format("earlyoom")
    if program := programs.find("nohang"):
        taken += [
            nohang("nohang", program, {}, _GROUND),
            nohang("nohang-fastest", program, _NOHANG_PSI, _GROUND),
        ]
    else:
        left_out["nohang"] = FETCH.format("nohang")
    if program := programs.find("oomd"):
        libraries = programs.libraries()
        shipped = (
            "Debian's oomd.json with the node as its slices: memory pressure 60 for 30 s, swap free 10 %"
        )
        fastest_told = "the same with pressure 10 for 0 s, swap free 90 %, no delay after an action"
        taken += [
            oomd("oomd", program, libraries, oomd_rulesets, shipped, _GROUND),
            oomd("oomd-fastest", program, libraries, oomd_fastest_rulesets, fastest_told, _GROUND),
        ]
    else:
        left_out["oomd"] = FETCH.format("oomd")
    if (missing := _systemd_oomd_missing()) is None:
        fastest_unit = {"ManagedOOMMemoryPressureLimit": "10%", "ManagedOOMMemoryPressureDurationSec": "1s"}
        taken += [
            _systemd_oomd("systemd-oomd", _KILL, "", _GROUND),
            _systemd_oomd("systemd-oomd-fastest", {**_KILL, **fastest_unit}, "SwapUsedLimit=10%", _GROUND),
        ]
    else:
        left_out["systemd-oomd"] = missing
    return taken, left_out


def replay_field(version: CgroupVersion, programs: Programs) -> tuple[list[Contestant], dict[str, str]]:
    """Return who can take part in the replays of a session, and who can't and why.

    The node swaps where the machine does and its cgroups are of v2.
    """
    is_v2 = version is CgroupVersion.V2
    swap_bytes = SWAP_BYTES if is_v2 and machine_swap().total_bytes >= SWAP_BYTES else None
    ground = Ground(memory_bytes=SESSION_MEMORY_BYTES, swap_bytes=swap_bytes)
    taken = [
        _reactor("reactor-tree", _HARD, (), TREE, ground),
        _reactor("reactor-default", _HARD, (), ground=ground),
        _no_daemon(ground),
    ]
    left_out: dict[str, str] = {}
    if program := programs.find("earlyoom"):
        taken.append(earlyoom("earlyoom", program, ("-r", "3600"), ground))
    else:
        left_out["earlyoom"] = FETCH.format("earlyoom")
    if program := programs.find("nohang"):
        taken.append(nohang("nohang", program, {}, ground))
    else:
        left_out["nohang"] = FETCH.format("nohang")
    missing = _systemd_oomd_missing() if is_v2 else "acts on cgroup v2 alone"
    if missing is None:
        taken.append(_systemd_oomd("systemd-oomd", _KILL, "", ground))
    else:
        left_out["systemd-oomd"] = missing
    return taken, left_out


def _no_daemon(ground: Ground) -> Contestant:
    return Contestant(
        name="no-daemon", role=Role.FLOOR, settings="the kernel alone", enter=_nobody, ground=ground
    )


def _reactor(
    name: str,
    hard: Mapping[str, str],
    rules: Sequence[Mapping[str, Any]],
    others: Mapping[str, Any] = MappingProxyType({}),
    ground: Ground = _GROUND,
) -> Contestant:
    @contextmanager
    def enter(track: Track) -> Iterator[Entrant]:
        node = track.node.cgroup
        section = {"rules": rules_for(node, rules), **placed(node, others)}
        configuration = {"evictionHard": dict(hard)}
        with DaemonProcess(track.tool, track.directory, node, configuration, section) as daemon:
            if rules:
                daemon.wait_armed(RULE_PRESSURE, _PATIENCE_SECONDS)
            time.sleep(_SETTLED_SECONDS)
            yield at_its_post(daemon)

    thresholds = ", ".join(f"{key}<{value}" for key, value in hard.items()) or "no threshold"
    told = "; ".join(_told(rule) for rule in rules) or "no rules"
    told += "".join(f"; {key}: {value}" for key, value in others.items())
    return Contestant(
        name=name, role=Role.REACTOR, settings=f"{thresholds}; {told}", enter=enter, ground=ground
    )


def placed(node: str, section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section of the configuration that is about this node."""
    return dict(json.loads(json.dumps(dict(section)).replace(_NODE, node)))


def rules_for(node: str, rules: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rules whose cgroups lie in this node."""
    return [{**rule, "cgroups": [one.replace(_NODE, node) for one in rule["cgroups"]]} for rule in rules]


def _told(rule: Mapping[str, Any]) -> str:
    conditions = " and ".join(
        " ".join(f"{key} {value}" for key, value in condition.items()) for condition in rule["when"]
    )
    by = f" by {rule['by']}" if "by" in rule else ""
    return f"{rule['name']}: {conditions} for {rule['for']}, {rule['action']}{by}"


@contextmanager
def _nobody(_: Track) -> Iterator[Entrant]:
    yield Entrant()


def oomd_rulesets(node: str) -> Mapping[str, object]:
    """Return what Debian's /etc/oomd/oomd.json has, for this node in the place of its slices."""
    return _rulesets(node, pressure="60", duration="30", swap_free="10", delay=None)


def oomd_fastest_rulesets(node: str) -> Mapping[str, object]:
    """Return the same rules with the lowest limits and no time."""
    return _rulesets(node, pressure="10", duration="0", swap_free="90", delay="0")


def _rulesets(
    node: str, *, pressure: str, duration: str, swap_free: str, delay: str | None
) -> Mapping[str, object]:
    above = {"cgroup": node, "resource": "memory", "threshold": pressure, "duration": duration}
    kill = {"cgroup": f"{node}/*"} | ({} if delay is None else {"post_action_delay": delay})
    reclaimed = {"name": "memory_reclaim", "args": {"cgroup": node, "duration": "10"}}
    return {
        "rulesets": [
            {
                "name": "pressure",
                "detectors": [["pressure", {"name": "pressure_above", "args": above}, reclaimed]],
                "actions": [{"name": "kill_by_memory_size_or_growth", "args": kill}],
            },
            {
                "name": "protection against low swap",
                "detectors": [["free swap", {"name": "swap_free", "args": {"threshold_pct": swap_free}}]],
                "actions": [{"name": "kill_by_swap_usage", "args": kill}],
            },
        ]
    }


def _systemd_oomd_missing() -> str | None:
    if not _SYSTEMD_OOMD.exists() or not _SYSTEMD.is_dir():
        return "not installed, or systemd is not the init; install systemd-oomd, 254 or later"
    version = _systemctl("--version").split()[1]
    if int(version.partition(".")[0]) < 254:
        return f"systemd {version} knows no DelegateSubgroup=, by which the node lies in a unit: 254 or later"
    # In its turns it runs with the node's /proc/meminfo and with limits of the race's.
    if _property("ActiveState", "systemd-oomd.service") not in {"inactive", "failed"}:
        return "it guards this machine: systemctl stop systemd-oomd.service systemd-oomd.socket"
    if _property("ManagedOOMSwap", "--", "-.slice") == "kill":
        return (
            "the root slice has ManagedOOMSwap=kill: it would kill units of this machine for the node's swap"
        )
    return None


def _systemd_oomd(name: str, properties: Mapping[str, str], conf: str, ground: Ground) -> Contestant:
    @contextmanager
    def enter(track: Track) -> Iterator[Entrant]:
        _OOMD_DROP_IN.parent.mkdir(parents=True, exist_ok=True)
        _OOMD_CONF.parent.mkdir(parents=True, exist_ok=True)
        _OOMD_DROP_IN.write_text(
            # With "-" what an interrupted race has left does no harm.
            f"[Service]\nBindReadOnlyPaths=-{track.enclosure.meminfo}:/proc/meminfo\n",
            encoding="ascii",
        )
        _OOMD_CONF.write_text(f"[OOM]\n{conf}\n", encoding="ascii")
        try:
            _systemctl("daemon-reload")
            _systemctl("restart", "systemd-oomd.service")
            pid = int(_property("MainPID", "systemd-oomd.service"))
            yield Entrant(pid=pid, problem=_systemd_oomd_problem)
        finally:
            _systemctl("stop", "systemd-oomd.service", "systemd-oomd.socket")
            _OOMD_DROP_IN.unlink()
            _OOMD_CONF.unlink()
            _systemctl("daemon-reload")

    @contextmanager
    def unit() -> Iterator[str]:
        # The unit's own process is below it, so that the node beside that may have the controllers. It is not
        # to be killed: the unit would end, and the node with it.
        service = f"reactor-race-{os.getpid()}.service"
        # Nor does it stop, with all that is in the node, where one of the pods is killed.
        settings = {"Delegate": "yes", "DelegateSubgroup": "keeper", "OOMPolicy": "continue", **properties}
        options = [f"--property={key}={value}" for key, value in settings.items()]
        command = ["systemd-run", "--quiet", "--collect", f"--unit={service}", "--slice=-.slice", *options]
        _run([*command, "sleep", "infinity"])
        os.setxattr(CgroupTree.discover().memory_root / service / "keeper", "user.oomd_omit", b"1")
        try:
            yield f"{service}/"
        finally:
            _systemctl("stop", service)

    told = ", ".join(f"{key}={value}" for key, value in properties.items())
    settings = f"{told}; oomd.conf: {conf or 'as Debian ships it'}"
    return Contestant(
        name=name,
        role=Role.PEER,
        settings=settings,
        enter=enter,
        ground=replace(ground, within=unit),
    )


def _systemd_oomd_problem() -> str | None:
    state = _property("ActiveState", "systemd-oomd.service")
    return None if state == "active" else f"systemd-oomd.service is {state}"


def _property(name: str, *unit: str) -> str:
    return _systemctl("show", "--value", f"--property={name}", *unit).strip()


def _systemctl(*arguments: str) -> str:
    return _run(["systemctl", *arguments])


def _run(command: Sequence[str]) -> str:
    """Return what a command prints. Raises RefusedError where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE_SECONDS)
    if done.returncode:
        raise RefusedError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
