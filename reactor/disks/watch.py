"""Watches the filesystems, in the steward: each from a task and a thread of its own, as often as it fills.

A look that hangs makes no other one stale. What a look shows is taken over where it matters: where a
threshold comes to be met or ceases to be, or a signal to be known. The rest only sets the pace, so that a
disk which is looked at twenty times a second is not acted on twenty times a second. Housekeeping takes over
everything there is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import trio

from reactor.bounded import Bounded
from reactor.disks.filesystems import Look, Survey
from reactor.disks.filling import Filling
from reactor.kernel.filesystem import Mount
from reactor.model.settings import Settings
from reactor.model.signals import FILESYSTEM_SIGNALS, Filesystem, Layout, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.model.wakes import SourceHealth
from reactor.observe.filesystems import observations
from reactor.policy.thresholds import absurdities, thresholds_met
from reactor.sources.catalogue import FILESYSTEMS
from reactor.sources.wakes import SourceBoard

_LOG: Final = logging.getLogger("reactor.filesystems")
_NEAR_SECONDS: Final = 30.0


class Filesystems(Protocol):
    """Looks at filesystems, by the paths that stand for them."""

    paths: Mapping[Filesystem, str]

    def look(self, path: str) -> Look:
        """Look at the filesystem at a path; raises OSError, and may hang."""

    def survey(self, real_paths: Mapping[Filesystem, str]) -> Survey:
        """Find out where the paths lie; raises OSError."""


class Told(Protocol):
    """Is told what the watch finds; nothing here blocks. `board` shows how the watch stands."""

    board: SourceBoard

    def take(self, asked: Collection[Signal], seen: Mapping[Signal, Observation], now_seconds: float) -> None:
        """Take over what was just seen of the signals asked for; one that is absent is unknown now."""

    def wake(self) -> None:
        """Take note that a threshold has come to be met or ceased to be."""

    def filling(self) -> None:
        """Take note, again and again, that a threshold is near: it may soon matter who takes how much."""

    def lies_as(self, layout: Layout) -> None:
        """Take note that the devices show another layout than the one in force, and none is configured."""


class _Watched:
    """One path, and the filesystems that it stands for."""

    def __init__(
        self, path: str, filesystems: tuple[Filesystem, ...], bounded: Bounded[Look], settings: Settings
    ) -> None:
        self.path = path
        self.filesystems = filesystems
        self.bounded = bounded
        self.signals = tuple(
            signal for filesystem in filesystems for signal in FILESYSTEM_SIGNALS[filesystem]
        )
        self.thresholds = tuple(one for one in settings.eviction.thresholds if one.signal in self.signals)
        self.filling = Filling(self.thresholds)
        self.looked = trio.Event()
        self.last: Look | None = None
        self.met: tuple[Threshold, ...] = ()
        self.shown: Collection[Signal] = ()

    @property
    def name(self) -> str:
        return f"{', '.join(self.filesystems)} {self.path}"

    def take(self, look: Look | None, now_seconds: float) -> dict[Signal, Observation]:
        """Take over a look (None: it failed); return the signals that it shows."""
        if look is None or self.last is None or look.space.identity != self.last.space.identity:
            self.filling = Filling(self.thresholds)  # another filesystem: its rates are its own
        self.last = look
        seen: dict[Signal, Observation] = {}
        if look is not None:
            for filesystem in self.filesystems:
                seen |= observations(filesystem, look.space)
        self.filling.take(seen, now_seconds)
        self.looked.set()
        self.looked = trio.Event()
        return seen


class FilesystemWatch:
    """Follows the filesystems, and tells where a threshold of theirs is crossed.

    Another layout than the configured one is only a problem.
    """

    def __init__(
        self,
        observer: Filesystems,
        settings: Settings,
        told: Told,
        *,
        timeout_seconds: float,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._told = told
        self._clock_seconds = clock_seconds
        self._watched = tuple(
            _Watched(
                path,
                tuple(filesystem for filesystem in Filesystem if observer.paths.get(filesystem) == path),
                Bounded(partial(observer.look, path), timeout_seconds),
                settings,
            )
            for path in dict.fromkeys(observer.paths.values())
        )
        self._survey = Survey()
        self._surveys = Bounded(lambda: observer.survey(self._real_paths()), timeout_seconds)

    @property
    def problems(self) -> dict[str, str]:
        """Return what can't be read or is not as it should be, and why."""
        found = {}
        for watched in self._watched:
            if watched.bounded.problem is not None:
                found[watched.name] = watched.bounded.problem
            elif watched.last is not None and watched.last.space.read_only:
                found[watched.name] = "read-only: nothing there can be given back, so it counts as unknown"
        configured, lies = self._settings.eviction.layout, self._survey.layout
        if self._surveys.problem is not None:
            found["layout"] = self._surveys.problem
        elif lies not in {None, configured} and not self._settings.by_layout:
            found["layout"] = f"configured is {configured}, but the paths lie as {lies}"
        return found

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look at each filesystem at its own pace, until cancelled."""
        async with trio.open_nursery() as nursery:
            for watched in self._watched:
                nursery.start_soon(self._follow, watched)
            task_status.started()

    async def look(self) -> None:
        """Observe all the filesystems again, here and now; without an answer what was seen grows stale."""
        async with trio.open_nursery() as nursery:
            for watched in self._watched:
                nursery.start_soon(self._look_and_take, watched)
        survey = await self._surveys.ask()
        if survey is not None:
            self._compare(survey)

    def seconds_to(self, threshold: Threshold) -> float | None:
        """Return when a threshold is reached at the present rate; None: not known, or not at all."""
        for watched in self._watched:
            if threshold.signal in watched.signals:
                return watched.filling.seconds_to(threshold)
        return None

    def document(self) -> dict[str, Any]:
        """Return how the filesystems lie and fill, as plain JSON values."""
        return {
            "layout": self._settings.eviction.layout,
            "layout_by_devices": self._survey.layout,
            "filesystems": [
                self._describe(watched, filesystem)
                for watched in self._watched
                for filesystem in watched.filesystems
            ],
        }

    async def _follow(self, watched: _Watched) -> None:
        while True:
            longest_seconds = self._settings.housekeeping_interval_seconds
            pause_seconds = watched.filling.pause_seconds(longest_seconds)
            with trio.move_on_after(pause_seconds):
                await watched.looked.wait()
                continue  # housekeeping looked: the pace may be another now
            seen = await self._look(watched)
            if seen is None:
                await trio.sleep(longest_seconds)
                continue
            left_seconds = _soonest(watched, watched.signals)
            if left_seconds is not None and left_seconds < _NEAR_SECONDS:
                self._told.filling()
            if self._met(watched, seen) != watched.met or seen.keys() != watched.shown:
                self._take(watched, seen)
                self._told.wake()

    async def _look_and_take(self, watched: _Watched) -> None:
        seen = await self._look(watched)
        if seen is not None:
            self._take(watched, seen)

    async def _look(self, watched: _Watched) -> dict[Signal, Observation] | None:
        """Return what a path shows, nothing where it can't be read; None where it does not answer."""
        look = await watched.bounded.ask()
        if look is None and watched.bounded.hangs:
            return None
        seen = watched.take(look, self._clock_seconds())
        self._report()
        return seen

    def _take(self, watched: _Watched, seen: Mapping[Signal, Observation]) -> None:
        watched.met, watched.shown = self._met(watched, seen), seen.keys()
        self._told.take(watched.signals, seen, self._clock_seconds())

    @staticmethod
    def _met(watched: _Watched, seen: Mapping[Signal, Observation]) -> tuple[Threshold, ...]:
        absurd = absurdities(seen)
        true = {signal: observation for signal, observation in seen.items() if signal not in absurd}
        return thresholds_met(watched.thresholds, true)

    def _compare(self, survey: Survey) -> None:
        for filesystem, mount in survey.mounts.items():
            before = self._survey.mounts.get(filesystem)
            if before is not None and before.device != mount.device:
                _LOG.warning("%s: now lies on %s, before on %s", filesystem, _place(mount), _place(before))
        self._survey = survey
        layout = survey.layout
        if layout is not None and layout is not self._settings.eviction.layout and self._settings.by_layout:
            self._told.lies_as(layout)

    def _real_paths(self) -> dict[Filesystem, str]:
        return {
            filesystem: watched.last.real_path
            for watched in self._watched
            if watched.last is not None
            for filesystem in watched.filesystems
        }

    def _report(self) -> None:
        longest_seconds = self._settings.housekeeping_interval_seconds
        paces = [
            f"{watched.path} every {round(watched.filling.pause_seconds(longest_seconds), 2):g} s"
            for watched in self._watched
        ]
        self._told.board.set(FILESYSTEMS, SourceHealth.ARMED, ", ".join(paces))

    def _describe(self, watched: _Watched, filesystem: Filesystem) -> dict[str, Any]:
        mount = self._survey.mounts.get(filesystem)
        bytes_signal, inodes_signal = FILESYSTEM_SIGNALS[filesystem]
        return {
            "filesystem": filesystem,
            "path": watched.path,
            "device": None if mount is None else mount.device,
            "mount_point": None if mount is None else mount.mount_point,
            "kind": None if mount is None else mount.kind,
            "read_only": None if watched.last is None else watched.last.space.read_only,
            "fills_by_bytes_per_second": round(watched.filling.rate(bytes_signal)),
            "fills_by_inodes_per_second": round(watched.filling.rate(inodes_signal)),
            "seconds_to_threshold": _soonest(watched, (bytes_signal, inodes_signal)),
        }


def _soonest(watched: _Watched, signals: Sequence[Signal]) -> float | None:
    left_seconds = [
        left
        for threshold in watched.thresholds
        if threshold.signal in signals and (left := watched.filling.seconds_to(threshold)) is not None
    ]
    return round(min(left_seconds), 3) if left_seconds else None


def _place(mount: Mount) -> str:
    return f"{mount.mount_point} ({mount.kind} {mount.device})"
