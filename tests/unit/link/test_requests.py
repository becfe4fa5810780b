"""What the guard takes from the steward: exactly the fixed forms, and nothing else whatever is sent."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.forms import FormError
from reactor.link.requests import (
    LONGEST_BYTES,
    MOST_LISTED_BYTES,
    MOST_PLACES,
    MOST_USAGES,
    PIECE_BYTES,
    Piece,
    PlaceUsage,
    ReclaimOver,
    Request,
    RequestKind,
    Section,
    Space,
    UsageKind,
    Usages,
    layout_number,
    read_request,
    write_request,
)
from reactor.model.signals import Filesystem, Layout

SPACE = Space(order=3, filesystems=(Filesystem.NODEFS, Filesystem.CONTAINERFS), at_ns=7)


@pytest.mark.parametrize(
    "request_",
    [
        Request(kind=RequestKind.ALIVE),
        Request(kind=RequestKind.TAKEN, number=7, lost=7),
        Request(kind=RequestKind.STATUS, number=1),
        Request(kind=RequestKind.EXPLAIN, number=1 << 53),
        Request(kind=RequestKind.TOP, number=2, places=MOST_PLACES),
        Request(kind=RequestKind.SCRAPE, number=3),
        Request(kind=RequestKind.HEALTH, number=4),
        Request(kind=RequestKind.OBSERVED, number=5),
        Request(kind=RequestKind.DISK_WAKE),
        Request(kind=RequestKind.FILLING),
        Request(kind=RequestKind.REPORTED, number=6),
        Request(kind=RequestKind.PODS_COMPLETE, number=6, places=1),
        Piece(section=Section.SPECS, number=1, index=0, total_bytes=3, is_last=True, content=b"abc"),
        Piece(section=Section.FILES, number=9, index=4, total_bytes=1 << 22, is_last=False, content=b""),
        SPACE,
        Space(order=0, filesystems=tuple(Filesystem), at_ns=1, available_bytes=0, capacity_bytes=1 << 62),
        Space(order=0, filesystems=(Filesystem.IMAGEFS,), at_ns=1, inodes_free=5, inodes=9),
        ReclaimOver(number=1),
        ReclaimOver(number=2, did=()),
        ReclaimOver(number=2, did=("ran x", ""), problems=("ä",)),
    ],
)
def test_request_is_read_as_it_was_written(request_):
    assert request_ == read_request(write_request(request_))


@pytest.mark.parametrize("version", [0, 1, 255])
def test_request_of_another_version_is_refused_whatever_it_says(version):
    for request in (Request(kind=RequestKind.ALIVE), SPACE, ReclaimOver(number=1)):
        with pytest.raises(FormError, match="version 2"):
            read_request(bytes([version]) + write_request(request)[1:])


def test_every_layout_has_its_number():
    for layout in Layout:
        told = Request(kind=RequestKind.LAYOUT, number=1, places=layout_number(layout))
        assert layout is read_request(write_request(told)).layout


@given(
    did=st.lists(st.text(max_size=400), max_size=30), problems=st.lists(st.text(max_size=400), max_size=30)
)
def test_lines_of_any_number_and_length_fit_and_stay_lines(did, problems):
    raw = write_request(ReclaimOver(number=1, did=tuple(did), problems=tuple(problems)))
    over = read_request(raw)

    assert len(raw) <= LONGEST_BYTES
    assert len(over.did) == min(len(did), 9)
    assert len(over.problems) == min(len(problems), 9)


@given(
    raw=st.one_of(
        st.binary(max_size=60),
        st.builds(lambda kind, tail: bytes((2, kind)) + tail, st.integers(0, 6), st.binary(max_size=60)),
    )
)
def test_any_bytes_are_a_request_of_a_fixed_form_or_refused(raw):
    with suppress(FormError):
        request = read_request(raw)
        assert request == read_request(write_request(request)) or isinstance(request, ReclaimOver)


@given(raw=st.binary(min_size=19, max_size=19))
def test_any_amounts_in_a_request_of_a_known_kind_are_within_their_bounds_or_refused(raw):
    head = write_request(Request(kind=RequestKind.ALIVE))[:2]
    for kind in RequestKind:
        with suppress(FormError):
            request = read_request(head + bytes((kind,)) + raw[1:])
            assert request.places <= MOST_PLACES
            assert request.lost <= request.number <= 1 << 53


@pytest.mark.parametrize(
    "wrong",
    [
        Request(kind=RequestKind.ALIVE, number=1),
        Request(kind=RequestKind.TAKEN, number=1, lost=2),
        Request(kind=RequestKind.STATUS, number=1, places=1),
        Request(kind=RequestKind.STATUS, number=1, lost=1),
        Request(kind=RequestKind.TOP, number=1, places=MOST_PLACES + 1),
        Request(kind=RequestKind.SCRAPE, number=(1 << 53) + 1),
        Request(kind=RequestKind.DISK_WAKE, number=1),
        Request(kind=RequestKind.LAYOUT, number=1, places=0),
        Request(kind=RequestKind.LAYOUT, number=1, places=4),
        Space(order=0, filesystems=(), at_ns=1),
        Space(order=0, filesystems=(Filesystem.NODEFS,), at_ns=1, inodes_free=1),
        Space(order=0, filesystems=(Filesystem.NODEFS,), at_ns=1, capacity_bytes=1),
        Space(order=0, filesystems=(Filesystem.NODEFS,), at_ns=(1 << 62) + 1),
        ReclaimOver(number=(1 << 53) + 1),
        Request(kind=RequestKind.PODS_COMPLETE, number=1, places=2),
        Piece(section=Section.SPECS, number=0, index=0, total_bytes=0, is_last=True, content=b""),
        Piece(section=Section.SPECS, number=1, index=1, total_bytes=0, is_last=True, content=b""),
        Piece(
            section=Section.SPECS,
            number=1,
            index=0,
            total_bytes=MOST_LISTED_BYTES + 1,
            is_last=False,
            content=b"",
        ),
        Piece(
            section=Section.SPECS,
            number=1,
            index=0,
            total_bytes=PIECE_BYTES + 1,
            is_last=True,
            content=b"x" * (PIECE_BYTES + 1),
        ),
    ],
)
def test_amount_that_can_not_be_is_refused(wrong):
    with pytest.raises(FormError, match="accepted"):
        read_request(write_request(wrong))


def test_space_with_an_absurd_amount_is_refused():
    raw = write_request(replace(SPACE, inodes_free=1, inodes=2))
    with pytest.raises(FormError, match="accepted"):
        read_request(raw[:-8] + b"\xfe" * 8)


def test_reclaim_with_more_lines_than_fit_or_one_without_an_end_is_refused():
    raw = write_request(ReclaimOver(number=1, did=("a", "b")))
    assert read_request(raw) == ReclaimOver(number=1, did=("a", "b"))
    for wrong in (raw + b"c", raw[:-1], raw.replace(b"b\n", b"bb"), raw.replace(b"a\nb\n", b"\n" * 4)[:-1]):
        with pytest.raises(FormError, match="accepted"):
            read_request(wrong)
    many = write_request(ReclaimOver(number=1, did=("a" * 40,))).replace(b"a", b"\n")
    with pytest.raises(FormError, match="accepted"):
        read_request(many)


AMOUNT = st.integers(0, 1 << 62)
NUMBER = st.integers(1, (1 << 32) - 1)
KNOWN = st.sampled_from((UsageKind.COUNTED, UsageKind.SO_FAR))
PLACE = st.builds(PlaceUsage, NUMBER, KNOWN, AMOUNT, AMOUNT) | st.builds(
    PlaceUsage, NUMBER, st.just(UsageKind.NOT_COUNTED), st.just(0), st.just(0)
)
ONE = write_request(Usages(at_ns=7, places=(PlaceUsage(3, UsageKind.COUNTED, 5, 2),)))


@given(st.builds(Usages, at_ns=AMOUNT, places=st.lists(PLACE, min_size=1, max_size=MOST_USAGES).map(tuple)))
def test_usages_come_back_as_they_were_written_in_a_datagram_that_the_guard_reads(usages):
    raw = write_request(usages)
    assert len(raw) <= LONGEST_BYTES
    assert usages == read_request(raw)


@given(tail=st.binary(max_size=300), head=st.binary(max_size=10))
def test_any_bytes_are_usages_within_bounds_or_refused(head, tail):
    with suppress(FormError):
        read = read_request(ONE[:2] + head + tail)
        assert all(0 <= one.used_bytes <= 1 << 62 and one.place for one in read.places)
        assert write_request(read)[2:] == head + tail


@pytest.mark.parametrize(
    "raw",
    [
        ONE[:-1],
        ONE + b"\0",
        ONE[:10] + b"\2\0" + ONE[12:],
        ONE[:10] + b"\0\0",
        ONE[:2] + b"\xff" * 8 + ONE[10:],
        ONE[:12] + bytes(4) + ONE[16:],
        ONE[:16] + bytes(4) + ONE[20:],
        ONE[:16] + b"\4\0\0\0" + ONE[20:],
        ONE[:20] + b"\xff" * 8 + ONE[28:],
        ONE[:16] + b"\3\0\0\0" + ONE[20:],
        ONE[:10] + b"\xff\0" + ONE[12:] * 255,
    ],
    ids=[
        *("cut", "longer", "more said than there are", "none", "absurd time", "place 0"),
        *("kind 0", "kind 4", "absurd amount", "amount of no count", "too many"),
    ],
)
def test_usages_that_can_not_be_are_refused(raw):
    with pytest.raises(FormError, match="accepted"):
        read_request(raw)
