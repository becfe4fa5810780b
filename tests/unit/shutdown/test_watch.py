import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from jeepney import DBusAddress, HeaderFields, new_signal
from jeepney.bus_messages import message_bus
from jeepney.io.trio import open_dbus_connection

from reactor.link.shutdown import GO_ON, LONGEST_BYTES, ShutdownNews, ShutdownNewsKind, read_news
from reactor.shutdown.watch import Watch
from tests.support.logind import PrivateBus, logind_double, private_bus, until_locked
from tests.support.waiting import until

INHIBITED, NOT_INHIBITED, PREPARING, CANCELLED, PROBLEM = ShutdownNewsKind
_PATH, _INTERFACE = "/org/freedesktop/login1", "org.freedesktop.login1.Manager"


class Guard:
    """The guard's end of the pair: what it has heard."""

    def __init__(self, connection: trio.socket.SocketType) -> None:
        self.connection = connection
        self.heard: list[ShutdownNews] = []

    async def run(self) -> None:
        while raw := await self.connection.recv(LONGEST_BYTES):
            self.heard.append(read_news(raw))

    def count(self, kind: ShutdownNewsKind) -> int:
        return sum(one.kind is kind for one in self.heard)

    @property
    def problem(self) -> str:
        return next((one.text for one in reversed(self.heard) if one.kind is PROBLEM), "")

    async def until(self, kind: ShutdownNewsKind, times: int = 1) -> ShutdownNews:
        await until(lambda: self.count(kind) >= times, f"{kind.name} is heard {times} times")
        return [one for one in self.heard if one.kind is kind][-1]


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[PrivateBus]:
    with private_bus(tmp_path) as bus:
        yield bus


@asynccontextmanager
async def _watching(bus: PrivateBus, drop_ins: Path, wanted_seconds: int = 30) -> AsyncIterator[Guard]:
    """Run a watch for the length of the block."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for one in (ours, theirs):
        one.settimeout(0)
    with trio.socket.from_stdlib_socket(ours) as near, trio.socket.from_stdlib_socket(theirs) as far:
        guard = Guard(near)
        watch = Watch(
            far, wanted_seconds, directory=drop_ins, address=bus.address, pause_seconds=(0.01, 0.05)
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(guard.run)
            nursery.start_soon(watch.run)
            yield guard
            nursery.cancel_scope.cancel()


async def test_a_lock_is_taken_and_logind_made_to_wait_long_enough(bus: PrivateBus, tmp_path: Path) -> None:
    drop_ins = tmp_path / "logind.conf.d"
    drop_ins.mkdir()
    (drop_ins / "unattended-upgrades-logind-maxdelay.conf").write_text("[Login]\nInhibitDelayMaxSec=10\n")
    async with logind_double(bus, drop_ins) as logind, _watching(bus, drop_ins) as guard:
        assert 35 == (await guard.until(INHIBITED)).seconds
        assert 1 == logind.locks
        assert ("KillUnit", ("systemd-logind.service", "all", 1)) in logind.asked
        assert (
            "Inhibit",
            ("shutdown", "reactor", "Pods are ended by their priority", "delay"),
        ) in logind.asked
        assert "InhibitDelayMaxSec=35\n" in (drop_ins / "zz-reactor.conf").read_text()
        assert 0o644 == (drop_ins / "zz-reactor.conf").stat().st_mode & 0o777
    assert "" == guard.problem


async def test_a_maximum_that_is_enough_is_left_alone(bus: PrivateBus, tmp_path: Path) -> None:
    drop_ins = tmp_path / "logind.conf.d"
    async with logind_double(bus, drop_ins) as logind:
        logind.max_delay_seconds = 30
        async with _watching(bus, drop_ins, wanted_seconds=30) as guard:
            assert 30 == (await guard.until(INHIBITED)).seconds
            assert "KillUnit" not in [name for name, _ in logind.asked]
    assert not drop_ins.exists()


async def test_a_shutdown_is_reported_and_goes_on_when_the_guard_says_so(
    bus: PrivateBus, tmp_path: Path
) -> None:
    async with logind_double(bus, tmp_path) as logind, _watching(bus, tmp_path) as guard:
        await guard.until(INHIBITED)
        await logind.begin_shutdown()
        await guard.until(PREPARING)
        assert 1 == logind.locks
        await guard.connection.send(GO_ON)
        await until_locked(logind, 0)


async def test_a_cancelled_shutdown_is_reported_and_the_next_one_is_held_up_again(
    bus: PrivateBus, tmp_path: Path
) -> None:
    async with logind_double(bus, tmp_path) as logind, _watching(bus, tmp_path) as guard:
        await guard.until(INHIBITED)
        await logind.begin_shutdown()
        await guard.until(PREPARING)
        await guard.connection.send(GO_ON)
        await until_locked(logind, 0)
        await logind.cancel_shutdown()
        await guard.until(CANCELLED)
        await guard.until(INHIBITED, 2)
        await until_locked(logind, 1)
        await logind.begin_shutdown()
        await guard.until(PREPARING, 2)


async def test_a_shutdown_that_had_begun_before_is_reported_too(bus: PrivateBus, tmp_path: Path) -> None:
    async with logind_double(bus, tmp_path) as logind:
        logind.is_preparing = True
        async with _watching(bus, tmp_path) as guard:
            await guard.until(PREPARING)


@pytest.mark.parametrize("how", ["straight", "to all"])
async def test_no_other_sender_begins_a_shutdown(bus: PrivateBus, tmp_path: Path, how: str) -> None:
    # Any user may send a signal, also straight to a connection that has not subscribed to it.
    async with _watching(bus, tmp_path) as guard:
        async with logind_double(bus, tmp_path):
            await guard.until(INHIBITED)
            async with await open_dbus_connection(bus.address) as stranger:
                for name in [f":1.{number}" for number in range(6)] if how == "straight" else [None]:
                    forged = new_signal(
                        DBusAddress(_PATH, interface=_INTERFACE), "PrepareForShutdown", "b", (True,)
                    )
                    if name is not None:
                        forged.header.fields[HeaderFields.destination] = name
                    await stranger.send(forged)
                async with stranger.router() as router:
                    await router.send_and_get_reply(
                        message_bus.GetId()
                    )  # the bus has passed on all before it
        # That logind is gone is heard after what came before it.
        await guard.until(PROBLEM)
        assert 0 == guard.count(PREPARING)


async def test_a_message_too_long_to_be_for_us_does_no_harm(bus: PrivateBus, tmp_path: Path) -> None:
    async with logind_double(bus, tmp_path) as logind, _watching(bus, tmp_path) as guard:
        await guard.until(INHIBITED)
        async with await open_dbus_connection(bus.address) as stranger:
            for name in (":1.0", ":1.1", ":1.2", ":1.3"):
                long = new_signal(DBusAddress("/x", interface="x.y"), "z", "ay", (bytes(1 << 20),))
                long.header.fields[HeaderFields.destination] = name
                await stranger.send(long)
        await logind.begin_shutdown()
        await guard.until(PREPARING)
        assert 1 == guard.count(INHIBITED)


async def test_a_bus_that_is_not_there_is_one_problem_until_it_comes(tmp_path: Path) -> None:
    with private_bus(tmp_path) as bus:
        bus.stop()
        async with _watching(bus, tmp_path) as guard:
            await guard.until(NOT_INHIBITED, 3)
            assert "system bus" in guard.problem
            assert 1 == guard.count(PROBLEM)
            bus.start()
            async with logind_double(bus, tmp_path) as logind:
                await guard.until(INHIBITED)
                await until(lambda: guard.problem == "", "the problem is over")
                assert 1 == logind.locks


async def test_without_logind_on_the_bus_there_is_a_problem_until_it_comes(
    bus: PrivateBus, tmp_path: Path
) -> None:
    async with _watching(bus, tmp_path) as guard:
        await guard.until(NOT_INHIBITED, 2)
        assert "org.freedesktop.login1" in guard.problem
        async with logind_double(bus, tmp_path):
            await guard.until(INHIBITED)
            await until(lambda: guard.problem == "", "the problem is over")


async def test_the_lock_outlives_a_bus_that_goes_away(tmp_path: Path) -> None:
    with private_bus(tmp_path) as bus:
        async with logind_double(bus, tmp_path) as logind, _watching(bus, tmp_path) as guard:
            await guard.until(INHIBITED)
            bus.stop()
            await guard.until(PROBLEM)
            assert 1 == logind.locks
            bus.start()
            async with logind_double(bus, tmp_path) as another:
                await guard.until(INHIBITED, 2)
                assert 1 == another.locks
                await until_locked(logind, 0)


async def test_a_logind_that_was_restarted_gets_its_lock_again(bus: PrivateBus, tmp_path: Path) -> None:
    async with _watching(bus, tmp_path) as guard:
        async with logind_double(bus, tmp_path):
            await guard.until(INHIBITED)
        async with logind_double(bus, tmp_path) as another:
            await guard.until(INHIBITED, 2)
            await until_locked(another)


async def test_a_refused_lock_is_a_problem_and_a_shutdown_is_reported_all_the_same(
    bus: PrivateBus, tmp_path: Path
) -> None:
    async with logind_double(bus, tmp_path) as logind:
        logind.refuses_locks = True
        async with _watching(bus, tmp_path) as guard:
            await guard.until(NOT_INHIBITED)
            assert "AccessDenied: Permission denied" in guard.problem
            logind.refuses_locks = False
            await guard.until(INHIBITED)


async def test_a_maximum_that_can_not_be_raised_is_named_and_the_lock_is_taken(
    bus: PrivateBus, tmp_path: Path
) -> None:
    async with logind_double(bus, tmp_path) as logind:
        logind.heeds_drop_ins = False
        async with _watching(bus, tmp_path) as guard:
            assert 5 == (await guard.until(INHIBITED)).seconds
            await until(lambda: "waits for 5 s at the most" in guard.problem, "the problem is told")
            assert "zz-reactor.conf says 35" in guard.problem


async def test_a_directory_that_can_not_be_written_is_named(bus: PrivateBus, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with logind_double(bus, tmp_path), _watching(bus, tmp_path / "file") as guard:
        assert 5 == (await guard.until(INHIBITED)).seconds
        await until(lambda: "file" in guard.problem, "the problem is told")


async def test_the_watch_ends_with_the_guard_and_lets_go(bus: PrivateBus, tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.settimeout(0)
    async with logind_double(bus, tmp_path) as logind:
        with trio.socket.from_stdlib_socket(theirs) as far:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(Watch(far, 30, directory=tmp_path, address=bus.address).run))
                await until_locked(logind)
                ours.close()
        await until_locked(logind, 0)
