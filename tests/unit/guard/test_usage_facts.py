"""What the guard believes of pods' files: of places that it has named, seen lately, and nothing else."""

from __future__ import annotations

import dataclasses
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.forms import FormError
from reactor.guard.usage_facts import UsageFacts
from reactor.link.orders import MOST_PLACES, Places
from reactor.link.requests import PlaceUsage, UsageKind, Usages
from reactor.model.pods import Pod, StorageKind, StoragePlace, Volume


def pod(name: str, volumes: int = 1) -> Pod:
    return Pod(
        name=name,
        namespace="n",
        uid=name,
        volumes=tuple(Volume(name=f"v{number}") for number in range(volumes)),
        storage=tuple(
            StoragePlace(kind=StorageKind.VOLUME, name=f"v{number}", path=f"/pods/{name}/{number}")
            for number in range(volumes)
        ),
    )


class Told:
    """A storage, and a steward that knows what it was told."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.storage = UsageFacts(clock_seconds=lambda: self.now)
        self.known: set[int] = set()

    def number_of(self, path: str) -> int:
        told: set[int] = set()
        places = [place for some in self.storage.changes(told) for place in some.count]
        (number,) = [place.number for place in places if place.path == path]
        return number

    def says(self, *places: PlaceUsage, age_seconds: float = 0.0) -> None:
        at_ns = time.monotonic_ns() - int(age_seconds * 1e9)
        self.storage.take(Usages(at_ns=at_ns, places=places))


@pytest.fixture
def told():
    return Told()


def counted(number: int, used_bytes: int) -> PlaceUsage:
    return PlaceUsage(number, UsageKind.COUNTED, used_bytes, 2)


def test_steward_gets_what_came_and_went_since_the_last_time_and_a_new_one_everything(told):
    told.storage.assign([pod("a"), pod("b")])
    (both,) = told.storage.changes(told.known)
    assert {"/pods/a/0", "/pods/b/0"} == {place.path for place in both.count}
    assert [] == list(told.storage.changes(told.known))
    told.storage.assign([pod("b"), pod("c")])
    gone, new = told.storage.changes(told.known)
    assert [place.number for place in both.count if place.uid == "a"] == list(gone.forget)
    assert ["/pods/c/0"] == [place.path for place in new.count]
    (everything,) = told.storage.changes(set())
    assert ["b", "c"] == [place.uid for place in everything.count]


def test_places_are_reported_in_pieces_and_one_that_goes_meanwhile_is_not(told):
    pods = [pod(f"p{number}", 4) for number in range(100)]
    told.storage.assign(pods)
    changes = told.storage.changes(told.known)
    first = next(changes)
    assert MOST_PLACES == len(first.count)
    told.storage.assign([])
    assert [()] == [some.count for some in changes]
    assert [Places(forget=tuple(range(1, MOST_PLACES + 1)))] == list(told.storage.changes(told.known))


def test_place_that_was_never_named_is_refused_with_all_that_was_reported_beside_it(told):
    told.storage.assign([pod("a")])
    with pytest.raises(FormError):
        told.says(counted(1, 5), counted(2, 7))
    assert {} == told.storage.usages([pod("a")])


@pytest.mark.parametrize("age_seconds", [-5.0, 61.0])
def test_what_was_seen_at_no_time_to_have_seen_it_is_refused(told, age_seconds):
    told.storage.assign([pod("a")])
    with pytest.raises(FormError):
        told.says(counted(1, 5), age_seconds=age_seconds)
    assert {} == told.storage.usages([pod("a")])


def test_place_that_is_named_no_longer_changes_nothing(told):
    told.storage.assign([pod("a"), pod("b")])
    told.storage.assign([pod("b")])
    told.says(counted(1, 5), counted(2, 7))
    assert ["b"] == list(told.storage.usages([pod("a"), pod("b")]))


def test_what_was_seen_some_time_ago_is_as_old_as_that(told):
    told.storage.assign([pod("a")])
    told.says(counted(1, 5), age_seconds=50)
    told.now += 249
    assert 5 == told.storage.usages([pod("a")])["a"].ephemeral_storage_bytes
    told.now += 2
    assert {} == told.storage.usages([pod("a")])


def test_count_under_way_grows_stale_where_the_steward_says_no_more(told):
    told.storage.assign([pod("a")])
    told.says(PlaceUsage(1, UsageKind.SO_FAR, 9, 9))
    told.now += 299
    assert 9 == told.storage.usages([pod("a")])["a"].ephemeral_storage_bytes
    told.now += 2
    assert {} == told.storage.usages([pod("a")])


def test_end_of_the_steward_leaves_whole_counts_and_no_others(told):
    told.storage.assign([pod("a"), pod("b")])
    told.says(counted(1, 5), PlaceUsage(1, UsageKind.SO_FAR, 8, 8), PlaceUsage(2, UsageKind.SO_FAR, 9, 9))
    assert 8 == told.storage.usages([pod("a")])["a"].ephemeral_storage_bytes
    told.storage.steward_ended()
    known = told.storage.usages([pod("a"), pod("b")])
    assert {"a": 5} == {uid: used.ephemeral_storage_bytes for uid, used in known.items()}


def test_pod_of_which_a_place_is_not_counted_yet_is_not_counted_as_a_whole(told):
    both = pod("a", 2)
    told.storage.assign([both])
    told.says(counted(told.number_of("/pods/a/0"), 5))
    assert not told.storage.is_whole(both)
    told.says(counted(told.number_of("/pods/a/1"), 6))
    assert told.storage.is_whole(both)
    assert 11 == told.storage.usages([both])["a"].ephemeral_storage_bytes


def test_pod_that_is_listed_with_another_limit_or_volume_is_reported_as_it_is_listed(told):
    local = pod("a")
    told.storage.assign([local])
    told.says(counted(1, 5))
    assert 5 == told.storage.usages([local])["a"].ephemeral_storage_bytes
    in_memory = dataclasses.replace(local, volumes=(Volume(name="v0", is_local=False),))
    assert 0 == told.storage.usages([in_memory])["a"].ephemeral_storage_bytes


def test_held_pod_has_other_numbers_when_it_is_counted_again(told):
    told.storage.assign([pod("a")])
    told.says(counted(1, 5))
    told.storage.hold("a")
    told.storage.assign([pod("a")])
    assert [] == list(told.storage.changes(set()))
    told.says(counted(1, 0))
    assert 5 == told.storage.usages([pod("a")])["a"].ephemeral_storage_bytes
    told.storage.release("a")
    told.storage.assign([pod("a")])
    told.says(counted(1, 0))
    assert 5 == told.storage.usages([pod("a")])["a"].ephemeral_storage_bytes
    told.says(counted(told.number_of("/pods/a/0"), 0))
    assert 0 == told.storage.usages([pod("a")])["a"].ephemeral_storage_bytes


def test_pod_that_goes_while_its_files_are_removed_is_forgotten_with_its_places(told):
    told.storage.assign([pod("a"), pod("b")])
    told.storage.hold("a")
    told.storage.assign([pod("b")])
    told.storage.release("a")
    assert 1 == len(told.storage)
    told.storage.assign([pod("a"), pod("b")])
    assert 3 == told.number_of("/pods/a/0")


def test_place_that_is_reported_again_as_it_was_is_fresh_again(told):
    told.storage.assign([pod("a")])
    told.says(counted(1, 5))
    for _ in range(4):
        told.now += 200
        assert 5 == told.storage.usages([pod("a")])["a"].ephemeral_storage_bytes
        told.says(counted(1, 5))
    told.now += 301
    assert {} == told.storage.usages([pod("a")])
    told.says(counted(1, 5))
    assert 5 == told.storage.usages([pod("a")])["a"].ephemeral_storage_bytes


def test_pod_that_gets_another_volume_keeps_the_number_of_the_first(told):
    told.storage.assign([pod("a")])
    told.storage.assign([pod("a", 2)])
    assert (1, 2) == (told.number_of("/pods/a/0"), told.number_of("/pods/a/1"))
    told.storage.assign([pod("a")])
    assert 1 == told.number_of("/pods/a/0")
    assert 1 == len(told.storage)


@given(
    st.lists(
        st.builds(
            PlaceUsage,
            st.integers(1, 6),
            st.sampled_from(UsageKind),
            st.integers(0, 1 << 62),
            st.integers(0, 1 << 62),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_whatever_a_steward_says_no_pod_is_reported_that_is_not_there(places):
    told = Told()
    told.storage.assign([pod("a", 2), pod("b", 2)])
    pods = [pod("a", 2), pod("b", 2), pod("c")]
    try:
        told.says(*places)
    except FormError:
        assert max(one.place for one in places) > 4
        assert {} == told.storage.usages(pods)
    else:
        assert told.storage.usages(pods).keys() <= {"a", "b"}
