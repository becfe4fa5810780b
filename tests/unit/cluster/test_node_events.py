from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import trio

from reactor.cluster.node_events import NodeEvents
from reactor.kube.client import ApiClient
from reactor.kube.documents import ObjectReference
from reactor.model.signals import Resource
from tests.support.api_faults import Asked, Reply, refusal, served
from tests.support.waiting import until


class _Server:
    """Keeps events."""

    def __init__(self) -> None:
        self.events: dict[str, Any] = {}
        self.faults: list[Reply | None] = []

    def __call__(self, asked: Asked) -> Reply | None:
        if self.faults:
            return self.faults.pop(0)
        if asked.method == "POST":
            self.events[asked.body["metadata"]["name"]] = asked.body
        else:
            name = asked.path.rpartition("/")[2]
            if name not in self.events:
                return refusal(404, "gone")
            self.events[name] |= asked.body
        return Reply(body=asked.body)

    def counts(self) -> list[tuple[str, int]]:
        return [(one["message"], one["count"]) for one in self.events.values()]


async def test_what_happens_again_is_counted_in_one_event_as_upstream_words_it() -> None:
    server = _Server()
    async with served(server) as (_, client), trio.open_nursery() as nursery:
        events = NodeEvents(client, "one")
        nursery.start_soon(events.run)
        events.threshold_met(Resource.MEMORY)
        events.threshold_met(Resource.MEMORY)
        events.system_oom("hog", 42)
        oom = "System OOM encountered, victim process: hog, pid: 42"
        await until(lambda: server.counts() == [("Attempting to reclaim memory", 2), (oom, 1)])
        events.threshold_met(Resource.MEMORY)
        await until(lambda: server.counts()[0][1] == 3)
        nursery.cancel_scope.cancel()
    told = next(iter(server.events.values()))
    assert ("EvictionThresholdMet", "Warning", "Node", "one") == (
        told["reason"],
        told["type"],
        told["involvedObject"]["kind"],
        told["involvedObject"]["uid"],
    )


async def _reported(count: int, report: Callable[[NodeEvents], None]) -> list[tuple[str, str, str]]:
    """Return type, reason and message of so many events that `report` has reported."""
    server = _Server()
    async with served(server) as (_, client), trio.open_nursery() as nursery:
        events = NodeEvents(client, "one")
        nursery.start_soon(events.run)
        report(events)
        await until(lambda: len(server.events) == count)
        nursery.cancel_scope.cancel()
    return [(one["type"], one["reason"], one["message"]) for one in server.events.values()]


async def test_a_condition_that_changes_is_a_normal_event_and_failed_collection_a_warning() -> None:
    def report(events: NodeEvents) -> None:
        events.condition_changed("NodeHasDiskPressure")
        events.report("InvalidDiskCapacity", "invalid capacity 0 on image filesystem")
        events.report("ContainerGCFailed", "it is gone")

    assert [
        ("Normal", "NodeHasDiskPressure", "Node one status is now: NodeHasDiskPressure"),
        ("Warning", "InvalidDiskCapacity", "invalid capacity 0 on image filesystem"),
        ("Warning", "ContainerGCFailed", "it is gone"),
    ] == await _reported(3, report)


async def test_image_collection_that_falls_short_or_fails_is_reported_as_upstream_does() -> None:
    def report(events: NodeEvents) -> None:
        events.report("FreeDiskSpaceFailed", "Failed to garbage collect required amount of images.")
        events.report("ImageGCFailed", "the runtime gives no answer")

    assert [
        ("Warning", "FreeDiskSpaceFailed", "Failed to garbage collect required amount of images."),
        ("Warning", "ImageGCFailed", "the runtime gives no answer"),
    ] == await _reported(2, report)


async def test_after_a_while_it_is_another_event() -> None:
    server, now = _Server(), [60.0]
    async with served(server) as (_, client), trio.open_nursery() as nursery:
        events = NodeEvents(client, "one", clock_unix_seconds=lambda: now[0])
        nursery.start_soon(events.run)
        events.threshold_met(Resource.PIDS)
        await until(lambda: len(server.events) == 1)
        now[0] += 601
        events.threshold_met(Resource.PIDS)
        await until(lambda: len(server.events) == 2)
        nursery.cancel_scope.cancel()


async def test_slowed_down_evictions_are_an_event() -> None:
    server = _Server()
    async with served(server) as (_, client), trio.open_nursery() as nursery:
        events = NodeEvents(client, "one")
        nursery.start_soon(events.run)
        events.report("EvictionsSlowedDown", "545 MiB are used outside the pods")
        await until(lambda: server.counts() == [("545 MiB are used outside the pods", 1)])
        nursery.cancel_scope.cancel()


async def test_an_event_that_the_server_has_forgotten_is_created_again() -> None:
    server = _Server()
    async with served(server) as (_, client), trio.open_nursery() as nursery:
        events = NodeEvents(client, "one")
        nursery.start_soon(events.run)
        events.threshold_met(Resource.INODES)
        await until(lambda: len(server.events) == 1)
        server.events.clear()
        events.threshold_met(Resource.INODES)
        await until(lambda: server.counts() == [("Attempting to reclaim inodes", 2)])
        nursery.cancel_scope.cancel()


async def test_a_server_that_is_away_is_reported_later_and_never_more_than_a_bounded_number() -> None:
    server = _Server()
    server.faults = [None] * 4
    async with served(server) as (_, client), trio.open_nursery() as nursery:
        events = NodeEvents(client, "one")
        nursery.start_soon(events.run)
        for number in range(100):
            events.system_oom("hog", number)
        await until(lambda: events.problem is not None)
        await until(lambda: len(server.events) == 10 and events.problem is None)
        nursery.cancel_scope.cancel()
    assert 100 == sum(count for _, count in server.counts())


class _Client:
    """An API server without a socket, for which no clock waits."""

    def __init__(self, server: _Server) -> None:
        self.server = server
        self.writes = 0

    async def create(self, path: str, body: Any) -> Any:
        return await self._sent("POST", path, body)

    async def patch(self, path: str, body: Any) -> Any:
        return await self._sent("PATCH", path, body)

    async def _sent(self, method: str, path: str, body: Any) -> Any:
        await trio.lowlevel.checkpoint()
        self.writes += 1
        reply = self.server(Asked(method=method, path=path, query={}, headers={}, body=body))
        assert reply is not None
        assert 200 == reply.status
        return reply.body


@asynccontextmanager
async def _written(server: _Server) -> AsyncIterator[tuple[NodeEvents, _Client]]:
    client = _Client(server)
    async with trio.open_nursery() as nursery:
        events = NodeEvents(client, "one", clock_unix_seconds=trio.current_time)  # type: ignore[arg-type]
        nursery.start_soon(events.run)
        yield events, client
        nursery.cancel_scope.cancel()


async def test_a_storm_of_oom_kills_is_a_bounded_number_of_writes_and_none_is_uncounted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Ten alike, the last of which stands for all further ones, whatever their victims are called."""
    server = _Server()
    async with _written(server) as (events, client):
        for number in range(1000):
            events.system_oom(f"hog{number}", number)
            await trio.sleep(1)
        within_the_storm = client.writes
        await trio.sleep(600)
    assert 10 == len(server.events)
    assert 1000 == sum(count for _, count in server.counts())
    last = "(combined from similar events): System OOM encountered, victim process: hog999, pid: 999"
    assert last in dict(server.counts())
    assert within_the_storm <= 25 + 1000 // 300 + 1


async def test_what_is_new_is_written_before_what_is_counted_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server = _Server()
    async with _written(server) as (events, client):
        for _ in range(30):
            events.threshold_met(Resource.MEMORY)
            await trio.sleep(2)
        assert 25 == client.writes
        events.condition_changed("NodeHasDiskPressure")
        await trio.sleep(301)
        assert 26 == client.writes
    assert "Node one status is now: NodeHasDiskPressure" in dict(server.counts())


async def test_few_that_are_alike_stay_events_of_their_own_also_after_a_while(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server = _Server()
    async with _written(server) as (events, _):
        for begin in (0, 9):
            for number in range(begin, begin + 9):
                events.system_oom("a", number)
            await trio.sleep(601)
    assert 18 == len(server.events)
    assert not any("combined" in message for message, _ in server.counts())


async def test_events_about_pods_are_their_own_and_count_up_by_pod() -> None:
    server = _Server()
    pods = [ObjectReference(kind="Pod", name=f"p{n}", uid=f"u{n}", namespace="shop") for n in range(2)]
    async with served(server) as (_, client), trio.open_nursery() as nursery:
        events = NodeEvents(client, "one")
        nursery.start_soon(events.run)
        for pod in (pods[0], pods[0], pods[1]):
            events.report("ProcessKilled", "tool was killed", about=pod)
        events.report("ProcessKilled", "tool was killed")
        await until(lambda: len(server.events) == 3)
        nursery.cancel_scope.cancel()
    found = [
        (one["involvedObject"].get("name"), one["metadata"]["namespace"], one["count"])
        for one in server.events.values()
    ]
    assert [("p0", "shop", 2), ("p1", "shop", 1), ("one", "default", 1)] == found


async def test_what_is_alike_is_remembered_of_so_many_pods_and_no_more() -> None:
    events = NodeEvents(cast(ApiClient, None), "one")
    for number in range(200):
        pod = ObjectReference(kind="Pod", name=f"p{number}", uid=f"u{number}", namespace="shop")
        events.report("ProcessKilled", "tool was killed", about=pod)
    assert len(events._alike) == 64
    assert len(events._series) == 64
