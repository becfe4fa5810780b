from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.privileged.messages import (
    LONGEST_OVER,
    LONGEST_RUN,
    Cancel,
    MessageError,
    Over,
    Run,
    read_asked,
    read_over,
    write_cancel,
    write_over,
    write_run,
)

COMMANDS = st.lists(st.text(), min_size=1, max_size=4).map(tuple)
NUMBERS = st.integers(0, 1 << 40)
RUNS = st.builds(
    Run,
    number=NUMBERS,
    command=COMMANDS,
    timeout_seconds=st.floats(0.001, 86_400.0),
    leaves_nothing=st.booleans(),
    given=st.binary(max_size=200),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(run=RUNS)
def test_run_is_read_as_it_was_written(run: Run) -> None:
    assert run == read_asked(write_run(run))


@given(number=NUMBERS)
def test_cancel_is_read_as_it_was_written(number: int) -> None:
    assert Cancel(number) == read_asked(write_cancel(number))


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
    with pytest.raises(MessageError, match="accepted: 131072"):
        write_run(Run(number=1, command=("/a",), timeout_seconds=1, given=bytes(LONGEST_RUN)))


@given(raw=st.binary() | JSON.map(lambda one: json.dumps(one).encode()))
def test_whatever_comes_raises_nothing_but_that_it_is_no_message(raw: bytes) -> None:
    for read in (lambda: read_asked(raw), lambda: read_over(raw)):
        with suppress(MessageError):
            read()


@pytest.mark.parametrize("seconds", [0, -1, 86_401, "1", None, 1e400])
def test_time_limit_is_a_number_of_seconds_of_a_day_at_the_most(seconds: object) -> None:
    asked = {"run": 1, "command": ["/bin/true"], "timeout_seconds": seconds, "leaves_nothing": False}
    with pytest.raises(MessageError):
        read_asked(json.dumps(asked).encode())
