"""The falls of the soak in time, simulated: a small part of tests/soak/simulated.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.soak.falls import End, Need
from tests.soak.simulated import first_falls, summary, table

DOCS = Path(__file__).parents[3] / "docs"


def test_no_eviction_is_needed_for_a_fall_that_stops_and_none_in_vain_for_one_that_crosses() -> None:
    found = first_falls(1, 40)
    needs = {(fall.end, one.need) for fall, evicted in found for one in evicted}
    assert {(End.CROSSES, Need.NEEDED), (End.STAYS, Need.SOONER)} <= needs
    assert (End.CROSSES, Need.IN_VAIN) not in needs
    assert {end for end, need in needs if need is Need.NEEDED} == {End.CROSSES}
    assert any(one.saved for _, evicted in found for one in evicted)


def test_the_same_seed_has_the_same_falls_and_evictions() -> None:
    assert first_falls(2, 8) == first_falls(2, 8)


def test_each_eviction_is_in_the_row_of_what_the_pod_needs_of_the_time_and_in_the_last() -> None:
    found = first_falls(1, 40)
    rows = summary(found)
    *parts, every = rows.values()
    for key in ("evictions", "in_time", "in_vain"):
        assert sum(row.get(key, 0) for row in parts) == every[key]
    assert every["evictions"] == sum(len(evicted) for _, evicted in found)
    assert every["in_vain_too_late_to_know"] <= every["in_vain"] <= every["in_time"]
    assert sum(row.get("could_save", 0) for row in parts[:-1]) == every["could_save"]
    assert len(table(rows)) == 2 + len(rows)


def test_the_documented_table_is_of_the_stored_figures() -> None:
    figures = json.loads((DOCS / "figures/soak-in-time-simulated.json").read_text())
    assert "\n".join(table(figures)) in (DOCS / "reliability.md").read_text()


@pytest.mark.slow
def test_19_in_20_save_that_had_twice_the_time_and_few_are_asked_in_vain_that_could_be_waited_for() -> None:
    every = summary([one for seed in range(2) for one in first_falls(seed, 150)])["all"]
    assert every["in_time"] > 200
    assert every["in_vain"] - every["in_vain_too_late_to_know"] <= 0.02 * every["in_time"]
    assert every["saved"] >= 0.95 * every["could_save"] > 95
