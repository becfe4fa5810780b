"""What the daemon and the walker say to each other: small messages of fixed form, each a datagram.

The daemon names places by numbers that it never uses twice, and believes nothing of what comes back before
it was checked (`read_report`): the walker reads what tenants wrote, and may be taken over by then.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final

from reactor.forms import U32, Amount, Form, Forms, number, text

LONGEST_PATH: Final = 4095  # PATH_MAX, without its end


@dataclass(frozen=True, slots=True)
class Add:
    """Know a place from now on; all places of one `pod` take their turns together."""

    place: U32
    pod: U32
    path: Annotated[str, text(LONGEST_PATH, errors="surrogateescape", is_cut=False)]


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a place."""

    place: U32


@dataclass(frozen=True, slots=True)
class Round:
    """Count all places, of which those under way only go on; answered by ROUND_OVER with its number."""

    number: U32


@dataclass(frozen=True, slots=True)
class Hurry:
    """Take a larger share of the CPU until all is counted."""


Request = Add | Drop | Round | Hurry


class Kind(IntEnum):
    """What a report is about."""

    ALIVE = 1
    """A step at `place` has taken `nanoseconds` so far."""
    SO_FAR = 2
    """Of `place` so much has been counted, in `directories` directories."""
    COUNTED = 3
    """`place` takes so much; `unreadable` entries could not be read, the last for `error_number`."""
    FAILED = 4
    """`place` can't be read, for `error_number`."""
    ROUND_OVER = 5
    """Round `place` is over, after `nanoseconds` of CPU; what takes long is continued."""
    IDLE = 6
    """Nothing is under way any more: said after each request, at once or when what it began is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the walker says; what a kind does not speak of is 0."""

    kind: Kind
    place: U32 = 0
    used_bytes: Amount = 0
    inodes: Amount = 0
    directories: Amount = 0
    nanoseconds: Amount = 0
    unreadable: Annotated[int, number("I", (1 << 32) - 1, is_cut=True)] = 0
    error_number: U32 = 0


def _problem(report: Report) -> str | None:
    if report.error_number and report.error_number not in errno.errorcode:
        return f"got error {report.error_number}; accepted: an error number of this kernel's, or 0"
    return None


_REQUESTS: Final = Forms[Request](1, {Add: None, Drop: None, Round: None, Hurry: None})
_REPORT: Final = Form(Report, check=_problem)
LONGEST_REQUEST: Final = _REQUESTS.most_bytes
REPORT_BYTES: Final = _REPORT.most_bytes
write_request, read_request = _REQUESTS.write, _REQUESTS.read
write_report, read_report = _REPORT.write, _REPORT.read
