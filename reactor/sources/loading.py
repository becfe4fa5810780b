"""One thread at a time for libbpf: it is not to be called from two, and each load takes some megabytes.

BCC takes turns at compiling only: what it has made is used by plain system calls, and must not wait for the
next compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import trio

_ONE_AT_A_TIME: Final = trio.CapacityLimiter(1)
_Answer = TypeVar("_Answer")


class OpenProbe(Protocol):
    """A probe that has been opened."""

    @property
    def made_by(self) -> str:
        """Return who made its programs, "" for libbpf."""


async def in_loader(call: Callable[[], _Answer]) -> _Answer:
    """Return what `call` gives, made in a worker thread.

    Not abandoned on cancellation: what the thread has loaded always reaches its owner.
    """
    return await trio.to_thread.run_sync(call, limiter=_ONE_AT_A_TIME)


async def of_probe(probe: OpenProbe, call: Callable[[], _Answer]) -> _Answer:
    """Return what one of the probe's calls gives, made in a worker thread."""
    return await (trio.to_thread.run_sync(call) if probe.made_by else in_loader(call))
