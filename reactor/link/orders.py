"""What the steward works by: the configuration in force, and the directories that it counts for the guard.

Orders are sent at first, and whenever another configuration is in force; places piece by piece, as pods come
and go. The steward trusts both.
"""

from __future__ import annotations

import fcntl
import json
import os
from _pickle import dumps, loads  # without pickle's own way in Python, which takes 0.4 MiB
from dataclasses import dataclass
from typing import Any, Final

from reactor.model.settings import Command, Settings

MOST_PLACES: Final = 256  # in a piece: 40 KiB as a rule, in a fraction of a millisecond

_SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """`start` names this run of the guard's, as its lines do; `number` counts its orders.

    Of `settings` those hold from the first orders on that take effect at a start only.
    """

    start: str
    number: int
    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedPlace:
    """A directory that is counted; `number` is never used twice. All places of a `uid` are one pod's."""

    number: int
    uid: str
    pod: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Directories that are counted from now on, and the numbers of those that are no more."""

    count: tuple[CountedPlace, ...] = ()
    forget: tuple[int, ...] = ()


def write_order(order: Orders | Places) -> bytes:
    return dumps(order)


def read_order(content: bytes) -> Any:
    """Return the order that the guard has written. For the steward, which trusts it; never for the guard."""
    return loads(content)


# Which of the operator's commands may be run: a sealed file in memory, from the guard.
#
# The guard makes it from the configuration before the steward has read anything. No process can change it
# afterwards (F_SEAL_WRITE). Another configuration is another file, for another steward.
def commands_of(settings: Settings) -> frozenset[Command]:
    """Return all commands of a configuration that the steward may have run."""
    by_filesystem, by_event = settings.reclaim.commands, settings.notifications.commands
    several = (*by_filesystem.values(), *by_event.values(), settings.hooks.commands)
    return frozenset(command for commands in several for command in commands)


def write_commands(commands: frozenset[Command]) -> int:
    """Return the descriptor of the file, for the caller to close. Raises OSError."""
    fd = os.memfd_create("commands", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(json.dumps(sorted(commands)).encode())
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_commands(fd: int) -> frozenset[Command]:
    """Return what the guard has written. Trusts the guard."""
    with os.fdopen(fd, "rb", closefd=False) as file:
        file.seek(0)
        return frozenset(map(tuple, json.load(file)))
