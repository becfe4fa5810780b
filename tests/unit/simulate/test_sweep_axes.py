"""`reactor simulate --sweep`: what is varied."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.errors import ConfigError
from reactor.simulate.sweep_axes import axes_of


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("memory.available<100Mi", ["memory.available<100Mi"]),
        (" memory.available < 100Mi, 5% ", ["memory.available<100Mi", "memory.available<5%"]),
        (
            "memory.available<512Mi..1Gi/256Mi",
            [f"memory.available<{text}" for text in ("512Mi", "768Mi", "1Gi")],
        ),
        ("nodefs.available<5%..10%/2.5%", [f"nodefs.available<{text}" for text in ("5%", "7.5%", "10%")]),
        ("memory.available<1.5Gi..2Gi/.5Gi", ["memory.available<1536Mi", "memory.available<2Gi"]),
        ("pid.available<1000..2000/1k", ["pid.available<1k", "pid.available<2k"]),
        ("memory.available<100Mi,100Mi..150Mi/50Mi", ["memory.available<100Mi", "memory.available<150Mi"]),
        (
            "memory.available<1Gi,2Gi@30s,2m",
            [f"memory.available<{value}@{grace}" for grace in ("30s", "120s") for value in ("1Gi", "2Gi")],
        ),
    ],
)
def test_an_axis_is_a_list_or_a_range_with_grace_periods_where_it_is_soft(text, settings):
    (axis,) = axes_of([text])

    assert [str(setting) for setting in axis.settings] == settings


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("memory.available", "SIGNAL<VALUE"),
        ("memory.available<1Gi@30s@1m", "SIGNAL<VALUE"),
        ("memory.free<1Gi", "one of memory.available"),
        ("containerfs.available<1Gi", "one of memory.available"),  # it has no thresholds of its own
        ("memory.available<", "a quantity above 0"),
        ("memory.available<lots", "a quantity above 0"),
        ("memory.available<100Mi..1Gi", "FROM..TO/STEP"),
        ("memory.available<1Gi..100Mi/50Mi", "TO not below FROM"),
        ("nodefs.available<5%..10%/0%", "STEP above 0"),
        ("memory.available<5%..1Gi/1%", "three shares"),
        ("memory.available<1..8Gi/1", "a larger step"),
        ("memory.available<1Gi@", "a duration"),
        ("memory.available<1Gi@0s", "without @ the threshold is hard"),
    ],
)
def test_what_is_no_axis_is_refused_with_the_accepted_form(text, accepted):
    with pytest.raises(ConfigError) as refused:
        axes_of([text])

    (problem,) = refused.value.problems
    assert accepted in problem.accepted
    assert text in problem.path


def test_every_problem_is_named_at_once_and_a_threshold_has_one_axis():
    with pytest.raises(ConfigError) as refused:
        axes_of(["memory.available<1Gi", "memory.available<2Gi", "fly<1", "memory.available<1Gi@1m"])

    assert [problem.got for problem in refused.value.problems] == ["'hard memory.available again'", "'fly'"]


def test_more_combinations_than_anybody_reads_are_refused():
    with pytest.raises(ConfigError, match="40000 combinations"):
        axes_of(["memory.available<1Mi..200Mi/1Mi", "nodefs.available<1Mi..200Mi/1Mi"])


@given(text=st.text(alphabet="memory.available<>@,/%0123456789MiGs -", max_size=40))
def test_arbitrary_text_is_an_axis_or_refused(text):
    try:
        (axis,) = axes_of([text])
    except ConfigError:
        return
    assert axis.settings


@given(
    first=st.integers(1, 10**6), step=st.integers(1, 10**6), count=st.integers(1, 50), rest=st.floats(0, 0.99)
)
def test_a_range_goes_from_its_first_value_by_steps_and_never_beyond_its_last(first, step, count, rest):
    last = first + (count - 1) * step + int(rest * step)

    (axis,) = axes_of([f"nodefs.inodesFree<{first}..{last}/{step}"])

    assert [setting.value.amount for setting in axis.settings] == [
        Fraction(first + number * step) for number in range(count)
    ]
