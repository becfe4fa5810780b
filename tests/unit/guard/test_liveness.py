"""What the watchdog and /healthz go by: that the loop makes its passes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reactor.guard.daemon import Liveness
from reactor.guard.pass_ import RULES
from reactor.guard.record import PassRecord, StageTimes
from reactor.model.decisions import Decision, Snapshot
from reactor.model.wakes import Wake, WakeKind

HOUSEKEEPING = Wake(source="ticker", kind=WakeKind.HOUSEKEEPING, at_ns=1)
BY_RULE = Wake(source=RULES, kind=WakeKind.MEMORY, at_ns=1)
RECORD = PassRecord(
    id=1,
    at_unix_seconds=0.0,
    wakes=(),
    snapshot=Snapshot(),
    decision=Decision(at_seconds=0.0),
    times=StageTimes(woke_ns=0, started_ns=0, observed_ns=0, decided_ns=0, done_ns=0),
)


class Clock:
    seconds = 100.0


@pytest.mark.parametrize(
    ("wakes", "is_alive"),
    [((), True), ((HOUSEKEEPING,), True), ((BY_RULE, HOUSEKEEPING), True), ((BY_RULE,), False)],
)
def test_a_pass_shows_that_the_loop_runs_unless_a_rule_made_it(
    wakes: tuple[Wake, ...], *, is_alive: bool
) -> None:
    clock = Clock()
    liveness = Liveness(lambda: clock.seconds)
    clock.seconds += 30.0
    liveness.passed(replace(RECORD, wakes=wakes))
    clock.seconds += 30.0
    assert is_alive == liveness.is_alive(10.0)


def test_three_intervals_without_a_pass_and_a_little_more_are_too_many() -> None:
    clock = Clock()
    liveness = Liveness(lambda: clock.seconds)
    clock.seconds += 34.0
    assert liveness.is_alive(10.0)
    clock.seconds += 1.0
    assert not liveness.is_alive(10.0)
