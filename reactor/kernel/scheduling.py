"""Worker threads beside a real-time loop: their scheduling, and calls that may hang. Source: sched(7).

SCHED_RESET_ON_FORK makes new threads, too, begin at normal priority. Where one of them holds the
interpreter's lock and is preempted by a pod's work, the real-time main thread waits for that work to let
it run: with 1,000 pods being listed on two overloaded CPUs, a crossing was seen 90 ms late for it. So
workers that run Python are real-time as well, at the lowest such priority.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, ParamSpec, TypeVar

import trio

from reactor.errors import ReactorError, failure_text
from reactor.threads import in_thread

_LOWEST_PRIORITY: Final = 1
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_LOG: Final = logging.getLogger("reactor.housekeeping")
_Answer = TypeVar("_Answer")


def follow_main_thread() -> None:
    """Make the calling thread real-time, below the main thread, if that one is; else leave it as it is."""
    policy = os.sched_getscheduler(os.getpid())  # the main thread's id is the process's
    if policy & ~os.SCHED_RESET_ON_FORK == os.SCHED_FIFO:
        with suppress(OSError):  # refused since: then it is a normal thread
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(_LOWEST_PRIORITY))


def following(call: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Return `call` for a worker thread, to be made as `follow_main_thread` has it."""

    @functools.wraps(call)
    def followed(*arguments: _Parameters.args, **named: _Parameters.kwargs) -> _Result:
        follow_main_thread()
        return call(*arguments, **named)

    return followed


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
