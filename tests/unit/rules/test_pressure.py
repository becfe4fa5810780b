"""Triggers on pressure as rules want them: which are asked for, what is refused, what is closed."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from reactor.model.wakes import SourceHealth
from reactor.rules.pressure import MOST_TRIGGERS, RulePressure, Trigger
from reactor.sources.catalogue import RULE_PRESSURE, SourceBoard
from tests.support.pressure_triggers import Kernel
from tests.support.this_machine import open_descriptors


def trigger(name: str = "a", **others: Any) -> Trigger:
    return Trigger(
        **{
            "cgroup": f"/{name}",
            "inode": 1,
            "path": f"/{name}/memory.pressure",
            "resource": "memory",
            "kind": "full",
            "stall_seconds": 0.5,
            "window_seconds": 2.0,
            **others,
        }
    )


async def passing(is_so: Callable[[], bool]) -> None:
    """Let the other tasks and threads go on until something is so."""
    deadline = time.monotonic() + 90
    while not is_so():
        assert time.monotonic() < deadline
        await trio.lowlevel.checkpoint()


class Held:
    def __init__(self, pressure: RulePressure, board: SourceBoard, kernel: Kernel) -> None:
        self.pressure, self.board, self.kernel = pressure, board, kernel

    @property
    def state(self) -> tuple[SourceHealth, str]:
        state = self.board.state(RULE_PRESSURE)
        return state.health, state.detail


@pytest.fixture
async def held(nursery: trio.Nursery) -> Any:
    kernel, board = Kernel(), SourceBoard()
    pressure = RulePressure(board, open_one=kernel.open)
    await nursery.start(pressure.run)
    yield Held(pressure, board, kernel)
    nursery.cancel_scope.cancel()
    kernel.close()


@pytest.mark.parametrize(
    ("stall_seconds", "window_seconds", "asked"),
    [
        (0.5, 2.0, (500_000, 2_000_000)),
        (0.5, 1.0, (500_000, 1_000_000)),
        (3.0, 30.0, (1_000_000, 10_000_000)),  # in some ten of the thirty seconds a third of it
        (0.1, 0.2, (100_000, 500_000)),
        (1e-7, 2.0, (1, 2_000_000)),
    ],
)
async def test_a_window_is_one_that_the_kernel_grants_and_the_stall_in_proportion(
    held: Held, stall_seconds: float, window_seconds: float, asked: tuple[int, int]
) -> None:
    held.pressure.want([trigger(stall_seconds=stall_seconds, window_seconds=window_seconds)])
    await passing(lambda: "a" in held.kernel.far_ends)
    assert [("a", "full", *asked)] == held.kernel.asked


@pytest.mark.parametrize("refused", [errno.EINVAL, errno.EPERM])
async def test_a_window_that_is_refused_is_asked_for_as_one_of_whole_two_seconds(
    held: Held, refused: int
) -> None:
    held.kernel.refuses = lambda _, window_us: refused if window_us % 2_000_000 else None
    held.pressure.want([trigger(window_seconds=1.0), trigger("b", window_seconds=2.0)])
    await passing(lambda: len(held.kernel.far_ends) == 2)
    assert {("a", "full", 500_000, 1_000_000), ("a", "full", 500_000, 2_000_000)} == {
        one for one in held.kernel.asked if one[0] == "a"
    }
    held.kernel.stall("a")
    assert {trigger(window_seconds=1.0): False} == await held.pressure.wait(1e9)
    held.kernel.stall("b")
    await passing(lambda: held.board.state(RULE_PRESSURE).wakes >= 2)
    assert (await held.pressure.wait(1e9))[trigger("b")]


async def test_nothing_fires_at_rest_and_a_stall_names_its_cgroup(held: Held) -> None:
    held.pressure.want([trigger(), trigger("b")])
    await passing(lambda: (SourceHealth.ARMED, "2 triggers") == held.state)
    assert {} == await held.pressure.wait(0)
    held.kernel.stall("b")
    assert [trigger("b")] == list(await held.pressure.wait(1e9))


async def test_where_no_rule_is_on_pressure_the_source_is_off(held: Held) -> None:
    held.pressure.want([])
    off = SourceHealth.OFF, "no rule is on pressure"
    assert off == held.state
    held.pressure.want([trigger()])
    await passing(lambda: (SourceHealth.ARMED, "1 trigger") == held.state)
    held.pressure.want([])
    assert off == held.state
    await passing(lambda: not held.pressure.armed)
    assert off == held.state


async def test_what_is_refused_is_reported_and_tried_again_after_a_minute(
    held: Held, mock_clock: trio.testing.MockClock
) -> None:
    held.kernel.refuses = lambda name, _: errno.EOPNOTSUPP if name != "b" else errno.ENOSPC
    wanted = [trigger(), trigger("b")]
    held.pressure.want(wanted)
    await passing(lambda: "2 refused" in held.state[1])
    health, detail = held.state
    assert SourceHealth.DEGRADED == health
    assert detail.startswith("0 triggers for 2 wanted; the others are observed by the clock; 2 refused")
    assert os.strerror(errno.EOPNOTSUPP) in detail
    assert os.strerror(errno.ENOSPC) in detail

    held.pressure.want(wanted)
    assert frozenset() == held.pressure.armed
    mock_clock.jump(61)
    held.kernel.refuses = lambda *_: None
    held.pressure.want(wanted)
    await passing(lambda: (SourceHealth.ARMED, "2 triggers") == held.state)


async def test_so_many_are_held_and_the_others_are_counted(held: Held) -> None:
    held.pressure.want([trigger(f"c{number}") for number in range(MOST_TRIGGERS + 10)], 5)
    await passing(lambda: len(held.kernel.far_ends) == MOST_TRIGGERS)
    await passing(lambda: MOST_TRIGGERS == len(held.pressure.armed) == len(held.kernel.asked))
    assert f"{MOST_TRIGGERS} triggers for {MOST_TRIGGERS + 15} wanted" in held.state[1]


async def test_cgroups_that_come_and_go_leave_no_descriptor(nursery: trio.Nursery) -> None:
    kernel, board = Kernel(), SourceBoard()
    pressure = RulePressure(board, open_one=kernel.open)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as inner:
            await inner.start(pressure.run)
            pressure.want([trigger("stays")])
            await passing(lambda: frozenset({trigger("stays")}) == pressure.armed)
            before = open_descriptors()
            for number in range(40):
                name = f"c{number}"
                pressure.want([trigger("stays"), trigger(name)])
                if number % 2:
                    await passing(lambda name=name: name in kernel.far_ends)  # type: ignore[misc]
            pressure.want([trigger("stays")])
            await passing(lambda: frozenset({trigger("stays")}) == pressure.armed)

            def close_far_ends() -> bool:
                for name in [name for name in kernel.far_ends if name != "stays"]:
                    kernel.far_ends.pop(name).close()
                return open_descriptors() == before

            await passing(close_far_ends)
            scope.cancel()
    assert SourceHealth.OFF is board.state(RULE_PRESSURE).health
    kernel.close()
    await passing(lambda: open_descriptors() <= before - 3)  # of the one that stayed


async def test_one_that_is_gone_is_closed_and_nothing_else_ends(held: Held) -> None:
    held.pressure.want([trigger(), trigger("b")])
    await passing(lambda: len(held.pressure.armed) == 2)
    linger = struct.pack("ii", 1, 0)  # a reset: an error, as a trigger shows whose cgroup is gone
    far = held.kernel.far_ends.pop("a")
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    far.close()
    await passing(lambda: frozenset({trigger("b")}) == held.pressure.armed)
    assert os.strerror(errno.ENODEV) in held.state[1]
    held.kernel.stall("b")
    assert [trigger("b")] == list(await held.pressure.wait(1e9))
