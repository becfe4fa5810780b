from __future__ import annotations

import math
from fractions import Fraction

import pytest

from reactor.daemon.passes import look_again_seconds
from reactor.model.decisions import InFlight, PolicyState
from reactor.model.signals import Resource, Signal
from reactor.model.thresholds import Threshold, ThresholdValue


def _state(resource: Resource | None, signal: Signal | None) -> PolicyState:
    value = ThresholdValue(text="1Mi", amount=Fraction(1 << 20))
    return PolicyState(
        in_flight=()
        if resource is None
        else (InFlight(uid="a", resource=resource, kill_at_seconds=0.0, deadline_seconds=10.0),),
        thresholds_met=() if signal is None else (Threshold(signal=signal, value=value),),
    )


def test_memory_that_is_still_coming_back_under_pressure_is_looked_after() -> None:
    assert look_again_seconds(_state(Resource.MEMORY, Signal.MEMORY_AVAILABLE)) < 0.1


@pytest.mark.parametrize(
    ("resource", "signal"),
    [
        (None, Signal.MEMORY_AVAILABLE),
        (Resource.MEMORY, None),
        (Resource.PIDS, Signal.PID_AVAILABLE),
        (Resource.PIDS, Signal.MEMORY_AVAILABLE),
        (Resource.MEMORY, Signal.NODEFS_AVAILABLE),
    ],
)
def test_otherwise_the_loop_waits_for_its_sources(resource: Resource | None, signal: Signal | None) -> None:
    assert math.inf == look_again_seconds(_state(resource, signal))
