from __future__ import annotations

from email.utils import formatdate
from time import time

import pytest
import trio

from reactor.kube.client import ApiClient
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
from tests.support.api_faults import Asked, FaultServer, GivenSessions, Reply, quick_backoff, refusal, served


async def test_a_request_carries_the_token_and_gives_back_the_answers_json() -> None:
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


async def test_no_server_is_told_with_its_address() -> None:
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


async def test_a_refusal_without_a_status_object_is_told_by_its_number() -> None:
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
