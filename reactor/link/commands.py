"""Which of the operator's commands may be run: a sealed file in memory, from the guard.

The guard makes it from the configuration before the steward has read anything. No process can change it
afterwards (F_SEAL_WRITE). Another configuration is another file, for another steward.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import Final

from reactor.model.settings import Command, Settings

_SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


def commands_of(settings: Settings) -> frozenset[Command]:
    """Return all commands of a configuration that the steward may have run."""
    by_filesystem, by_event = settings.reclaim.commands, settings.notifications.commands
    return frozenset(
        command for commands in (*by_filesystem.values(), *by_event.values()) for command in commands
    )


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
