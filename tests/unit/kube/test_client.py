from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from email.utils import formatdate
from time import time

import pytest
import trio
import trio.testing

from reactor.backoff import Backoff
from reactor.kube.client import ApiClient, Recovery
from reactor.kube.credentials import Session
from reactor.kube.errors import (
    ApiError,
    BusyError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnauthorizedError,
    UnreachableError,
)
from reactor.kube.pods import PodStore
from reactor.kube.watch import Watch
from tests.support.api_faults import Asked, FaultServer, GivenSessions, Reply, quick_backoff, refusal, served


async def test_a_request_carries_the_token_and_returns_the_answers_json() -> None:
    async with served(lambda _: Reply(body={"kind": "Node"})) as (server, client):
        assert {"kind": "Node"} == await client.get("/api/v1/nodes/one", pretty="false")
    [asked] = server.asked
    assert ("GET", "/api/v1/nodes/one", {"pretty": "false"}) == (asked.method, asked.path, asked.query)
    assert "Bearer secret" == asked.headers["authorization"]


async def test_writes_carry_the_field_manager_and_reads_do_not() -> None:
    async with served(lambda _: Reply(body={})) as (server, client):
        await client.patch("/api/v1/nodes/one", {"spec": {}})
        await client.create("/api/v1/namespaces/default/events", {"reason": "Evicted"})
        await client.get("/api/v1/nodes/one")
        await client.delete("/api/v1/namespaces/default/pods/web", "uid-1", grace_period_seconds=0)
    assert ["reactor", "reactor", None, None] == [asked.query.get("fieldManager") for asked in server.asked]
    assert "application/strategic-merge-patch+json" == server.asked[0].headers["content-type"]
    assert {"uid": "uid-1"} == server.asked[3].body["preconditions"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, NotFoundError),
        (409, ConflictError),
        (410, ExpiredError),
        (400, InvalidError),
        (422, InvalidError),
    ],
)
async def test_a_refusal_that_no_repetition_mends_comes_at_once(status: int, kind: type[ApiError]) -> None:
    async with served(lambda _: refusal(status, "because")) as (server, client):
        with pytest.raises(kind, match="GET /api/v1/nodes/one: because") as caught:
            await client.get("/api/v1/nodes/one")
    assert status == caught.value.status
    assert 1 == len(server.asked)


async def test_a_missing_rule_is_named_with_its_verb_and_resource() -> None:
    async with served(lambda _: refusal(403, "pods is forbidden")) as (_, client):
        with pytest.raises(ForbiddenError) as caught:
            await client.patch("/api/v1/namespaces/shop/pods/web/status", {})
    rule = '{apiGroups: [""], resources: ["pods/status"], verbs: ["patch"]} in namespace shop'
    assert rule in str(caught.value)


@pytest.mark.parametrize("status", [429, 500, 503, 504])
async def test_a_busy_server_is_asked_again_and_answers(status: int) -> None:
    replies = [refusal(status, "busy"), refusal(status, "busy"), Reply(body={"done": True})]
    async with served(lambda _: replies.pop(0)) as (_, client):
        assert {"done": True} == await client.patch("/api/v1/nodes/one", {})


async def test_a_server_that_stays_busy_is_given_up_with_its_own_pause(autojump_clock: object) -> None:
    sessions = GivenSessions(Session(server="", tls=None))
    server = FaultServer(lambda _: refusal(429, "busy", Retry_After="7"))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        sessions.given = Session(server=server.url, tls=None)
        client = ApiClient(sessions, backoff=quick_backoff)
        with pytest.raises(BusyError) as caught:
            await client.get("/api/v1/nodes/one")
        client.close()
        nursery.cancel_scope.cancel()
    assert 7.0 == caught.value.retry_after_seconds
    assert 4 == len(server.asked)


async def test_refused_credentials_are_read_again_once_and_the_request_repeated() -> None:
    replies = [refusal(401, "Unauthorized"), Reply(body={})]
    async with served(lambda _: replies.pop(0)) as (server, client):
        await client.get("/api/v1/nodes/one")
        assert 1 == client._sessions.distrusted  # type: ignore[attr-defined]
    assert 2 == len(server.asked)


async def test_credentials_that_stay_refused_are_not_tried_for_ever() -> None:
    async with served(lambda _: refusal(401, "Unauthorized")) as (server, client):
        with pytest.raises(UnauthorizedError, match="no longer, good"):
            await client.get("/api/v1/nodes/one")
    assert 2 == len(server.asked)


async def test_no_server_is_reported_with_its_address() -> None:
    client = ApiClient(GivenSessions(Session(server="http://127.0.0.1:1", tls=None)), backoff=quick_backoff)
    with pytest.raises(UnreachableError, match=r"http://127\.0\.0\.1:1: .*refused"):
        await client.get("/api/v1/nodes/one")


async def test_a_cut_connection_is_tried_again() -> None:
    replies = [None, None, Reply(body={"done": True})]
    async with served(lambda _: replies.pop(0)) as (_, client):
        assert {"done": True} == await client.get("/api/v1/nodes/one")


@pytest.mark.parametrize("body", [b"<html>gateway</html>", b"{", b"[" * 100_000])
async def test_garbage_is_no_answer(body: bytes) -> None:
    async with served(lambda _: Reply(body=body)) as (_, client):
        with pytest.raises(UnreachableError, match="accepted: JSON"):
            await client.get("/api/v1/nodes/one")


async def test_a_refusal_without_a_status_object_is_reported_by_its_number() -> None:
    async with served(lambda _: Reply(status=404, body=b"nothing here")) as (_, client):
        with pytest.raises(NotFoundError, match="HTTP status 404"):
            await client.get("/api/v1/nodes/one")


async def test_clocks_apart_are_noted_and_forgotten_once_they_agree() -> None:
    ahead = {"seconds": 300.0}

    def script(_: Asked) -> Reply:
        return Reply(body={}, headers={"Date": formatdate(time() + ahead["seconds"], usegmt=True)})

    async with served(script) as (_, client):
        await client.get("/api/v1/nodes/one")
        assert client.clock_problem is not None
        assert "ahead of this node's" in client.clock_problem
        ahead["seconds"] = -120.0
        await client.get("/api/v1/nodes/one")
        assert "behind" in (client.clock_problem or "")
        ahead["seconds"] = 1.0
        await client.get("/api/v1/nodes/one")
        assert client.clock_problem is None


@pytest.mark.parametrize(
    "date",
    [
        "Mon, 01 Jan 0001 00:00:00 +2359",
        "1 Jan 0001 00:00 -0000",
        f"1 Jan 2000 00:00 +{'9' * 40}",
        "32 Foo",
        ",",
        "",
    ],
)
async def test_date_that_is_none_is_no_news_of_the_clocks(date: str) -> None:
    async with served(lambda _: Reply(body={"done": True}, headers={"Date": date})) as (_, client):
        assert {"done": True} == await client.get("/api/v1/nodes/one")


@pytest.mark.parametrize(
    "body",
    [b"1" * 5000, b'{"a": 1, "a": 2}', b'{"a": "\xff"}', b"[" + b"[]," * 1_000_000 + b"1]", b" " * (5 << 20)],
    ids=["digits", "a key twice", "no UTF-8", "values", "bytes"],
)
async def test_answer_at_any_price_is_none(body: bytes) -> None:
    async with served(lambda _: Reply(body=body)) as (_, client):
        with pytest.raises(UnreachableError):
            await client.get("/api/v1/nodes/one")


async def test_a_renewed_token_is_sent_over_the_same_connection() -> None:
    async with served(lambda _: Reply(body={})) as (server, client):
        await client.get("/api/v1/nodes/one")
        client._sessions.given = Session(server=server.url, tls=None, token="renew" + "ed")  # type: ignore[attr-defined]
        await client.get("/api/v1/nodes/one")
    assert ["Bearer secret", "Bearer renewed"] == [asked.headers["authorization"] for asked in server.asked]
    assert 1 == server.connections


async def test_paths_go_below_the_path_of_the_servers_address() -> None:
    async with served(lambda _: Reply(body={})) as (server, client):
        client._sessions.given = Session(server=f"{server.url}/k8s/clusters/c-1", tls=None)  # type: ignore[attr-defined]
        await client.get("/api/v1/nodes/one")
    assert ["/k8s/clusters/c-1/api/v1/nodes/one"] == [asked.path for asked in server.asked]


@pytest.mark.parametrize("address", ["http://[::1", "http://a:port", "http://a:99999"])
async def test_an_address_that_is_none_is_named(address: str) -> None:
    client = ApiClient(GivenSessions(Session(server=address, tls=None)), backoff=quick_backoff)
    with pytest.raises(UnreachableError, match="is no address"):
        await client.get("/version")


@pytest.mark.parametrize("token", ["se\N{EURO SIGN}cret", "sec\nret"])
async def test_a_token_that_no_header_can_carry_is_a_problem_that_does_not_show_it(token: str) -> None:
    client = ApiClient(
        GivenSessions(Session(server="http://127.0.0.1:1", tls=None, token=token)), backoff=quick_backoff
    )
    with pytest.raises(UnreachableError, match="characters that HTTP does not allow") as caught:
        await client.get("/version")
    assert "ret" not in str(caught.value)


_REFUSED = UnreachableError("GET /", "Connection refused")


async def _paused(recovery: Recovery, error: ApiError, *, back_after_seconds: float) -> float:
    """Return how long a part pauses that has failed often, where another gets through meanwhile."""
    backoff = Backoff(0.25, 30.0, jitter=None)
    for _ in range(10):
        backoff.next_seconds()
    recovery.lost()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(recovery.pause, backoff, error)
        await trio.sleep(back_after_seconds)
        recovery.reached()
    return trio.current_time() - began


async def test_the_first_that_gets_through_ends_the_pause_of_the_others(autojump_clock: object) -> None:
    assert 2.25 == await _paused(Recovery(), _REFUSED, back_after_seconds=2.0)
    failed = BusyError("GET /", "etcd is away", status=503)
    assert 2.25 == await _paused(Recovery(), failed, back_after_seconds=2.0)


async def test_a_pause_that_is_nearly_over_grows_by_nothing(autojump_clock: object) -> None:
    assert 30.0 == await _paused(Recovery(), _REFUSED, back_after_seconds=29.9)


async def test_what_the_server_asked_for_is_kept_to(autojump_clock: object) -> None:
    asked = BusyError("GET /", "too many requests", status=429, retry_after_seconds=7.0)
    assert 14.0 == await _paused(Recovery(), asked, back_after_seconds=2.0)
    missing = ForbiddenError("GET /", "a rule is missing", status=403)
    assert 30.0 == await _paused(Recovery(), missing, back_after_seconds=2.0)


async def test_a_server_that_was_never_lost_ends_no_pause(autojump_clock: object) -> None:
    recovery, backoff = Recovery(), Backoff(4.0, jitter=None)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(recovery.pause, backoff, _REFUSED)
        await trio.testing.wait_all_tasks_blocked()
        recovery.reached()
    assert 4.0 == trio.current_time() - began


class _Client:
    """Is away, or answers every list with nothing in it and every watch with silence."""

    def __init__(self) -> None:
        self.recovery = Recovery()
        self.is_away = True

    @asynccontextmanager
    async def stream(
        self, _: str, query: Mapping[str, str], *, silence_seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        await trio.lowlevel.checkpoint()
        if self.is_away:
            self.recovery.lost()
            raise _REFUSED

        async def pieces() -> AsyncIterator[bytes]:
            yield b'{"metadata": {"resourceVersion": "9"}, "items": []}'

        async def silence() -> AsyncIterator[bytes]:
            await trio.sleep(silence_seconds)
            yield b""

        yield silence() if "watch" in query else pieces()


async def test_a_watch_goes_on_as_soon_as_any_other_request_is_answered(autojump_clock: object) -> None:
    """Its own pauses had grown to seconds: an eviction's status that was dropped stayed away for as long."""
    client, store = _Client(), PodStore()
    async with trio.open_nursery() as nursery:
        watch = Watch(client, "/api/v1/pods", {}, store)  # type: ignore[arg-type] - all that it uses of one
        nursery.start_soon(watch.run)
        await trio.sleep(300.0)
        assert watch.problem is not None
        client.is_away = False
        client.recovery.reached()
        await trio.sleep(0.3)
        assert watch.synced.is_set()
        assert watch.problem is None
        nursery.cancel_scope.cancel()
