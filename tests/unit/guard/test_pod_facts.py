"""What the guard takes of the steward's word about pods: whole listings that can be so, and nothing else."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reactor.forms import FormError
from reactor.guard.pod_facts import PodFacts
from reactor.link.listings import FileNames, files_record, pieces, runtime_record, spec_record
from reactor.link.requests import PIECE_BYTES, Piece, Request, RequestKind, Section
from reactor.model.pods import Container, NodeFiles, Pod, PodSource, RuntimePod
from reactor.model.settings import KubernetesSettings, PodOrigin, Settings

UUID = "0e4a3c0a-1111-4222-8333-0123456789ab"
SANDBOX = "a" * 64


def told_pods(directory: Path, pods_from: PodOrigin = PodOrigin.API, **more) -> PodFacts:
    kubernetes = KubernetesSettings(pods_from=pods_from)
    found = PodFacts(Settings(kubernetes=kubernetes, state_path=str(directory / "state.json")), **more)
    found.load()
    return found


@pytest.fixture
def told(tmp_path):
    return told_pods(tmp_path)


def pod(uid: str = "u", **changes) -> Pod:
    return replace(Pod(name=f"pod-{uid}", namespace="shop", uid=uid), **changes)


def listing(*specs: Pod, number: int = 1, source: PodSource = PodSource.API) -> list[Piece]:
    return list(pieces(Section.SPECS, number, [spec_record(source, one) or b"" for one in specs]))


def take(told: PodFacts, some: list[Piece]) -> None:
    for piece in some:
        told.take(piece)


def long_pod(uid: str, **changes) -> Pod:
    """Return a pod whose spec takes two pieces."""
    names = tuple(Container(name=f"{number}".rjust(100, "c")) for number in range(25))
    return pod(uid, containers=names, **changes)


def test_a_whole_listing_stands_for_the_one_before_it(told):
    take(told, listing(pod("a"), pod("b", priority=5)))
    assert told.specs == {"a": pod("a"), "b": pod("b", priority=5)}
    take(told, listing(pod("b"), number=2))
    assert told.specs == {"b": pod("b")}


def test_a_spec_that_is_the_same_is_the_very_same_object(told):
    take(told, listing(pod("a"), pod("b")))
    before = told.specs["a"]
    take(told, listing(pod("a"), number=2))
    assert told.specs["a"] is before


@pytest.mark.parametrize(
    ("origin", "source", "priority", "because"),
    [
        (PodOrigin.API, PodSource.API, 5, None),
        (PodOrigin.API, PodSource.API, 1_999_999_999, None),
        (PodOrigin.API, PodSource.API, 2_000_000_000, "priority 2000000000"),
        (PodOrigin.API, PodSource.MIRROR, 2_000_001_000, "mirror pod"),
        (PodOrigin.KUBELET, PodSource.FILE, 0, "static pod (source file)"),
        (PodOrigin.KUBELET, PodSource.HTTP, 2_000_000_000, "priority 2000000000"),
        (PodOrigin.KUBELET, PodSource.OTHER, 0, "static pod"),
        (PodOrigin.KUBELET, PodSource.API, 0, None),
    ],
)
def test_the_guard_itself_decides_who_is_critical(tmp_path, origin, source, priority, because):
    told = told_pods(tmp_path, origin)
    take(told, listing(pod("u", priority=priority, critical_because="the steward says so"), source=source))
    assert told.specs["u"].critical_because == because


@pytest.mark.parametrize(
    ("origin", "source"),
    [
        (PodOrigin.API, PodSource.FILE),
        (PodOrigin.API, PodSource.HTTP),
        (PodOrigin.API, PodSource.OTHER),
        (PodOrigin.KUBELET, PodSource.MIRROR),
    ],
)
def test_a_pod_from_where_its_list_has_none_is_refused(tmp_path, origin, source):
    told = told_pods(tmp_path, origin)
    with pytest.raises(FormError, match="accepted"):
        take(told, listing(pod("u"), source=source))
    assert told.specs == {}


def test_a_listing_that_is_not_whole_changes_nothing_and_is_named(told):
    take(told, listing(pod("a")))
    first, *_ = listing(long_pod("b"), number=2)
    told.take(first)
    assert told.specs == {"a": pod("a")}
    with pytest.raises(FormError, match="listing 3 of SPECS within listing 2; dropped"):
        take(told, listing(pod("c"), number=3))
    assert told.specs == {"c": pod("c")}


def test_pieces_out_of_their_turn_drop_their_listing(told):
    first, second = listing(long_pod("b"))
    with pytest.raises(FormError, match="out of its turn"):
        told.take(second)
    told.take(first)
    with pytest.raises(FormError, match="out of its turn"):
        told.take(replace(second, index=2))
    with pytest.raises(FormError, match="out of its turn"):
        told.take(second)
    assert told.specs == {}
    take(told, [first, second])
    assert told.specs.keys() == {"b"}


def test_a_listing_of_other_bytes_than_it_says_is_dropped(told):
    first, second = listing(long_pod("b"))
    for wrong in (
        [replace(first, total_bytes=first.total_bytes - 1), second],
        [first, replace(second, total_bytes=first.total_bytes + 1)],
        [replace(first, is_last=True)],
        [first, replace(second, is_last=False)],
        [replace(listing(pod("a"))[0], content=b"")],
    ):
        with pytest.raises(FormError, match=r"accepted|dropped"):
            take(told, wrong)
    assert told.specs == {}


def test_a_pod_that_is_listed_twice_drops_the_listing(told):
    with pytest.raises(FormError, match="twice"):
        take(told, listing(pod("a"), pod("a", priority=1)))
    assert told.specs == {}


def test_an_earlier_listing_is_refused_and_another_steward_begins_again(told):
    take(told, listing(pod("a"), number=5))
    with pytest.raises(FormError, match="again"):
        take(told, listing(pod("b"), number=5))
    told.restart()
    assert told.specs == {"a": pod("a")}
    take(told, listing(pod("b"), number=1))
    assert told.specs == {"b": pod("b")}


def test_the_runtime_and_files_are_reported_by_themselves(told):
    runtime = RuntimePod(name="web", namespace="shop", sandboxes=(SANDBOX,), source=PodSource.FILE)
    take(told, list(pieces(Section.RUNTIME, 1, [runtime_record("hash", runtime) or b""])))
    names = [FileNames("u", is_static=False, namespace="shop", name="web"), FileNames("s", is_static=True)]
    take(told, list(pieces(Section.FILES, 1, [files_record(one) or b"" for one in names])))
    assert told.runtime == {"hash": runtime}
    assert told.files == NodeFiles(names={"u": ("shop", "web")}, static_uids=frozenset({"s"}))
    assert told.specs == {}


def test_the_runtime_can_not_make_a_pod_of_the_api_servers_a_static_one(told):
    runtime = RuntimePod(name="web", namespace="shop", source=PodSource.FILE)
    with pytest.raises(FormError, match="accepted"):
        take(told, list(pieces(Section.RUNTIME, 1, [runtime_record(UUID, runtime) or b""])))


async def test_all_are_reported_for_as_long_as_that_is_said_of_the_last_listing(tmp_path, autojump_clock):
    told = told_pods(tmp_path, clock_seconds=trio.current_time)

    def heard(number: int, places: int = 1) -> None:
        told.confirm(Request(kind=RequestKind.PODS_COMPLETE, number=number, places=places))

    assert not told.is_complete()
    with pytest.raises(FormError, match="accepted"):
        heard(1)
    take(told, listing(pod("a")))
    heard(1)
    assert told.is_complete()
    await trio.sleep(29)
    assert told.is_complete()
    await trio.sleep(2)
    assert not told.is_complete()
    heard(1)
    heard(1, places=0)
    assert not told.is_complete()
    heard(1)
    told.restart()
    assert not told.is_complete()


async def test_a_worker_thread_that_lists_the_pods_may_ask_what_was_reported(told):
    take(told, listing(pod("a")))
    told.confirm(Request(kind=RequestKind.PODS_COMPLETE, number=1, places=1))
    assert await trio.to_thread.run_sync(lambda: (told.is_complete(), *told.specs)) == (True, "a")


async def test_changes_are_told_a_few_times_a_second_and_only_where_something_differs(
    told, nursery, autojump_clock
):
    changes = list[float]()
    told.on_change = lambda: changes.append(trio.current_time())
    nursery.start_soon(told.run)
    for number in range(1, 101):
        take(told, listing(pod("a", priority=number), number=number))
        await trio.sleep(0.01)
    await trio.sleep(1)
    assert 8 <= len(changes) <= 12
    take(told, listing(pod("a", priority=100), number=101))
    await trio.sleep(1)
    assert 8 <= len(changes) <= 12


async def test_specs_are_known_after_a_restart_without_a_steward(tmp_path, nursery):
    first = told_pods(tmp_path)
    nursery.start_soon(first.remembered.run)
    spec = long_pod("a", priority=2_000_000_000)
    take(first, listing(spec, pod("b")))
    await first.remembered.wait_saved()
    after = told_pods(tmp_path)
    assert after.specs == first.specs
    assert after.specs["a"].critical_because == "priority 2000000000"
    assert after.remembered.problem is None
    assert (tmp_path / "pods.json").stat().st_mode & 0o777 == 0o600


def test_without_a_file_nothing_is_known_and_nothing_is_wrong(told):
    assert told.specs == {}
    assert told.remembered.problem is None


_BROKEN = st.sampled_from(
    [
        b"{}",
        b"[]",
        b'{"version": 3}',
        b'{"version":3,"specs":7}',
        b'{"version":3,"specs":"AAAA"}',
        b'{"version":3,"specs":"BAAAAAAAAAA="}',
        b'{"version":2,"pods":[]}',
    ]
)


@given(raw=_BROKEN | st.binary(max_size=100))
def test_a_broken_file_is_a_problem_and_not_a_crash(tmp_path_factory, raw):
    directory = tmp_path_factory.mktemp("told")
    (directory / "pods.json").touch(0o600)
    (directory / "pods.json").write_bytes(raw)
    told = told_pods(directory)
    assert told.specs == {}
    assert str(directory) in (told.remembered.problem or "")


_SPECS = [pod("a"), pod("b", priority=9), long_pod("c"), pod("a", priority=3)]
_any_piece = st.one_of(
    st.builds(
        lambda specs, number, place, changes: replace(
            listing(*specs, number=number)[place % len(listing(*specs))], **changes
        ),
        st.lists(st.sampled_from(_SPECS), max_size=3),
        st.integers(1, 3),
        st.integers(0, 3),
        st.fixed_dictionaries(
            {},
            optional={
                "index": st.integers(0, 3),
                "is_last": st.booleans(),
                "total_bytes": st.integers(0, 3 * PIECE_BYTES),
                "section": st.sampled_from(Section),
                "content": st.binary(max_size=80),
            },
        ),
    ),
    st.builds(
        Piece,
        section=st.sampled_from(Section),
        number=st.integers(1, 5),
        index=st.integers(0, 3),
        total_bytes=st.integers(0, 100),
        is_last=st.booleans(),
        content=st.binary(max_size=100),
    ),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some=st.lists(_any_piece, max_size=8))
def test_whatever_pieces_come_specs_are_of_whole_listings_and_the_next_one_is_taken(tmp_path, some):
    told = told_pods(tmp_path)
    for piece in some:
        with suppress(FormError):
            told.take(piece)
        assert all(one in _SPECS for one in told.specs.values())
        assert list(told.specs) == [one.uid for one in told.specs.values()]
    with suppress(FormError):
        take(told, listing(pod("z"), number=99)[:1])
    take(told, listing(pod("y"), number=100))
    assert told.specs.keys() == {"y"}


async def test_a_listing_of_many_pods_leaves_the_loop_its_turns(told):
    """A piece is read at once: what it holds is bounded, by bytes and by records that differ."""
    some = listing(*(pod(f"u{number}") for number in range(2_000)))
    assert len(some) > 5
    for piece in some:
        assert len(piece.content) <= PIECE_BYTES
        told.take(piece)
        await trio.lowlevel.checkpoint()
    await told.has_specs.wait()
    assert len(told.specs) == 2_000
