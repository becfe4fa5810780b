"""What takes long, or may hang for good, is looked at beside the loop: filesystems, the list of pods."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

import trio

from reactor.daemon.observed import FILESYSTEM_SIGNALS
from reactor.daemon.parts import Parts
from reactor.daemon.passes import Passes
from reactor.errors import ReactorError
from reactor.kernel.scheduling import following
from reactor.model.wakes import Wake, WakeKind
from reactor.sources.wakes import Wakes

_LOG: Final = logging.getLogger("reactor.housekeeping")
HOUSEKEEPING: Final = "housekeeping"
_Answer = TypeVar("_Answer")


class Bounded(Generic[_Answer]):
    """A call that may hang, made in a worker thread and given up after a while.

    What was given up keeps its thread until it comes back, a dead NFS server permitting; until then no
    other is started, so that hanging never takes more than one. `problem` says how it stands.
    """

    def __init__(self, call: Callable[[], _Answer], timeout_seconds: float) -> None:
        self._call = call
        self._timeout_seconds = timeout_seconds
        self._turn = trio.Lock()
        self._hangs = False
        self.problem: str | None = None

    async def ask(self) -> _Answer | None:
        """Return the answer; None, with a problem noted, where there is none in time."""
        async with self._turn:
            if self._hangs:
                return None
            with trio.move_on_after(self._timeout_seconds):
                try:
                    answer = await trio.to_thread.run_sync(following(self._run), abandon_on_cancel=True)
                except (OSError, ReactorError) as error:
                    self.problem = str(error)
                    return None
                self.problem = None
                return answer
            self.problem = f"no answer within {self._timeout_seconds:g} s"
            return None

    def _run(self) -> _Answer:
        self._hangs = True
        try:
            return self._call()
        finally:
            self._hangs = False


class Housekeeping:
    """Looks when it is `due`, tells the passes what it found, and wakes the loop to decide over it."""

    def __init__(
        self,
        parts: Parts,
        passes: Passes,
        wakes: Wakes,
        *,
        timeout_seconds: float,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = parts
        self._passes = passes
        self._wakes = wakes
        self._clock_seconds = clock_seconds
        self._due = trio.Event()
        self._pods = Bounded(parts.pods.pods, timeout_seconds)
        self._filesystems = Bounded(parts.node.filesystems, timeout_seconds)
        self._reported: Mapping[str, str] = {}

    @property
    def problems(self) -> dict[str, str]:
        """Return what can't be read or is refused at present, and why."""
        found = {**self._parts.node.problems, **self._parts.pods.problems}
        for name, bounded in (("pods", self._pods), ("filesystems", self._filesystems)):
            if bounded.problem is not None:
                found[name] = bounded.problem
        return found

    def due(self) -> None:
        """Have everything looked at soon."""
        self._due.set()

    async def run(self) -> None:
        """Look whenever it is due, until cancelled."""
        while True:
            await self._due.wait()
            self._due = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.list_pods)
                nursery.start_soon(self.look_at_filesystems)
            self._report_problems()
            self._wakes.notify(
                Wake(source=HOUSEKEEPING, kind=WakeKind.HOUSEKEEPING, at_ns=time.monotonic_ns())
            )

    async def list_pods(self) -> None:
        """List the pods anew; those known stay where the list can't be had."""
        pods = await self._pods.ask()
        if pods is not None:
            self._passes.found(pods)

    async def look_at_filesystems(self) -> None:
        """Observe the filesystems anew; without an answer what was seen last grows stale."""
        seen = await self._filesystems.ask()
        if seen is not None:
            self._passes.known.observed.take(FILESYSTEM_SIGNALS, seen, self._clock_seconds())

    def _report_problems(self) -> None:
        """Log what has become wrong or right since the last time, each thing once."""
        problems = self.problems
        for what, why in problems.items():
            if what not in self._reported:
                _LOG.warning("%s: %s", what, why)
        for what in self._reported.keys() - problems.keys():
            _LOG.info("%s: well again", what)
        self._reported = problems
