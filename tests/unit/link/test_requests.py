"""What the guard takes from the steward: exactly the fixed forms, and nothing else whatever is sent."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.link.requests import (
    LONGEST_BYTES,
    MOST_LISTED_BYTES,
    MOST_PLACES,
    PIECE_BYTES,
    Piece,
    ReclaimOver,
    Request,
    RequestError,
    RequestKind,
    Section,
    Space,
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
        Request(kind=RequestKind.LOOKED, number=5),
        Request(kind=RequestKind.DISK_WAKE),
        Request(kind=RequestKind.FILLING),
        Request(kind=RequestKind.REPORTED, number=6),
        Request(kind=RequestKind.PODS_HEARD, number=6, places=1),
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


@pytest.mark.parametrize("version", [0, 2, 255])
def test_request_of_another_version_is_refused_whatever_it_says(version):
    for request in (Request(kind=RequestKind.ALIVE), SPACE, ReclaimOver(number=1)):
        with pytest.raises(RequestError, match="version 1"):
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
        st.builds(lambda kind, tail: bytes((1, kind)) + tail, st.integers(0, 17), st.binary(max_size=60)),
    )
)
def test_any_bytes_are_a_request_of_a_fixed_form_or_refused(raw):
    with suppress(RequestError):
        request = read_request(raw)
        assert request == read_request(write_request(request)) or isinstance(request, ReclaimOver)


@given(raw=st.binary(min_size=22, max_size=22))
def test_any_amounts_in_a_request_of_a_known_kind_are_within_their_bounds_or_refused(raw):
    for kind in RequestKind:
        with suppress(RequestError):
            request = read_request(bytes((1, kind)) + raw)
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
        Space(order=0, filesystems=(Filesystem.NODEFS,), at_ns=1, inodes_free=1, inodes=(1 << 62) + 1),
        Space(order=0, filesystems=(Filesystem.NODEFS,), at_ns=(1 << 62) + 1),
        ReclaimOver(number=(1 << 53) + 1),
        Request(kind=RequestKind.PODS_HEARD, number=1, places=2),
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
    with pytest.raises(RequestError, match="accepted"):
        read_request(write_request(wrong))


def test_space_with_an_amount_that_is_said_not_to_be_known_is_refused():
    raw = bytearray(write_request(SPACE))
    raw[-1] = 1
    with pytest.raises(RequestError, match="accepted"):
        read_request(bytes(raw))


def test_reclaim_with_other_lines_than_those_it_counts_is_refused():
    raw = write_request(ReclaimOver(number=1, did=("a", "b")))
    for wrong in (raw + b"\nc", raw[:-2], raw + b"x" * LONGEST_BYTES, raw[:3] + b"\xff" + raw[4:]):
        with pytest.raises(RequestError, match="accepted"):
            read_request(wrong)
