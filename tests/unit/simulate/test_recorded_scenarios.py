"""The fixtures and seeded scenarios come out as they did when that was recorded."""

from __future__ import annotations

import pytest

from tests.golden import scenarios
from tests.golden.files import CHANGED, GOLDEN, first_difference, read_lines


@pytest.mark.slow
def test_scenarios_come_out_as_they_did():
    assert first_difference(read_lines("scenarios.jsonl.gz"), scenarios.lines()) is None, CHANGED


def test_a_changed_line_is_found():
    recorded = read_lines("scenarios.jsonl.gz")

    changed = [*recorded[:5], recorded[5].replace('"at":', '"at": '), *recorded[6:]]

    assert first_difference(recorded, list(recorded)) is None
    assert str(first_difference(recorded, changed)).startswith("line 6 was\n")
    assert first_difference(recorded, recorded[:-1]) is not None


def test_the_records_stay_small():
    assert sum(path.stat().st_size for path in GOLDEN.iterdir()) < 1 << 20
