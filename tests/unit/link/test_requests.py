"""What the guard takes from the steward: exactly the fixed form, and nothing else whatever is sent."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.link.requests import (
    MOST_PLACES,
    REQUEST_BYTES,
    Request,
    RequestError,
    RequestKind,
    read_request,
    write_request,
)


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
    ],
)
def test_request_is_read_as_it_was_written(request_):
    assert request_ == read_request(write_request(request_))


@given(raw=st.binary(max_size=2 * REQUEST_BYTES))
def test_any_bytes_are_a_request_of_the_fixed_form_or_refused(raw):
    with suppress(RequestError):
        assert raw == write_request(read_request(raw))


@given(raw=st.binary(min_size=REQUEST_BYTES - 2, max_size=REQUEST_BYTES - 2))
def test_any_amounts_in_a_request_of_a_known_kind_are_within_their_bounds_or_refused(raw):
    for kind in RequestKind:
        try:
            request = read_request(bytes((1, kind)) + raw)
        except RequestError:
            continue
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
    ],
)
def test_amount_that_can_not_be_is_refused(wrong):
    with pytest.raises(RequestError, match="accepted"):
        read_request(write_request(wrong))
