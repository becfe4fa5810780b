"""Failures of the daemon's parts, each at the moment that a test wants it."""

from __future__ import annotations

import trio


class InjectedError(Exception):
    """What a part fails with for a test."""


class PartFaults:
    """Fails the parts that `fail` has named: a task at once, a job or a hook at its next call. Each once.

    `seen` are those that have run.
    """

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.seen: set[str] = set()
        self._wanted: dict[str, trio.Event] = {}

    def fail(self, name: str) -> None:
        self._event(name).set()

    async def beside(self, name: str) -> None:
        self.seen.add(name)
        if not self._event(name).is_set():  # a job that is over at once has this cancelled at its first wait
            await self._event(name).wait()
        self.within(name)

    def within(self, name: str) -> None:
        self.seen.add(name)
        if self._event(name).is_set():
            del self._wanted[name]
            self.failed.append(name)
            raise InjectedError(f"in {name}")

    def _event(self, name: str) -> trio.Event:
        return self._wanted.setdefault(name, trio.Event())
