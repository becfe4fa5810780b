from __future__ import annotations

import stat

import pytest
import trio

from reactor.guard.listening import AnotherDaemonError
from reactor.guard.single_instance_lock import single_instance_lock


async def test_second_daemon_is_refused_while_the_first_guards_and_not_afterwards(tmp_path):
    state = tmp_path / "run" / "state.json"
    async with single_instance_lock(state, stand_by=False):
        with pytest.raises(AnotherDaemonError, match=r"state\.json\.lock.*--stand-by"):
            async with single_instance_lock(state, stand_by=False):
                pass

    async with single_instance_lock(state, stand_by=False):
        assert stat.S_IMODE((tmp_path / "run" / "state.json.lock").stat().st_mode) == 0o600


async def test_successor_waits_for_the_first_to_end_and_not_longer(tmp_path, nursery):
    entered, waits = trio.Event(), trio.Event()

    async def successor():
        async with single_instance_lock(tmp_path / "state.json", stand_by=True, waits=waits.set):
            entered.set()

    async with single_instance_lock(
        tmp_path / "state.json", stand_by=True, waits=lambda: pytest.fail("it waits")
    ):
        nursery.start_soon(successor)
        with trio.fail_after(10):
            await waits.wait()
        assert not entered.is_set()
    with trio.fail_after(10):
        await entered.wait()


async def test_successor_that_is_told_to_end_while_it_waits_leaves_the_lock_to_others(tmp_path):
    async with single_instance_lock(tmp_path / "state.json", stand_by=False):
        with trio.move_on_after(0.1) as waiting:
            async with single_instance_lock(tmp_path / "state.json", stand_by=True):
                pass
        assert waiting.cancelled_caught

    with trio.fail_after(10):
        async with single_instance_lock(tmp_path / "state.json", stand_by=True):
            pass


async def test_node_is_guarded_although_no_lock_can_be_made(tmp_path, caplog):
    (tmp_path / "run").write_text("a file where the directory would be")
    async with single_instance_lock(tmp_path / "run" / "state.json", stand_by=False):
        assert "a second daemon would not be noticed" in caplog.text
