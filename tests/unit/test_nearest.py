"""The word that was meant."""

from __future__ import annotations

import pytest

from reactor.model.signals import Signal
from reactor.text import did_you_mean, nearest


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("memory.availble", "memory.available"),
        ("memoryAvailable", "memory.available"),
        ("nodefs.inodesfree", "nodefs.inodesFree"),
        ("pids.available", "pid.available"),
    ],
)
def test_a_typing_error_has_the_word_that_was_meant(word: str, meant: str) -> None:
    assert meant == nearest(word, Signal)
    assert f" (did you mean {meant}?)" == did_you_mean(word, Signal)


@pytest.mark.parametrize("word", ["swap.free", "m", "", 7, None, "memory.availabl" * 1000])
def test_what_is_like_no_word_has_none(word: object) -> None:
    assert nearest(word, Signal) is None
    assert did_you_mean(word, Signal) == ""
