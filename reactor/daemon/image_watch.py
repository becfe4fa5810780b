"""Images, looked at now and then: when each was last used can only be known by who has watched."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

import trio

from reactor.act.runtime_reclaim import ImageReclaim
from reactor.errors import ReactorError
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation

_LOG: Final = logging.getLogger("reactor.reclaim")
_LOOK_SECONDS: Final = 60.0

Observed = Callable[[], Mapping[Signal, Observation]]


class ImageWatch:
    """Looks at the images, and where it `collects`, removes what garbage collection would.

    Beside a kubelet that does the same it only looks. `images` is put in by each configuration. `problem` is
    why it could not look the last time.
    """

    def __init__(
        self, observed: Observed, *, collects: bool, interval_seconds: float = _LOOK_SECONDS
    ) -> None:
        self._observed = observed
        self._collects = collects
        self._interval_seconds = interval_seconds
        self.images: ImageReclaim | None = None
        self.problem: str | None = None

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            if self.images is not None:
                await self._look(self.images)
            await trio.sleep(self._interval_seconds)

    async def _look(self, images: ImageReclaim) -> None:
        try:
            if not self._collects:
                await images.look()
                return
            report = await images.collect(self._observed().get(Signal.IMAGEFS_AVAILABLE))
        except ReactorError as error:
            self.problem = str(error)
            return
        self.problem = None
        if report is not None:
            _LOG.info("image garbage collection: %s", "; ".join(report.did))
            for problem in report.problems:
                _LOG.warning("image garbage collection: %s", problem)
