"""The virtual node on this machine's cgroups."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reactor.kernel.cgroup import CgroupTree
from reactor.testbed.virtual_node import VirtualNode, ended_by_signals
from tests.support.this_machine import cgroup_tree

MIB = 1 << 20
PAUSE = [sys.executable, "-S", "-c", "import signal; signal.pause()"]


@pytest.fixture
def tree() -> CgroupTree:
    return cgroup_tree()


@pytest.fixture
def node(tree: CgroupTree) -> Iterator[VirtualNode]:
    with VirtualNode(tree, 64 * MIB, f"reactor-test-lab-{os.getpid()}") as node:
        yield node


def traces(tree: CgroupTree, name: str) -> list[Path]:
    roots = {root for root in (tree.memory_root, tree.cpu_root, tree.freezer_root, tree.pids_root) if root}
    return [root / name for root in roots if (root / name).exists()]


def test_the_limit_is_the_nodes_capacity(node: VirtualNode) -> None:
    assert 64 * MIB == node.tree.memory_limit_bytes(node.cgroup)


def test_a_pod_has_what_it_was_made_with(node: VirtualNode) -> None:
    pod = node.add_pod("pod", request_bytes=8 * MIB, limit_bytes=16 * MIB, priority=7)
    assert (8 * MIB, 16 * MIB) == (node.tree.memory_request_bytes(pod), node.tree.memory_limit_bytes(pod))
    attributes = os.listxattr(node.tree.path(pod))
    assert [b"7"] == [
        os.getxattr(node.tree.path(pod), a) for a in attributes if a.endswith("reactor.priority")
    ]


def test_a_command_is_in_its_pod_from_its_first_instruction_on(node: VirtualNode, tmp_path: Path) -> None:
    pod = node.add_pod("pod")
    seen = tmp_path / "seen"
    child = node.spawn(pod, ["/bin/sh", "-c", f"cat /proc/self/cgroup > {seen}"])
    assert 0 == child.wait(10)
    joined = [line.split(":")[1:] for line in seen.read_text().splitlines() if line.endswith(pod)]
    assert len(joined) == len(traces(node.tree, node.cgroup[1:]))


def test_a_removed_pod_leaves_its_neighbour_alone(node: VirtualNode) -> None:
    one, other = node.add_pod("one"), node.add_pod("other")
    victim, neighbour = node.spawn(one, PAUSE), node.spawn(other, PAUSE)
    node.remove_pod(one)
    assert -signal.SIGKILL == victim.wait(60)
    assert neighbour.poll() is None
    assert ("other",) == node.tree.children(node.cgroup)


def test_an_error_in_the_body_leaves_nothing_behind(tree: CgroupTree) -> None:
    name = f"reactor-test-lab-{os.getpid()}"
    node = VirtualNode(tree, 64 * MIB, name)
    children = []

    def fail() -> None:
        with node:
            children.append(node.spawn(node.add_pod("pod"), PAUSE))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [] == traces(tree, name)
    assert -signal.SIGKILL == children[0].returncode
    node.clean_up()


def test_a_node_of_the_same_name_is_not_taken_over(node: VirtualNode) -> None:
    pod = node.add_pod("pod")
    with pytest.raises(FileExistsError):
        VirtualNode(node.tree, 64 * MIB, node.cgroup[1:]).__enter__()
    assert node.tree.exists(pod)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_behind(tree: CgroupTree, number: signal.Signals) -> None:
    name = f"reactor-test-lab-{os.getpid()}-{number.name}"
    code = (
        "import sys, time\n"
        "from reactor.kernel.cgroup import CgroupTree\n"
        "from reactor.testbed.virtual_node import VirtualNode, ended_by_signals\n"
        "with ended_by_signals(), VirtualNode(CgroupTree.discover(), 64 << 20, sys.argv[1]) as node:\n"
        "    print(node.spawn(node.add_pod('pod'), ['sleep', '1000']).pid, flush=True)\n"
        "    time.sleep(1000)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout
        pid = int(child.stdout.readline())
        child.send_signal(number)
    assert [] == traces(tree, name)
    assert not Path(f"/proc/{pid}").exists()


def test_signals_have_their_own_meaning_again_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with ended_by_signals(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    assert before == signal.getsignal(signal.SIGTERM)
