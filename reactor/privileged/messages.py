"""What the steward asks of the privileged process, and what that answers: datagrams of a pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from reactor.forms import U64, Form, FormError, Forms, content, number, text, texts
from reactor.model.settings import Command

LONGEST_RUN: Final = 128 << 10  # below what a socket takes at once by default (208 KiB)
_LONGEST_SECONDS: Final = 86_400.0
_WORDS: Final = texts(1_024, LONGEST_RUN, "I", end="\0", errors="surrogatepass")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A command is to be run with `given` as its standard input, see `programs.run_command`."""

    number: U64
    command: Annotated[Command, _WORDS]
    timeout_seconds: Annotated[float, number("d", _LONGEST_SECONDS, least=5e-324)]
    leaves_nothing: bool = False
    given: Annotated[bytes, content(LONGEST_RUN, "I")] = b""


@dataclass(frozen=True, slots=True)
class Cancel:
    """The run of this number is to end."""

    number: U64


@dataclass(frozen=True, slots=True)
class Over:
    """The run of this number has ended; `problem` is what went wrong, None where nothing did."""

    number: U64
    problem: Annotated[str, text(4_000)] | None


_ASKED: Final = Forms[Run | Cancel](1, {Run: None, Cancel: None})
_OVER: Final = Form(Over)
LONGEST_OVER: Final = _OVER.most_bytes
read_asked = _ASKED.read
write_over, read_over = _OVER.write, _OVER.read


def write_asked(asked: Run | Cancel) -> bytes:
    """Return the datagram. Raises FormError where it is too long."""
    raw = _ASKED.write(asked)
    if len(raw) > LONGEST_RUN:
        raise FormError(f"the command and its input take {len(raw)} bytes; accepted: {LONGEST_RUN}")
    return raw
