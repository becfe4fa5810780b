from __future__ import annotations

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.forms import FormError
from reactor.privileged.messages import (
    LONGEST_OVER,
    LONGEST_RUN,
    Cancel,
    Over,
    Run,
    read_asked,
    read_over,
    write_asked,
    write_over,
)

COMMANDS = st.lists(st.text().filter(lambda word: "\0" not in word), min_size=1, max_size=4).map(tuple)
NUMBERS = st.integers(0, 1 << 40)
RUNS = st.builds(
    Run,
    number=NUMBERS,
    command=COMMANDS,
    timeout_seconds=st.floats(0.001, 86_400.0),
    leaves_nothing=st.booleans(),
    given=st.binary(max_size=200),
)


@given(run=RUNS)
def test_run_is_read_as_it_was_written(run: Run) -> None:
    assert run == read_asked(write_asked(run))


@given(number=NUMBERS)
def test_cancel_is_read_as_it_was_written(number: int) -> None:
    assert Cancel(number) == read_asked(write_asked(Cancel(number)))


@given(over=st.builds(Over, NUMBERS, st.none() | st.text(max_size=1000)))
def test_end_is_read_as_it_was_written(over: Over) -> None:
    assert over == read_over(write_over(over))


@pytest.mark.parametrize("character", ["a", "ü", "\x00", "😀", '"'])
def test_problem_that_is_too_long_is_cut_to_what_is_received(character: str) -> None:
    problem = character * 20_000
    raw = write_over(Over(1, problem))
    assert len(raw) <= LONGEST_OVER
    assert problem.startswith(read_over(raw).problem or "?")


def test_run_that_is_too_long_for_a_datagram_is_an_error() -> None:
    with pytest.raises(FormError, match="accepted: 131072"):
        write_asked(Run(number=1, command=("/a",), timeout_seconds=1, given=bytes(LONGEST_RUN)))


@given(raw=st.binary() | st.binary().map(lambda tail: b"\1\1" + tail))
def test_whatever_comes_raises_nothing_but_that_it_is_no_message(raw: bytes) -> None:
    for read in (lambda: read_asked(raw), lambda: read_over(raw)):
        with suppress(FormError):
            read()


@pytest.mark.parametrize("seconds", [0.0, -1.0, 86_401.0, math.inf, math.nan])
def test_time_limit_is_a_number_of_seconds_of_a_day_at_the_most(seconds: float) -> None:
    asked = Run(number=1, command=("/bin/true",), timeout_seconds=seconds)
    with pytest.raises(FormError, match="accepted"):
        read_asked(write_asked(asked))


@pytest.mark.parametrize("command", [("a\0b",), ("a",) * 2_000])
def test_command_that_no_kernel_would_run_is_not_asked_for(command: tuple[str, ...]) -> None:
    with pytest.raises(FormError, match="accepted"):
        write_asked(Run(number=1, command=command, timeout_seconds=1.0))
