from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import trio
import trio.testing

from reactor.daemon.keeper import StateKeeper
from reactor.daemon.state import StateFile
from reactor.model.decisions import PolicyState
from reactor.model.signals import NodeCondition, Signal

PRESSED = PolicyState(conditions=(NodeCondition.MEMORY_PRESSURE,))


class File(StateFile):
    """Keeps what was saved, too."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "state" / "state.json")
        self.saved: list[PolicyState] = []

    def document(self, state: PolicyState) -> object:
        self.saved.append(state)
        return super().document(state)


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path)


async def saved(file: File, count: int) -> None:
    with trio.fail_after(5):
        while len(file.saved) < count:  # noqa: ASYNC110 - a plain list
            await trio.sleep(0.001)


async def test_state_that_matters_is_saved_and_only_once(nursery, file):
    keeper = StateKeeper(file)
    nursery.start_soon(keeper.run)
    keeper.show(PRESSED)
    await saved(file, 1)

    keeper.show(dataclasses.replace(PRESSED, observed_at={Signal.PID_AVAILABLE: 5.0}))
    await trio.testing.wait_all_tasks_blocked(0.01)

    assert file.saved == [PRESSED]


async def test_instants_that_moved_on_are_saved_where_that_is_wanted(nursery, file):
    keeper = StateKeeper(file)
    nursery.start_soon(keeper.run)
    keeper.show(PRESSED)
    await saved(file, 1)
    later = dataclasses.replace(PRESSED, condition_last_observed={NodeCondition.MEMORY_PRESSURE: 9.0})

    keeper.show(later, in_any_case=True)
    await saved(file, 2)

    assert file.saved[-1] == later


async def test_last_state_is_saved_at_the_end(file):
    keeper = StateKeeper(file)
    keeper.show(PRESSED)
    keeper.flush()

    assert file.saved == [PRESSED]


async def test_failed_write_is_said_once_counted_each_time_and_tried_again(file, caplog):
    failures = []
    file.path.parent.write_text("in the way")
    keeper = StateKeeper(file, lambda: failures.append(1))
    keeper.show(PRESSED)
    keeper.flush()
    keeper.flush()
    assert str(file.path.parent) in keeper.problem
    assert len(failures) == 2
    assert len(caplog.records) == 1

    file.path.parent.unlink()
    keeper.flush()
    assert keeper.problem is None
    assert file.load().conditions == PRESSED.conditions
