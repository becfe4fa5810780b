"""A run of pytest that is ended by SIGTERM, as by timeout(1), cleans up as one that is interrupted does.

By itself it would end on the spot, and leave its cgroups, mounts, daemons and directories behind.
"""

from __future__ import annotations

import signal
from types import FrameType

import pytest


def pytest_sessionstart(session: pytest.Session) -> None:
    """Pass SIGTERM on as SIGINT, for which Trio and pytest have handlers, and begin no other test.

    What a shell starts in the background ignores SIGINT: both have handlers only where Python has one.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        session.shouldstop = "ended by SIGTERM"
        signal.raise_signal(signal.SIGINT)

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, interrupt)
