"""stress-ng's stressors of memory, one pod each beside an honest pod and a probe, on a virtual node.

The stressor's pod is the only one that may be evicted, whatever it does, and the kernel's OOM killer finds
nothing to do. What each stressor came to is kept in `.cache/outside/stress-ng.json`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.processes import hold
from tests.support.this_machine import oom_killed_in
from tests.support.waiting import eventually

ROOT: Final = Path(__file__).parents[2]
FETCHED: Final = ROOT / ".cache/outside/root"
FIGURES: Final = ROOT / ".cache/outside/stress-ng.json"
NODE_MIB: Final = 512
THRESHOLD_MIB: Final = 100
HONEST_MIB: Final = 60
SECONDS: Final = 20.0
# More than the node has; each has to be killed, or to end by itself.
MORE: Final = "700M"
STRESSORS: Final[Mapping[str, tuple[str, ...]]] = {
    "bigheap": ("--bigheap", "2"),  # without --bigheap-bytes it takes all that there is
    "bigheap 0": ("--bigheap", "0"),  # one for each CPU
    "brk": ("--brk", "2"),
    "fork": ("--fork", "4", "--fork-vm"),
    "madvise": ("--madvise", "2"),
    "malloc": ("--malloc", "2", "--malloc-bytes", MORE, "--malloc-touch"),
    "memfd": ("--memfd", "2", "--memfd-bytes", MORE),
    "memthrash": ("--memthrash", "2"),
    "mlockmany": ("--mlockmany", "2", "--pathological"),
    "mmap": ("--mmap", "2", "--mmap-bytes", MORE),
    "mmapfork": ("--mmapfork", "1"),
    "mmapmany": ("--mmapmany", "2"),
    "mremap": ("--mremap", "2", "--mremap-bytes", MORE),
    "oom-pipe": ("--oom-pipe", "2", "--pathological"),
    "remap": ("--remap", "2"),
    "rmap": ("--rmap", "2"),
    "shm": ("--shm", "2", "--shm-bytes", MORE),
    "shm-sysv": ("--shm-sysv", "2", "--shm-sysv-bytes", "400M"),
    "stack": ("--stack", "2", "--stack-fill"),
    "userfaultfd": ("--userfaultfd", "2", "--userfaultfd-bytes", MORE),
    "vm": ("--vm", "2", "--vm-bytes", MORE, "--vm-keep"),
    "vm, huge pages": ("--vm", "2", "--vm-bytes", MORE, "--vm-keep", "--vm-madvise", "hugepage"),
    "vm, locked": ("--vm", "2", "--vm-bytes", MORE, "--vm-locked"),
    "vm, populated": ("--vm", "2", "--vm-bytes", MORE, "--vm-populate"),
    "vm-rw": ("--vm-rw", "2", "--vm-rw-bytes", MORE),
    "vm-splice": ("--vm-splice", "2", "--vm-splice-bytes", "64M"),
}
PROBE: Final = """
import sys, time
longest, last = 0.0, time.monotonic()
while True:
    time.sleep(0.02)
    now = time.monotonic()
    longest, last = max(longest, now - last - 0.02), now
    with open(sys.argv[1], "w") as file:
        file.write(str(longest))
"""


@pytest.fixture
def node_mib() -> int:
    return NODE_MIB


@pytest.fixture(scope="module")
def stress_ng() -> list[str]:
    """Return the command that runs stress-ng: what was fetched, or what is installed."""
    libraries = [FETCHED / "usr/lib/x86_64-linux-gnu", FETCHED / "usr/lib/x86_64-linux-gnu/judy"]
    fetched = FETCHED / "usr/bin/stress-ng"
    if fetched.exists():
        command = ["env", f"LD_LIBRARY_PATH={':'.join(map(str, libraries))}", str(fetched)]
    elif (found := shutil.which("stress-ng")) is not None:
        command = [found]
    else:
        pytest.skip("no stress-ng: make test-outside fetches it, or apt-get install stress-ng")
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"stress-ng does not run here: {done.stderr.strip()[:200]}")
    return command


def keep(name: str, figures: Mapping[str, Any]) -> None:
    known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    known["about"] = {"kernel": os.uname().release, "cpus": os.cpu_count()}
    FIGURES.parent.mkdir(parents=True, exist_ok=True)
    FIGURES.write_text(json.dumps({**known, name: figures}, indent=1, sort_keys=True))


@pytest.mark.parametrize("name", STRESSORS)
def test_a_stressor_of_memory_costs_its_own_pod_alone(
    name: str, node: VirtualNode, daemon: RunningDaemon, stress_ng: list[str], tmp_path: Path
) -> None:
    honest, probe, hog = (node.add_pod(one) for one in ("honest", "probe", "hog"))
    gap = tmp_path / "gap"
    survivors = [
        node.spawn(honest, hold(HONEST_MIB)),
        node.spawn(probe, [sys.executable, "-S", "-c", PROBE, str(gap)]),
    ]
    eventually(gap.exists, "the probe runs")
    daemon.configure({"evictionHard": {"memory.available": f"{THRESHOLD_MIB}Mi"}})
    daemon.start()
    options = ["--timeout", f"{SECONDS:.0f}", "--temp-path", str(tmp_path), "--quiet"]
    started = time.monotonic()
    stressor = node.spawn(hog, [*stress_ng, *STRESSORS[name], *options])
    eventually(lambda: stressor.poll() is not None or daemon.evictions(), f"{name} ends", 4 * SECONDS)
    took_seconds = time.monotonic() - started
    eventually(lambda: stressor.poll() is not None, f"{name} is gone", 4 * SECONDS)
    if stressor.returncode == -signal.SIGKILL:
        eventually(daemon.evictions, "the journal has who killed it")
    lines = daemon.evictions()

    struck = {one: oom_killed_in(node, one) for one in (node.cgroup, honest, probe, hog)}
    killed_ms = [
        (one["killed_ns"] - line["timing"]["woke_ns"]) / 1e6
        for line in lines
        for one in line["evictions"]
        if one["killed_ns"] is not None
    ]
    figures = {
        "evicted": daemon.evicted(),
        "seconds": round(took_seconds, 2),
        "woke_to_kill_ms": [round(one, 2) for one in killed_ms],
        "probe_gap_ms": round(float(gap.read_text() or 0) * 1e3, 1),
        "oom_killed": sum(struck.values()),
        "status": stressor.returncode,
    }
    keep(name, figures)
    print(f"{name}: {figures}")
    assert stressor.returncode in {0, -signal.SIGKILL}, "it did not run"
    assert [None, None] == [survivor.poll() for survivor in survivors]
    assert set(daemon.evicted()) <= {"hog"}
    assert len(daemon.evicted()) <= 1
    # With MAP_POPULATE on each CPU the kernel may come before a guard that waits for one: to the same pod.
    struck_in_hog = struck.pop(hog)
    assert {0} == set(struck.values())
    assert struck_in_hog == 0 or "--vm-populate" in STRESSORS[name]


def test_fifteen_pods_of_100_mb_on_a_node_of_2_gib_are_evicted_until_the_others_have_room(
    tmp_path: Path, stress_ng: list[str]
) -> None:
    """Talos' test, whose system takes more of the node: here a pod that is never evicted takes 700 MiB."""
    from tests.support.this_machine import virtual_node  # noqa: PLC0415 - a node of another size

    with virtual_node("talos", 2048) as node:
        daemon = RunningDaemon(tmp_path, node.cgroup)
        system = node.add_pod("system")
        holding = node.spawn(system, hold(700))
        daemon.configure({"evictionHard": {"memory.available": "100Mi"}}, {"pods": {"never": ["system"]}})
        daemon.start()
        try:
            options = ["--vm-hang", "0", "--vm-keep", "--page-in", "--timeout", "120", "--quiet"]
            command = [*stress_ng, "--vm", "1", "--vm-bytes", "100M", *options]
            pods = {f"stress-{number}": node.add_pod(f"stress-{number}") for number in range(15)}
            running = {
                name: node.spawn(cgroup, [*command, "--temp-path", str(tmp_path)])
                for name, cgroup in pods.items()
            }
            eventually(daemon.evictions, "an eviction", 60)
            passes = daemon.status()["passes"]
            eventually(lambda: daemon.status()["passes"] > passes + 2, "it is calm", 60)
            evicted = daemon.evicted()
            alive = [name for name, one in running.items() if one.poll() is None]
            keep("Talos' 15 of 100 MB", {"evicted": len(evicted), "alive": len(alive)})
            assert holding.poll() is None
            assert oom_killed_in(node, node.cgroup) == 0
            assert len(alive) + len(evicted) == len(pods)
            assert set(evicted).isdisjoint(alive)
            # No more than it took: what lives would not have fitted with one more of them.
            assert 700 + 95 * (len(alive) + 1) > 2048 - 100 - 95
        finally:
            daemon.stop()
