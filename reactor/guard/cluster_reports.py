"""What the API server is to hear of the guard, kept here until the steward says that it will.

    eviction        a pod was evicted, or is told to end within its grace period; its uid is the key, by which
                    the latest report stands for those before it
    conditions      those of the node that are in force; told to each new steward
    shutdown        whether the node shuts down; told to each new steward while it does
    events          about the node: a threshold was met, the kernel killed, evictions are slowed down

A steward that ends takes nothing along: what it has not said to be safe is sent to the next, which may hear
it twice. What is kept is bounded; of what does not fit the oldest is lost and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable, Mapping
from typing import Any, Final

import trio

from reactor.forms import FormError
from reactor.guard.record_queue import encode
from reactor.link.frames import FrameKind, Message
from reactor.model.signals import NodeCondition

_LOG: Final = logging.getLogger("reactor.announce")
_MOST: Final = 256
EVICTION, CONDITIONS, SHUTDOWN = "eviction", "conditions", "shutdown"
THRESHOLD_MET, SYSTEM_OOM, SLOWED_DOWN = "threshold met", "system OOM", "evictions slowed down"
NO_VICTIM: Final = "no evictable pod"


class ClusterReports:
    """Queues reports. Nothing here waits for the steward; `lost` counts those that did not fit."""

    def __init__(self) -> None:
        self.lost = 0
        self._number = 0
        self._sent = 0
        self._kept: dict[Hashable, Message] = {}  # in the order of their numbers
        self._conditions: tuple[tuple[NodeCondition, ...], tuple[NodeCondition, ...]] | None = None
        self._is_shutting_down = False
        self._changed = trio.Event()

    def __len__(self) -> int:
        """Return how many reports are kept."""
        return len(self._kept)

    def evicted(self, uid: str, document: Mapping[str, Any]) -> None:
        """Report an eviction, or what has become of one that was reported."""
        self._report((EVICTION, uid), {"report": EVICTION, "uid": uid, **document})

    def conditions(
        self, conditions: Collection[NodeCondition], unknown: Collection[NodeCondition] = ()
    ) -> None:
        """Report the conditions in force, and the unknown ones, where they are other ones than before."""
        told = tuple(conditions), tuple(unknown)
        if told != self._conditions:
            self._conditions = told
            self._report_conditions(*told)

    def shutdown(self, *, is_under_way: bool) -> None:
        """Report that the node shuts down, or not any more."""
        self._is_shutting_down = is_under_way
        self._report(SHUTDOWN, {"report": SHUTDOWN, "is_under_way": is_under_way})

    def event(self, kind: str, **about: object) -> None:
        """Report something about the node."""
        self._report((kind, self._number), {"report": kind, **about})

    def restart(self) -> None:
        """Begin again with what is not safe yet: there is another steward."""
        self._sent = 0
        if self._conditions is not None and CONDITIONS not in self._kept:
            self._report_conditions(*self._conditions)
        if self._is_shutting_down and SHUTDOWN not in self._kept:
            self.shutdown(is_under_way=True)
        self._wake()

    def reported(self, number: int) -> None:
        """Forget a report that is safe. Raises FormError for one that was not sent.

        One that was replaced meanwhile is not kept any more.
        """
        if not 0 < number <= self._sent:
            raise FormError(f"got report {number} as safe; accepted: one that was sent")
        self._kept = {key: one for key, one in self._kept.items() if one.number != number}

    async def next(self) -> Message:
        """Return what is to be sent next; wait for it."""
        while True:
            for message in self._kept.values():
                if message.number > self._sent:
                    self._sent = message.number
                    return message
            await self._changed.wait()

    def _report_conditions(
        self, conditions: tuple[NodeCondition, ...], unknown: tuple[NodeCondition, ...]
    ) -> None:
        document = {"report": CONDITIONS, "conditions": list(conditions)}
        self._report(CONDITIONS, document | ({"unknown": list(unknown)} if unknown else {}))

    def _report(self, key: Hashable, document: Mapping[str, Any]) -> None:
        self._number += 1
        self._kept.pop(key, None)
        self._kept[key] = Message(FrameKind.REPORT, self._number, encode(document))
        while len(self._kept) > _MOST:
            if not self.lost:
                _LOG.error("reports to the API server are being lost: the steward does not take them")
            self.lost += 1
            del self._kept[next(iter(self._kept))]
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
