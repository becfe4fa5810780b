from __future__ import annotations

import logging
import threading

import pytest
import trio
import trio.testing

from reactor.guard.loop import Housekeeping
from reactor.kernel.scheduling import Bounded
from reactor.model.signals import Signal
from reactor.sources.wakes import Wakes


class FakeWatch:
    """Filesystems that are looked at at once."""

    def __init__(self) -> None:
        self.looks = 0
        self.problems = {"nodefs /": "read-only"}

    async def refresh(self) -> None:
        self.looks += 1


class FakeStorage:
    """Storage that is asked to be looked at."""

    def __init__(self) -> None:
        self.asked = 0
        self.problems = {}

    def due(self) -> None:
        self.asked += 1


@pytest.fixture
def make_housekeeping():
    def make(loop, wakes=None, filesystems=None, storage=None):
        watches = (filesystems or FakeWatch(), storage or FakeStorage())
        return Housekeeping(loop.passes, *watches, wakes or Wakes())

    return make


async def test_housekeeping_finds_pods_looks_at_filesystems_and_wakes_the_loop(
    nursery, make_loop, make_pod, make_housekeeping
):
    loop, wakes, watch, storage = make_loop(), Wakes(), FakeWatch(), FakeStorage()
    housekeeping = make_housekeeping(loop, wakes, watch, storage)
    loop.pods.present = (make_pod("new"),)
    nursery.start_soon(housekeeping.run)

    housekeeping.due()
    (wake,) = await wakes.wait()

    assert wake.source == "housekeeping"
    assert [pod.name for pod in loop.known.pods] == ["new"]
    assert (watch.looks, storage.asked) == (1, 1)
    assert housekeeping.problems == watch.problems


async def test_absurd_threshold_is_a_problem_for_as_long_as_it_is_one(
    make_loop, make_threshold, observation, make_housekeeping
):
    loop = make_loop(make_threshold(600 << 20))
    housekeeping = make_housekeeping(loop)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(400 << 20)}
    loop.passes.make(())
    name = f"threshold memory.available<{600 << 20}"
    assert "ignored: it is not below the 512Mi that the node has" in housekeeping.problems[name]

    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(400 << 20, 1 << 30)}
    loop.passes.make(())
    assert name not in housekeeping.problems


async def test_hung_call_takes_one_thread_and_answers_again_when_it_is_back():
    hung, calls = threading.Event(), []

    def call() -> str:
        calls.append(1)
        hung.wait()
        return "answer"

    bounded = Bounded(call, 0.05)
    assert [await bounded.ask() for _ in range(3)] == [None, None, None]
    assert len(calls) == 1

    hung.set()
    answer = None
    for _ in range(5000):
        answer = answer or await bounded.ask()
        await trio.sleep(0 if answer else 0.001)
    assert (answer, bounded.problem) == ("answer", None)


async def test_failed_call_is_a_problem_and_no_answer():
    def call() -> None:
        raise OSError(5, "Input/output error", "/mnt")

    bounded = Bounded(call, 5)

    assert await bounded.ask() is None
    assert "Input/output error" in bounded.problem


async def test_call_that_fails_unexpectedly_is_a_problem_logged_once_and_no_answer(caplog):
    def call() -> None:
        raise RecursionError("too deep")

    bounded = Bounded(call, 5)

    assert [await bounded.ask() for _ in range(3)] == [None] * 3
    assert "RecursionError: too deep" == bounded.problem
    assert 1 == len(caplog.records)


async def test_list_of_pods_that_fails_or_hangs_keeps_those_that_are_known_and_is_a_problem(
    make_loop, make_pod, make_housekeeping, caplog
):
    loop = make_loop()
    loop.have(make_pod("known"))
    housekeeping = make_housekeeping(loop)

    async def failing():
        raise RecursionError("too deep")

    loop.pods.listed, listed = failing, loop.pods.listed
    await housekeeping.list_pods()
    await housekeeping.list_pods()
    assert "RecursionError: too deep" == housekeeping.problems["pods"]
    assert 1 == len(caplog.records)
    loop.pods.listed = listed
    await housekeeping.list_pods()
    assert "pods" not in housekeeping.problems
    assert ["known"] == [pod.name for pod in loop.known.pods]


async def test_turn_that_failed_is_due_again_when_housekeeping_is_restarted(
    nursery, make_loop, make_housekeeping
):
    class Failing(FakeWatch):
        async def refresh(self) -> None:
            await super().refresh()
            if self.looks == 1:
                raise ZeroDivisionError("a defect")

    wakes, watch = Wakes(), Failing()
    housekeeping = make_housekeeping(make_loop(), wakes, watch)
    housekeeping.due()
    with pytest.raises(ExceptionGroup):
        await housekeeping.run()

    nursery.start_soon(housekeeping.run)
    await wakes.wait()
    assert watch.looks == 2


async def test_stale_filesystem_is_neither_pressed_nor_fine(make_loop, observation):
    loop = make_loop()
    loop.known.observed.take(
        [Signal.NODEFS_AVAILABLE], {Signal.NODEFS_AVAILABLE: observation(1, 10)}, loop.now_seconds
    )

    assert Signal.NODEFS_AVAILABLE in loop.known.observed.at(loop.now_seconds + 35)
    assert Signal.NODEFS_AVAILABLE not in loop.known.observed.at(loop.now_seconds + 36)


async def test_problem_that_ends_is_said(nursery, make_loop, make_housekeeping, caplog):
    caplog.set_level(logging.INFO)
    loop, wakes = make_loop(), Wakes()
    housekeeping = make_housekeeping(loop, wakes)
    nursery.start_soon(housekeeping.run)
    for problems in ({"/pod": "unreadable"}, {}):
        loop.pods.problems = problems
        housekeeping.due()
        await wakes.wait()

    said = [one.getMessage() for one in caplog.records if one.getMessage().startswith("/pod")]
    assert said == ["/pod: unreadable", "/pod: recovered"]
