"""Seeded nodes through passes and events decide what they decided when that was recorded."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.golden import driver
from tests.golden.files import CHANGED, first_difference, read_jsonl, read_lines


def test_recorded_seeds_decide_line_by_line_what_they_did():
    assert first_difference(read_lines("events.jsonl.gz"), driver.whole()) is None, CHANGED


@pytest.mark.slow
def test_all_seeds_decide_what_they_did():
    recorded = read_jsonl("events-digests.jsonl")

    changed = [(before, now) for before, now in zip(recorded, driver.digests(), strict=True) if before != now]

    assert [] == changed, f"{CHANGED}; `python -m tests.golden SEED` prints the lines of a seed"


def test_the_seeds_cover_every_kind_of_event_and_reason():
    found: Counter[str] = Counter()
    for one in read_jsonl("events-digests.jsonl"):
        found.update({what: one.get(what, 0) for what in driver.COVERED})

    assert [] == [what for what in driver.COVERED if not found[what]]
