"""The process that restores scores if the guard is gone: `main(FILE)`.

Its standard input is its end of the pair. While scores are written, the guard sends a message every ten
seconds. If the pair is closed the guard is dead, and if no message comes for half a minute it does not move.
What was written is restored by the file then. The file is the guard's and stays as it is: to restore twice
changes nothing.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress
from typing import Final

from reactor.processes import UNUSED, postpone

postpone((*UNUSED, "inspect"))  # 1 MiB, which dataclasses asks for

from reactor.errors import ReactorError  # noqa: E402 - not before that
from reactor.kernel.capabilities import keep_capabilities  # noqa: E402
from reactor.kernel.procfs import BOOT_ID  # noqa: E402
from reactor.oom_scores.written import Written  # noqa: E402

READY: Final = b"ready"
HELD: Final = b"held"  # scores are written, and the guard is there
NONE: Final = b"none"  # none are
SILENT_SECONDS: Final = 30
# To write what is other users', and below what the writer before had set.
_KEPT: Final = ("CAP_DAC_OVERRIDE", "CAP_SYS_RESOURCE")


def main(path: str) -> None:
    """Wait for the guard's end. The guard's memory is locked and its priority real time; ours is not."""
    with suppress(OSError, ReactorError):  # what it reads is the guard's and the kernel's
        keep_capabilities(_KEPT)
    os.chdir("/")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the guard
        signal.signal(number, signal.SIG_IGN)
    guard = select.poll()
    guard.register(0, select.POLLIN)
    os.write(0, READY)
    patience_ms = None
    while True:
        if not guard.poll(patience_ms):
            _restore(path)
            patience_ms = None  # once: it may be there again
            continue
        try:
            message = os.read(0, 16)
        except ConnectionResetError:
            message = b""
        if not message:
            _restore(path)
            return
        patience_ms = SILENT_SECONDS * 1000 if message == HELD else None


def _restore(path: str) -> None:
    written = Written("/proc")
    try:
        written.load(path, BOOT_ID.read_text().strip())
    except (OSError, ValueError):
        return  # the next guard reports what is wrong with it
    written.restore()
    if written.restored:
        message = f"oom_score_adj of {written.restored} processes restored, since the guard is gone"
        print(f"reactor: {message}", file=sys.stderr, flush=True)
