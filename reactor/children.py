"""What child processes have in common: the environment they get, what they leave, how they ended in words."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
from collections.abc import Collection
from contextlib import suppress
from typing import Final

# The RLIMIT_DATA of the steward: with the guard and the walker below the limit of their unit or pod.
STEWARD_DATA_BYTES: Final = 160 << 20
_STACK_BYTES: Final = 512 << 10


def child_environment() -> dict[str, str]:
    """Return an environment in which a child finds this program's modules, and nothing else of ours."""
    return {"PYTHONPATH": os.pathsep.join(filter(os.path.isabs, sys.path)), "LC_ALL": "C.UTF-8"}


def ended_text(status: int) -> str:
    """Return how a child ended by its exit status, which is negative where a signal killed it."""
    if status < 0:
        return f"killed by signal {-status} ({signal.strsignal(-status)})"
    return f"ended with status {status}"


def become_ordinary(data_bytes: int) -> None:
    """Leave what the guard has for itself, and take no more than so much memory from now on.

    A terminal's signals and a service manager's are meant for the guard.
    """
    os.chdir("/")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("0")
    threading.stack_size(_STACK_BYTES)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, most))


def close_others(kept: Collection[int]) -> None:
    """Close what the guard was started with and had not opened itself."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in kept:
            with suppress(OSError):  # that of the listing
                os.close(fd)
