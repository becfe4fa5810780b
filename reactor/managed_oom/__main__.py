"""The process: `reactor managed-oom`, which systemd runs as systemd-oomd.service.

The sockets of users' service managers are passed on by systemd, see sd_listen_fds(3).
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from reactor.processes import import_trio

import_trio()

import trio  # noqa: E402 - not before what it has no use for is replaced

from reactor.errors import RefusedError  # noqa: E402
from reactor.link.managed_oom import PATH  # noqa: E402
from reactor.managed_oom.relay import Relay  # noqa: E402
from reactor.tell.log import log_to_stderr  # noqa: E402

_FIRST_FD: Final = 3


def main() -> int:
    """Relay until a signal ends it. Raises RefusedError where systemd has not started it."""
    passed_on = _passed_on()
    directory = Path(PATH).parent
    if not passed_on and not directory.is_dir():
        raise RefusedError(
            f"{directory}: not there; systemd runs this as systemd-oomd.service, which makes it "
            "(docs/pressure.md, instead of systemd-oomd)"
        )
    log = log_to_stderr()
    try:
        trio.run(_relay, passed_on)
    finally:
        log.close()
    return 0


async def _relay(passed_on: list[socket.socket]) -> None:
    listening = [trio.SocketListener(trio.socket.from_stdlib_socket(one)) for one in passed_on]
    await Relay().run(listening)


def _passed_on() -> list[socket.socket]:
    count = os.environ.get("LISTEN_FDS", "")
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
        return []
    fds = range(_FIRST_FD, _FIRST_FD + int(count))
    for fd in fds:
        os.set_inheritable(fd, False)  # noqa: FBT003 - its one argument
    return [socket.socket(fileno=fd) for fd in fds]


if __name__ == "__main__":
    main()
