"""`reactor demo`, whole, on this machine's kernel."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reactor.kernel.cgroup import CgroupTree
from reactor.testbed.allocator import compiled_tool
from reactor.testbed.daemon_process import wait_until
from tests.support.this_machine import allocator, cgroup_tree

COMMAND = [sys.executable, "-m", "reactor", "demo"]


@pytest.fixture
def tree() -> CgroupTree:
    allocator()
    return cgroup_tree()


def traces(tree: CgroupTree, pid: int) -> list[Path]:
    """Return the cgroups that the demo of this pid has left."""
    roots = {root for root in (tree.memory_root, tree.cpu_root, tree.freezer_root, tree.pids_root) if root}
    return [found for root in roots for found in root.glob(f"reactor-*-{pid}")]


def test_the_demo_evicts_the_hog_and_no_other_pod(tree: CgroupTree) -> None:
    demo = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = demo.communicate(timeout=120)
    assert (0, "") == (demo.returncode, err)
    stages = ["armed", "hog starts", "crossing", "woken", "decided", "killed", "memory back"]
    shown = re.findall(r"^ *[+-][0-9]+\.[0-9]{2}  ([a-z ]+?)  ", out, re.MULTILINE)
    assert stages == [stage for stage in shown if stage in stages]
    assert "Defended: killed" in out
    assert [] == traces(tree, demo.pid)


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("pod", ["database", "web", "batch-job"])
def test_an_interrupted_demo_leaves_nothing_behind(
    tree: CgroupTree, number: signal.Signals, pod: str
) -> None:
    demo = subprocess.Popen(COMMAND, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    cgroup = f"/reactor-demo-{demo.pid}/{pod}"
    inside: list[int] = []

    def a_process_lives_there() -> bool:
        inside[:] = tree.processes(cgroup) if tree.exists(cgroup) else []
        return bool(inside) or demo.poll() is not None

    assert wait_until(a_process_lives_there, 60)
    demo.send_signal(number)
    _, err = demo.communicate(timeout=60)
    assert (130, "reactor demo: interrupted; everything is cleaned up\n") == (demo.returncode, err)
    assert [] == traces(tree, demo.pid)
    # A child that the signal caught half-started may still have to be collected by init.
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in inside), 10)


def test_without_a_compiler_the_demo_takes_what_make_bpf_has_built_or_says_what_to_install(
    tree: CgroupTree, tmp_path: Path
) -> None:
    environment = {**os.environ, "PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    is_built = "compiled" in compiled_tool().parts
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False, env=environment)
    assert (0 if is_built else 2) == done.returncode
    assert ("Defended" in done.stdout) is is_built
    assert ("apt-get install gcc" in done.stderr) is not is_built
    assert tree.exists("/")
