"""The steward's process: `python -m reactor.steward [LISTENER]`, with its end of the socket pair as stdin.

LISTENER is the descriptor of the status socket, on which it serves. It has ordinary priority, is not locked
in memory, has a bound on what it may take, and ends with the pair.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Final

from reactor.lean_imports import UNUSED, postpone

postpone(UNUSED)

import trio  # noqa: E402 - not before what it imports without use is postponed

from reactor.children import STEWARD_DATA_BYTES, become_ordinary, close_others  # noqa: E402
from reactor.steward.service import serve  # noqa: E402
from reactor.tell.log import log_to_stderr  # noqa: E402

_END_SECONDS: Final = 10


def _end_soon() -> None:
    """Have the kernel end this process if it has not by then: a disk that hangs must not keep it."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_END_SECONDS)


def main(arguments: list[str]) -> None:
    """Serve until the guard closes its end."""
    become_ordinary(STEWARD_DATA_BYTES)  # commands are given theirs back
    close_others({0, 1, 2, *map(int, arguments)})
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
    # All is written and closed. The interpreter's own end took half a second beside a load of 18, and the
    # next guard of the node would wait for it.
    os._exit(0)
