"""The steward's process: `python -m reactor.steward [LISTENER]`, with its end of the socket pair as stdin.

LISTENER is the descriptor of the status socket, on which it serves. It has ordinary priority, is not locked
in memory, has a bound on what it may take, and ends with the pair.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from reactor.lean_imports import UNUSED, postpone

postpone(UNUSED)

import trio  # noqa: E402 - not before what it imports without use is postponed

from reactor.children import STEWARD_DATA_BYTES  # noqa: E402
from reactor.steward.service import serve  # noqa: E402
from reactor.tell.log import log_to_stderr  # noqa: E402

_STACK_BYTES: Final = 512 << 10
_END_SECONDS: Final = 10


def _become_ordinary() -> None:
    """Leave what the guard has for itself; a terminal's signals and a service manager's are meant for it."""
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
    resource.setrlimit(resource.RLIMIT_DATA, (STEWARD_DATA_BYTES, most))  # commands are given theirs back


def _close_others(kept: Collection[int]) -> None:
    """Close what the guard was started with and had not opened itself."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in kept:
            with suppress(OSError):  # that of the listing
                os.close(fd)


def _end_soon() -> None:
    """Have the kernel end this process if it has not by then: a disk that hangs must not keep it."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_END_SECONDS)


def main(arguments: list[str]) -> None:
    """Serve until the guard closes its end."""
    _become_ordinary()
    _close_others({0, 1, 2, *map(int, arguments)})
    log = log_to_stderr()
    try:
        with socket.socket(fileno=os.dup(0)) as guard:
            listener = socket.socket(fileno=int(arguments[0])) if arguments else None
            if listener is not None:
                listener.set_inheritable(False)
            trio.run(serve, guard, listener, _end_soon)
    finally:
        log.close()


if __name__ == "__main__":
    main(sys.argv[1:])
