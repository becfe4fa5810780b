"""The steward's process: `python -m reactor.steward COMMANDS [LISTENER]`, its end of the pair as stdin.

COMMANDS is the descriptor of the guard's file of commands that may be run, LISTENER that of the status socket
on which it serves. It has ordinary priority, few rights, is not locked in memory, has a bound on what it may
take, and ends with the pair.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from typing import Final

from reactor.processes import import_trio

import_trio()

import trio  # noqa: E402 - not before what it has no use for is replaced

from reactor.errors import first_failure  # noqa: E402
from reactor.kernel.capabilities import keep_capabilities  # noqa: E402
from reactor.kernel.files import read_file  # noqa: E402
from reactor.kernel.filesystem import counts_by_project  # noqa: E402
from reactor.kernel.procfs import PROC  # noqa: E402
from reactor.link.orders import read_commands  # noqa: E402
from reactor.privileged.client import Privileged  # noqa: E402
from reactor.processes import STEWARD_DATA_BYTES, become_ordinary, close_others  # noqa: E402
from reactor.steward.guard import GuardError  # noqa: E402
from reactor.steward.service import serve  # noqa: E402
from reactor.tell.log import log_to_stderr  # noqa: E402

_END_SECONDS: Final = 10
# Tenants' files are removed, files and sockets of others written; a port below 1024 may be configured.
_KEPT: Final = frozenset({"CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_NET_BIND_SERVICE"})


def _start_privileged(commands_fd: int) -> Privileged | None:
    """Start the process that keeps the rights, where something is left for it to do."""
    try:
        if read_commands(commands_fd) or counts_by_project(read_file(PROC / "self/mountinfo")):
            return Privileged.start(commands_fd)
        return None
    finally:
        os.close(commands_fd)


def _end_soon() -> None:
    """Have the kernel end this process if it has not by then: a disk that hangs must not keep it."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_END_SECONDS)


def main(arguments: list[str]) -> None:
    """Serve until the guard closes its end."""
    commands_fd, *listener_fds = map(int, arguments)
    become_ordinary(STEWARD_DATA_BYTES)  # commands get theirs restored
    close_others({0, 1, 2, commands_fd, *listener_fds})
    select.select([0], [], [])  # the guard has put this process into its cgroup by then
    privileged = _start_privileged(commands_fd)
    keep_capabilities(_KEPT)
    log = log_to_stderr()
    try:
        with socket.socket(fileno=os.dup(0)) as guard:
            listener = socket.socket(fileno=listener_fds[0]) if listener_fds else None
            if listener is not None:
                listener.set_inheritable(False)
            trio.run(serve, guard, listener, _end_soon, privileged)
    except* GuardError as group:
        raise SystemExit(f"reactor: steward: {first_failure(group)}") from None
    finally:
        log.close()


if __name__ == "__main__":
    main(sys.argv[1:])
    # All is written and closed. The interpreter's own end took half a second beside a load of 18, and the
    # next guard of the node would wait for it.
    os._exit(0)
