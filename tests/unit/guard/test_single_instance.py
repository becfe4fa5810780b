from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import trio
import trio.testing

from reactor import healthz
from reactor.errors import ConfigError
from reactor.guard.single_instance import (
    AnotherDaemonError,
    NodeLock,
    is_stood_by,
    single_instance_lock,
)
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.files import try_lock
from reactor.model.settings import Settings
from tests.support.waiting import until


async def test_second_daemon_is_refused_while_the_first_guards_and_not_afterwards(tmp_path):
    state = tmp_path / "run" / "state.json"
    async with single_instance_lock(state, stand_by=False):
        with pytest.raises(AnotherDaemonError, match=r"state\.json\.lock.*--stand-by"):
            async with single_instance_lock(state, stand_by=False):
                pass

    async with single_instance_lock(state, stand_by=False):
        assert stat.S_IMODE((tmp_path / "run" / "state.json.lock").stat().st_mode) == 0o600


async def test_daemons_of_other_state_files_are_refused_on_the_same_node_and_on_no_other(tmp_path):
    nodes = []
    for name in ("a", "a", "b"):
        (tmp_path / name).touch()
        nodes.append(os.open(tmp_path / name, os.O_WRONLY))
    states = [tmp_path / f"{number}.json" for number in range(3)]
    async with (
        single_instance_lock(states[0], stand_by=False, node=nodes[0].__int__),
        single_instance_lock(states[2], stand_by=False, node=nodes[2].__int__),
    ):
        with pytest.raises(AnotherDaemonError, match=r"the node's lock: .*reactor\.stateFile, .*--stand-by"):
            async with single_instance_lock(states[1], stand_by=False, node=nodes[1].__int__):
                pass
        async with single_instance_lock(states[1], stand_by=False):  # one that evicts nothing
            pass
    for node in nodes:
        os.close(node)


@pytest.fixture
def two_daemons(tmp_path: Path) -> tuple[NodeLock, NodeLock]:
    """Return the locks of two daemons, which have theirs of no node yet; `_of` names the nodes."""
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "memory.reclaim").touch(0o600)
    tree = CgroupTree(version=CgroupVersion.V2, memory_root=tmp_path)
    return NodeLock(tree), NodeLock(tree)


def _of(node: str, *, dry_run: bool = False) -> Settings:
    return Settings(node_cgroup=f"/{node}", pod_parents=(f"/{node}",), dry_run=dry_run)


def test_a_reload_holds_the_locks_of_both_nodes_until_it_is_in_force(two_daemons) -> None:
    lock, other = two_daemons
    other.begin(_of("c", dry_run=True))
    fd = lock.begin(_of("a"))
    assert fd is not None
    assert try_lock(fd)

    lock.change(_of("b"))
    lock.change(_of("c"))  # before the one to b is in force
    lock.keep(_of("b"), _of("c"))

    other.change(_of("a"))
    for node in "bc":
        with pytest.raises(
            ConfigError, match=rf"reactor\.nodeCgroup: got '/{node}'; accepted: another node,"
        ):
            other.change(_of(node))
    lock.keep(_of("c"), None)
    other.change(_of("b"))
    lock.keep()
    other.change(_of("c"))


def test_a_dry_run_holds_no_lock_of_the_node_and_a_reload_takes_it_if_it_can(two_daemons) -> None:
    lock, other = two_daemons
    assert lock.begin(_of("a", dry_run=True)) is None
    other.begin(_of("b", dry_run=True))
    lock.change(_of("a"))

    with pytest.raises(ConfigError, match=r"reactor\.dryRun: got false; accepted: true, or no pods\.parents"):
        other.change(_of("a"))
    lock.keep(_of("a", dry_run=True), None)

    other.change(_of("a"))


def test_a_daemon_takes_no_lock_of_the_node_before_its_turn(two_daemons) -> None:
    lock, other = two_daemons
    other.change(_of("a"))
    fd = lock.begin(_of("a"))
    assert fd is not None
    assert try_lock(fd)


async def test_successor_waits_for_the_first_to_end_and_not_longer(tmp_path, nursery):
    entered, waits = trio.Event(), trio.Event()

    async def successor():
        async with single_instance_lock(tmp_path / "state.json", stand_by=True, waits=waits.set):
            entered.set()

    async with single_instance_lock(
        tmp_path / "state.json", stand_by=True, waits=lambda: pytest.fail("it waits")
    ):
        nursery.start_soon(successor)
        with trio.fail_after(90):
            await waits.wait()
        assert not entered.is_set()
    with trio.fail_after(90):
        await entered.wait()


async def test_successor_that_is_told_to_end_while_it_waits_leaves_the_lock_to_others(tmp_path):
    async with single_instance_lock(tmp_path / "state.json", stand_by=False):
        with trio.move_on_after(0.1) as waiting:
            async with single_instance_lock(tmp_path / "state.json", stand_by=True):
                pass
        assert waiting.cancelled_caught

    with trio.fail_after(90):
        async with single_instance_lock(tmp_path / "state.json", stand_by=True):
            pass


async def test_node_is_guarded_although_no_lock_can_be_made(tmp_path, caplog):
    (tmp_path / "run").write_text("a file where the directory would be")
    async with single_instance_lock(tmp_path / "run" / "state.json", stand_by=False):
        assert "a second daemon would not be noticed" in caplog.text


async def test_a_daemon_sees_that_a_successor_stands_by_and_that_it_does_so_no_more(tmp_path, nursery):
    state = tmp_path / "state.json"
    scopes = [trio.CancelScope(), trio.CancelScope()]

    async def successor(scope):
        with scope:
            async with single_instance_lock(state, stand_by=True):
                await trio.sleep_forever()

    async with single_instance_lock(state, stand_by=True):
        assert not is_stood_by(state)
        for scope in scopes:
            nursery.start_soon(successor, scope)
        await until(lambda: is_stood_by(state))
        for scope in scopes:
            assert is_stood_by(state)
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
        assert not is_stood_by(state)


async def test_a_successor_that_has_taken_over_stands_by_no_more(tmp_path, nursery):
    state = tmp_path / "state.json"
    guards = trio.Event()

    async def successor():
        async with single_instance_lock(state, stand_by=True):
            guards.set()
            await trio.sleep_forever()

    async with single_instance_lock(state, stand_by=True):
        nursery.start_soon(successor)
        await until(lambda: is_stood_by(state))
    with trio.fail_after(90):
        await guards.wait()
    assert not is_stood_by(state)
    nursery.cancel_scope.cancel()


def test_where_no_file_can_be_made_no_successor_is_seen(tmp_path):
    (tmp_path / "run").write_text("a file where the directory would be")
    assert not is_stood_by(tmp_path / "run" / "state.json")


async def test_a_successor_that_stands_by_is_alive_for_a_probe_of_its_own_socket_and_no_longer(
    tmp_path, nursery
):
    state, socket_path = tmp_path / "node" / "state.json", tmp_path / "pod" / "reactor.sock"
    entered, waits, leave = trio.Event(), trio.Event(), trio.Event()

    async def successor():
        async with single_instance_lock(state, stand_by=True, waits=waits.set, socket_path=socket_path):
            entered.set()
            await leave.wait()

    assert healthz.problem(str(socket_path)) is not None
    async with single_instance_lock(state, stand_by=False, socket_path=tmp_path / "other.sock"):
        nursery.start_soon(successor)
        with trio.fail_after(90):
            await waits.wait()
        await until(lambda: healthz.problem(str(socket_path)) is None)
        assert healthz.problem(str(tmp_path / "other.sock")) is not None
    with trio.fail_after(90):
        await entered.wait()
    assert healthz.problem(str(socket_path)) is not None  # it guards, and does not answer yet
    leave.set()
