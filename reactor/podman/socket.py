"""Where podman's socket is."""

from __future__ import annotations

import os
import stat
from typing import Final

DEFAULT_SOCKET: Final = "/run/podman/podman.sock"
"""Where podman's own unit (`podman.socket`) has it."""


def find_socket(configured: str | None) -> str | None:
    """Return the socket that is to be used: the one configured, else podman's own where there is one."""
    if configured is not None:
        return configured
    try:
        is_socket = stat.S_ISSOCK(os.stat(DEFAULT_SOCKET).st_mode)
    except OSError:
        return None
    return DEFAULT_SOCKET if is_socket else None
