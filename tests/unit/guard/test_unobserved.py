"""Conditions that nothing can be said of."""

from __future__ import annotations

from reactor.guard.unobserved import Unobserved
from reactor.model.signals import NodeCondition, Signal
from tests.support.builders import make_threshold

_MEMORY, _DISK, _PID = NodeCondition
THRESHOLDS = (
    make_threshold(1),
    make_threshold(1, Signal.NODEFS_AVAILABLE),
    make_threshold(1, Signal.NODEFS_INODES_FREE),
)
ALL = {Signal.MEMORY_AVAILABLE, Signal.NODEFS_AVAILABLE, Signal.NODEFS_INODES_FREE}


def _at(unobserved: Unobserved, now_seconds: float, *seen: Signal, in_force=()) -> list[NodeCondition]:
    return list(unobserved.conditions(THRESHOLDS, seen, in_force, now_seconds))


def test_a_signal_that_stays_unobserved_makes_its_condition_unknown_and_no_other() -> None:
    unobserved = Unobserved(patience_seconds=30.0)
    assert [] == _at(unobserved, 0.0, Signal.MEMORY_AVAILABLE)
    assert [] == _at(unobserved, 30.0, Signal.MEMORY_AVAILABLE)
    assert [_DISK] == _at(unobserved, 30.1, Signal.MEMORY_AVAILABLE)
    assert [] == _at(unobserved, 31.0, *ALL)
    assert [] == _at(unobserved, 32.0, Signal.MEMORY_AVAILABLE)


def test_a_condition_in_force_stays_in_force() -> None:
    unobserved = Unobserved(patience_seconds=0.0)
    _at(unobserved, 0.0)
    assert [_MEMORY] == _at(unobserved, 1.0, in_force=[_DISK])


def test_a_filesystem_without_inodes_and_signals_without_a_threshold_make_nothing_unknown() -> None:
    unobserved = Unobserved(patience_seconds=0.0)
    seen = Signal.MEMORY_AVAILABLE, Signal.NODEFS_AVAILABLE
    _at(unobserved, 0.0, *seen)
    assert [] == _at(unobserved, 1.0, *seen)
