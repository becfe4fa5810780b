"""Notices on desktops: a signal on a real bus, received by the rule that systembus-notify listens with."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from jeepney.bus_messages import MatchRule, message_bus
from jeepney.io.trio import open_dbus_router

from reactor.model.settings import NotificationSettings
from reactor.tell.channels import INTERFACE, DesktopNotice, NotSentError, Outbox
from reactor.tell.events import Event, Events
from tests.support.logind import private_bus
from tests.support.waiting import until

RULE = "type='signal',interface='net.nuetzlich.SystemNotifications',member='Notify'"


def notice(bus: str, *, wanted: bool = True) -> DesktopNotice:
    settings = NotificationSettings(desktop=wanted)
    return DesktopNotice(lambda: settings, bus=bus)


def event(pod: str) -> Event:
    """Return an OOM kill's event, in the words of which is the name of a pod."""
    [made] = Events("node-1").take({"kind": "oom-kill", "message": f"killed {pod}"})
    return made


async def test_an_event_is_received_as_systembus_notify_listens_for_it(tmp_path: Path) -> None:
    with private_bus(tmp_path) as bus:
        async with open_dbus_router(bus.address) as router:
            await router.send_and_get_reply(message_bus.AddMatch(RULE))
            with trio.fail_after(60), router.filter(MatchRule(interface=INTERFACE)) as received:
                await notice(bus.address).send(event("cgroup/hog"))
                signal = await received.receive()
    assert ("reactor", "node-1: killed cgroup/hog") == signal.body


async def test_a_pods_name_is_no_markup_on_a_desktop(tmp_path: Path) -> None:
    with private_bus(tmp_path) as bus:
        async with open_dbus_router(bus.address) as router:
            await router.send_and_get_reply(message_bus.AddMatch(RULE))
            with trio.fail_after(60), router.filter(MatchRule(interface=INTERFACE)) as received:
                await notice(bus.address).send(event('<a href="x">&amp;\x1b[2J</a>'))
                body = (await received.receive()).body[1]
    assert not set("<>&\x1b") & set(body)
    assert "a href" in body


async def test_where_there_is_no_bus_an_event_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(NotSentError, match="system bus"):
        await notice(f"unix:path={tmp_path}/none").send(event("cgroup/hog"))


async def test_a_bus_that_goes_away_meanwhile_costs_the_event_and_nothing_else(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """What lets the daemon in and then closes the connection is no bus, and no reason to end."""
    path = tmp_path / "bus"
    with trio.socket.socket(trio.socket.AF_UNIX) as listening:
        await listening.bind(str(path))
        listening.listen()

        async def let_in_and_close() -> None:
            connection, _ = await listening.accept()
            with connection:
                await connection.recv(4096)
                await connection.send(b"OK 1234deadbeef\r\nAGREE_UNIX_FD\r\n")
                await connection.recv(4096)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(let_in_and_close)
            with pytest.raises(NotSentError, match="system bus"):
                await notice(f"unix:path={path}").send(event("cgroup/hog"))


async def test_notices_are_sent_only_where_they_are_wanted() -> None:
    assert notice("SYSTEM").takes(event("cgroup/hog"))
    assert not notice("SYSTEM", wanted=False).takes(event("cgroup/hog"))
    assert not NotificationSettings().desktop


class Sink:
    """Takes everything, and nothing before it is opened."""

    name = "sink"
    problem = None

    def __init__(self) -> None:
        self.open = trio.Event()
        self.sent: list[str] = []

    def takes(self, event: Event) -> bool:
        del event
        return True

    async def send(self, event: Event) -> None:
        await self.open.wait()
        self.sent.append(event.text)


def oom_kill(scope: str = "own-limit") -> Event:
    [made] = Events("a").take({"kind": "oom-kill", "message": f"kill {scope}", "scope": scope})
    return made


def eviction() -> Event:
    [made] = Events("a").take({"kind": "decision", "id": 1, "evictions": [{"outcome": "killed", "pod": "p"}]})
    return made


async def test_a_flood_of_a_tenants_oom_kills_keeps_nothing_else_from_being_told() -> None:
    sink = Sink()
    outbox = Outbox(sink)
    for _ in range(5000):
        outbox.put(oom_kill())
    assert (30, 4970, 0) == (outbox.waiting, outbox.skipped, outbox.dropped)
    assert outbox.problem is None  # nor does a tenant make a problem of it
    outbox.put(eviction())
    outbox.put(oom_kill("node"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run)
        sink.open.set()
        await until(lambda: outbox.sent == 32, "all are sent")
        nursery.cancel_scope.cancel()
    assert ["a: evicted p (killed) for None", "a: kill node"] == sink.sent[-2:]


async def test_minor_events_are_taken_again_after_a_minute(autojump_clock) -> None:
    outbox = Outbox(Sink())
    for _ in range(31):
        outbox.put(oom_kill())
    await trio.sleep(61)
    outbox.put(oom_kill())
    assert (31, 1) == (outbox.waiting, outbox.skipped)


async def test_minor_events_leave_half_of_the_room_to_others() -> None:
    outbox = Outbox(Sink(), most_waiting=8)
    for _ in range(10):
        outbox.put(oom_kill())
    assert 4 == outbox.waiting
    for _ in range(10):
        outbox.put(eviction())
    assert (8, 6, 6) == (outbox.waiting, outbox.skipped, outbox.dropped)
