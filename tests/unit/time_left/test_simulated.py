"""When pods are asked to end in time, over simulated courses: a small part of tests/soak/in_time.py."""

from __future__ import annotations

import random

import pytest

from tests.soak.in_time import BACK, STOPPING, Known, Shape, course, results, run, summary


@pytest.mark.slow
def test_almost_all_save_that_have_twice_the_time_they_need_and_few_are_asked_in_vain() -> None:
    found = summary(list(results(range(3), (Shape.RAMP, *STOPPING, Shape.BURSTS))))
    for known in Known:
        ramps = found[f"{Shape.RAMP}|{known}"]
        assert ramps["saved"] >= 0.94 * ramps["courses"]
        assert found[f"{Shape.BURSTS}|{known}"]["asked"] <= 1
    early = [one for key, one in found.items() if "before the threshold" in key]
    known_early = [one for key, one in found.items() if "before the threshold" in key and "|known" in key]
    assert sum(one["courses"] for one in known_early) >= 15
    assert sum(one["asked"] for one in known_early) <= 0.1 * sum(one["courses"] for one in known_early)
    assert sum(one["asked"] for one in early) > sum(one["asked"] for one in known_early)


@pytest.mark.parametrize(("shape", "share"), [(Shape.RAMP, 0.94), (Shape.STEPS, 0.8), (Shape.LEAKING, 0.94)])
def test_almost_all_save_that_have_exactly_twice_the_time_they_need(shape: Shape, share: float) -> None:
    """From 1 MiB/s to 1 GiB/s, where the whole way takes a second and a half, and a step a tenth of it."""
    found = list(results(range(3), (shape,), half=1.0))
    for known in Known:
        some = [one for one in found if one.known is known]
        assert sum(one.saved for one in some) >= share * len(some) > 14


@pytest.mark.parametrize("shape", [*STOPPING, *BACK])
def test_a_course_that_does_not_cross_is_never_said_to_have_saved(shape: Shape) -> None:
    drawn = random.Random(1)
    found = run(course(shape, 64, drawn), drawn, Known.NOTHING)
    assert found.crossed_seconds is None
    assert not found.saved
