"""The words that most tests are about, made from what matters in them."""

from __future__ import annotations

from fractions import Fraction

from reactor.model.pods import Pod, QosClass
from reactor.model.signals import Resource, Signal
from reactor.model.thresholds import Observation, Threshold, ThresholdValue
from tests.support.processes import MIB


def make_observation(available: int, capacity: int = 512 * MIB) -> Observation:
    """Return an observation of so much left."""
    return Observation(available=available, capacity=capacity, inactive_file_bytes=MIB)


def make_threshold(
    amount: int, signal: Signal = Signal.MEMORY_AVAILABLE, grace_period_seconds: float = 0.0
) -> Threshold:
    """Return a threshold at an amount, a hard one where it has no grace period; its text is the number."""
    value = ThresholdValue(text=str(amount), amount=Fraction(amount))
    return Threshold(signal=signal, value=value, grace_period_seconds=grace_period_seconds)


def make_pod(name: str, request_bytes: int = 0, priority: int = 0) -> Pod:
    """Return a pod in the cgroup /node/NAME, BestEffort where it requests no memory."""
    return Pod(
        name=name,
        namespace="cgroup",
        uid=f"uid-{name}",
        priority=priority,
        qos_class=QosClass.BURSTABLE if request_bytes else QosClass.BEST_EFFORT,
        requests={Resource.MEMORY: request_bytes} if request_bytes else {},
        cgroup=f"/node/{name}",
    )
