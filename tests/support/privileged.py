"""The privileged process as the steward's main starts it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from reactor.link.orders import write_commands
from reactor.model.settings import Command
from reactor.privileged.client import Privileged


@contextmanager
def may_run(*commands: Command) -> Iterator[Privileged]:
    """Start one that may run these commands; at the end it has ended."""
    fd = write_commands(frozenset(commands))
    try:
        privileged = Privileged.start(fd)
    finally:
        os.close(fd)
    try:
        yield privileged
    finally:
        privileged.close()
