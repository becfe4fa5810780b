"""How fast something changes, from what was seen of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from typing import Final

_WINDOW_SECONDS: Final = 10.0
# What is looked at only every ten seconds still has a rate.
_OLDEST_SECONDS: Final = 60.0
_DISTINCT_SECONDS: Final = 0.05


class Rates:
    """Changes per second of many things at once, each over about the last ten seconds."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, deque[tuple[float, float]]] = {}

    def see(self, what: Hashable, value: float, at_seconds: float) -> None:
        """Take note of a value that was true then; what has been seen already is passed over."""
        seen = self._seen.setdefault(what, deque())
        if seen and at_seconds - seen[-1][0] < _DISTINCT_SECONDS:
            return
        seen.append((at_seconds, value))
        while len(seen) > 2 and at_seconds - seen[1][0] >= _WINDOW_SECONDS:
            seen.popleft()
        while at_seconds - seen[0][0] > _OLDEST_SECONDS:
            seen.popleft()

    def per_second(self, what: Hashable) -> float | None:
        """Return the change per second, None where too little was seen."""
        seen = self._seen.get(what)
        if seen is None or len(seen) < 2:
            return None
        (began, first), (ended, last) = seen[0], seen[-1]
        return (last - first) / (ended - began)

    def forget_all_but(self, kept: Collection[Hashable]) -> None:
        """Forget what is not among these."""
        for what in self._seen.keys() - set(kept):
            del self._seen[what]
