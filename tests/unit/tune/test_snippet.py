import dataclasses
from typing import Any

import pytest

from reactor.config import settings_from_text
from reactor.model.settings import BrakeMode, Settings
from reactor.tune.history import History
from reactor.tune.measured import Measured
from reactor.tune.model import Assumptions, Recommendation, recommend
from reactor.tune.snippet import snippet

MIB = 1 << 20


@pytest.fixture
def found(measured: Measured) -> Recommendation:
    return recommend(measured, History(), Assumptions())


def read(text: str) -> tuple[Settings, dict[str, Any]]:
    settings = settings_from_text(text, "snippet")
    of = {(str(one.signal), one.is_hard): one for one in settings.eviction.thresholds}
    return settings, {f"{signal} {'hard' if hard else 'soft'}": one for (signal, hard), one in of.items()}


def test_the_snippet_means_what_is_recommended(measured: Measured, found: Recommendation) -> None:
    settings, thresholds = read(snippet(measured, found, {}))
    capacity = found.node.capacity_bytes
    assert found.hard_bytes == thresholds["memory.available hard"].value.of(capacity)
    assert found.soft.threshold_bytes == thresholds["memory.available soft"].value.of(capacity)
    assert 30.0 == thresholds["memory.available soft"].grace_period_seconds
    assert 30 == settings.eviction.max_pod_grace_period_seconds
    assert BrakeMode.OFF is settings.brake


def test_other_signals_keep_their_defaults_or_what_the_operator_has(
    measured: Measured, found: Recommendation
) -> None:
    _, thresholds = read(snippet(measured, found, {}))
    assert "10%" == thresholds["nodefs.available hard"].value.text
    existing = {
        "evictionHard": {"memory.available": "1Mi", "pid.available": "7%"},
        "evictionSoft": {"nodefs.available": "12%"},
        "evictionSoftGracePeriod": {"nodefs.available": "2m"},
    }
    _, thresholds = read(snippet(measured, found, existing))
    assert "7%" == thresholds["pid.available hard"].value.text
    assert 120 == thresholds["nodefs.available soft"].grace_period_seconds
    assert "nodefs.available hard" not in thresholds
    assert found.hard_bytes == thresholds["memory.available hard"].value.of(1 << 40)


def test_a_brake_that_is_recommended_is_in_it(measured: Measured, found: Recommendation) -> None:
    braked = dataclasses.replace(found, brake=True)
    settings, _ = read(snippet(measured, braked, {}))
    assert BrakeMode.HARD is settings.brake


def test_a_threshold_that_is_not_enough_says_so(measured: Measured, found: Recommendation) -> None:
    assert "Not enough" in snippet(measured, dataclasses.replace(found, is_enough=False), {})
    assert "Not enough" not in snippet(measured, found, {})
