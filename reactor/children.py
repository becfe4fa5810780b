"""What child processes have in common: the environment they get, and how they ended in words."""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

# The RLIMIT_DATA of the steward: with the guard and the walker below the limit of their unit or pod.
STEWARD_DATA_BYTES: Final = 160 << 20


def child_environment() -> dict[str, str]:
    """Return an environment in which a child finds this program's modules, and nothing else of ours."""
    return {"PYTHONPATH": os.pathsep.join(filter(os.path.isabs, sys.path)), "LC_ALL": "C.UTF-8"}


def ended_text(status: int) -> str:
    """Return how a child ended by its exit status, which is negative where a signal killed it."""
    if status < 0:
        return f"killed by signal {-status} ({signal.strsignal(-status)})"
    return f"ended with status {status}"
