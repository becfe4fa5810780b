from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from reactor.guard.state import StateFile
from reactor.model.decisions import PolicyState
from reactor.model.signals import NodeCondition, Signal
from tests.support.builders import make_claim

PRESSED = PolicyState(conditions=(NodeCondition.MEMORY_PRESSURE,))


class File(StateFile):
    """Keeps what was saved, too."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "state" / "state.json")
        self.saved: list[PolicyState] = []
        self.threads: list[int] = []

    def save(self, state: PolicyState) -> bool:
        is_saved = super().save(state)
        self.threads.append(threading.get_ident())
        self.saved.append(state)
        return is_saved


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path)


async def saved(file: File, count: int) -> None:
    with trio.fail_after(90):
        while len(file.saved) < count:  # noqa: ASYNC110 - a plain list
            await trio.sleep(0.001)


async def test_state_that_matters_is_saved_and_only_once(nursery, file):
    nursery.start_soon(file.run)
    file.show(PRESSED)
    await saved(file, 1)

    file.show(PRESSED._replace(observed_at={Signal.PID_AVAILABLE: 5.0}))
    await trio.testing.wait_all_tasks_blocked(0.01)

    assert file.saved == [PRESSED]


async def test_state_that_is_as_it_was_again_is_saved_as_it_is(nursery, file):
    file.show(PRESSED)
    file.show(PolicyState())
    nursery.start_soon(file.run)
    await saved(file, 1)

    assert file.saved == [PolicyState()]


async def test_instants_that_moved_on_are_saved_where_that_is_wanted(nursery, file):
    nursery.start_soon(file.run)
    file.show(PRESSED)
    await saved(file, 1)
    later = PRESSED._replace(condition_last_observed={NodeCondition.MEMORY_PRESSURE: 9.0})

    file.show(later, in_any_case=True)
    await saved(file, 2)

    assert file.saved[-1] == later


async def test_last_state_is_saved_at_the_end(file):
    file.show(PRESSED)
    file.flush()

    assert file.saved == [PRESSED]


async def test_failed_write_is_said_once_counted_each_time_and_tried_again(tmp_path, caplog):
    file = File(tmp_path)
    file.path.parent.write_text("in the way")
    file.show(PRESSED)
    file.flush()
    file.flush()
    assert str(file.path.parent) in file.problem
    assert file.failures == 2
    assert len(caplog.records) == 1

    file.path.parent.unlink()
    file.flush()
    assert file.problem is None
    assert file.load().conditions == PRESSED.conditions


async def test_state_on_tmpfs_is_saved_by_the_loop_and_one_on_a_disk_or_a_long_one_by_a_thread(
    nursery, tmp_path, monkeypatch
):
    in_memory = [True]
    monkeypatch.setattr("reactor.kernel.small_file.lies_in_memory", lambda _: in_memory[0])
    claims = tuple(make_claim(f"{number}") for number in range(65))
    for is_in_memory, state, is_loop in (
        (True, PRESSED, True),
        (False, PRESSED, False),
        (True, PolicyState(claims=claims), False),
    ):
        in_memory[0] = is_in_memory
        file = File(tmp_path)
        nursery.start_soon(file.run)
        file.show(PolicyState(conditions=(NodeCondition.PID_PRESSURE,)))
        await saved(file, 1)  # which finds out where it lies
        file.show(state)
        await saved(file, 2)
        first, second = (thread == threading.get_ident() for thread in file.threads)
        assert (first, second) == (False, is_loop)
