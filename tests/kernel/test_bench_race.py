"""The race on this machine's kernel: the enclosure, one heat after the other, a whole small meeting."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from bench.race.contestants import FLOOR, Entrant, limits
from bench.race.enclosure import Enclosure
from bench.race.heat import Course, Track
from reactor.kernel.cgroup import CgroupTree
from reactor.testbed.crossing import CAPACITY_BYTES
from reactor.testbed.daemon_process import wait_until
from reactor.testbed.virtual_node import VirtualNode
from tests.support.this_machine import open_descriptors
from tests.support.waiting import eventually

MIB = 1 << 20

# Whole races, of a program that no node has.
pytestmark = pytest.mark.nightly


@pytest.fixture
def node(tool: Path) -> Iterator[VirtualNode]:
    tree = CgroupTree.discover()
    with VirtualNode(tree, CAPACITY_BYTES, f"reactor-test-race-{os.getpid()}") as node:
        yield node


@pytest.fixture
def enclosure(node: VirtualNode, tmp_path: Path) -> Iterator[Enclosure]:
    with Enclosure(node, tmp_path) as enclosure:
        yield enclosure


def traces(tree: CgroupTree) -> list[Path]:
    roots = {root for root in (tree.memory_root, tree.freezer_root, tree.cpu_root) if root}
    cgroups = [path for root in roots for path in root.glob("reactor-race-*")]
    return [*cgroups, *Path("/var/tmp").glob("reactor-race-*")]


def told(enclosure: Enclosure, log: Path, script: str) -> str:
    """Return what a script prints in the enclosure."""
    assert 0 == enclosure.start(["/bin/sh", "-c", script], log).wait(30), log.read_text()
    return log.read_text()


def test_a_contestant_sees_only_the_processes_inside(
    node: VirtualNode, enclosure: Enclosure, tool: Path, tmp_path: Path
) -> None:
    pod = node.add_pod("pod")
    with enclosure.births():
        child = node.spawn(pod, [str(tool), "idle"])
    seen = told(enclosure, tmp_path / "log", "for p in /proc/[0-9]*; do cat $p/comm; done")
    assert 3 == len(seen.split())  # the enclosure's own, the allocator, the shell
    assert child.pid in node.tree.processes(pod)


def test_a_contestant_cannot_signal_anybody_outside(enclosure: Enclosure, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as outside:
        try:
            seen = told(enclosure, tmp_path / "log", f"kill -9 {outside.pid} 2>&1; kill -9 -1 2>&1; true")
            assert "No such process" in seen
            assert outside.poll() is None
        finally:
            outside.kill()


def test_a_contestant_has_a_process_group_of_its_own(enclosure: Enclosure, tmp_path: Path) -> None:
    """For one that signals process 0, which is what cgroup.procs calls a process outside."""
    seen = told(enclosure, tmp_path / "log", "read -r _ _ _ _ group _ </proc/self/stat; echo $$ $group")
    own, group = seen.split()
    assert own == group


def test_a_contestants_mounts_are_not_seen_outside(enclosure: Enclosure, tmp_path: Path) -> None:
    before = Path("/proc/self/mounts").read_text()
    seen = told(enclosure, tmp_path / "log", "cat /proc/self/mounts; ls -A /run; touch /run/here")
    assert "/proc/meminfo" in seen
    assert before == Path("/proc/self/mounts").read_text()
    assert not Path("/run/here").exists()


def test_meminfo_is_the_node_and_follows_it(
    node: VirtualNode, enclosure: Enclosure, tool: Path, tmp_path: Path
) -> None:
    def available_kib() -> int:
        return int(told(enclosure, tmp_path / "log", "grep MemAvailable /proc/meminfo").split()[1])

    total = told(enclosure, tmp_path / "log", "head -1 /proc/meminfo")
    assert f"MemTotal:{CAPACITY_BYTES // 1024:15} kB\n" == total
    before_kib = available_kib()
    hog = "import time; held = bytearray(b'x') * (100 << 20); time.sleep(99)"
    node.spawn(node.add_pod("pod"), [sys.executable, "-S", "-c", hog])
    assert wait_until(lambda: node.usage_bytes() > 100 * MIB, 30)
    assert 95 * 1024 < before_kib - available_kib() < 400 * 1024


def test_samples_are_taken_all_the_time(enclosure: Enclosure) -> None:
    began_ns = time.monotonic_ns()
    assert wait_until(lambda: len(enclosure.samples(began_ns)) > 20, 30)
    at_ns = [at for at, _ in enclosure.samples(began_ns)]
    assert sorted(at_ns) == at_ns
    assert at_ns[0] >= began_ns


def test_what_runs_inside_ends_with_the_enclosure(node: VirtualNode, tmp_path: Path) -> None:
    with Enclosure(node, tmp_path) as enclosure:
        log = tmp_path / "log"
        inside = enclosure.start(["/bin/sh", "-c", "echo inside; exec sleep 1000"], log)
        eventually(lambda: log.read_text() == "inside\n", "a program inside")
    assert -signal.SIGKILL == inside.wait(30)


def test_an_enclosure_leaves_no_descriptors_behind(node: VirtualNode, tmp_path: Path) -> None:
    before = open_descriptors()
    for _ in range(3):
        with Enclosure(node, tmp_path):
            pass
    assert before == open_descriptors()


def test_a_heat_is_measured_from_the_crossing_to_the_memory_back(
    node: VirtualNode, enclosure: Enclosure, tool: Path, tmp_path: Path
) -> None:
    track = Track(node, enclosure, tool, tmp_path)
    floor = next(one for one in limits(node.tree.version) if one.name == FLOOR)
    with floor.enter(track) as entrant:
        for course in (Course(pace="step"), Course(pace="1000", allocators=2)):
            finish = track.heat(course, entrant.arm, 10, 60)
            assert finish.crossed_ns
            assert finish.dead_ns
            assert finish.back_ns
            assert finish.crossed_ns < finish.dead_ns < finish.back_ns
            assert finish.peak_bytes >= finish.level_bytes
    assert () == node.tree.children(node.cgroup)


def test_page_cache_moves_the_level_and_is_dropped_afterwards(
    node: VirtualNode, enclosure: Enclosure, tool: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    course = Course(pace="step", has_cache=True)
    directory = tmp_path_factory.mktemp("cached")
    floor = next(one for one in limits(node.tree.version) if one.name == FLOOR)
    track = Track(node, enclosure, tool, directory)
    before_bytes = node.usage_bytes()
    with floor.enter(track) as entrant:
        if not floor.runs(course):
            pytest.skip("the event of this kernel's floor reclaims page cache; load the eBPF objects")
        finish = track.heat(course, entrant.arm, 10, 60)
    assert finish.level_bytes > 524 * MIB + 0.9 * course.cache_bytes
    assert finish.dead_ns
    assert wait_until(lambda: node.usage_bytes() < before_bytes + 16 * MIB, 30)


def test_a_heat_without_a_contestant_is_one_without_a_kill(
    node: VirtualNode, enclosure: Enclosure, tool: Path, tmp_path: Path
) -> None:
    finish = Track(node, enclosure, tool, tmp_path).heat(
        Course(pace="step"), lambda _: nullcontext(Entrant()), 0, 10
    )
    assert finish.crossed_ns
    assert (None, None) == (finish.dead_ns, finish.back_ns)
    assert () == node.tree.children(node.cgroup)


def test_a_small_race_is_told_stored_and_leaves_nothing(tool: Path, tmp_path: Path) -> None:
    arguments = ["--rounds", "1", "--heats", "1", "--courses", "step", "--results", str(tmp_path / "results")]
    only = ["--only", "reactor-memcg-eventfd,c-floor,kernel-oom"]
    if (tree := CgroupTree.discover()).version.name != "V1":
        only = ["--only", "reactor-memory-high,c-floor,kernel-oom"]
    done = subprocess.run(
        [sys.executable, "-m", "reactor", "bench", "race", *arguments, *only],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    assert "times the floor's" in done.stdout
    (stored,) = (tmp_path / "results").glob("*.json")
    found = json.loads(stored.read_text())
    assert 3 == len(found["heats"])
    assert all(heat["kill_ms"] is not None for heat in found["heats"])
    assert all(not one["problems"] for one in found["contestants"].values())
    assert [] == traces(tree)


def test_a_race_that_is_ended_early_leaves_nothing(tool: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "reactor",
        "bench",
        "race",
        "--only",
        "c-floor",
        "--results",
        str(tmp_path),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as race:
        assert race.stderr
        assert any("round 1" in line for line in race.stderr)
        race.send_signal(signal.SIGTERM)
        told = race.stderr.read()
        assert 130 == race.wait(60)
    assert "interrupted; everything is cleaned up" in told
    assert [] == traces(CgroupTree.discover())
    assert [] == list(tmp_path.iterdir())


@contextmanager
def after_one_turn(results: Path, stdout: int) -> Iterator[subprocess.Popen[str]]:
    """Have a long race run; the heats of its first contestant are over."""
    command = [sys.executable, "-m", "reactor", "bench", "race", "--only", "c-floor,kernel-oom"]
    command += ["--rounds", "50", "--courses", "step", "--results", str(results)]
    with subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True) as race:
        assert race.stderr
        turns = (line for line in race.stderr if "round 1 of 50" in line)
        assert next(turns)
        assert next(turns)  # it begins when the heats of the first one are over
        yield race


def stored_in(results: Path) -> dict[str, Any]:
    (stored,) = results.glob("*.json")
    found: dict[str, Any] = json.loads(stored.read_text())
    return found


def test_a_race_that_is_interrupted_stores_and_prints_the_heats_that_were_run(
    tool: Path, tmp_path: Path
) -> None:
    with after_one_turn(tmp_path, subprocess.PIPE) as race:
        race.send_signal(signal.SIGINT)
        printed, told = race.communicate(timeout=60)
        assert 130 == race.returncode
    found = stored_in(tmp_path)
    assert found["heats"]
    assert {heat["contestant"] for heat in found["heats"]} == set(found["contestants"])
    assert f"interrupted {found['about']['interrupted']}; everything is cleaned up" in told
    assert f"after {len(found['heats'])} of " in printed
    assert [] == traces(CgroupTree.discover())


def test_a_race_whose_progress_nobody_reads_any_more_stores_the_heats_that_were_run(
    tool: Path, tmp_path: Path
) -> None:
    with after_one_turn(tmp_path, subprocess.DEVNULL) as race:
        assert race.stderr
        race.stderr.close()
        race.wait(60)
    found = stored_in(tmp_path)
    assert f"after {len(found['heats'])} of 200 heats" == found["about"]["interrupted"]
    assert [] == traces(CgroupTree.discover())
