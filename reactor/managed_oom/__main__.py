"""The process: `reactor managed-oom`, which systemd runs as systemd-oomd.service.

The sockets of users' service managers are passed on by systemd, see sd_listen_fds(3).
"""

from __future__ import annotations

import os
import socket
from typing import Final

from reactor.lean_imports import UNUSED, postpone

postpone(UNUSED)

import trio  # noqa: E402 - not before what it imports without use is postponed

from reactor.managed_oom.relay import Relay  # noqa: E402
from reactor.tell.log import log_to_stderr  # noqa: E402

_FIRST_FD: Final = 3


def main() -> int:
    """Relay until a signal ends it."""
    log = log_to_stderr()
    try:
        trio.run(_relay)
    finally:
        log.close()
    return 0


async def _relay() -> None:
    await Relay().run([trio.SocketListener(one) for one in _passed_on()])


def _passed_on() -> list[trio.socket.SocketType]:
    """Return the sockets that systemd has passed on."""
    count = os.environ.get("LISTEN_FDS", "")
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
        return []
    fds = range(_FIRST_FD, _FIRST_FD + int(count))
    return [trio.socket.from_stdlib_socket(_of_ours_alone(fd)) for fd in fds]


def _of_ours_alone(fd: int) -> socket.socket:
    os.set_inheritable(fd, False)  # noqa: FBT003 - its one argument
    return socket.socket(fileno=fd)


if __name__ == "__main__":
    main()
