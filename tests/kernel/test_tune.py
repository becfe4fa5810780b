"""`reactor tune`, whole, on this machine's kernel."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.model.settings import Settings
from reactor.testbed.crossing import CAPACITY_BYTES, LEVEL_BYTES, THRESHOLDS, Crossings, bench_node
from reactor.testbed.daemon_process import DaemonProcess, wait_until
from reactor.tune.history import history_in
from reactor.tune.measure import check_calm
from reactor.tune.measured import stored_in
from tests.support.this_machine import allocator, cgroup_tree

COMMAND = [sys.executable, "-m", "reactor", "tune", "--loads", "idle", "--pods", "2"]
MIB = 1 << 20


@pytest.fixture
def tree() -> CgroupTree:
    allocator()
    tree = cgroup_tree()
    try:
        check_calm(tree, Settings())
    except ReactorError as error:
        pytest.skip(f"needs 1.3 GiB of room: {error}")
    return tree


def traces(tree: CgroupTree, pid: int) -> list[Path]:
    """Return the cgroups that the run of this pid has left."""
    roots = {root for root in (tree.memory_root, tree.cpu_root, tree.freezer_root, tree.pids_root) if root}
    return [found for root in roots for found in root.glob(f"reactor-*-{pid}")]


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_short_run_measures_recommends_and_leaves_nothing_behind(tree: CgroupTree, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("evictionHard: {memory.available: 1Mi}\n")
    for minutes in ("0.4", "2"):  # the second where other work has left the first too little
        results = tmp_path / minutes
        arguments = ["--minutes", minutes, "--results", str(results), "--config", str(config)]
        run = subprocess.Popen(
            [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        out, err = run.communicate(timeout=170)
        assert [] == traces(tree, run.pid)
        if "too few crossings" not in err:
            break
    assert 0 == run.returncode, out + err
    assert "memory.available<1Mi is below the reserve" in out
    (directory,) = results.iterdir()
    measured, _ = stored_in(directory / "measured.json")
    assert {1, 2} <= {growth.allocators for growth in measured.growths}
    assert all(growth.rate_bytes > MIB for growth in measured.growths)
    for reaction in measured.reactions:
        assert 0 < reaction.kill_seconds
        assert reaction.wake_seconds <= reaction.kill_seconds
        assert 300 * MIB < reaction.victim_bytes < 1024 * MIB
    recommendation = json.loads((directory / "measured.json").read_text())["recommendation"]
    hard, soft = recommendation["hard_bytes"], recommendation["soft"]["threshold_bytes"]
    assert measured.node.reserve.total_bytes <= hard < soft <= measured.node.capacity_bytes
    slowest = max(reaction.kill_seconds for reaction in measured.reactions)
    assert recommendation["terms"]["reaction_seconds"] >= slowest
    checked = [sys.executable, "-m", "reactor", "config", "check", str(directory / "reactor.yaml")]
    assert 0 == subprocess.run(checked, check=False, stdout=subprocess.DEVNULL).returncode


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("node", ["reactor-tune", "reactor-bench"])
def test_an_interrupted_run_tells_what_it_has_and_leaves_nothing_behind(
    tree: CgroupTree, tmp_path: Path, number: signal.Signals, node: str
) -> None:
    arguments = ["--minutes", "1", "--results", str(tmp_path)]
    run = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    cgroup = f"/{node}-{run.pid}"
    inside: list[int] = []

    def is_measuring() -> bool:
        inside[:] = tree.processes(cgroup) if tree.exists(cgroup) else []
        return bool(inside) or run.poll() is not None

    assert wait_until(is_measuring, 60)
    run.send_signal(number)
    _, err = run.communicate(timeout=60)
    assert 130 == run.returncode, err
    assert "reactor tune: interrupted; everything is cleaned up" in err
    assert re.search("nothing to recommend: (too few crossings were measured|only|no allocator)", err)
    assert [] == traces(tree, run.pid)
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in inside), 10)
    (directory,) = tmp_path.iterdir()
    measured, _ = stored_in(directory / "measured.json")
    assert measured.interrupted


def test_what_a_daemon_has_journaled_is_read_as_history(tree: CgroupTree, tool: Path, tmp_path: Path) -> None:
    thresholds = {
        **THRESHOLDS,
        "evictionSoft": {"memory.available": f"{(CAPACITY_BYTES - LEVEL_BYTES) // MIB + 40}Mi"},
        "evictionSoftGracePeriod": {"memory.available": "10m"},
    }
    with (
        bench_node(tree, tool, pods=2) as node,
        DaemonProcess(tool, tmp_path, node.cgroup, thresholds, {}) as daemon,
    ):
        crossings = Crossings(node, daemon, tool, tmp_path)
        victims = [crossings.run(200 * MIB).times.peak_bytes for _ in range(2)]
        journal = daemon._journal
    found = history_in([journal], transition_seconds=300)
    assert (0, 2, 0) == (found.unread, len(found.crossings), found.missed)
    for crossing in found.crossings:
        assert (True, 1) == (crossing.is_hard, crossing.evicted)
        assert crossing.killed_seconds
        assert crossing.freed_seconds
        assert crossing.victim_bytes
        assert crossing.victim_bytes <= max(victims)
    # The second came while MemoryPressure was in force still, so nothing tells when memory began to go.
    (rate,) = found.rates_bytes
    assert 0 < rate < 400 * MIB
    assert found.lowest_available_bytes
    assert found.lowest_available_bytes < CAPACITY_BYTES - LEVEL_BYTES
