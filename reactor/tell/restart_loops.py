"""Restart loops: pods that are evicted again and again, because they are restarted each time.

A unit with Restart=always comes back a tenth of a second after its eviction and grows again. Each eviction is
right and does not help for long: only a limit ends the loop, or an operator who stops the unit. So the loop
is recognised by the pod's name, reported as one problem with its count, and counted. It has no influence on
evictions. On Kubernetes the kubelet's back-off slows such a pod down.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from reactor.link.documents import Outcome
from reactor.model.settings import RestartLoopSettings

_LOG: Final = logging.getLogger("reactor.evict")
_NAMES_REMEMBERED: Final = 1000
_TIMES_REMEMBERED: Final = 1000  # of one name
# That of one process leaves its pod as it is.
_NO_EVICTION: Final = frozenset(
    {Outcome.DRY_RUN, Outcome.FAILED, Outcome.PROCESS_KILLED, Outcome.PROCESS_TERMINATED}
)


class RestartLoops:
    """Counts evictions by pod within a window. Instants are Unix seconds, so that they outlive a restart.

    `repeated` counts the evictions that were a loop's: those from the configured number on.
    """

    def __init__(self, settings: RestartLoopSettings) -> None:
        self.settings = settings
        self.repeated = 0
        # The least recently evicted first. Lists: most names are there once, and any deque takes 600 bytes.
        self._evicted: dict[str, list[float]] = {}

    def remember(self, documents: Iterable[Mapping[str, Any]]) -> None:
        """Take over the evictions of an earlier run, oldest first; skip what can't be read."""
        for document in documents:
            try:
                at_unix_seconds = datetime.fromisoformat(document["time"]).timestamp()
                names = [one["pod"] for one in document["evictions"] if one["outcome"] not in _NO_EVICTION]
            except (KeyError, TypeError, ValueError):
                continue
            for name in names:
                self._note(str(name), at_unix_seconds)

    def evicted(self, name: str, outcome: str, at_unix_seconds: float) -> None:
        """Take note that a pod's eviction began, with the outcome known so far; warn where a loop begins."""
        if outcome in _NO_EVICTION:
            return
        count = self._note(name, at_unix_seconds)
        if count < self.settings.evictions:
            return
        self.repeated += 1
        if count == self.settings.evictions:
            _LOG.warning("pod %s: %s", name, self._told(count))

    def present(self, now_unix_seconds: float) -> dict[str, int]:
        """Return how often each pod that is in a loop now was evicted within the window, by its name."""
        oldest = now_unix_seconds - self.settings.within_seconds
        counts = {name: sum(at > oldest for at in times) for name, times in self._evicted.items()}
        return {name: count for name, count in counts.items() if count >= self.settings.evictions}

    def problems(self, now_unix_seconds: float) -> dict[str, str]:
        """Return a problem for each pod that is in a loop now."""
        present = self.present(now_unix_seconds)
        return {f"restart loop {name}": self._told(count) for name, count in present.items()}

    def _note(self, name: str, at_unix_seconds: float) -> int:
        """Return how often the pod was evicted within the window that ends at this instant."""
        oldest = at_unix_seconds - self.settings.within_seconds
        times = self._evicted.pop(name, [])
        times.append(at_unix_seconds)
        del times[: max(bisect_right(times, oldest), len(times) - _TIMES_REMEMBERED)]
        self._evicted[name] = times
        while (
            len(self._evicted) > _NAMES_REMEMBERED or self._evicted[next(iter(self._evicted))][-1] <= oldest
        ):
            del self._evicted[next(iter(self._evicted))]
        return len(times)

    def _told(self, count: int) -> str:
        minutes = self.settings.within_seconds / 60
        return (
            f"evicted {count} times in {minutes:g} min and restarted each time: "
            "set a memory limit for it, or stop the unit or controller that restarts it"
        )
