"""What a contestant is: how it is called, started and told of a heat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from reactor.lab.crossing import CAPACITY_BYTES
from reactor.lab.race.course import Course
from reactor.lab.race.heat import Arm, Ready, Track
from reactor.lab.race.pressed import PressedCourse

AnyCourse = Course | PressedCourse


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


def _nothing_told() -> Sequence[Mapping[str, Any]]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A contestant that is at its post.

    `arm` is for those that have to be told of each heat's allocators; `pid` for those whose cost at rest can
    be measured. `problem` says why it is not at its post any more, None as long as it is. `decisions` are
    its own records of whom it killed and why, those since the last call; only the reactor's are read.
    """

    arm: Arm = _nothing
    pid: int | None = None
    problem: Callable[[], str | None] = _never_ended
    decisions: Callable[[], Sequence[Mapping[str, Any]]] = _nothing_told


def runs_anything(_: Course) -> bool:
    """Tell that a contestant takes part in every course about a threshold."""
    return True


def _the_root() -> AbstractContextManager[str]:
    return nullcontext("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """The node that a contestant guards: its memory, its swap (None: no limit), the cgroup it lies in."""

    memory_bytes: int = CAPACITY_BYTES
    swap_bytes: int | None = None
    within: Callable[[], AbstractContextManager[str]] = _the_root


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """`enter` has it guard the track's node; `settings` are what it was told, in its own words.

    `runs` says which courses about a threshold it runs; one with swap in its ground runs those under
    pressure.
    """

    name: str
    role: Role
    settings: str
    enter: Callable[[Track], AbstractContextManager[Entrant]]
    runs: Callable[[Course], bool] = runs_anything
    ground: Ground = Ground()

    def takes_part(self, course: AnyCourse) -> bool:
        """Tell whether it runs this course."""
        if isinstance(course, PressedCourse):
            return self.ground.swap_bytes is not None
        return self.ground.swap_bytes is None and self.runs(course)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Who takes part, and who does not and why."""

    contestants: tuple[Contestant, ...]
    left_out: dict[str, str]
