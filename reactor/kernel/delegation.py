"""Cgroups that systemd leaves to the service inside: `Delegate=`, and what reactor makes in its own.

systemd marks a delegated cgroup by an extended attribute: trusted.delegate (since 236), and user.delegate
(since 251), which needs no privilege to read. The rest of the tree is systemd's, even if reactor may write to
it.
Source: "Control Group APIs and Delegation" (docs/CGROUP_DELEGATION.md of systemd).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

GUARD: Final = "guard"
STEWARD: Final = "steward"

_ATTRIBUTES: Final = ("user.delegate", "trusted.delegate")
_SERVICE: Final = ".service"


def is_delegated(directory: Path) -> bool:
    """Return whether a cgroup's directory carries the mark; False also where that is not known."""
    return any(_attribute(directory, name) == b"1" for name in _ATTRIBUTES)


def is_service(cgroup: str) -> bool:
    """Return whether a cgroup is that of a service.

    A scope, be it delegated, belongs to who made it: to a container runtime, or a terminal.
    """
    return cgroup.endswith(_SERVICE)


def stewards_beside(own: str) -> str | None:
    """Return the steward's cgroup where `own` is the guard's beside it, None where `own` is another."""
    above, name = os.path.split(own)
    return f"{above}/{STEWARD}" if name == GUARD and is_service(above) else None


def _attribute(directory: Path, name: str) -> bytes | None:
    try:
        return os.getxattr(directory, name)
    except OSError:  # ENODATA; ENOTSUP; EPERM for trusted ones
        return None
