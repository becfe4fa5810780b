"""Calls that may hang for good, made beside the loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import trio

from reactor.errors import ReactorError, failure_text
from reactor.kernel.scheduling import following
from reactor.threads import in_thread

_LOG: Final = logging.getLogger("reactor.housekeeping")

_Answer = TypeVar("_Answer")


class Bounded(Generic[_Answer]):
    """A call that may hang, made in a worker thread and given up after a while.

    What was given up keeps its thread until it comes back, a dead NFS server permitting; until then no
    other is started, so that hanging never takes more than one. `problem` says how it stands, `hangs`
    whether a call is out at present.
    """

    def __init__(self, call: Callable[[], _Answer], timeout_seconds: float) -> None:
        self._call = call
        self._timeout_seconds = timeout_seconds
        self._turn = trio.Lock()
        self.hangs = False
        self.problem: str | None = None

    async def ask(self) -> _Answer | None:
        """Return the answer; None, with a problem noted, where there is none in time."""
        async with self._turn:
            if self.hangs:
                return None
            with trio.move_on_after(self._timeout_seconds):
                try:
                    answer = await in_thread(following(self._run), abandon_on_cancel=True)
                except (OSError, ReactorError) as error:
                    self.problem = str(error)
                    return None
                except Exception as error:  # noqa: BLE001 - no answer; and what else is asked goes on
                    if self.problem != failure_text(error):
                        _LOG.exception("a call of housekeeping failed")
                    self.problem = failure_text(error)
                    return None
                self.problem = None
                return answer
            self.problem = f"no answer within {self._timeout_seconds:g} s"
            return None

    def _run(self) -> _Answer:
        self.hangs = True
        try:
            return self._call()
        finally:
            self.hangs = False
