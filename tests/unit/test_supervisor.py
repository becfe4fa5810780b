from __future__ import annotations

import logging

import pytest
import trio

from reactor.supervisor import RECOVERED_SECONDS, PartHealth, Supervisor
from tests.support.part_faults import PartFaults

pytestmark = pytest.mark.suite("crash-only")


def state_of(supervisor: Supervisor, name: str):
    return next(state for state in supervisor.states if state.name == name)


class Failing:
    """A part that raises what it is given, one after the other, and then runs."""

    def __init__(self, *errors: BaseException | None, after_seconds: float = 0.0) -> None:
        self.errors = list(errors)
        self.after_seconds = after_seconds
        self.starts = 0

    async def __call__(self) -> None:
        self.starts += 1
        await trio.sleep(self.after_seconds)
        if not self.errors:
            await trio.sleep_forever()
        error = self.errors.pop(0)
        if error is not None:
            raise error


async def _raise(error: BaseException) -> None:
    raise error


async def test_part_that_fails_is_restarted_while_the_others_go_on(nursery, autojump_clock):
    supervisor, part, other = Supervisor(), Failing(ValueError("torn"), KeyError("gone")), Failing()
    nursery.start_soon(supervisor.keep, "part", part)
    nursery.start_soon(supervisor.keep, "other", other)
    await trio.sleep(5)

    assert (part.starts, other.starts) == (3, 1)
    state = state_of(supervisor, "part")
    assert (state.health, state.restarts, state.last_error) == (PartHealth.RUNNING, 2, "KeyError: 'gone'")
    assert (state_of(supervisor, "other").restarts, state_of(supervisor, "other").problem) == (0, None)


async def test_failure_is_a_problem_until_the_part_has_run_for_a_while(nursery, autojump_clock):
    supervisor = Supervisor()
    nursery.start_soon(supervisor.keep, "part", Failing(ValueError("torn")))
    await trio.sleep(1)
    assert "ValueError: torn" in supervisor.problems["part part"]

    await trio.sleep(RECOVERED_SECONDS)
    assert {} == supervisor.problems
    assert "ValueError: torn" == state_of(supervisor, "part").last_error


async def test_group_of_failures_from_a_child_nursery_restarts_the_part(nursery, autojump_clock):
    starts = []

    async def part() -> None:
        starts.append(1)
        async with trio.open_nursery() as inner, trio.open_nursery() as innermost:
            if len(starts) == 1:
                inner.start_soon(_raise, ValueError("one"))
                innermost.start_soon(_raise, OSError(5, "two"))
            await trio.sleep_forever()

    supervisor = Supervisor()
    nursery.start_soon(supervisor.keep, "part", part)
    await trio.sleep(5)

    assert len(starts) == 2
    assert state_of(supervisor, "part").restarts == 1


async def test_failure_while_the_part_is_cancelled_ends_it_and_nothing_else(autojump_clock):
    supervisor = Supervisor()

    async def fail_at_the_end() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("at the end")

    async def part() -> None:
        async with trio.open_nursery() as inner:
            inner.start_soon(fail_at_the_end)
            inner.start_soon(trio.sleep_forever)

    with trio.move_on_after(1):
        await supervisor.keep("part", part)

    state = state_of(supervisor, "part")
    assert (state.health, state.last_error) == (PartHealth.ENDED, "ValueError: at the end")


async def test_interrupt_is_no_failure_and_goes_on():
    with pytest.raises(KeyboardInterrupt):
        await Supervisor().keep("part", Failing(KeyboardInterrupt()))


async def test_part_that_ends_by_itself_is_restarted_and_said_to_have_ended(nursery, autojump_clock):
    supervisor, part = Supervisor(), Failing(None)
    nursery.start_soon(supervisor.keep, "part", part)
    await trio.sleep(5)

    assert part.starts == 2
    assert state_of(supervisor, "part").last_error == "ended unexpectedly"


async def test_part_that_may_end_ends_once_it_has_come_through(nursery, autojump_clock):
    supervisor, part = Supervisor(), Failing(OSError(11, "again"), None)
    await supervisor.keep("part", part, ends=True)

    assert part.starts == 2
    assert (PartHealth.ENDED, 1) == (
        state_of(supervisor, "part").health,
        state_of(supervisor, "part").restarts,
    )


async def test_pauses_grow_to_the_longest_and_no_further(nursery, autojump_clock):
    supervisor, part = Supervisor(), Failing(*(ValueError(number) for number in range(10_000)))
    with trio.move_on_after(600):
        await supervisor.keep("part", part, longest_pause_seconds=10)

    # Half of each pause is left to chance: 60 to 120 of the longest in ten minutes, and a few shorter ones.
    assert 60 <= part.starts <= 130


async def test_pauses_begin_with_the_shortest_after_the_part_ran_for_a_while(nursery, autojump_clock):
    supervisor = Supervisor()
    part = Failing(*(ValueError(number) for number in range(100)), after_seconds=RECOVERED_SECONDS)
    with trio.move_on_after(100 * RECOVERED_SECONDS):
        await supervisor.keep("part", part)

    assert part.starts == 100


async def test_a_cause_is_logged_once_until_it_changes(nursery, autojump_clock, caplog):
    supervisor = Supervisor()
    same = [ValueError(number) for number in range(5)]
    nursery.start_soon(supervisor.keep, "part", Failing(*same, KeyError("other")))
    await trio.sleep(60)

    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert ["ValueError: 0", "KeyError: 'other'"] == [record.args[1] for record in logged]
    assert all(record.exc_info for record in logged)


async def test_start_returns_though_the_part_fails_before_it_has_started(nursery, autojump_clock):
    supervisor, calls = Supervisor(), []

    async def part(*, task_status) -> None:
        calls.append(1)
        if len(calls) < 3:
            raise OSError(24, "Too many open files")
        task_status.started()
        await trio.sleep_forever()

    await supervisor.start(nursery, "part", part)
    assert calls == [1]
    await trio.sleep(5)
    assert len(calls) == 3


async def test_hook_keeps_what_it_raises_and_recovers_with_the_next_call(caplog):
    supervisor = Supervisor()
    hook = supervisor.hook("records")
    for _ in range(3):
        with hook.guard():
            raise RecursionError("too deep")
    assert (PartHealth.FAILED, 3) == (
        state_of(supervisor, "records").health,
        state_of(supervisor, "records").restarts,
    )
    assert 1 == len(caplog.records)

    with hook.guard():
        pass
    assert PartHealth.RUNNING == state_of(supervisor, "records").health


async def test_job_that_fails_leaves_its_nursery_and_the_other_jobs_alone(nursery):
    supervisor, done = Supervisor(), trio.Event()
    jobs = supervisor.jobs(nursery, "evictions")

    async def later() -> None:
        while not state_of(supervisor, "evictions").restarts:
            await trio.lowlevel.checkpoint()
        done.set()

    jobs.start_soon(later)
    jobs.start_soon(_raise, BaseExceptionGroup("both", [ValueError("torn")]))
    await done.wait()

    assert "ValueError: torn" == state_of(supervisor, "evictions").last_error


async def test_every_part_has_a_count_before_its_first_failure(nursery):
    supervisor = Supervisor()
    supervisor.hook("records")
    supervisor.jobs(nursery, "evictions")
    supervisor.expect("reclaim", "evictions")
    assert [("records", 0), ("evictions", 0), ("reclaim", 0)] == [
        (one.name, one.restarts) for one in supervisor.states
    ]


async def test_faults_of_a_test_fail_a_part_a_job_and_a_hook_once_each(nursery, autojump_clock):
    faults = PartFaults()
    supervisor, part = Supervisor(faults), Failing()
    nursery.start_soon(supervisor.keep, "part", part)
    jobs, hook = supervisor.jobs(nursery, "jobs"), supervisor.hook("hook")
    for name in ("part", "jobs", "hook"):
        faults.fail(name)
    for _ in range(2):
        jobs.start_soon(trio.sleep, 1)
        with hook.guard():
            pass
    await trio.sleep(5)

    assert {"part", "jobs", "hook"} == set(faults.failed)
    assert [1, 1, 1] == [state.restarts for state in supervisor.states]
    assert part.starts == 2
