"""Which evictions were under way at a moment that has passed already."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

_KEPT: Final = 256


class UnderWay:
    """When evictions were ordered and when they came to their end, the last few hundred of them, by uid.

    Instants are on CLOCK_MONOTONIC in ns. What happened to a pod may be told only after its eviction has
    come to its end, or before the kernel's own kill that was told late.
    """

    def __init__(self) -> None:
        self._spans: OrderedDict[str, tuple[int, int | None]] = OrderedDict()

    def began(self, uid: str, at_ns: int) -> None:
        """Take note that an eviction was ordered; one that is under way goes on."""
        before = self._spans.get(uid)
        if before is not None and before[1] is None:
            return
        self._spans[uid] = (at_ns, None)
        self._spans.move_to_end(uid)
        while len(self._spans) > _KEPT:
            self._spans.popitem(last=False)

    def ended(self, uid: str, at_ns: int) -> None:
        """Take note that nothing more is expected of an eviction."""
        before = self._spans.get(uid)
        if before is not None and before[1] is None:
            self._spans[uid] = (before[0], at_ns)

    def at(self, uid: str, at_ns: int) -> bool:
        """Return whether the pod was being evicted at that moment."""
        began_ns, ended_ns = self._spans.get(uid, (None, None))
        return began_ns is not None and began_ns <= at_ns and (ended_ns is None or at_ns <= ended_ns)
