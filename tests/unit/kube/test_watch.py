from __future__ import annotations

import itertools
import json
import time
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from reactor.kube.client import Recovery
from reactor.kube.errors import UnreachableError
from reactor.kube.kubelet import KubeletPods
from reactor.kube.pods import PodStore
from reactor.kube.watch import ListError, ListReader, Watch, oversized, oversized_event, read_list
from tests.support.api_faults import Asked, FaultServer, Reply, chunk, line, pod_document, refusal, served

_PATH = "/api/v1/pods"
_SELECTOR = {"fieldSelector": "spec.nodeName=one"}


def _list(*pods: dict[str, Any], version: str = "10", going_on: str = "") -> Reply:
    metadata = {"resourceVersion": version, **({"continue": going_on} if going_on else {})}
    return Reply(body={"kind": "PodList", "metadata": metadata, "items": list(pods)})


def _events(*pieces: bytes, cut: bool = False, ends: bool = False) -> Reply:
    async def write(stream: trio.SocketStream) -> None:
        for piece in pieces:
            await stream.send_all(chunk(piece))
        if ends:
            await stream.send_all(b"0\r\n\r\n")
        elif cut:
            await stream.aclose()
        else:
            await trio.sleep_forever()

    return Reply(after=write)


def _bookmark(version: str) -> bytes:
    return line("BOOKMARK", {"metadata": {"resourceVersion": version}})


def _changed(name: str, version: str, **changes: Any) -> dict[str, Any]:
    document = pod_document(name, **changes)
    document["metadata"]["resourceVersion"] = version
    return document


class _Server:
    """Replies to lists and watches in turn; the last of each repeats."""

    def __init__(self, lists: list[Reply | None], watches: list[Reply | None]) -> None:
        self.lists, self.watches = lists, watches

    def __call__(self, asked: Asked) -> Reply | None:
        replies = self.watches if asked.query.get("watch") else self.lists
        return replies.pop(0) if len(replies) > 1 else replies[0]


async def _followed(
    script: _Server,
    until: Callable[[PodStore, Watch, FaultServer], bool],
) -> tuple[PodStore, Watch, FaultServer]:
    store = PodStore()
    async with served(script) as (server, client), trio.open_nursery() as nursery:
        watch = Watch(client, _PATH, _SELECTOR, store)
        nursery.start_soon(watch.run)
        with trio.fail_after(20):
            while not until(store, watch, server):  # noqa: ASYNC110 - any of several things
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    return store, watch, server


def _watches(server: FaultServer) -> list[Asked]:
    return [asked for asked in server.asked if asked.query.get("watch")]


def _lists(server: FaultServer) -> list[Asked]:
    return [asked for asked in server.asked if not asked.query.get("watch")]


async def test_the_pods_are_listed_and_then_watched_from_the_lists_version() -> None:
    script = _Server(
        [_list(pod_document("web"))],
        [
            _events(
                line("ADDED", _changed("db", "11")),
                line("MODIFIED", _changed("web", "12", status={"phase": "Failed", "reason": "Evicted"})),
            )
        ],
    )
    _, watch, server = await _followed(
        script, lambda store, *_: len(store.known) == 2 and store.known["uid-web"].is_evicted
    )
    assert "spec.nodeName=one" == server.asked[0].query["fieldSelector"]
    assert "0" == server.asked[0].query["resourceVersion"]
    assert "10" == _watches(server)[0].query["resourceVersion"]
    assert "true" == _watches(server)[0].query["allowWatchBookmarks"]
    assert 0 < int(_watches(server)[0].query["timeoutSeconds"]) <= 480
    assert watch.problem is None


async def test_a_deleted_pod_is_forgotten() -> None:
    script = _Server(
        [_list(pod_document("web"), pod_document("db"))], [_events(line("DELETED", _changed("web", "11")))]
    )
    store, *_ = await _followed(script, lambda store, *_: set(store.known) == {"uid-db"})
    assert {"uid-db"} == set(store.specs)


async def test_pages_are_followed_to_the_end() -> None:
    script = _Server([_list(pod_document("web"), going_on="next"), _list(pod_document("db"))], [_events()])
    _, _, server = await _followed(script, lambda store, *_: len(store.known) == 2)
    assert "next" == server.asked[1].query["continue"]


@pytest.mark.parametrize("ends", ["cut", "ended", "garbage", "refused", "error event"])
async def test_a_watch_that_ends_is_resumed_from_the_last_version_and_nothing_is_listed(ends: str) -> None:
    last = _bookmark("44")
    first = {
        "cut": _events(last, cut=True),
        "ended": _events(last, ends=True),
        "garbage": _events(last, b"<html>\n"),
        "refused": refusal(503, "overloaded"),
        "error event": _events(last, line("ERROR", {"code": 500, "message": "timeout"})),
    }[ends]
    script = _Server([_list(pod_document("web"))], [first, _events(line("ADDED", _changed("db", "50")))])
    _, watch, server = await _followed(script, lambda store, *_: len(store.known) == 2)
    assert ("10" if ends == "refused" else "44") == _watches(server)[1].query["resourceVersion"]
    assert 1 == watch.lists


@pytest.mark.parametrize(
    "expired",
    [
        refusal(410, "too old"),
        _events(line("ERROR", {"code": 410, "reason": "Expired", "message": "too old"})),
    ],
)
async def test_a_forgotten_version_means_a_new_list_and_what_it_lacks_is_gone(expired: Reply) -> None:
    script = _Server(
        [_list(pod_document("web"), pod_document("db")), _list(pod_document("db"), version="90")],
        [expired, _events()],
    )
    _, watch, server = await _followed(
        script, lambda _, watch, server: watch.lists == 2 and len(_watches(server)) == 2
    )
    relist = _lists(server)[1]
    # From the server's cache, at least as new as what was seen; with a limit it would be read from etcd.
    assert "10" == relist.query["resourceVersion"]
    assert "limit" not in relist.query
    assert "90" == _watches(server)[1].query["resourceVersion"]
    assert watch.problem is None


@pytest.mark.parametrize(
    "refused",
    [
        refusal(410, "The provided resource version is too old"),
        refusal(504, "Timeout: Too large resource version: 10, current: 7"),
        refusal(504, "Timeout", cause="ResourceVersionTooLarge"),
    ],
)
async def test_a_version_that_no_cache_can_serve_is_dropped_for_one_list_of_the_newest(
    refused: Reply,
) -> None:
    script = _Server(
        [_list(pod_document("web")), refused, _list(version="5"), _list(version="6")],
        [refusal(410, "too old"), refusal(410, "too old"), _events()],
    )
    _, watch, server = await _followed(script, lambda _, __, server: len(_watches(server)) == 3)
    newest, after = _lists(server)[2:]
    assert ("resourceVersion" in newest.query, newest.query["limit"]) == (False, "100")
    assert ("5", False) == (after.query["resourceVersion"], "limit" in after.query)
    assert watch.problem is None


async def test_a_server_that_is_only_busy_is_asked_for_the_same_version_again() -> None:
    script = _Server(
        [_list(pod_document("web")), refusal(504, "etcdserver: request timed out"), _list(version="12")],
        [refusal(410, "too old"), _events()],
    )
    _, _, server = await _followed(script, lambda _, __, server: len(_watches(server)) == 2)
    assert ["10", "10"] == [asked.query["resourceVersion"] for asked in _lists(server)[1:]]


async def test_a_list_that_is_cut_takes_no_pod_away() -> None:
    async def half(stream: trio.SocketStream) -> None:
        await stream.send_all(chunk(b'{"metadata": {"resourceVersion": "9"}, "items": ['))
        await stream.aclose()

    script = _Server(
        [_list(pod_document("web")), Reply(after=half), _list(pod_document("web"), pod_document("db"))],
        [refusal(410, "too old"), _events()],
    )
    seen: list[int] = []

    def until(store: PodStore, *_: object) -> bool:
        if store.is_complete:
            seen.append(len(store.known))
        return len(store.known) == 2

    await _followed(script, until)
    assert 0 not in seen


async def test_an_unreadable_pod_is_named_and_not_protected_and_the_others_are_known() -> None:
    bad = pod_document(
        "bad", spec={"containers": [{"name": "main", "resources": {"requests": {"memory": "lots"}}}]}
    )
    script = _Server([_list(bad, pod_document("web"), {"metadata": {}}, "no pod")], [_events()])
    store, *_ = await _followed(script, lambda store, *_: store.is_complete)
    assert {"uid-bad", "uid-web"} == set(store.known)
    assert store.known["uid-bad"].pod.critical_because is None
    assert "lots" in store.problems["pod default/bad"]
    assert "'no pod'" in store.problems["a pod of this node"]


async def test_a_lost_server_is_a_problem_and_the_pods_stay() -> None:
    script = _Server([_list(pod_document("web"))], [_events(_bookmark("11"), cut=True), None])
    store, watch, _ = await _followed(script, lambda _, watch, __: watch.problem is not None)
    assert {"uid-web"} == set(store.known)
    assert "GET /api/v1/pods" in (watch.problem or "")


async def test_a_missing_rule_is_named_while_it_is_missing() -> None:
    script = _Server([refusal(403, "forbidden"), _list(pod_document("web"))], [_events()])
    problems: list[str] = []

    def until(store: PodStore, watch: Watch, _: FaultServer) -> bool:
        problems.extend([watch.problem] if watch.problem else [])
        return bool(store.known) and watch.problem is None

    _, watch, _ = await _followed(script, until)
    assert any('verbs: ["list"]' in problem for problem in problems)
    assert watch.problem is None


async def test_credentials_that_have_expired_are_read_again_before_the_next_attempt() -> None:
    script = _Server([refusal(401, "Unauthorized"), _list(pod_document("web"))], [_events()])
    store = PodStore()
    async with served(script) as (_, client), trio.open_nursery() as nursery:
        watch = Watch(client, _PATH, _SELECTOR, store)
        nursery.start_soon(watch.run)
        with trio.fail_after(90):
            await watch.synced.wait()
        assert 1 == client._sessions.distrusted  # type: ignore[attr-defined]
        nursery.cancel_scope.cancel()


async def test_the_kubelets_list_is_polled_and_needs_no_version() -> None:
    store = PodStore()
    seen: list[tuple[int, bool]] = []

    def script(_: Asked) -> Reply:
        """Go on to the next answer once what the one before led to was seen."""
        if (1, True) in seen:
            return Reply(body={"kind": "PodList", "metadata": {}, "items": None})
        if (1, False) in seen:
            return refusal(401, "Unauthorized")
        return Reply(body={"kind": "PodList", "metadata": {}, "items": [pod_document("web")]})

    async with served(script) as (_, client), trio.open_nursery() as nursery:
        pods = KubeletPods(client, store, interval_seconds=0.02)
        nursery.start_soon(pods.run)
        with trio.fail_after(90):
            while not (seen and not store.known):
                if store.known:
                    seen.append((len(store.known), pods.problem is not None))
                await trio.sleep(0.005)
        nursery.cancel_scope.cancel()
    assert (1, False) in seen
    assert (1, True) in seen


def _large(name: str, version: str) -> dict[str, Any]:
    document = _changed(name, version)
    document["metadata"]["annotations"] = {"tenant.example/large": "x" * (5 << 20)}
    return document


async def test_pod_that_is_too_large_is_there_without_a_spec_in_the_list_and_in_the_watch() -> None:
    large = _large("large", "11")
    script = _Server(
        [_list(pod_document("web"), large)],
        [_events(line("MODIFIED", large), line("ADDED", _changed("new", "12")))],
    )
    store, _, server = await _followed(script, lambda store, *_: "uid-new" in store.known)
    assert {"uid-web", "uid-large", "uid-new"} == set(store.known)
    assert "characters" in str(store.known["uid-large"].unreadable_because)
    assert 1 == len([asked for asked in server.asked if not asked.query.get("watch")])


class _Dripping:
    """A client whose server sends a byte a second, for ever."""

    def __init__(self, text: bytes) -> None:
        self._text = text

    @asynccontextmanager
    async def stream(self, *_: Any, **__: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        async def pieces() -> AsyncGenerator[bytes]:
            for at in itertools.count():
                yield self._text[at : at + 1] or b" "
                await trio.sleep(1)

        async with aclosing(pieces()) as given:
            yield given


async def test_list_that_drips_has_an_overall_deadline(autojump_clock: trio.testing.MockClock) -> None:
    began = trio.current_time()
    with pytest.raises(UnreachableError, match="not whole within 120 s"):
        await read_list(_Dripping(b'{"items": ['), _PATH, {}, PodStore())
    assert trio.current_time() - began < 130


async def test_pages_without_end_have_an_end(autojump_clock: trio.testing.MockClock) -> None:
    class Paging:
        recovery = Recovery()

        @asynccontextmanager
        async def stream(self, *_: Any, **__: Any) -> AsyncIterator[AsyncIterator[bytes]]:
            async def pieces() -> AsyncGenerator[bytes]:
                yield b'{"metadata": {"resourceVersion": "1", "continue": "more"}, "items": ['
                yield b"1," * 99 + b"1]}"

            async with aclosing(pieces()) as given:
                yield given

    class Full(PodStore):
        def take(self, document: Any) -> None:
            """Keep nothing."""

    watch = Watch(Paging(), _PATH, {}, Full())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        with trio.fail_after(300):
            while watch.problem is None:  # noqa: ASYNC110 - nothing to be told by
                await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert "more than 20000 items" in watch.problem


async def test_list_of_all_pods_that_a_cluster_leaves_ended_is_read_for_those_that_run() -> None:
    """Their collector begins at 12,500 (--terminated-pod-gc-threshold), perhaps all of one node."""

    class Server:
        @asynccontextmanager
        async def stream(self, *_: Any, **__: Any) -> AsyncIterator[AsyncIterator[bytes]]:
            async def pieces() -> AsyncGenerator[bytes]:
                yield b'{"metadata": {"resourceVersion": "1"}, "items": ['
                yield b"1," * 12_500 + json.dumps(pod_document()).encode() + b"]}"

            async with aclosing(pieces()) as given:
                yield given

    store = PodStore()
    await read_list(Server(), _PATH, {}, store)
    assert {"uid-web"} == set(store.known)


async def test_documents_without_end_leave_others_half_of_the_time() -> None:
    class Slow(PodStore):
        def take(self, document: Any) -> None:  # noqa: ARG002 - whatever it is
            end = time.perf_counter() + 0.002
            while time.perf_counter() < end:
                pass

    text = b'{"metadata": {"resourceVersion": "1"}, "items": [' + b"{}," * 300 + b"{}]}"

    class Fast:
        @asynccontextmanager
        async def stream(self, *_: Any, **__: Any) -> AsyncIterator[AsyncIterator[bytes]]:
            async def pieces() -> AsyncGenerator[bytes]:
                yield text

            async with aclosing(pieces()) as given:
                yield given

    began, worked = time.perf_counter(), time.process_time()
    await read_list(Fast(), _PATH, {}, Slow())
    assert time.process_time() - worked < 0.75 * (time.perf_counter() - began)


pytestmark = pytest.mark.suite("hostile peers")

_ITEMS = st.lists(
    st.dictionaries(
        st.text(max_size=8), st.one_of(st.text(max_size=8), st.integers(), st.none()), max_size=3
    ),
    max_size=5,
)


def _read(text: bytes, size: int) -> tuple[list[Any], ListReader]:
    reader = ListReader()
    items = [item for at in range(0, len(text), size) for item in reader.feed(text[at : at + size])]
    return [*items, *reader.finish()], reader


@given(items=_ITEMS, size=st.integers(1, 64), ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_a_list_is_the_same_however_it_is_cut(
    items: list[Any], size: int, *, ascii_only: bool, indent: int | None
) -> None:
    document = {"kind": "PodList", "metadata": {"resourceVersion": "12"}, "items": items, "n": 1234}
    text = json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    try:
        text.decode()
    except UnicodeDecodeError:
        return
    found, reader = _read(text, size)
    assert items == found
    assert "12" == reader.resource_version
    assert "PodList" == reader.fields["kind"]


def test_items_come_before_the_list_has_ended() -> None:
    reader = ListReader()
    assert [{"a": 1}] == list(reader.feed(b'{"metadata": {}, "items": [{"a": 1}, {"b"'))
    assert not reader.is_whole
    assert [{"b": 2}] == list(reader.feed(b": 2}]}"))
    assert reader.is_whole


def test_go_writes_an_empty_list_as_null() -> None:
    found, reader = _read(b'{"metadata":{"resourceVersion":"3"},"items":null}', 1000)
    assert [] == found
    assert "3" == reader.resource_version


@pytest.mark.parametrize(
    "text", [b"[]", b"<html>", b'{"items": [1 2]}', b'{1: 2, "a": 3}', b'{"a" 1, }', b"\xff\xfe"]
)
def test_what_is_no_list_is_refused(text: bytes) -> None:
    with pytest.raises(ListError):
        _ = _read(text, 1000)[1].resource_version


@pytest.mark.parametrize(
    "text",
    [b'{"metadata":{"resourceVersion":"3"},"items":[{}', b'{"items":[]}', b'{"metadata":[],"items":[]}'],
)
def test_a_list_cut_short_or_without_a_version_has_none(text: bytes) -> None:
    with pytest.raises(ListError):
        _ = _read(text, 7)[1].resource_version


def test_an_endless_item_is_refused_before_it_fills_the_memory() -> None:
    reader = ListReader(largest_characters=1000)
    list(reader.feed(b'{"items": ["'))
    for _ in range(9):
        list(reader.feed(b"a" * 100))
    with pytest.raises(ListError, match="more than 1000 characters"):
        list(reader.feed(b"a" * 100))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_else(text: bytes) -> None:
    with suppress(ListError):
        _ = _read(text, 16)[1].resource_version


def pod(name: str, **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "7", **more}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main"}]}}


def pods(*items: Any) -> bytes:
    return json.dumps({"metadata": {"resourceVersion": "12"}, "items": items}).encode()


@pytest.mark.parametrize("size", [1, 100, 1460])
def test_however_it_is_cut_a_list_is_decoded_in_linear_time(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = pods(pod("annotated", annotations={f"tenant.example/{n}": "x" for n in range(2000)}), pod("other"))
    decoded = [0]

    class Counting(json.JSONDecoder):
        def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
            decoded[0] += len(s) - idx
            return super().raw_decode(s, idx)

    monkeypatch.setattr("reactor.kube.watch.DECODER", Counting())
    found, reader = _read(text, size)
    assert ["annotated", "other"] == [one["metadata"]["name"] for one in found]
    assert "12" == reader.resource_version
    assert decoded[0] < 6 * len(text)


@pytest.mark.parametrize("size", [1, 7, 1000, 10_000])
def test_item_that_is_too_large_is_known_by_its_name_and_costs_no_other_one_its_place(size: int) -> None:
    large = pod("large", annotations={"a": 'x"\\{[' * 1000, "b": [[["]"]]]})
    text = pods(pod("first"), large, pod("last"))
    reader = ListReader(largest_characters=2000)
    found = [one for at in range(0, len(text), size) for one in reader.feed(text[at : at + size])]
    found += reader.finish()
    assert ["first", "large", "last"] == [one["metadata"]["name"] for one in found]
    assert "12" == reader.resource_version
    whole = size > len(text)
    assert whole or ("annotations" not in found[1]["metadata"] and "characters" in repr(found[1]["spec"]))
    assert "uid-large" == found[1]["metadata"]["uid"]


@pytest.mark.slow
def test_item_of_too_many_values_is_passed_over_before_they_fill_the_memory() -> None:
    text = pods(pod("dense", annotations={"a": [[]] * 600_000}), pod("other"))
    reader, found = ListReader(), []
    tracemalloc.start()
    try:
        for at in range(0, len(text), 65536):
            found += reader.feed(text[at : at + 65536])
        found += reader.finish()
        assert tracemalloc.get_traced_memory()[1] < 60 << 20
    finally:
        tracemalloc.stop()
    assert ["dense", "other"] == [one["metadata"]["name"] for one in found]
    assert reader.is_whole


def test_what_else_a_list_says_is_not_kept() -> None:
    text = json.dumps({**{f"{n}": "x" * 1000 for n in range(100)}, "metadata": {"resourceVersion": "3"}})
    reader = _read(text.encode(), 1000)[1]
    assert {"metadata": {"resourceVersion": "3"}} == reader.fields


@pytest.mark.parametrize(
    "item", [b"1" * 5000, b'{"a": 1, "a": 2}', b"[" * 100_000], ids=["digits", "a key twice", "depth"]
)
def test_item_that_is_no_json_as_it_is_accepted_is_no_list(item: bytes) -> None:
    with pytest.raises(ListError):
        _read(b'{"items": [' + item + b", {}]}", 65536)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_arbitrary_beginnings_of_oversized_objects_raise_nothing(first: bytes, rest: bytes) -> None:
    text = (b'{"metadata": {' + first).decode(errors="replace") + rest.decode(errors="replace")
    assert set(oversized(text)["metadata"]) <= {"name", "namespace", "uid", "resourceVersion"}
    assert {"metadata", "spec"} == set(oversized_event(text)["object"])
