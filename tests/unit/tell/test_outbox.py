"""What has room in an outbox."""

from __future__ import annotations

import trio

from reactor.tell.events import Event, Events
from reactor.tell.outbox import Outbox
from tests.support.waiting import until


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
