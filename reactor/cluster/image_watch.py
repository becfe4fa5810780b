"""Images, looked at now and then: when each was last used can only be known by who has watched."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import trio

from reactor.errors import ReactorError
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation
from reactor.reclaim.images import ImageReclaim

_LOG: Final = logging.getLogger("reactor.reclaim")
_LOOK_SECONDS: Final = 60.0
_NO_CAPACITY: Final = "invalid capacity 0 on image filesystem"  # upstream's words

Observed = Callable[[], Mapping[Signal, Observation]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Who is told where collection was not enough, failed more than once in a row, or can't be.

    `containers_failed`: dead containers could not be removed.
    """

    not_enough: Callable[[str], None] = lambda _: None
    failed: Callable[[str], None] = lambda _: None
    invalid_capacity: Callable[[str], None] = lambda _: None
    containers_failed: Callable[[str], None] = lambda _: None


class ImageWatch:
    """Looks at the images, and where it `collects`, removes what garbage collection would.

    Beside a kubelet that does the same it only looks. Each configuration has it `use` its own. `problem` is
    why it could not look the last time. Source: Kubelet.StartGarbageCollection.
    """

    def __init__(
        self,
        observed: Observed,
        *,
        collects: bool,
        told: Told | None = None,
        interval_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._observed = observed
        self._collects = collects
        self._told = told or Told()
        self._interval_seconds = interval_seconds
        self.problem: str | None = None
        self._images: ImageReclaim | None = None
        self._configured = trio.Event()

    def use(self, images: ImageReclaim) -> None:
        """Look by these from now on."""
        self._images = images
        self._configured.set()

    async def run(self) -> None:
        """Look until cancelled, for the first time once it is known by which configuration."""
        await self._configured.wait()
        while True:
            if self._images is not None:
                problem = await self._look(self._images)
                if problem is not None and self.problem is not None and self._collects:
                    self._told.failed(problem)
                self.problem = problem
            await trio.sleep(self._interval_seconds)

    async def _look(self, images: ImageReclaim) -> str | None:
        """Return what went wrong, None where nothing did."""
        try:
            if not self._collects:
                await images.look()
                return None
            filesystem = self._observed().get(Signal.IMAGEFS_AVAILABLE)
            collected = await images.collect(filesystem)
        except ReactorError as error:
            return str(error)
        report = collected.report
        if report is not None:
            _LOG.info("image garbage collection: %s", "; ".join(report.did))
        if filesystem is not None and filesystem.capacity == 0:
            self._told.invalid_capacity(_NO_CAPACITY)
            return _NO_CAPACITY
        if collected.freed_bytes < collected.wanted_bytes:
            # Upstream's words.
            message = (
                "Failed to garbage collect required amount of images. "
                f"Attempted to free {collected.wanted_bytes} bytes, "
                f"but only found {collected.freed_bytes} bytes eligible to free."
            )
            self._told.not_enough(message)
            return message
        return None if report is None or not report.problems else "; ".join(report.problems)
