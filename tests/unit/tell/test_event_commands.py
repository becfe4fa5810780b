"""Real commands for events, on the real clock, and an outbox in front of them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from reactor.model.settings import EventKind, NotificationSettings
from reactor.tell.channels import COMMANDS_AT_ONCE, EventCommands, NotSentError, Outbox
from reactor.tell.events import Event, Events
from tests.support.processes import descendants, is_held
from tests.support.waiting import until

SH = "/bin/sh"


def event(message: str = "m", kind: str = "oom-kill") -> Event:
    [made] = Events("a").take({"kind": kind, "message": message, "scope": "node"})
    return made


def commands(*some: tuple[str, ...], timeout_seconds: float = 20.0) -> EventCommands:
    settings = NotificationSettings(commands={EventKind.OOM_KILL: some}, timeout_seconds=timeout_seconds)
    return EventCommands(lambda: settings)


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture
async def outbox(request, nursery) -> AsyncIterator[Outbox]:
    made = Outbox(request.param, at_once=COMMANDS_AT_ONCE)
    nursery.start_soon(made.run)
    yield made
    nursery.cancel_scope.cancel()


async def test_each_command_gets_the_whole_event_as_json(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    sent = event("m" * 1000)
    await commands((SH, "-c", f"cat > {one}"), (SH, "-c", f"cat > {two}")).send(sent)

    assert sent.document == json.loads(one.read_text()) == json.loads(two.read_text())


async def test_nothing_of_the_event_is_an_argument_or_in_the_environment(tmp_path: Path) -> None:
    out = tmp_path / "out"
    await commands((SH, "-c", f"tr '\\0' '\\n' < /proc/self/cmdline > {out}; env >> {out}")).send(
        event("secret")
    )
    assert "secret" not in out.read_text()


async def test_a_command_that_fails_is_reported_and_the_next_one_runs(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    with pytest.raises(NotSentError) as told:
        await commands(
            (SH, "-c", "echo no pager >&2; exit 3"), ("/nowhere",), ("/usr/bin/touch", str(ran))
        ).send(event())

    assert "/bin/sh: exit status 3: no pager; /nowhere: No such file or directory" == str(told.value)
    assert ran.exists()


async def test_a_command_is_for_events_of_its_kind_alone() -> None:
    channel = commands(("/bin/true",))
    assert channel.takes(event())
    assert not channel.takes(event(kind="source-lost"))


async def test_a_command_that_never_ends_is_killed_with_what_it_has_forked(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    mock_clock.rate = 1.0
    pids, told = tmp_path / "pids", list[str]()
    script = f"trap '' TERM INT HUP; sleep 600 & echo $$ $! > {pids}; cat; while :; do wait; done"

    async def send() -> None:
        with pytest.raises(NotSentError) as error:
            await commands((SH, "-c", script), timeout_seconds=100.0).send(event())
        told.append(str(error.value))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await until(lambda: pids.exists() and len(pids.read_text().split()) == 2, "it runs")
        await until(lambda: is_held(int(pids.read_text().split()[0])), "its end is waited for")
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.rate = 0.05  # so that it is seen to have ended in time on a busy machine too
        mock_clock.jump(100.0)
    mock_clock.rate = 1.0
    assert "not done within 100 s: killed" in told[0]
    await until(lambda: not any(is_alive(int(pid)) for pid in pids.read_text().split()), "both are gone")


async def test_what_a_command_leaves_running_when_it_ends_is_killed_too(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    await commands((SH, "-c", f"sleep 600 & echo $! > {pid}")).send(event())
    await until(lambda: not is_alive(int(pid.read_text())), "it is gone")


async def test_a_command_that_floods_its_output_ends_at_its_deadline() -> None:
    with pytest.raises(NotSentError, match="not done within 1 s"):
        await commands(("/usr/bin/yes",), (SH, "-c", "yes >&2"), timeout_seconds=1).send(event())


async def test_a_command_that_does_not_read_its_input_or_holds_it_is_no_matter(tmp_path: Path) -> None:
    holder = tmp_path / "pid"
    big = event("m" * 1024)
    # A session of its own escapes the group; it holds the input open.
    script = f"setsid sleep 600 <&0 >/dev/null 2>&1 & echo $! > {holder}; sleep 0.1"
    await commands(("/bin/true",), (SH, "-c", script)).send(big)
    with suppress(OSError, ValueError):
        os.kill(int(holder.read_text()), signal.SIGKILL)


async def test_thousands_of_events_run_a_few_commands_at_a_time_and_the_rest_is_counted(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    held_up = tmp_path / "held up"  # each command reads it, until a writer has come and gone
    os.mkfifo(held_up)
    others = set(descendants(os.getpid()))
    outbox = Outbox(commands(("/bin/cat", str(held_up)), timeout_seconds=600.0), at_once=COMMANDS_AT_ONCE)
    nursery.start_soon(outbox.run)
    for _ in range(3000):
        outbox.put(event())
    assert (3000 - 256, 256) == (outbox.dropped, outbox.waiting)
    assert "its queue is full" in str(outbox.problem)

    def at_work() -> int:
        return len([pid for pid in descendants(os.getpid()) if pid not in others and is_alive(pid)])

    await until(lambda: at_work() == COMMANDS_AT_ONCE, "as many run as may")
    most = 0
    while outbox.sent < 12:
        with suppress(OSError):  # none reads at present
            os.close(os.open(held_up, os.O_WRONLY | os.O_NONBLOCK))
        most = max(most, at_work())
        await trio.sleep(0.02)
    assert most <= COMMANDS_AT_ONCE
    outbox.put(event())
    assert "its queue is full" not in str(outbox.problem)
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("outbox", [commands((SH, "-c", 'test "$(wc -c)" -gt 200'))], indirect=True)
async def test_a_failure_is_the_problem_until_the_next_event_is_sent(outbox: Outbox) -> None:
    outbox.put(event())
    await until(lambda: outbox.failed == 1, "it has failed")
    assert "/bin/sh: exit status 1 (1 failed, 0 dropped)" == outbox.problem

    outbox.put(event("m" * 200))
    await until(lambda: outbox.sent == 1, "it was sent")
    assert (None, 0) == (outbox.problem, outbox.waiting)
