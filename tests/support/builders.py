"""The words that most tests are about, made from what matters in them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from reactor.model.decisions import Claim, ClaimKind
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


def make_claim(uid: str = "a", kind: ClaimKind = ClaimKind.POD, **changes: Any) -> Claim:
    """Return a claim on memory until 10 s, of a pod that was killed at 0 s."""
    kill_at_seconds = 0.0 if kind.is_eviction else None
    claim = Claim(kind=kind, uid=uid, kill_at_seconds=kill_at_seconds, deadline_seconds=10.0)
    return replace(claim, **changes)
