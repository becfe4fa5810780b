"""The scheduling of worker threads beside a real-time main thread. Source: sched(7).

SCHED_RESET_ON_FORK makes new threads, too, begin at normal priority. Where one of them holds the
interpreter's lock and is preempted by a pod's work, the real-time main thread waits for that work to let
it run: with 1,000 pods being listed on two overloaded CPUs, a crossing was seen 90 ms late for it. So
workers that run Python are real-time as well, at the lowest such priority.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final, ParamSpec, TypeVar

_LOWEST_PRIORITY: Final = 1

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


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
