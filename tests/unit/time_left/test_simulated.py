"""When pods are asked to end in time, over simulated courses: a small part of tests/soak/in_time.py."""

from __future__ import annotations

import random

import pytest

from tests.soak.in_time import BACK, STOPPING, Known, Shape, course, results, run, summary


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


@pytest.mark.parametrize("shape", [*STOPPING, *BACK])
def test_a_course_that_does_not_cross_is_never_said_to_have_saved(shape: Shape) -> None:
    drawn = random.Random(1)
    found = run(course(shape, 64, drawn), drawn, Known.NOTHING)
    assert found.crossed_seconds is None
    assert not found.saved
