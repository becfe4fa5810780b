"""One thread at a time for libbpf: it is not to be called from two, and each load takes some megabytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import trio

_ONE_AT_A_TIME: Final = trio.CapacityLimiter(1)
_Answer = TypeVar("_Answer")


async def in_loader(call: Callable[[], _Answer]) -> _Answer:
    """Return what `call` gives, made in a worker thread.

    Not abandoned on cancellation: what the thread has loaded always reaches its owner.
    """
    return await trio.to_thread.run_sync(call, limiter=_ONE_AT_A_TIME)
