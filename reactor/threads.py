"""Work that must not hold up the loop: in worker threads, or in turns.

A fork bomb takes the last process id, and then no thread can be started either (EAGAIN of clone(2)). Trio
raises a RuntimeError there, which no caller expects and which would end the daemon just when it is needed.
Whatever is done in threads here may be late, and is to be done all the same.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any, Final, TypeVar, TypeVarTuple

import trio

# Trio's default of 40 is more than the unit may have tasks, with the threads of its own that the daemon has
# (journal, log) and the children that it starts (commands, the compiler of BCC). Those that hang, one
# for each filesystem or directory that does not answer, are a handful.
MOST_THREADS: Final = 16
_AGAIN_SECONDS: Final = 0.1

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")

Found = TypeVar("Found")


async def in_thread(
    call: Callable[[*_Arguments], _Result],
    *arguments: *_Arguments,
    abandon_on_cancel: bool = False,
    limiter: trio.CapacityLimiter | None = None,
) -> _Result:
    """Return call(*arguments), made in a worker thread; where none can be started, wait until one can.

    Until the call starts it may be cancelled. In all else as trio.to_thread.run_sync.
    """
    began = False

    def begin() -> _Result:
        nonlocal began
        began = True
        return call(*arguments)

    while True:
        try:
            return await trio.to_thread.run_sync(  # noqa: TID251 - here what it raises is dealt with
                begin, abandon_on_cancel=abandon_on_cancel, limiter=limiter
            )
        except RuntimeError:
            if began:  # it is the call's own
                raise
        await trio.sleep(_AGAIN_SECONDS)


def close_behind(descriptor: int) -> None:
    """Close a descriptor that the kernel takes its time to close, without waiting for it.

    Returns at once; a worker thread closes it, also where the caller is being cancelled. For Trio's thread.
    """
    trio.lowlevel.spawn_system_task(_close, descriptor)


async def _close(descriptor: int) -> None:
    with suppress(OSError):  # it is closed all the same, and a system task must not raise
        await in_thread(os.close, descriptor)


def limit_threads() -> None:
    """Have no more worker threads at a time in this run of Trio than the unit leaves room for."""
    trio.to_thread.current_default_thread_limiter().total_tokens = MOST_THREADS


class NameLookups(trio.abc.HostnameResolver):
    """Resolves the names of hosts: what Trio's own sockets would start threads for by themselves.

    For trio.socket.set_custom_hostname_resolver; arguments, answers and errors are those of `socket`'s.
    """

    async def getaddrinfo(
        self,
        host: bytes | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,  # noqa: A002 - their name
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """Return the addresses. Raises OSError (socket.gaierror) where there are none."""
        return await in_thread(
            socket.getaddrinfo, host, port, family, type, proto, flags, abandon_on_cancel=True
        )

    async def getnameinfo(
        self, sockaddr: tuple[str, int] | tuple[str, int, int, int], flags: int
    ) -> tuple[str, str]:
        """Return the names of a host and its port. Raises OSError."""
        return await in_thread(socket.getnameinfo, sockaddr, flags, abandon_on_cancel=True)


def without_pause(turns: Generator[None, None, Found]) -> Found:
    """Return what the work comes to, all turns of it made now."""
    while True:
        try:
            next(turns)
        except StopIteration as over:
            found: Found = over.value
            return found


async def with_pauses(turns: Generator[None, None, Found], pause: Callable[[], Awaitable[None]]) -> Found:
    """Return what the work comes to, with a pause after each turn."""
    while True:
        try:
            next(turns)
        except StopIteration as over:
            found: Found = over.value
            return found
        await pause()
