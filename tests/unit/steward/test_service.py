"""The steward in this process, over a pair whose other end is the test's."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing

from reactor.guard.single_instance import listen
from reactor.link.frames import FrameKind, Message, write_frames
from reactor.link.orders import Orders, write_order
from reactor.link.requests import LONGEST_BYTES, ReclaimOver, Request, RequestKind, Space, read_request
from reactor.model.settings import (
    EventKind,
    JournalSettings,
    NotificationSettings,
    ReclaimSettings,
    RestartLoopSettings,
    Settings,
)
from reactor.model.signals import Filesystem
from reactor.steward.service import serve
from reactor.tell import http
from reactor.tell.status_socket import ask
from tests.support.json_lines import json_lines
from tests.support.privileged import may_run
from tests.support.waiting import PATIENCE, until

STATUS = {
    "node_cgroup": None,
    "runtime": None,
    "problems": {},
    "parts": [],
    "sources": [{"name": "filesystems", "health": "armed", "detail": "observed by the steward"}],
    "signals": [],
    "oom_kills": {"counted": {}},
}


class Guard:
    """The guard's end: keeps what it is told and asked."""

    def __init__(self, directory) -> None:
        ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)  # noqa: FBT003 - its one argument
        self.connection = trio.socket.from_stdlib_socket(ours)
        self.journal = directory / "journal.jsonl"
        self.socket_path = directory / "s.sock"
        self.metrics_address: tuple[str, int] | None = None
        self.taken: list[tuple[int, int]] = []
        self.number = 0
        self.heard: list[object] = []

    async def send(self, kind: FrameKind, document: object, number: int = 0) -> None:
        content = json.dumps(document).encode() + b"\n"
        for frame in write_frames(Message(kind, number, content)):
            await self.connection.send(frame)

    async def order(self, evictions: int = 3, **more) -> None:
        self.number += 1
        settings = Settings(
            journal=JournalSettings(path=str(self.journal)),
            metrics_address=self.metrics_address,
            state_path=str(self.journal.with_name("state.json")),
            podman=False,
            housekeeping_interval_seconds=0.2,
            restart_loop=RestartLoopSettings(evictions=evictions),
        )
        orders = Orders(start="now/1", number=self.number, settings=replace(settings, **more))
        for frame in write_frames(Message(FrameKind.ORDERS, self.number, write_order(orders))):
            await self.connection.send(frame)

    async def line(self, seq: int, document: dict) -> None:
        await self.send(FrameKind.LINE, {**document, "start": "now/1", "seq": seq}, seq)

    async def answer(self) -> None:
        """Answer what is asked, until the pair is closed."""
        while raw := await self.connection.recv(LONGEST_BYTES + 1):
            request = read_request(raw)
            self.heard.append(request)
            if not isinstance(request, Request):
                continue
            if request.kind is RequestKind.TAKEN:
                self.taken.append((request.number, request.lost))
            elif request.kind is RequestKind.STATUS:
                await self.send(FrameKind.ANSWER, {"status": STATUS, "held": None}, request.number)

    async def status(self) -> dict:
        return await trio.to_thread.run_sync(ask, self.socket_path, {"command": "status"})

    async def status_with(self, true: Callable[[dict], object]) -> dict:
        """Return the first status of which that is true; it is asked for again and again."""
        with trio.fail_after(60 * PATIENCE):
            while not true(document := await self.status()):
                pass
        return document

    def lines(self) -> list[dict]:
        return json_lines(self.journal)


@pytest.fixture
async def guard(nursery, tmp_path):
    made = Guard(tmp_path)
    yield made
    made.connection.close()


@asynccontextmanager
async def steward(guard: Guard, *commands: tuple[str, ...]):
    """Run a steward inside the block, which ends with the pair; it may have these commands run."""
    with listen(guard.socket_path) as listener, guard.theirs, may_run(*commands) as privileged:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, guard.theirs, listener.dup(), lambda: None, privileged)
            nursery.start_soon(guard.answer)
            await guard.order()
            await trio.testing.wait_all_tasks_blocked()
            guard.theirs.close()  # the steward has its own
            yield
            guard.connection.shutdown(socket.SHUT_WR)


def decision(number: int, pod: str = "cgroup/loop") -> dict:
    eviction = {"pod": pod, "uid": "u", "outcome": "killed", "ended_ns": number}
    return {"kind": "decision", "id": number, "time": f"2026-01-01T00:0{number}:00Z", "evictions": [eviction]}


def ordered(number: int) -> dict:
    made = decision(number)
    evictions = [{**one, "ended_ns": None} for one in made["evictions"]]
    return {"kind": "ordered", "decision": number, "time": made["time"], "ordered": evictions}


async def test_line_is_written_as_it_came_and_said_to_be(guard):
    async with steward(guard):
        await guard.line(1, {"kind": "x", "filler": "y" * 100_000})
        await guard.line(2, {"kind": "x"})
        await until(lambda: guard.taken and guard.taken[-1][0] == 2)

    assert [line["seq"] for line in guard.lines()] == [1, 2]
    assert sum(lost for _, lost in guard.taken) == 0


async def test_line_that_the_steward_before_has_written_is_taken_and_not_written_again(guard):
    guard.journal.write_text(
        '{"kind": "x", "start": "now/1", "seq": 3}\n{"kind": "x", "start": "other", "seq": 9}\n'
    )
    async with steward(guard):
        await guard.line(3, {"kind": "x"})
        await guard.line(4, {"kind": "x"})
        await until(lambda: guard.taken and guard.taken[-1][0] == 4)

    assert [(line["start"], line["seq"]) for line in guard.lines()] == [
        ("now/1", 3),
        ("other", 9),
        ("now/1", 4),
    ]


async def test_line_that_can_not_be_written_is_said_to_be_lost_and_is_remembered_all_the_same(
    guard, tmp_path
):
    guard.journal = tmp_path / "in the way" / "journal.jsonl"
    (tmp_path / "in the way").write_text("")
    async with steward(guard):
        await guard.line(1, decision(1))
        await until(lambda: guard.taken == [(1, 1)])
        document = await guard.status()

    assert "in the way" in document["problems"]["journal"]
    assert [one["id"] for one in document["decisions"]] == [1]


@pytest.mark.parametrize("odd", [{"kind": ["decision"]}, {"kind": "decision", "id": {}}])
async def test_an_earlier_line_of_another_form_keeps_no_line_from_being_written(guard, odd):
    guard.journal.write_text(json.dumps(odd) + "\n")
    async with steward(guard):
        await guard.line(1, {"kind": "x"})
        await until(lambda: guard.taken and guard.taken[-1][0] == 1)

    assert [odd, 1] == [guard.lines()[0], guard.lines()[-1].get("seq")]
    assert sum(lost for _, lost in guard.taken) == 0


async def test_what_the_guard_has_said_before_it_ended_is_written(guard):
    with guard.theirs:
        await guard.order()
        await guard.line(1, {"kind": "x"})
        guard.connection.close()
        with trio.fail_after(90):
            await serve(guard.theirs, None)

    assert [line["seq"] for line in guard.lines()] == [1]


async def test_restart_loop_is_reported_once_each_eviction_counting_once(guard, caplog):
    guard.journal.write_text(json.dumps({**decision(1), "start": "earlier", "seq": 1}) + "\n")
    async with steward(guard):
        for number in (2, 3):
            await guard.line(2 * number, ordered(number))
            await guard.line(2 * number + 1, decision(number))
        await until(lambda: guard.taken and guard.taken[-1][0] == 7)
        problems = (await guard.status())["problems"]
        assert problems == {}  # the earlier one was long ago

        await guard.line(8, ordered(4))
        await until(lambda: guard.taken[-1][0] == 8)
        assert (await guard.status())["problems"] == {}, "it is still being killed"
        await guard.line(9, decision(4))
        await until(lambda: "evicted 3 times" in caplog.text)
        assert "evicted 3 times" in (await guard.status())["problems"]["restart loop cgroup/loop"]
        await guard.order(evictions=4)
        await guard.line(10, {**decision(4)["evictions"][0], "kind": "outcome", "decision": 4})
        await until(lambda: guard.taken[-1][0] == 10)
        assert (await guard.status())["problems"] == {}

    assert 1 == sum(
        "evicted" in record.message for record in caplog.records if record.levelno == logging.WARNING
    )


async def test_line_that_can_not_be_read_is_written_and_costs_nothing_else(guard):
    async with steward(guard):
        await guard.send(FrameKind.LINE, ["no", "document"], 1)
        await guard.line(2, decision(1))
        await until(lambda: guard.taken and guard.taken[-1][0] == 2)
        document = await guard.status()

    assert [one["id"] for one in document["decisions"]] == [1]
    assert "part lines" in document["problems"]


async def test_guard_that_does_not_answer_is_said_to_the_client(guard, autojump_clock):
    async with steward(guard):
        with trio.fail_after(60):
            stream = await trio.open_unix_socket(str(guard.socket_path))
            async with stream:
                await stream.send_all(b'{"command": "explain"}\n')
                answer = json.loads(await stream.receive_some(65536))

    assert "the guard has not answered" in answer["error"]


async def test_status_has_what_the_steward_knows_of_the_disks(guard):
    async with steward(guard):
        document = await guard.status_with(
            lambda status: status["sources"][0]["detail"].startswith("/ every ")
        )

    assert 1 == len(document["sources"])
    assert {one["filesystem"] for one in document["filesystems"]} == set(Filesystem)
    assert document["runtime"] is None


async def test_another_configuration_is_another_order_and_its_commands_are_run(guard, tmp_path):
    made = tmp_path / "made"
    touch = ("/bin/touch", str(made))
    commands = ReclaimSettings(commands={Filesystem.IMAGEFS: (touch,)})
    async with steward(guard, touch):
        await until(lambda: any(isinstance(one, Space) for one in guard.heard), "an observation")
        await guard.order(reclaim=commands)
        await until(
            lambda: any(isinstance(one, Space) and one.order == 2 for one in guard.heard), "by the second"
        )
        await guard.send(FrameKind.RECLAIM, {"kind": "commands", "filesystems": ["nodefs"]}, 1)
        await guard.send(FrameKind.RECLAIM, {"kind": "commands", "filesystems": ["imagefs"]}, 2)
        await until(made.exists, "the command has run")
        await guard.send(FrameKind.EMPTY, {"path": str(tmp_path / "none"), "cgroup": None}, 3)
        await guard.send(FrameKind.EMPTY, {"path": str(made), "cgroup": None}, 4)
        await until(lambda: len([one for one in guard.heard if isinstance(one, ReclaimOver)]) == 4)

    answers = {one.number: one for one in guard.heard if isinstance(one, ReclaimOver)}
    assert answers[1].did is None
    assert answers[2].did == (f"/bin/touch {made}",)
    assert made.exists()
    assert answers[3].problems == ()
    assert "Not a directory" in answers[4].problems[0]


def by_command(status: dict) -> dict:
    [found] = [one for one in status["notifications"] if one["channel"] == "command"]
    return found


def notified(*command: str) -> NotificationSettings:
    return NotificationSettings(commands={EventKind.EVICTION: (command,)})


async def test_an_eviction_is_notified_of_once_by_the_configuration_in_force(guard, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    eviction = {"pod": "n/a", "uid": "u", "signal": "memory.available", "outcome": "killed"}
    earlier = {"kind": "decision", "id": 1, "time": "x", "evictions": [eviction], "start": "now/1", "seq": 1}
    guard.journal.write_text(json.dumps(earlier) + "\n")
    commands = [("/bin/sh", "-c", f"cat >> {path}") for path in (first, second)]
    async with steward(guard, *commands):
        await guard.order(notifications=notified(*commands[0]))
        await guard.line(1, {**earlier})  # the steward before this one has written it, and could not say so
        await guard.line(2, {**earlier, "id": 2})
        await until(lambda: first.exists() and first.read_text(), "the command has run")
        await guard.order(notifications=notified(*commands[1]))
        await guard.line(3, {**earlier, "id": 3})
        await until(lambda: second.exists() and second.read_text(), "the other command has run")
        # A command that has written what it was given is counted only once it has ended, too.
        counted = by_command(await guard.status_with(lambda status: by_command(status)["sent"] == 2))

    assert [2] == [json.loads(line)["decision"] for line in first.read_text().splitlines()]
    assert [3] == [json.loads(line)["decision"] for line in second.read_text().splitlines()]
    assert {
        "channel": "command",
        "sent": 2,
        "failed": 0,
        "dropped": 0,
        "skipped": 0,
        "waiting": 0,
    } == counted


async def test_a_port_of_the_metrics_that_is_taken_is_a_problem_of_status_until_it_is_free(
    guard, monkeypatch
):
    monkeypatch.setattr(http, "_RETRY_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as other:
        guard.metrics_address = other.getsockname()
        async with steward(guard):
            taken = await guard.status_with(lambda status: status["problems"])
            other.close()
            await guard.status_with(lambda status: not status["problems"])

    where = f"127.0.0.1:{guard.metrics_address[1]}"
    assert taken["problems"] == {"metrics": f"none at {where}: the port is taken; trying again"}


async def test_a_command_that_fails_is_a_problem_of_status(guard):
    async with steward(guard, ("/bin/false",)):
        await guard.order(notifications=notified("/bin/false"))
        await guard.line(
            1, {"kind": "decision", "id": 1, "time": "x", "evictions": [{"pod": "a/b", "outcome": "killed"}]}
        )
        status = await guard.status_with(lambda status: "notifications by command" in status["problems"])

    assert list(status["problems"]) == ["notifications by command"]
    assert "/bin/false: exit status 1 (1 failed, 0 dropped)" in status["problems"]["notifications by command"]
