"""Parts that run side by side and fail each for itself: none of them takes another, or the daemon, along."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import trio

from reactor.kube.backoff import Backoff
from reactor.sources.attempts import failure_text

_LOG: Final = logging.getLogger("reactor.services")
_REPORT_SECONDS: Final = 5.0

Service = Callable[[], Awaitable[None]]


class Services:
    """Runs services; one that fails is begun anew. `defects` says what has failed, by the services' names.

    `kind` is what they have to do with, and comes before each name.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.defects: dict[str, str] = {}

    async def run(self, services: Mapping[str, Service]) -> None:
        """Run them until cancelled, or until each has returned."""
        async with trio.open_nursery() as nursery:
            for name, service in services.items():
                nursery.start_soon(self._keep_running, name, service)

    async def _keep_running(self, name: str, service: Service) -> None:
        backoff = Backoff(1.0, 60.0)
        while True:
            try:
                await service()
            except Exception as error:  # noqa: BLE001 - memory is defended whatever happens here
                _LOG.exception("%s %s: failed; begun anew", self._kind, name)
                self.defects[f"{self._kind} {name}"] = failure_text(error)
                await backoff.pause()
            else:
                return


async def report(problems: Callable[[], Mapping[str, str]]) -> None:
    """Log what has become wrong or right, each thing once, until cancelled."""
    reported: Mapping[str, str] = {}
    while True:
        present = problems()
        for what, why in present.items():
            if what not in reported:
                _LOG.warning("%s: %s", what, why)
        for what in reported.keys() - present.keys():
            _LOG.info("%s: well again", what)
        reported = present
        await trio.sleep(_REPORT_SECONDS)
