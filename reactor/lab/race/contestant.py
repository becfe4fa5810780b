"""What a contestant is: how it is called, started and told of a heat."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum

from reactor.lab.race.course import Course
from reactor.lab.race.heat import Arm, Ready, Track


class Role(StrEnum):
    """What a contestant's figures are to be compared as."""

    REACTOR = "reactor"
    PEER = "peer"
    POLLER = "poller"
    FLOOR = "floor"


def _nothing(_: Ready) -> AbstractContextManager[object]:
    return nullcontext()


def _never_ended() -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A contestant that is at its post.

    `arm` is for those that have to be told of each heat's allocators; `pid` for those whose cost at rest can
    be measured. `problem` says why it is not at its post any more, None as long as it is.
    """

    arm: Arm = _nothing
    pid: int | None = None
    problem: Callable[[], str | None] = _never_ended


def runs_anything(_: Course) -> bool:
    """Tell that a contestant takes part in every course."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """`enter` has it guard the track's node; `settings` are what it was told, in its own words."""

    name: str
    role: Role
    settings: str
    enter: Callable[[Track], AbstractContextManager[Entrant]]
    runs: Callable[[Course], bool] = runs_anything


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Who takes part, and who does not and why."""

    contestants: tuple[Contestant, ...]
    left_out: dict[str, str]
