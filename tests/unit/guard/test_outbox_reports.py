"""What the API server is to hear is kept until the steward says that it is safe."""

from __future__ import annotations

import json

import pytest
import trio

from reactor.forms import FormError
from reactor.guard.outbox import ClusterReports
from reactor.model.rules import Mark, Marks
from reactor.model.signals import NodeCondition


@pytest.fixture
def reports():
    return ClusterReports()


async def sent(reports: ClusterReports) -> list[dict]:
    """Return what is to be sent now, each with its number."""
    found = []
    while True:
        with trio.move_on_after(0) as scope:
            message = await reports.next()
            found.append({**json.loads(message.content), "number": message.number})
        if scope.cancelled_caught:
            return found


async def test_a_report_is_sent_once_and_again_to_the_next_steward_until_it_is_safe(reports):
    reports.evicted("a", {"state": "over"})
    reports.event("system OOM", pid=7)
    first = await sent(reports)
    assert [one["report"] for one in first] == ["eviction", "system OOM"]
    assert await sent(reports) == []
    reports.reported(first[0]["number"])

    reports.restart()
    assert await sent(reports) == first[1:]
    reports.reported(first[1]["number"])
    reports.restart()
    assert (await sent(reports), len(reports)) == ([], 0)


async def test_the_latest_report_of_an_eviction_stands_for_those_before_it(reports):
    reports.evicted("a", {"state": "ordered"})
    (first,) = await sent(reports)
    reports.evicted("a", {"state": "over"})
    reports.reported(first["number"])  # on its way when the second came
    (second,) = await sent(reports)
    assert ("over", 1) == (second["state"], len(reports))
    reports.reported(second["number"])
    assert len(reports) == 0


async def test_conditions_are_reported_where_they_change_and_to_every_steward(reports):
    for _ in range(3):
        reports.conditions([NodeCondition.MEMORY_PRESSURE])
    (first,) = await sent(reports)
    assert first["conditions"] == ["MemoryPressure"]
    reports.reported(first["number"])
    reports.conditions([NodeCondition.MEMORY_PRESSURE])
    assert await sent(reports) == []
    reports.restart()
    assert [one["conditions"] for one in await sent(reports)] == [["MemoryPressure"]]


async def test_marks_of_rules_are_reported_where_they_change_and_to_every_steward(reports):
    mark = Mark("MemoryContention", "example.com/contention:NoSchedule", "rule r")
    for _ in range(2):
        reports.marks(Marks(shown=(mark,)))
    (first,) = await sent(reports)
    assert (first["report"], first["shown"], first["left"]) == ("marks", [list(mark)], [])
    reports.reported(first["number"])
    reports.restart()
    assert [one["shown"] for one in await sent(reports)] == [[list(mark)]]
    reports.marks(Marks())
    assert [one["shown"] for one in await sent(reports)] == [[]]


async def test_what_is_kept_is_bounded_and_what_is_lost_is_counted(reports):
    for number in range(300):
        reports.evicted(f"u{number}", {"state": "over"})
    assert (len(reports), reports.lost) == (256, 44)
    assert [one["uid"] for one in await sent(reports)] == [f"u{number}" for number in range(44, 300)]


async def test_a_report_that_was_not_sent_can_not_be_safe(reports):
    reports.evicted("a", {"state": "over"})
    for number in (0, 1, 2):
        with pytest.raises(FormError, match="accepted"):
            reports.reported(number)
    assert len(reports) == 1
