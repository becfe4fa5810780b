"""What was measured, as it is stored, and what follows from it.

A result is a JSON object: `about` (when, on what), `courses` and `contestants` by name, `left_out` by name
with the reason, `heats` one by one (those under pressure with the reactor's own records), `traces`
(course -> contestant -> pairs of ms since the crossing and MiB used). All else is worked out of these, so
that a file that was measured elsewhere can be looked at anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from reactor.lab.measure import summary
from reactor.lab.race.contestant import Role
from reactor.lab.race.course import STEP
from reactor.lab.race.own import FLOOR

Found = Mapping[str, Any]
NOISY_SPREAD: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One contestant's on one course, in ms and MiB; empty where it never killed. `n` is of all heats."""

    kill_ms: Mapping[str, float]
    back_ms: Mapping[str, float]
    overshoot_mib: Mapping[str, float]
    missed: int
    early: int
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PressedFigures:
    """One contestant's on a course under pressure, in ms; `wrong` and `lost_mib` are of all heats.

    `by_kernel` is in how many of them the kernel's OOM killer killed.
    """

    kill_ms: Mapping[str, float]
    stall_ms: Mapping[str, float]
    answers_ms: Mapping[str, float]
    missed: int
    early: int
    by_kernel: int
    wrong: int
    lost_mib: float
    n: int


def figures(found: Found, course: str, contestant: str) -> Figures | None:
    """Return the figures, None where the contestant didn't run this course."""
    heats = _heats_of(found, course, contestant)
    if not heats:
        return None
    return Figures(
        kill_ms=_summary(heats, "kill_ms"),
        back_ms=_summary(heats, "back_ms"),
        overshoot_mib=_summary(heats, "overshoot_mib"),
        missed=_missed(heats),
        early=sum(heat["early"] for heat in heats),
        n=len(heats),
    )


def is_under_pressure(found: Found, course: str) -> bool:
    """Tell whether the heats of a course have a probe that stalls."""
    return any("stall_ms" in heat for heat in found["heats"] if heat["course"] == course)


def pressed_figures(found: Found, course: str, contestant: str) -> PressedFigures | None:
    """Return the figures of a course under pressure, None where the contestant didn't run it."""
    heats = _heats_of(found, course, contestant)
    if not heats:
        return None
    return PressedFigures(
        kill_ms=_summary(heats, "kill_ms"),
        stall_ms=_summary(heats, "stall_ms"),
        answers_ms=_summary(heats, "answers_ms"),
        missed=_missed(heats),
        early=sum(heat["early"] for heat in heats),
        by_kernel=sum(heat["kernel_oom_kills"] > 0 for heat in heats),
        wrong=sum(len(heat["wrong"]) for heat in heats),
        lost_mib=sum(heat["lost_mib"] for heat in heats),
        n=len(heats),
    )


def values(found: Found, course: str, contestant: str, name: str) -> list[float]:
    """Return what was measured under a name, heat by heat, without those where there was nothing."""
    return [
        heat[name]
        for heat in found["heats"]
        if (heat["course"], heat["contestant"]) == (course, contestant) and heat[name] is not None
    ]


def named(found: Found, *roles: Role) -> list[str]:
    """Return the contestants of these roles."""
    return [name for name, about in found["contestants"].items() if about["role"] in roles]


def median(found: Found, course: str, contestant: str, name: str = "kill_ms") -> float | None:
    """Return the median of what was measured under a name, None where there is nothing."""
    measured = values(found, course, contestant, name)
    return summary(measured)["p50"] if measured else None


def fastest(found: Found, course: str, *roles: Role) -> tuple[str, float] | None:
    """Return who of these roles has the lowest median from the crossing to the kill, and that in ms."""
    medians = [(median(found, course, name), name) for name in named(found, *roles)]
    ranked = sorted((ms, name) for ms, name in medians if ms is not None)
    return (ranked[0][1], ranked[0][0]) if ranked else None


def spread_of_floor(found: Found, course: str) -> float | None:
    """Return how far apart the floor's quartiles are, as a share of its median: the machine's own noise."""
    measured = sorted(values(found, course, FLOOR, "kill_ms"))
    middle = median(found, course, FLOOR)
    if len(measured) < 4 or not middle:
        return None
    quarter = len(measured) // 4
    return (measured[-1 - quarter] - measured[quarter]) / middle


def noise(found: Found) -> list[str]:
    """Return a line for each course on which the machine was too noisy to trust small differences."""
    lines = []
    for course in found["courses"]:
        spread = spread_of_floor(found, course)
        if spread is not None and spread > NOISY_SPREAD:
            lines.append(
                f"noisy: on {course} the quartiles of the floor are {spread:.1f} times its median apart; "
                "the machine had other work, so trust no small differences"
            )
    return lines


def comparisons(found: Found) -> list[str]:
    """Return a sentence for each course: how far the reactor is from the fastest peer and from the floor."""
    lines = []
    for course in found["courses"]:
        own = fastest(found, course, Role.REACTOR)
        floor = median(found, course, FLOOR)
        peer = fastest(found, course, Role.PEER)
        if own is None:
            continue
        line = f"{course}: {own[0]} kills {number(own[1])} ms after the crossing (median)"
        if floor:
            line += f", {own[1] / floor:.1f} times the floor's {number(floor)} ms"
        if peer:
            line += (
                f"; the fastest peer, {peer[0]}, {number(peer[1])} ms, {peer[1] / own[1]:.1f} times as long"
            )
        lines.append(line)
    return lines


def order(found: Found, course: str = STEP) -> list[str]:
    """Return the contestants from the fastest to the slowest on a course, those without a kill at the end."""
    names = list(found["contestants"])

    def key(name: str) -> tuple[bool, float, int]:
        ms = median(found, course, name)
        return ms is None, ms or 0.0, names.index(name)

    return sorted(names, key=key)


def number(value: float) -> str:
    """Return three digits that matter."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _heats_of(found: Found, course: str, contestant: str) -> list[Mapping[str, Any]]:
    return [heat for heat in found["heats"] if (heat["course"], heat["contestant"]) == (course, contestant)]


def _missed(heats: Sequence[Mapping[str, Any]]) -> int:
    return sum(heat["kill_ms"] is None and not heat["early"] for heat in heats)


def _summary(heats: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, float]:
    measured = [heat[name] for heat in heats if heat[name] is not None]
    return summary(measured) if measured else {}
