"""What the daemon and the walker say to each other, as if by strangers."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.disks.usage import DiskUsage
from reactor.disks.walk_messages import (
    LONGEST_REQUEST,
    REPORT_BYTES,
    Add,
    Drop,
    Hurry,
    Kind,
    Report,
    Round,
    read_report,
    read_request,
    write_report,
    write_request,
)
from reactor.forms import FormError

NUMBER = st.integers(0, (1 << 32) - 1)
AMOUNT = st.integers(0, 1 << 62)
REPORTS = st.builds(
    Report,
    kind=st.sampled_from(Kind),
    place=NUMBER,
    used_bytes=AMOUNT,
    inodes=AMOUNT,
    directories=AMOUNT,
    nanoseconds=AMOUNT,
    unreadable=NUMBER,
    error_number=st.sampled_from([0, *errno.errorcode]),
)
PATHS = st.binary(min_size=1, max_size=4000).map(
    lambda raw: raw.replace(b"\0", b"/").decode("utf-8", "surrogateescape")
)


@given(REPORTS)
def test_report_comes_back_as_it_was_written(report: Report) -> None:
    assert report == read_report(write_report(report))


@given(
    st.one_of(
        st.builds(Add, NUMBER, NUMBER, PATHS),
        st.builds(Drop, NUMBER),
        st.builds(Round, NUMBER),
        st.just(Hurry()),
    )
)
def test_request_comes_back_as_it_was_written(request: Add | Drop | Round | Hurry) -> None:
    raw = write_request(request)
    assert len(raw) <= LONGEST_REQUEST
    assert request == read_request(raw)


@given(
    st.one_of(st.binary(max_size=2 * REPORT_BYTES), st.binary(min_size=REPORT_BYTES, max_size=REPORT_BYTES))
)
def test_any_bytes_are_a_report_within_bounds_or_are_refused(raw: bytes) -> None:
    try:
        report = read_report(raw)
    except FormError:
        return
    assert max(report.used_bytes, report.inodes, report.directories, report.nanoseconds) <= 1 << 62


@given(st.lists(REPORTS, max_size=20))
def test_any_reports_leave_what_is_known_within_bounds(reports: list[Report]) -> None:
    usage = DiskUsage()
    for report in reports:
        with pytest.raises(FormError):  # no place was ever asked about
            usage.take(report)
    assert not usage.has_news


def test_path_that_no_kernel_would_take_is_not_asked_about() -> None:
    with pytest.raises(FormError):
        write_request(Add(1, 1, "/" + "x" * 5000))
