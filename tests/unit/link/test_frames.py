"""Documents in pieces: what is put together is what was sent."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.forms import FormError
from reactor.link.frames import (
    FRAME_BYTES,
    LONGEST_BYTES,
    Assembly,
    FrameKind,
    Message,
    write_frames,
)


@pytest.mark.parametrize("length", [0, 1, (32 << 10) - 1, 32 << 10, (32 << 10) + 1, 1 << 20])
def test_message_is_put_together_as_it_was_sent_in_frames_of_a_bounded_size(length):
    assembly = Assembly()
    for number in (1, 2):
        message = Message(FrameKind.LINE, number, bytes(index % 251 for index in range(length)))
        frames = list(write_frames(message))
        assert all(len(frame) <= FRAME_BYTES for frame in frames)
        assert [None] * (len(frames) - 1) + [message] == [assembly.take(frame) for frame in frames]


def test_message_beyond_the_bound_is_refused_on_both_sides():
    with pytest.raises(FormError, match="accepted"):
        list(write_frames(Message(FrameKind.ANSWER, 1, bytes(LONGEST_BYTES + 1))))
    assembly = Assembly()
    (*frames, last) = write_frames(Message(FrameKind.ANSWER, 1, bytes(LONGEST_BYTES)))
    for frame in (*frames, frames[0]):
        assembly.take(frame)
    with pytest.raises(FormError, match="more than"):
        assembly.take(last)


@given(raw=st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_refused(raw):
    with suppress(FormError):
        message = Assembly().take(raw)
        assert message is None or list(write_frames(message)) == [raw]


def test_frame_of_another_message_in_between_is_refused():
    first, second = (Message(FrameKind.LINE, number, bytes(1 << 16)) for number in (1, 2))
    assembly = Assembly()
    assembly.take(next(write_frames(first)))
    with pytest.raises(FormError, match="within"):
        assembly.take(next(write_frames(second)))
