"""What places take, as the guard is told of it: exactly the fixed form, whatever is sent."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.link.requests import LONGEST_BYTES, RequestError, read_request, write_request
from reactor.link.usages import MOST_USAGES, USAGES_KIND, PlaceUsage, UsageKind, Usages

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


@given(tail=st.binary(max_size=300), head=st.binary(max_size=14))
def test_any_bytes_are_usages_within_bounds_or_refused(head, tail):
    with suppress(RequestError):
        read = read_request(bytes((1, USAGES_KIND)) + head + tail)
        assert all(0 <= one.used_bytes <= 1 << 62 and one.place for one in read.places)
        assert write_request(read)[2:] == (head + tail)


@pytest.mark.parametrize(
    "raw",
    [
        ONE[:-1],
        ONE + b"\0",
        ONE[:2] + b"\2\0" + ONE[4:],
        ONE[:2] + b"\0\0" + ONE[4:16],
        ONE[:4] + b"\1" + ONE[5:],
        ONE[:8] + b"\xff" * 8 + ONE[16:],
        ONE[:16] + bytes(4) + ONE[20:],
        ONE[:20] + bytes(4) + ONE[24:],
        ONE[:20] + b"\4\0\0\0" + ONE[24:],
        ONE[:24] + b"\xff" * 8 + ONE[32:],
        ONE[:20] + b"\3\0\0\0" + ONE[24:],
        ONE[:2] + b"\xff\0" + ONE[4:16] + ONE[16:] * 255,
    ],
    ids=[
        *("cut", "longer", "more said than there are", "none", "reserved", "absurd time", "place 0"),
        *("kind 0", "kind 4", "absurd amount", "amount of no count", "too many"),
    ],
)
def test_usages_that_can_not_be_are_refused(raw):
    with pytest.raises(RequestError):
        read_request(raw)
