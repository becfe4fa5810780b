from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.signals import Resource
from reactor.terminal.top.table import amount, clean, cut_end, cut_middle, rate


@pytest.mark.parametrize(
    ("per_second", "text"),
    [(None, "-"), (0.2, "0/s"), (-0.2, "0/s"), (3 << 20, "+3Mi/s"), (-1.5 * (1 << 20), "-1.5Mi/s")],
)
def test_a_rate_has_its_sign(per_second, text):
    assert rate(per_second, Resource.MEMORY) == text


def test_what_is_not_known_is_a_dash_and_no_zero():
    assert (amount(None, Resource.MEMORY), amount(0, Resource.MEMORY)) == ("-", "0")


def test_a_long_name_keeps_both_of_its_ends():
    assert cut_middle("kube-system/coredns-5d78c9869d-abcde", 15) == "kube-sy…9-abcde"[:7] + "…d-abcde"[:8]


@given(text=st.text(max_size=40), width=st.integers(0, 50))
def test_nothing_is_wider_than_it_may_be_and_what_has_room_is_whole(text, width):
    for cut in (cut_middle, cut_end):
        assert len(cut(text, width)) <= width
        if len(text) <= width:
            assert cut(text, width) == text


@given(text=st.text())
def test_no_name_moves_the_cursor(text):
    assert clean(text).isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\x1b[2Jb", r"a\x1b[2Jb"), ("tab\tnul\0", r"tab\x09nul\x00"), ("网", "?"), ("é", "é")],
)
def test_what_is_not_printable_is_its_escape_and_what_is_not_one_cell_wide_a_question_mark(text, shown):
    assert clean(text) == shown
