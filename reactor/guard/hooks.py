"""What the operator wants to be done before a soft eviction; the steward does it (reactor/steward/hooks.py).

It has a time limit here, too: a steward that hangs costs that limit. Nothing hard ever waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import trio

from reactor.errors import ReactorError
from reactor.guard.steward_link import StewardLink
from reactor.model.decisions import Eviction
from reactor.model.settings import HookSettings
from reactor.text import printable

_SHARE: Final = 0.5  # of the grace period: the rest is the pod's own
_ANSWER_SECONDS: Final = 0.2


class HooksBeforeSoft:
    """Has the hooks run that are configured by then."""

    def __init__(self, link: StewardLink, settings: Callable[[], HookSettings]) -> None:
        self._link = link
        self._settings = settings

    async def run(self, eviction: Eviction) -> tuple[str, ...]:
        """Have them run; return what went wrong. It takes half of the pod's grace period at most."""
        hooks = self._settings()
        if not hooks:
            return ()
        seconds = min(hooks.timeout_seconds, _SHARE * eviction.grace_period_seconds)
        problems: tuple[str, ...] = (f"hooks: not done within {seconds:g} s",)
        with trio.move_on_after(seconds + _ANSWER_SECONDS):
            try:
                over = await self._link.before_eviction(_document(eviction), seconds)
                problems = over.problems
            except ReactorError as error:
                problems = (f"hooks: {error}",)
        return problems


def _document(eviction: Eviction) -> dict[str, Any]:
    """Return what a hook is given of an eviction, as plain JSON values."""
    return {
        "event": "before-eviction",
        "pod": printable(eviction.pod.key),
        "uid": eviction.pod.uid,
        "cgroup": eviction.pod.cgroup,
        "signal": eviction.signal,
        "threshold": None if eviction.threshold is None else str(eviction.threshold),
        "grace_period_seconds": eviction.grace_period_seconds,
        "time_left": None if eviction.time_left is None else eviction.time_left.document(),
    }
