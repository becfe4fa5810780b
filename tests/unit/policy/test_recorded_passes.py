"""Passes of daemons that were recorded decide what they decided then."""

from __future__ import annotations

import json

import pytest

from tests.golden.files import CHANGED, first_difference, read_lines
from tests.golden.passes import RECORDS, replayed


@pytest.mark.parametrize("name", RECORDS)
def test_each_recorded_pass_is_decided_as_it_was(name):
    lines = read_lines(name)

    assert first_difference(lines, list(replayed(lines))) is None, CHANGED


def test_the_records_have_what_passes_are_about():
    found = [json.loads(one) for name in RECORDS for one in read_lines(name)]
    decisions = [one["decision"] for one in found if "decision" in one]
    events = {one["event"] for one in found if "event" in one}

    assert 600 < len(decisions)
    assert 50 < sum("evictions" in one for one in decisions)
    assert 50 < sum("deferredBecause" in one for one in decisions)
    assert {"KernelKilled", "PodsStruck", "PodEnded", "ProcessEvictionOrdered"} <= events
    assert any("reclaimed" in one for one in found)
    assert any("firing" in one for one in found)
    assert any("is_tried" in one for one in found)


def test_another_decision_would_be_found():
    lines = read_lines(RECORDS[0])
    number, one = next(
        (number, json.loads(line)) for number, line in enumerate(lines) if '"evictions":' in line
    )
    (signal,) = {eviction["signal"] for eviction in one["decision"]["evictions"]}
    one["seen"]["signals"][signal][0] = one["seen"]["signals"][signal][1]  # all of it is available

    changed = [
        *lines[:number],
        json.dumps(one, separators=(",", ":"), ensure_ascii=False),
        *lines[number + 1 :],
    ]

    assert str(first_difference(changed, list(replayed(changed)))).startswith(f"line {number + 1} was\n")
