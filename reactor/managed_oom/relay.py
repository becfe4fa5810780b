"""What is known of all units, kept in a file that the guard reads.

What PID 1 said last stays while it does not answer, at a `systemctl daemon-reexec` for example; then it says
all of it again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import trio

from reactor.backoff import Backoff
from reactor.link.managed_oom import PATH, sorted_units, write_report
from reactor.managed_oom.reports import USER_SLICES, Reports
from reactor.managed_oom.subscription import ADDRESSES, subscribe
from reactor.managed_oom.units import Changes, Units
from reactor.managed_oom.varlink import VarlinkError
from reactor.model.managed_oom import ManagedOomReport

_LOG: Final = logging.getLogger("reactor.managed_oom")
_PAUSE_SECONDS: Final = (0.5, 30.0)
_BETWEEN_SECONDS: Final = 1.0
_TOUCH_SECONDS: Final = 15.0
_MOST_OF_SYSTEM: Final = 8_192
_MOST_OF_A_USER: Final = 128
_NOT_YET: Final = "systemd has not answered yet"


class Relay:
    """Relays until cancelled.

    `addresses` are of PID 1's socket; `pause_seconds` the shortest and longest pause before it is asked
    again, `between_seconds` the shortest time between two changes of the file.
    """

    def __init__(
        self,
        *,
        path: Path = Path(PATH),
        addresses: Sequence[str] = ADDRESSES,
        pause_seconds: tuple[float, float] = _PAUSE_SECONDS,
        between_seconds: float = _BETWEEN_SECONDS,
        user_slices: Path = USER_SLICES,
    ) -> None:
        self._path = path
        self._addresses = addresses
        self._backoff = Backoff(*pause_seconds)
        self._between_seconds = between_seconds
        self._of_system: Units = {}
        self._of_users: dict[int, dict[object, Units]] = {}
        self._left_out = 0
        self._problem = _NOT_YET
        self._changed = trio.Event()
        self._changed.set()
        self._reports = Reports(self._reported, self._closed, user_slices=user_slices)

    async def run(self, listeners: Sequence[trio.SocketListener] = ()) -> None:
        """Relay; users' service managers connect to `listeners`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            if listeners:
                nursery.start_soon(self._reports.serve, listeners)
            while True:
                try:
                    await subscribe(self._all, self._some, addresses=self._addresses)
                except VarlinkError as error:
                    self._say(str(error))
                await self._backoff.pause()

    def _all(self, changes: Changes) -> None:
        self._of_system, self._left_out = {}, 0
        self._some(changes)
        self._backoff.reset()
        self._say("")
        _LOG.info("systemd: %d settings of units say kill", len(self._of_system))

    def _some(self, changes: Changes) -> None:
        self._left_out += _take(self._of_system, changes, _MOST_OF_SYSTEM)
        self._changed.set()

    def _reported(self, connection: object, uid: int, changes: Changes) -> None:
        of_user = self._of_users.setdefault(uid, {})
        units = of_user.setdefault(connection, {})
        of_others = sum(map(len, of_user.values())) - len(units)
        _take(units, changes, _MOST_OF_A_USER - of_others)
        self._changed.set()

    def _closed(self, connection: object, uid: int) -> None:
        of_user = self._of_users.get(uid, {})
        if of_user.pop(connection, None):
            self._changed.set()
        if not of_user:
            self._of_users.pop(uid, None)

    def _say(self, problem: str) -> None:
        if problem == self._problem:
            return
        self._problem = problem
        if problem:
            _LOG.warning("%s", problem)
        self._changed.set()

    async def _write(self) -> None:
        """Keep the file true, and touch it, by which the guard knows that it is kept."""
        while True:
            with trio.move_on_after(_TOUCH_SECONDS):
                await self._changed.wait()
            try:
                if self._changed.is_set():
                    self._changed = trio.Event()
                    self._write_now()
                else:
                    os.utime(self._path)
            except OSError as error:
                _LOG.error("%s: %s", self._path, error.strerror)
                self._changed.set()
                await trio.sleep(_TOUCH_SECONDS)
            await trio.sleep(self._between_seconds)

    def _write_now(self) -> None:
        """Replace the file. Raises OSError. It lies on tmpfs: nothing is waited for."""
        of_users = (units for of_user in self._of_users.values() for units in of_user.values())
        units = {unit: None for some in (self._of_system, *of_users) for unit in some.values()}
        report = ManagedOomReport(
            units=tuple(sorted_units(units)), problem=self._problem, left_out=self._left_out
        )
        beside = self._path.with_name(f".{self._path.name}.new")
        beside.write_bytes(write_report(report))
        beside.chmod(0o644)
        beside.replace(self._path)


def _take(units: Units, changes: Changes, most: int) -> int:
    """Change units as a message says; return how many were left out: refused, or more than so many."""
    left_out = changes.refused
    for key, unit in changes.units.items():
        if unit is None:
            units.pop(key, None)
        elif key in units or len(units) < most:
            units[key] = unit
        else:
            left_out += 1
    return left_out
