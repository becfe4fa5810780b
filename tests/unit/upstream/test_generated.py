"""The documents that are made from seeds."""

from __future__ import annotations

import pytest

from tests.upstream.differential.draw import AREAS, Draw
from tests.upstream.differential.images import images_scenario
from tests.upstream.differential.scenarios import areas_of, scenario
from tests.upstream.differential.sides import project


@pytest.mark.parametrize("seed", range(0, 40, 3))
def test_a_seed_makes_the_same_scenario_each_time_and_the_project_accepts_it(seed: int) -> None:
    document = scenario(seed)

    assert scenario(seed) == document
    assert len(project(document)) == len(document["steps"])


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_makes_the_same_images_each_time_and_the_project_accepts_them(seed: int) -> None:
    document = images_scenario(seed)

    assert images_scenario(seed) == document
    assert len(project(document)) == len(document["steps"])


def test_half_of_the_seeds_stay_out_of_every_area_and_each_area_is_sought_alone() -> None:
    areas = [areas_of(seed) for seed in range(400)]

    assert areas.count(frozenset()) >= 200
    assert {next(iter(each)) for each in areas if len(each) == 1} == set(AREAS)
    assert any(len(each) > 2 for each in areas)


def test_an_area_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no area"):
        Draw(1, frozenset()).seeks("percents")
