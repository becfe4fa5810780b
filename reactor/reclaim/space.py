"""Waiting for space that was freed to show: filesystems and runtimes give it back in the background."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

Look = Callable[[], Awaitable[int | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often to look, and which looks are the last: so many in a row, `still_looks`, with nothing more.

    Less than `notable` more is nothing. With `waits_for_the_first` a look is still only after something has
    come back.
    """

    every_seconds: float
    most_looks: int
    still_looks: int = 1
    notable: int = 1
    waits_for_the_first: bool = False


async def until_space_is_back(
    look: Look, before: int | None, patience: Patience, is_enough: Callable[[], bool] = lambda: False
) -> None:
    """Look until it is enough, or until nothing more comes back.

    `look` returns what is available (None: not known), `before` is what was.
    """
    seen, still = before, 0
    for _ in range(patience.most_looks):
        if still == patience.still_looks or is_enough():
            return
        await trio.sleep(patience.every_seconds)
        has_begun = not patience.waits_for_the_first or _gain(before, seen) >= patience.notable
        now = await look()
        is_still = has_begun and _gain(seen, now) < patience.notable
        still = still + 1 if is_still else 0
        seen = now


def _gain(before: int | None, after: int | None) -> int:
    return 0 if before is None or after is None else after - before
