"""When a source counts as lost, and that it is told once."""

from __future__ import annotations

from reactor.guard.incidents import SourceLosses
from reactor.model.wakes import SourceHealth, SourceState


def told(*states: tuple[str, SourceHealth]) -> list[tuple[str, str]]:
    lines: list[dict] = []
    losses = SourceLosses(lambda make: lines.append(make()))
    for name, health in states:
        losses.changed(SourceState(name=name, health=health, detail="ENODEV; the ticker is left"))
    return [(line["source"], line["health"]) for line in lines]


def test_a_source_that_was_armed_and_fails_is_lost_and_again_once_it_was_armed_meanwhile() -> None:
    assert [("psi", "failed"), ("psi", "degraded")] == told(
        ("psi", SourceHealth.ARMED),
        ("psi", SourceHealth.FAILED),
        ("psi", SourceHealth.ARMED),
        ("psi", SourceHealth.DEGRADED),
    )


def test_a_source_that_could_never_be_armed_is_lost() -> None:
    assert [("ebpf", "degraded")] == told(("ebpf", SourceHealth.OFF), ("ebpf", SourceHealth.DEGRADED))


def test_attempts_and_reloads_without_success_are_no_other_loss() -> None:
    assert [("ebpf", "degraded")] == told(
        ("ebpf", SourceHealth.DEGRADED),
        ("ebpf", SourceHealth.FAILED),
        ("ebpf", SourceHealth.OFF),
        ("ebpf", SourceHealth.DEGRADED),
    )


def test_a_source_that_is_off_is_not_lost() -> None:
    assert [] == told(("psi", SourceHealth.ARMED), ("psi", SourceHealth.OFF))


def test_the_line_says_what_the_source_is_for_and_why_it_is_lost() -> None:
    lines: list[dict] = []
    losses = SourceLosses(lambda make: lines.append(make()))
    losses.changed(SourceState(name="ebpf", health=SourceHealth.FAILED, detail="a\x1b"))
    assert lines[0]["message"] == "source ebpf (memory, at the crossing itself) is failed: a\\x1b"
