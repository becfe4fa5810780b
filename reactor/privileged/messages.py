"""What the steward asks of the privileged process, and what that answers: datagrams of a pair.

run      a JSON object in a line, then what the command gets as its standard input
cancel   a JSON object with the number of a run
over     a JSON object: the number, and what went wrong
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Final

from reactor.errors import ReactorError
from reactor.model.settings import Command

LONGEST_RUN: Final = 128 << 10  # below what a socket takes at once by default (208 KiB)
LONGEST_OVER: Final = 16 << 10
_MOST_CHARACTERS: Final = 1000  # of a problem; 12 bytes each at the most
_LONGEST_SECONDS: Final = 86_400.0


class MessageError(ReactorError):
    """A message is not of the fixed form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A command is to be run with `given` as its standard input, see `programs.run_command`."""

    number: int
    command: Command
    timeout_seconds: float
    leaves_nothing: bool = False
    given: bytes = b""


@dataclass(frozen=True, slots=True)
class Cancel:
    """The run of this number is to end."""

    number: int


@dataclass(frozen=True, slots=True)
class Over:
    """The run of this number has ended; `problem` is what went wrong, None where nothing did."""

    number: int
    problem: str | None


def write_run(run: Run) -> bytes:
    """Return the datagram. Raises MessageError where it is too long."""
    head = {
        "run": run.number,
        "command": run.command,
        "timeout_seconds": run.timeout_seconds,
        "leaves_nothing": run.leaves_nothing,
    }
    raw = json.dumps(head).encode() + b"\n" + run.given
    if len(raw) > LONGEST_RUN:
        raise MessageError(f"the command and its input take {len(raw)} bytes; accepted: {LONGEST_RUN}")
    return raw


def write_cancel(number: int) -> bytes:
    """Return the datagram."""
    return json.dumps({"cancel": number}).encode()


def read_asked(raw: bytes) -> Run | Cancel:
    """Return what the steward asks for. Raises MessageError."""
    head, _, given = raw.partition(b"\n")
    try:
        document = json.loads(head)
        match document:
            case {"cancel": int(number)} if len(document) == 1:
                return Cancel(number)
            case {
                "run": int(number),
                "command": [str(), *_] as words,
                "timeout_seconds": int() | float() as seconds,
                "leaves_nothing": bool(leaves_nothing),
            } if 0 < seconds <= _LONGEST_SECONDS and math.isfinite(seconds):
                command = tuple(words)
            case _:
                raise MessageError(f"got {head[:64]!r}; accepted: a run, a cancel")
    except (ValueError, RecursionError) as error:
        raise MessageError(f"got {head[:64]!r}; accepted: a JSON object in a line") from error
    return Run(
        number=number,
        command=command,
        timeout_seconds=float(seconds),
        leaves_nothing=leaves_nothing,
        given=given,
    )


def write_over(over: Over) -> bytes:
    """Return the datagram; what is too long is cut."""
    problem = None if over.problem is None else over.problem[:_MOST_CHARACTERS]
    return json.dumps({"over": over.number, "problem": problem}).encode()


def read_over(raw: bytes) -> Over:
    """Return the end of a run. Raises MessageError."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"got {raw[:64]!r}; accepted: JSON") from error
    match document:
        case {"over": int(number), "problem": str() | None as problem}:
            return Over(number, problem)
    raise MessageError(f"got {raw[:64]!r}; accepted: the end of a run")
