"""Node-level reclaims, before a pod is evicted: commands that free space, dead containers, unused images."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from reactor.errors import ReactorError
from reactor.kernel.scheduling import following
from reactor.model.signals import Filesystem, Reclaim
from reactor.threads import in_thread

MOST_SECONDS: Final = 60.0  # then a pod has to be evicted, whatever is still to be had from a runtime
LATE: Final = f"not done within {MOST_SECONDS:g} s"
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimReport:
    """What one reclaim did, in words for an operator, one line each; and what went wrong with it."""

    did: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class NodeReclaim(Protocol):
    """Something that can be reclaimed: commands free what they are made for, a runtime has images."""

    async def run(self, filesystems: Collection[Filesystem]) -> ReclaimReport | None:
        """Reclaim what there is on the filesystem known by these names, and return when it is free.

        None where there was nothing to be done. Raises OSError or ReactorError.
        """


class Reclaims:
    """What this node can reclaim, by kind; of a kind that it doesn't have it reclaims nothing.

    Of each kind one reclaim runs at a time, also across `use`: one that began beside another would find
    nothing left to remove, and return before the space is free that the other has made.
    """

    def __init__(self, by_kind: Mapping[Reclaim, NodeReclaim] | None = None) -> None:
        self._by_kind = {} if by_kind is None else by_kind
        self._turns = {kind: trio.Lock() for kind in Reclaim}

    def use(self, by_kind: Mapping[Reclaim, NodeReclaim]) -> None:
        self._by_kind = by_kind

    async def run(self, kind: Reclaim, filesystems: Collection[Filesystem]) -> ReclaimReport | None:
        """Reclaim what `kind` names, see NodeReclaim.run."""
        async with self._turns[kind]:
            reclaim = self._by_kind.get(kind)
            return None if reclaim is None else await reclaim.run(filesystems)


async def tried(call: Awaitable[None], problems: list[str]) -> bool:
    """Return whether a call went well; else it is a problem, and the others are tried all the same."""
    try:
        await call
    except ReactorError as error:
        problems.append(str(error))
        return False
    return True


def shortened(problems: Sequence[str]) -> tuple[str, ...]:
    """Return the first few problems, and how many more there are."""
    if len(problems) <= _SHOWN:
        return tuple(problems)
    return (*problems[:_SHOWN], f"and {len(problems) - _SHOWN} more like these")


Observe = Callable[[], Awaitable[int | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often to observe, and when to stop: after `still_times` in a row with nothing more.

    Less than `notable` more is nothing. With `waits_for_the_first` they count only after something has
    come back.
    """

    every_seconds: float
    most_times: int
    still_times: int = 1
    notable: int = 1
    waits_for_the_first: bool = False


# xfs frees in the background what was removed (since 5.14): the first statvfs after a removal showed nothing
# of 150 MiB, another one 1 ms later all of it; with a busy CPU it takes longer.
SOON: Final = Patience(every_seconds=0.05, most_times=20, still_times=2)


async def until_space_is_back(
    observe: Observe, before: int | None, patience: Patience, is_enough: Callable[[], bool] = lambda: False
) -> None:
    """Wait until it is enough, or until nothing more comes back.

    `observe` returns what is available (None: not known), `before` is what was.
    """
    seen, still = before, 0
    for _ in range(patience.most_times):
        if still == patience.still_times or is_enough():
            return
        await trio.sleep(patience.every_seconds)
        has_begun = not patience.waits_for_the_first or _gain(before, seen) >= patience.notable
        now = await observe()
        is_still = has_begun and _gain(seen, now) < patience.notable
        still = still + 1 if is_still else 0
        seen = now


async def free_bytes_on(paths: tuple[str, ...]) -> int:
    """Return what is free where these paths lie, 0 where that is not known; a disk may take its time."""
    return await in_thread(following(_free_bytes), paths, abandon_on_cancel=True)


def _free_bytes(paths: Iterable[str]) -> int:
    free_bytes = 0
    for path in paths:
        with suppress(OSError):
            found = os.statvfs(path)
            free_bytes += found.f_bfree * found.f_frsize
    return free_bytes


def _gain(before: int | None, after: int | None) -> int:
    return 0 if before is None or after is None else after - before
