"""The process in systemd-oomd's place: PID 1's end of Varlink on a real socket, and users' managers."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from reactor.link.managed_oom import ManagedOomReport, read_report_at_once
from reactor.managed_oom import relay as relaying
from reactor.managed_oom.relay import Relay
from tests.support.waiting import until

DENIED = "org.varlink.service.PermissionDenied"
TAKEN = "io.systemd.ManagedOOM.SubscriptionTaken"


def element(path: str, mode: str = "kill", **others: Any) -> dict[str, Any]:
    return {"mode": mode, "path": path, "property": "ManagedOOMMemoryPressure", **others}


class Systemd:
    """PID 1's end: answers each subscription with `units`, then with what is put into `raw`.

    `error` refuses it. Each connection's call is in `calls`.
    """

    def __init__(self, address: Path) -> None:
        self.address = address
        self.units: list[dict[str, Any]] = []
        self.error: str | None = None
        self.calls: list[dict[str, Any]] = []
        self.connections: list[trio.SocketStream] = []
        self.answer: bytes | None = None

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.socket.socket(socket.AF_UNIX) as listening:
            self.address.unlink(missing_ok=True)
            await listening.bind(str(self.address))
            listening.listen(8)
            await trio.serve_listeners(
                self._attend, [trio.SocketListener(listening)], task_status=task_status
            )

    async def say(self, *units: dict[str, Any]) -> None:
        await self.send(message(*units))

    async def send(self, raw: bytes) -> None:
        await self.connections[-1].send_all(raw)

    async def _attend(self, stream: trio.SocketStream) -> None:
        async with stream:
            raw = b""
            while not raw.endswith(b"\0"):
                raw += await stream.receive_some()
            self.calls.append(json.loads(raw[:-1]))
            if self.error is not None:
                await stream.send_all(json.dumps({"error": self.error, "parameters": {}}).encode() + b"\0")
                return
            try:
                await stream.send_all(message(*self.units) if self.answer is None else self.answer)
                self.connections.append(stream)
                await stream.receive_some()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass


def message(*units: dict[str, Any]) -> bytes:
    return json.dumps({"parameters": {"cgroups": list(units)}, "continues": True}).encode() + b"\0"


class Running:
    """A relay, its file, and what it talks to."""

    def __init__(self, directory: Path, systemd: Systemd, users: Path) -> None:
        self.path = directory / "units"
        self.systemd = systemd
        self.users = users

    @property
    def report(self) -> ManagedOomReport:
        return read_report_at_once(self.path.read_bytes()) if self.path.exists() else ManagedOomReport()

    @property
    def cgroups(self) -> list[str]:
        return [unit.cgroup for unit in self.report.units]

    async def until(self, true: Callable[[ManagedOomReport], object], what: str) -> None:
        await until(lambda: true(self.report), what)

    async def user(self) -> trio.SocketStream:
        return await trio.open_unix_socket(str(self.users))


@asynccontextmanager
async def running(
    directory: Path,
    *units: dict[str, Any],
    error: str | None = None,
    serves: bool = True,
    answer: bytes | None = None,
    has_slice: bool = True,
    ready: str | None = None,
) -> AsyncIterator[Running]:
    systemd = Systemd(directory / "systemd")
    systemd.units, systemd.error, systemd.answer = list(units), error, answer
    users = directory / "users"
    found = Running(directory, systemd, users)
    user_slices = directory / "user.slice"
    uid = os.getuid() if has_slice else os.getuid() + 1
    (user_slices / f"user-{uid}.slice").mkdir(parents=True, exist_ok=True)
    users.unlink(missing_ok=True)
    relay = Relay(
        path=found.path,
        user_slices=user_slices,
        addresses=(str(directory / "of-another-version"), str(systemd.address)),
        pause_seconds=(0.01, 0.02),
        between_seconds=0.0,
        ready=ready,
    )
    async with trio.open_nursery() as nursery:
        if serves:
            await nursery.start(systemd.serve)
        with trio.socket.socket(socket.AF_UNIX) as listening:
            await listening.bind(str(users))
            listening.listen(600)
            nursery.start_soon(relay.run, [trio.SocketListener(listening)])
            yield found
            nursery.cancel_scope.cancel()


async def test_the_systems_units_are_in_the_file_and_follow_changes(tmp_path: Path) -> None:
    async with running(tmp_path, element("/a.slice"), element("/b.slice")) as relay:
        await relay.until(lambda one: len(one.units) == 2 and not one.problem, "both units are told")
        assert [
            {
                "method": "io.systemd.ManagedOOM.SubscribeManagedOOMCGroups",
                "parameters": {},
                "more": True,
            }
        ] == relay.systemd.calls
        await relay.systemd.say(element("/a.slice", "auto"), element("/c.slice"))
        await relay.until(lambda _: relay.cgroups == ["/b.slice", "/c.slice"], "the change is told")
        assert 0o644 == relay.path.stat().st_mode & 0o777


async def test_a_connection_that_is_lost_keeps_the_units_until_systemd_says_all_again(tmp_path: Path) -> None:
    async with running(tmp_path, element("/a.slice"), element("/b.slice")) as relay:
        await relay.until(lambda one: len(one.units) == 2, "both units are told")
        relay.systemd.error = "io.systemd.Away"
        await relay.systemd.connections[-1].aclose()
        await relay.until(lambda one: "io.systemd.Away" in one.problem, "the problem is told")
        assert ["/a.slice", "/b.slice"] == relay.cgroups

        relay.systemd.error, relay.systemd.units = None, [element("/b.slice")]
        await relay.until(lambda one: not one.problem, "it has recovered")
        assert ["/b.slice"] == relay.cgroups


async def test_a_process_that_is_started_again_has_the_system_s_units_until_systemd_answers(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, element("/a.slice"), element("/b.slice")) as relay:
        await relay.until(lambda one: len(one.units) == 2 and not one.problem, "both units are told")
        before = relay.report.reloads
    async with running(tmp_path, error="io.systemd.Away") as relay:
        await relay.until(lambda one: "io.systemd.Away" in one.problem, "the problem is told")
        assert ["/a.slice", "/b.slice"] == relay.cgroups
        assert before != relay.report.reloads  # oomd.conf is read again


async def test_a_signal_has_oomd_conf_read_again_and_nothing_else_changes(tmp_path: Path) -> None:
    async with running(tmp_path, element("/a.slice")) as relay:
        await relay.until(lambda one: len(one.units) == 1 and not one.problem, "the unit is told")
        before = relay.report
        signal.raise_signal(signal.SIGHUP)
        await relay.until(lambda one: one.reloads != before.reloads, "it is to be read again")
        assert before.units == relay.report.units


@pytest.mark.parametrize("error", [None, DENIED])
async def test_it_is_ready_once_systemd_has_answered_or_refused(tmp_path: Path, error: str | None) -> None:
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
        await notices.bind(str(tmp_path / "notices"))
        async with running(
            tmp_path, element("/a.slice"), error=error, ready=str(tmp_path / "notices")
        ) as relay:
            with trio.fail_after(30):
                assert b"READY=1" == await notices.recv(100)
            assert (["/a.slice"] if error is None else []) == relay.cgroups


async def test_a_socket_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    async with running(tmp_path, element("/a.slice"), serves=False) as relay, trio.open_nursery() as nursery:
        await relay.until(lambda one: "No such file" in one.problem, "the problem is told")
        await nursery.start(relay.systemd.serve)
        await relay.until(lambda one: len(one.units) == 1 and not one.problem, "the unit is told")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TAKEN, "is systemd-oomd itself still running?"),
        (DENIED, "systemd answers systemd-oomd.service alone"),
        ("org.example.Other", "systemd refuses: 'org.example.Other'"),
    ],
)
async def test_a_refusal_says_what_is_to_be_done(tmp_path: Path, error: str, expected: str) -> None:
    async with running(tmp_path, error=error) as relay:
        await relay.until(lambda one: expected in one.problem, "the problem is told")
        await until(lambda: len(relay.systemd.calls) > 2, "it is tried again")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"\0", "accepted: JSON"),
        (b"[]\0", "accepted: a JSON object"),
        (b"{}\0", "a list of cgroups"),
        (b'{"parameters": {"cgroups": 5}}\0', "a list of cgroups"),
        (b'{"parameters": {}, "parameters": {}}\0', "a key twice"),
        (b'{"error": {"a": 1}}\0', "systemd refuses"),
        (b"[" * 100_000 + b"\0", "accepted:"),
        (b"\xff\xfe\0", "accepted: JSON"),
        (b"[" + b"0," * 300_000 + b"0]\0", "values"),
        (b"x" * (relaying._MOST_SYSTEM_BYTES + 2), "more than"),
    ],
    ids=range(10),
)
async def test_an_answer_that_is_none_is_a_problem_and_ends_nothing(
    tmp_path: Path, answer: bytes, expected: str
) -> None:
    async with running(tmp_path, element("/a.slice"), answer=answer) as relay:
        await relay.until(lambda one: expected in one.problem, "the problem is told")
        relay.systemd.answer = None
        await relay.until(lambda one: len(one.units) == 1 and not one.problem, "it has recovered")


async def test_an_endless_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaying, "_ANSWER_SECONDS", 0.05)
    async with running(tmp_path, answer=b'{"parameters"') as relay:
        await relay.until(lambda one: "in 0.05 s" in one.problem, "the problem is told")
        await until(lambda: len(relay.systemd.calls) > 2, "it is tried again")


async def test_half_a_message_before_the_end_is_a_problem(tmp_path: Path) -> None:
    async with running(tmp_path, answer=b'{"parameters"') as relay:
        await until(lambda: relay.systemd.connections, "the connection")
        await relay.systemd.connections[-1].send_eof()
        await relay.until(lambda one: "the connection is closed" in one.problem, "the problem is told")


async def test_units_that_can_not_be_are_left_out_and_counted(tmp_path: Path) -> None:
    async with running(tmp_path, element("/a.slice"), element("/../b"), element("/*")) as relay:
        await relay.until(lambda one: one.left_out == 2, "they are counted")
        assert ["/a.slice"] == relay.cgroups


def report(*units: dict[str, Any], **others: Any) -> bytes:
    call = {"method": "io.systemd.oom.ReportManagedOOMCGroups", "parameters": {"cgroups": list(units)}}
    return json.dumps({**call, **others}).encode() + b"\0"


def own(name: str) -> str:
    uid = os.getuid()
    return f"/user.slice/user-{uid}.slice/user@{uid}.service/{name}"


async def test_a_users_units_count_while_his_manager_is_connected(tmp_path: Path) -> None:
    async with running(tmp_path, element("/a.slice")) as relay:
        async with await relay.user() as stream:
            await stream.send_all(report(element(own("x.slice")), element(own("y.slice")), oneway=True))
            await relay.until(lambda one: len(one.units) == 3, "both are told")
            assert [None, os.getuid(), os.getuid()] == [one.uid for one in relay.report.units]
            await stream.send_all(report(element(own("x.slice"), "auto"), oneway=True))
            await relay.until(lambda one: len(one.units) == 2, "one is forgotten")
        await relay.until(lambda one: len(one.units) == 1, "the other is forgotten with the connection")


async def test_a_user_can_not_speak_of_others_nor_take_back_what_the_system_says(tmp_path: Path) -> None:
    async with running(tmp_path, element("/a.slice")) as relay, await relay.user() as stream:
        await relay.until(lambda one: len(one.units) == 1, "the system's is told")
        others = (element("/a.slice", "auto"), element("/b.slice"), element("/user.slice/user-7.slice/x"))
        await stream.send_all(report(*others) + report(element(own("x.slice"))))
        await relay.until(lambda one: len(one.units) == 2, "his own is told")
        assert ["/a.slice", own("x.slice")] == relay.cgroups


async def test_a_call_is_answered_and_an_unknown_one_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as relay, await relay.user() as stream:
        await stream.send_all(report() + b'{"method": "org.varlink.service.GetInfo"}\0')
        raw = b""
        while raw.count(b"\0") < 2:
            raw += await stream.receive_some()
        first, second, _ = raw.split(b"\0")
        assert {"parameters": {}} == json.loads(first)
        assert "org.varlink.service.MethodNotFound" == json.loads(second)["error"]


@pytest.mark.parametrize(
    "raw",
    [
        b"\0",
        b"x" * (65 << 10),
        b'{"method": "io.systemd.oom.ReportManagedOOMCGroups"}\0',
        b'{"method": "io.systemd.oom.ReportManagedOOMCGroups", "parameters": {"cgroups": [[[]]] }',
        b"[" * 60_000 + b"\0",
    ],
    ids=range(5),
)
async def test_who_sends_no_report_is_disconnected_and_the_others_are_heard(
    tmp_path: Path, raw: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relaying, "_MESSAGE_SECONDS", 0.2)
    async with running(tmp_path, element("/a.slice")) as relay, await relay.user() as good:
        async with await relay.user() as bad:
            await bad.send_all(raw)
            with suppress(trio.BrokenResourceError):
                assert b"" == await bad.receive_some()
        await good.send_all(report(element(own("x.slice")), oneway=True))
        await relay.until(lambda one: len(one.units) == 2, "the other's is told")


async def test_a_user_without_a_slice_such_as_one_of_a_users_namespace_is_not_heard(tmp_path: Path) -> None:
    async with running(tmp_path, has_slice=False) as relay, await relay.user() as stream:
        with suppress(trio.BrokenResourceError):
            assert b"" == await stream.receive_some()
    assert () == relay.report.units


async def test_a_user_has_few_connections_and_few_units_on_all_of_them(tmp_path: Path) -> None:
    async with running(tmp_path) as relay:
        streams = [await relay.user() for _ in range(4)]
        for index, stream in enumerate(streams):
            await stream.send_all(report(*(element(own(f"{index}-{n}.slice")) for n in range(100))))
            await stream.receive_some()
        await relay.until(lambda one: len(one.units) == 128, "128 are told")
        async with await relay.user() as more:
            assert b"" == await more.receive_some()
        await streams[0].aclose()
        await relay.until(lambda one: len(one.units) == 28, "those of a connection go with it")
        await streams[1].send_all(report(element(own("x.slice"))))
        await relay.until(lambda one: len(one.units) == 29, "there is room again")
        for stream in streams:
            await stream.aclose()
        await relay.until(lambda one: not one.units, "all are forgotten")
        async with await relay.user() as again:
            await again.send_all(report(element(own("x.slice")), oneway=True))
            await relay.until(lambda one: len(one.units) == 1, "there is room again")


async def test_a_file_that_can_not_be_written_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reactor.managed_oom.relay._TOUCH_SECONDS", 0.02)
    blocker = tmp_path / ".units.new"
    blocker.mkdir()
    async with running(tmp_path, element("/a.slice")) as relay:
        await until(lambda: relay.systemd.calls, "systemd is asked")
        blocker.rmdir()
        await relay.until(lambda one: len(one.units) == 1, "the unit is told")


async def test_the_file_is_touched_while_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reactor.managed_oom.relay._TOUCH_SECONDS", 0.02)
    async with running(tmp_path, element("/a.slice")) as relay:
        await relay.until(lambda one: len(one.units) == 1 and not one.problem, "the unit is told")
        before = relay.path.stat()
        await until(lambda: relay.path.stat().st_mtime_ns != before.st_mtime_ns, "it is touched")
        assert before.st_ino == relay.path.stat().st_ino
