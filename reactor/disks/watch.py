"""Watches the filesystems, in the steward: each from a task and a thread of its own, as often as it fills.

A reading that hangs makes no other one stale. A reading is taken over if it matters: if a threshold
comes to be met or ceases to be, or a signal to be known. Any other only sets the pace, so that a disk
which is read twenty times a second is not acted on twenty times a second. Housekeeping takes over
everything there is.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from reactor.kernel.filesystem import (
    FilesystemSpace,
    Mount,
    MountTable,
    layout_of,
    mount_of,
    read_mounts,
    read_space,
)
from reactor.kernel.procfs import PROC
from reactor.kernel.scheduling import Bounded
from reactor.model.settings import Settings
from reactor.model.signals import FILESYSTEM_SIGNALS, RESOURCE, Filesystem, Layout, Resource, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.model.wakes import SourceHealth
from reactor.observe.filesystems import filesystem_paths, observations
from reactor.policy.thresholds import absurdities, thresholds_met
from reactor.sources.catalogue import FILESYSTEMS, SourceBoard

# What a node may be filled with at the worst, a second: a fast NVMe drive; files created on many CPUs.
_POSSIBLE_RATE: Final = {Resource.EPHEMERAL_STORAGE: 4 << 30, Resource.INODES: 400_000}
_SHORTEST_AT_REST_SECONDS: Final = 0.5
_SHORTEST_SECONDS: Final = 0.05
_LATE_SHARE: Final = 0.05  # of the housekeeping's interval: then its reading is not waited for
_WHILE_MET_SECONDS: Final = 1.0  # a threshold can only be crossed again once its end was seen

_LOG: Final = logging.getLogger("reactor.filesystems")
_NEAR_SECONDS: Final = 30.0


# How fast a filesystem fills, and how soon it has to be read again for that.
#
# A statvfs costs microseconds, but a crossing is seen only by reading. So readings come the more often the
# nearer a threshold is: at half of the time that is left at the rate seen, and, since an idle disk may
# begin to fill at any moment, never later than the fastest disk could reach it.
class Filling:
    """Follows the signals of the filesystems at one path, from one reading to the next."""

    def __init__(self, thresholds: Sequence[Threshold]) -> None:
        self._thresholds = thresholds
        self._seen: Mapping[Signal, Observation] = {}
        self._seen_at_seconds = 0.0
        self._rates: dict[Signal, float] = {}

    def take(self, seen: Mapping[Signal, Observation], now_seconds: float) -> None:
        """Take over what a reading showed. A filesystem that has changed its size starts again."""
        elapsed_seconds = now_seconds - self._seen_at_seconds
        rates = {}
        for signal, observation in seen.items():
            before = self._seen.get(signal)
            if before is None or before.capacity != observation.capacity or elapsed_seconds <= 0:
                continue
            rate = (before.available - observation.available) / elapsed_seconds
            # One pause in writing is no end of it: a rate falls by half at each reading, and rises at once.
            rates[signal] = max(rate, self._rates.get(signal, 0.0) / 2, 0.0)
        self._rates, self._seen, self._seen_at_seconds = rates, seen, now_seconds

    def rate(self, signal: Signal) -> float:
        """Return by how much the signal falls in a second at present."""
        return self._rates.get(signal, 0.0)

    def seconds_to(self, threshold: Threshold) -> float | None:
        """Return when the threshold is reached at the present rate; None: not known, or not at all."""
        margin, rate = self._margin(threshold), self.rate(threshold.signal)
        if margin is None or rate <= 0:
            return None
        return max(0.0, margin / rate)

    def pause_seconds(self, longest_seconds: float) -> float:
        """Return after how long to read again."""
        return min([longest_seconds, *self._pauses()])

    def _pauses(self) -> Iterable[float]:
        for threshold in self._thresholds:
            margin = self._margin(threshold)
            if margin is None:
                continue
            if margin < 0:
                yield _WHILE_MET_SECONDS
                continue
            possible = margin / _POSSIBLE_RATE[RESOURCE[threshold.signal]]
            left_seconds = self.seconds_to(threshold)
            at_this_rate = math.inf if left_seconds is None else max(left_seconds / 2, _SHORTEST_SECONDS)
            yield min(max(possible, _SHORTEST_AT_REST_SECONDS), at_this_rate)

    def _margin(self, threshold: Threshold) -> float | None:
        seen = self._seen.get(threshold.signal)
        if seen is None or threshold.is_absurd_at(seen.capacity):
            return None
        return float(seen.available - threshold.value.of(seen.capacity))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one reading at a path showed. `real_path` is the path without symlinks."""

    space: FilesystemSpace
    real_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Where the filesystems lie. `mounts` lacks one that lies on no known mount; `layout` None: unknown."""

    mounts: Mapping[Filesystem, Mount] = field(default_factory=dict)
    layout: Layout | None = None


class FilesystemObserver:
    """Reads the filesystems at `paths`; one path may stand for several of them.

    Of the `unplaced` ones it is not known where they lie: they are not read. `table` may outlive it.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        unplaced: Collection[Filesystem] = (),
        proc: Path = PROC,
        table: MountTable | None = None,
    ) -> None:
        self._proc = proc
        self._table = table or MountTable(proc / "self/mountinfo")
        paths = filesystem_paths(settings)
        self.paths: Mapping[Filesystem, str] = {
            filesystem: path for filesystem, path in paths.items() if filesystem not in unplaced
        }

    @staticmethod
    def read(path: str) -> Reading:
        """Return what is left of the filesystem at a path. Raises OSError with the path.

        For a worker thread: a dead network filesystem holds the caller for as long as it likes.
        """
        return Reading(space=read_space(path), real_path=os.path.realpath(path))

    def changes(self) -> int:
        """Return how often the mount table was seen to change."""
        return self._table.changes()

    def survey(self, real_paths: Mapping[Filesystem, str]) -> Survey:
        """Return where the filesystems lie. Raises OSError where the mount table can't be read.

        It reads that table alone, so that it waits for no filesystem.
        """
        mounts = read_mounts(self._proc / "self/mountinfo")
        found = {filesystem: mount_of(path, mounts) for filesystem, path in real_paths.items()}
        return Survey(
            mounts={filesystem: mount for filesystem, mount in found.items() if mount is not None},
            layout=layout_of(real_paths, mounts),
        )


class Filesystems(Protocol):
    """Reads filesystems, by the paths that stand for them."""

    paths: Mapping[Filesystem, str]

    def read(self, path: str) -> Reading:
        """Read the filesystem at a path; raises OSError, and may hang."""

    def changes(self) -> int:
        """Return a number that is another one where the paths may lie elsewhere by now; never hangs."""

    def survey(self, real_paths: Mapping[Filesystem, str]) -> Survey:
        """Find out where the paths lie; raises OSError."""


class Receiver(Protocol):
    """Receives what the watch finds; nothing here blocks. `board` shows how the watch stands."""

    board: SourceBoard

    def take(self, asked: Collection[Signal], seen: Mapping[Signal, Observation], now_seconds: float) -> None:
        """Take over what was just seen of the signals asked for; one that is absent is unknown now."""

    def wake(self) -> None:
        """Record that a threshold has come to be met or ceased to be."""

    def filling(self) -> None:
        """Record, again and again, that a threshold is near: it may soon matter who takes how much."""

    def adopt_layout(self, layout: Layout) -> None:
        """Record that the devices show another layout than the one in force, and none is configured."""


class _Watched:
    """One path, and the filesystems that it stands for."""

    def __init__(
        self, path: str, filesystems: tuple[Filesystem, ...], bounded: Bounded[Reading], settings: Settings
    ) -> None:
        self.path = path
        self.filesystems = filesystems
        self.bounded = bounded
        self.signals = tuple(
            signal for filesystem in filesystems for signal in FILESYSTEM_SIGNALS[filesystem]
        )
        self.thresholds = tuple(one for one in settings.eviction.thresholds if one.signal in self.signals)
        self.filling = Filling(self.thresholds)
        self.refreshed = trio.Event()
        self.last: Reading | None = None
        self.met: tuple[Threshold, ...] = ()
        self.shown: Collection[Signal] = ()

    @property
    def name(self) -> str:
        return f"{', '.join(self.filesystems)} {self.path}"

    def take(self, reading: Reading | None, now_seconds: float) -> dict[Signal, Observation]:
        """Take over a reading (None: it failed); return the signals that it shows."""
        if reading is None or self.last is None or reading.space.identity != self.last.space.identity:
            self.filling = Filling(self.thresholds)  # another filesystem: its rates are its own
        self.last = reading
        seen: dict[Signal, Observation] = {}
        if reading is not None:
            for filesystem in self.filesystems:
                seen |= observations(filesystem, reading.space)
        self.filling.take(seen, now_seconds)
        self.refreshed.set()
        self.refreshed = trio.Event()
        return seen


class FilesystemWatch:
    """Follows the filesystems, and reports if a threshold of theirs is crossed.

    Another layout than the configured one is only a problem.
    """

    def __init__(
        self,
        observer: Filesystems,
        settings: Settings,
        receiver: Receiver,
        *,
        timeout_seconds: float,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._receiver = receiver
        self._clock_seconds = clock_seconds
        self._watched = tuple(
            _Watched(
                path,
                tuple(filesystem for filesystem in Filesystem if observer.paths.get(filesystem) == path),
                Bounded(partial(observer.read, path), timeout_seconds),
                settings,
            )
            for path in dict.fromkeys(observer.paths.values())
        )
        self._survey = Survey()
        self._observer = observer
        self._surveyed: tuple[int, Mapping[Filesystem, str]] | None = None
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
        """Read each filesystem at its own pace, until cancelled."""
        async with trio.open_nursery() as nursery:
            for watched in self._watched:
                nursery.start_soon(self._follow, watched)
            task_status.started()

    async def refresh(self) -> None:
        """Observe all the filesystems again, here and now; without an answer what was seen grows stale."""
        async with trio.open_nursery() as nursery:
            for watched in self._watched:
                nursery.start_soon(self._refresh, watched)
        surveyed = self._observer.changes(), self._real_paths()
        survey: Survey | None = self._survey
        if surveyed != self._surveyed:
            survey = await self._surveys.ask()
            self._surveyed = None if survey is None else surveyed
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
            if pause_seconds >= longest_seconds:  # housekeeping reads it then: not both at once
                pause_seconds *= 1 + _LATE_SHARE
            with trio.move_on_after(pause_seconds):
                await watched.refreshed.wait()
                continue  # housekeeping has read it: the pace may be another now
            seen = await self._read(watched)
            if seen is None:
                await trio.sleep(longest_seconds)
                continue
            left_seconds = _soonest(watched, watched.signals)
            if left_seconds is not None and left_seconds < _NEAR_SECONDS:
                self._receiver.filling()
            if self._met(watched, seen) != watched.met or seen.keys() != watched.shown:
                self._take(watched, seen)
                self._receiver.wake()

    async def _refresh(self, watched: _Watched) -> None:
        seen = await self._read(watched)
        if seen is not None:
            self._take(watched, seen)

    async def _read(self, watched: _Watched) -> dict[Signal, Observation] | None:
        """Return what a path shows, nothing where it can't be read; None where it does not answer."""
        reading = await watched.bounded.ask()
        if reading is None and watched.bounded.hangs:
            return None
        seen = watched.take(reading, self._clock_seconds())
        self._report()
        return seen

    def _take(self, watched: _Watched, seen: Mapping[Signal, Observation]) -> None:
        watched.met, watched.shown = self._met(watched, seen), seen.keys()
        self._receiver.take(watched.signals, seen, self._clock_seconds())

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
            self._receiver.adopt_layout(layout)

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
        self._receiver.board.set(FILESYSTEMS, SourceHealth.ARMED, ", ".join(paces))

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
