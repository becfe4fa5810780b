"""The process: `python -m reactor.shutdown SECONDS [KUBELET-CONFIG]`, with its end of the pair as stdin.

SECONDS is how long a shutdown may have to be held up. Where the kubelet's own configuration, at
KUBELET-CONFIG, has it end the pods, nothing is done here but to say so.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from pathlib import Path
from typing import Final

from reactor.processes import import_trio

import_trio()

import trio  # noqa: E402 - not before what it has no use for is replaced

from reactor.link.shutdown import ShutdownNews, ShutdownNewsKind, write_news  # noqa: E402
from reactor.processes import become_ordinary, close_others  # noqa: E402
from reactor.shutdown.watch import Watch  # noqa: E402
from reactor.tell.log import log_to_stderr  # noqa: E402

_DATA_BYTES: Final = 96 << 20  # three times the longest message that the bus lets pass
_LOG: Final = logging.getLogger("reactor.shutdown")


async def _watch(guard: socket.socket, arguments: list[str]) -> None:
    connection = trio.socket.from_stdlib_socket(guard)
    if len(arguments) > 1:
        from reactor.shutdown.kubelet import ends_pods_itself  # noqa: PLC0415 - 2 MiB, in Kubernetes alone

        if ends_pods_itself(Path(arguments[1])):
            why = f"{arguments[1]}: the kubelet ends the pods itself at a shutdown (shutdownGracePeriod)"
            _LOG.warning("%s", why)
            await connection.send(write_news(ShutdownNews(kind=ShutdownNewsKind.PROBLEM, text=why)))
            await connection.recv(1)  # until the guard has ended
            return
    await Watch(connection, int(arguments[0])).run()


def main(arguments: list[str]) -> None:
    """Watch until the guard closes its end."""
    become_ordinary(_DATA_BYTES)
    close_others({0, 1, 2})
    log = log_to_stderr()
    try:
        guard = socket.socket(fileno=os.dup(0))
        guard.setblocking(False)  # noqa: FBT003 - its one argument
        with guard:
            trio.run(_watch, guard, arguments)
    finally:
        log.close()


if __name__ == "__main__":
    main(sys.argv[1:])
