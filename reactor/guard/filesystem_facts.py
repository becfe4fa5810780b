"""What the steward does for the guard: it observes filesystems, reclaims, removes files, and runs hooks.

The guard observes no filesystem itself: one that hangs would hang the guard. Without a steward what was
reported grows stale, and counts as unknown then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Final

import trio

from reactor.errors import ReactorError, StewardError
from reactor.guard.steward_link import StewardLink
from reactor.kernel.filesystem import FilesystemSpace, read_mounts, read_space
from reactor.kernel.scheduling import Bounded
from reactor.link.frames import FrameKind
from reactor.link.requests import Space
from reactor.model.decisions import Eviction
from reactor.model.pods import Pod
from reactor.model.quantity import amount_text
from reactor.model.settings import HookSettings, Settings
from reactor.model.signals import (
    FILESYSTEM_SIGNALS,
    RESOURCE,
    Filesystem,
    Layout,
    Reclaim,
    Signal,
    filesystems_of,
)
from reactor.model.thresholds import Observation, Observed, Threshold
from reactor.model.wakes import SourceHealth, WakeKind
from reactor.observe.filesystems import filesystem_paths, observations
from reactor.reclaim.reclaims import ReclaimReport
from reactor.sources.catalogue import FILESYSTEMS
from reactor.sources.wakes import Wakes
from reactor.text import printable

_MOST_SECONDS: Final = 900.0
_AGAIN_SECONDS: Final = 1.0
_BETWEEN_WAKES_SECONDS: Final = 0.1
# A steward that came too late for the first question would else be asked after a whole housekeeping interval.
_UNANSWERED_SECONDS: Final = 5.0
_LATE: Final = "the steward does not answer: what was seen before grows stale"
# On a node that is short of CPU a steward takes some ten seconds to start: until then nothing is lost.
_STARTING_SECONDS: Final = 30.0
_HOOKS_SHARE: Final = 0.5  # of the grace period: the rest is the pod's own
_HOOKS_ANSWER_SECONDS: Final = 0.2
_STARTING: Final = "the steward has not answered yet: it starts"


@dataclass(eq=False)
class FilesystemFacts:
    """Takes what the steward observes into `observed`, and wakes the loop where it says that this matters.

    `on_layout` is called if the devices show another layout than the one in force; `on_filling` if a
    threshold is near at the present rate.
    """

    link: StewardLink
    settings: Settings
    observed: Observed
    wakes: Wakes
    _: KW_ONLY
    timeout_seconds: float
    on_layout: Callable[[Layout], None]
    on_filling: Callable[[], None]
    clock_seconds: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._is_to_wake = trio.Event()
        self._is_unanswered = trio.Event()
        self._starts_until_seconds = self.clock_seconds() + _STARTING_SECONDS
        self.problems: dict[str, str] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Have the steward follow the filesystems by these settings, until cancelled."""
        self.link.order(self.settings, self)
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ask_again)
                while True:
                    await self._is_to_wake.wait()
                    self._is_to_wake = trio.Event()
                    self.wakes.wake(FILESYSTEMS, WakeKind.HOUSEKEEPING, None)
                    await trio.sleep(_BETWEEN_WAKES_SECONDS)
        finally:
            self.link.forget(self)

    async def _ask_again(self) -> None:
        """Ask until there is an answer, if one was missing: the next housekeeping may be far off."""
        while True:
            await self._is_unanswered.wait()
            await trio.sleep(_UNANSWERED_SECONDS)
            if self._is_unanswered.is_set():
                await self.refresh()
                if not self._is_unanswered.is_set():
                    self.wake()

    async def refresh(self) -> None:
        """Have all the filesystems observed now; without an answer what was seen grows stale."""
        if await self.link.observe(self.timeout_seconds):
            if self._is_unanswered.is_set():
                self._is_unanswered = trio.Event()
            self.problems.pop("filesystems", None)
            self.wakes.board.set(FILESYSTEMS, SourceHealth.ARMED, "observed by the steward")
            self._starts_until_seconds = -math.inf
            return
        self._is_unanswered.set()
        if self.clock_seconds() < self._starts_until_seconds:
            self.problems["filesystems"] = _STARTING
            self.wakes.board.set(FILESYSTEMS, SourceHealth.OFF, _STARTING)
        else:
            self.problems["filesystems"] = _LATE
            self.wakes.board.set(FILESYSTEMS, SourceHealth.FAILED, _LATE)

    def document(self) -> dict[str, Any]:
        return {"layout": self.settings.eviction.layout, "layout_by_devices": None, "filesystems": []}

    def space(self, space: Space) -> None:
        """Take over what is left of filesystems."""
        signals = [signal for filesystem in space.filesystems for signal in FILESYSTEM_SIGNALS[filesystem]]
        seen: dict[Signal, Observation] = {}
        for filesystem in space.filesystems:
            bytes_signal, inodes_signal = FILESYSTEM_SIGNALS[filesystem]
            if space.available_bytes is not None and space.capacity_bytes is not None:
                seen[bytes_signal] = Observation(
                    available=space.available_bytes, capacity=space.capacity_bytes
                )
            if space.inodes_free is not None and space.inodes is not None:
                seen[inodes_signal] = Observation(available=space.inodes_free, capacity=space.inodes)
        age_seconds = max(0, time.monotonic_ns() - space.at_ns) / 1e9
        self.observed.take(signals, seen, self.clock_seconds() - age_seconds)

    def wake(self) -> None:
        """Have a pass made, however often this is asked for: a few a second."""
        self._is_to_wake.set()

    def adopt_layout(self, layout: Layout) -> None:
        """Adopt the layout that the devices show, where none is configured."""
        if layout is not self.settings.eviction.layout and layout in self.settings.by_layout:
            self.on_layout(layout)


async def empty(link: StewardLink, pod: Pod) -> tuple[str, ...]:
    """Have the steward empty the emptyDirs of a pod that has ended; return what went wrong.

    Tenants may make millions of files. Where a steward ends, the next one is asked.
    """
    problems = []
    for path in (place.path for place in pod.storage if place.ends_with_pod):
        why: tuple[str, ...] = (f"not done within {_MOST_SECONDS:g} s",)
        with trio.move_on_after(_MOST_SECONDS):
            while True:
                with suppress(StewardError):
                    why = (await link.ask(FrameKind.EMPTY, path=path, cgroup=pod.cgroup)).problems
                    break
                await trio.sleep(_AGAIN_SECONDS)
        problems += [f"{path} was not emptied: {'; '.join(why)}"] if why else []
    return tuple(problems)


class StewardReclaim:
    """What the steward reclaims of one kind; see NodeReclaim."""

    def __init__(self, link: StewardLink, kind: Reclaim, *, most_seconds: float) -> None:
        self._link = link
        self._kind = kind
        self._most_seconds = most_seconds

    async def run(self, filesystems: Collection[Filesystem]) -> ReclaimReport | None:
        """Have it reclaimed, and return when that is done. Raises StewardError."""
        with trio.move_on_after(self._most_seconds):
            over = await self._link.ask(FrameKind.RECLAIM, kind=self._kind, filesystems=sorted(filesystems))
            return None if over.did is None else ReclaimReport(did=over.did, problems=over.problems)
        return ReclaimReport(problems=(f"not done within {self._most_seconds:g} s",))


async def run_hooks(link: StewardLink, hooks: HookSettings, eviction: Eviction) -> tuple[str, ...] | None:
    """Have the steward run the hooks before a soft eviction; return what went wrong, None without hooks.

    It takes half of the pod's grace period at most, also if the steward hangs. Nothing hard waits for it.
    """
    if not hooks:
        return None
    seconds = min(hooks.timeout_seconds, _HOOKS_SHARE * eviction.grace_period_seconds)
    with trio.move_on_after(seconds + _HOOKS_ANSWER_SECONDS):
        try:
            about = _hook_document(eviction)
            return (await link.ask(FrameKind.BEFORE, eviction=about, seconds=seconds)).problems
        except ReactorError as error:
            return (f"hooks: {error}",)
    return (f"hooks: not done within {seconds:g} s",)


def _hook_document(eviction: Eviction) -> dict[str, Any]:
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


_TIMEOUT_SECONDS: Final = 5.0
_LATELY_SECONDS: Final = 60.0
_FAR_OFF_SHARE: Final = 4  # of the threshold: a filesystem is written to between two calls
_ON_DEVICES: Final = ("/dev/", "zfs")


class DiskCheck:
    """Observes filesystems, one at a time.

    `problems` says for which no pod could be evicted lately, and why.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._clock_seconds = clock_seconds
        self._capacity = 0
        self._checks = {
            filesystem: Bounded(partial(self._space, filesystem), timeout_seconds)
            for filesystem in Filesystem
        }
        self._problems: dict[str, tuple[float, str]] = {}

    @property
    def problems(self) -> dict[str, str]:
        """Return what was wrong within the last minute: only before an eviction is a filesystem checked."""
        since_seconds = self._clock_seconds() - _LATELY_SECONDS
        return {what: why for what, (at, why) in self._problems.items() if at >= since_seconds}

    async def observe(self, threshold: Threshold, reported: Observation) -> Mapping[Signal, Observation]:
        """Return what a threshold's filesystem shows now, for all its names; nothing without an answer.

        `reported` is what the steward says of it.
        """
        signal = threshold.signal
        filesystem = Filesystem(signal.partition(".")[0])
        check = self._checks[filesystem]
        self._capacity = reported.capacity
        space = await check.ask()
        seen: dict[Signal, Observation] = {}
        if space is not None:
            for name in filesystems_of(signal, self._settings.eviction.layout):
                seen |= observations(name, space)
        why = _problem(threshold, reported, seen.get(signal), check)
        self._problems.pop(f"check of {filesystem}", None)
        if why is not None:
            self._problems[f"check of {filesystem}"] = (self._clock_seconds(), why)
        return seen

    def _space(self, filesystem: Filesystem) -> FilesystemSpace | None:
        """Return what is left of a filesystem, None where it can't be found. Raises OSError. Blocks."""
        settings = self._settings
        names = filesystems_of(Signal(f"{filesystem}.available"), settings.eviction.layout)
        if Filesystem.NODEFS in names or settings.filesystems.keys() & names:
            return read_space(filesystem_paths(settings)[filesystem])
        return _space_of_capacity(self._capacity)


def _space_of_capacity(capacity: int) -> FilesystemSpace | None:
    """Return what is left of the filesystem that has this capacity, in bytes or inodes; None: there is none.

    Where images have a filesystem of their own and no path to it is configured, the runtime reported where
    it lies. All that a false report can do then is to name a filesystem of this node that is full.
    """
    by_device = {mount.device: mount for mount in read_mounts() if mount.source.startswith(_ON_DEVICES)}
    for mount in by_device.values():
        space = read_space(mount.mount_point)
        if capacity in {space.capacity_bytes, space.inodes}:
            return space
    return None


def _problem(
    threshold: Threshold, reported: Observation, own: Observation | None, check: Bounded[Any]
) -> str | None:
    """Return why no pod is evicted for a threshold, though it was reported as met; None where one may be."""
    if own is None:
        why = check.problem or ("it does not answer" if check.hangs else "nothing can be seen of it")
        return f"no pod is evicted for {threshold}: statvfs(2): {why}"
    value = threshold.value.of(own.capacity)
    is_far_off = own.available - reported.available > value / _FAR_OFF_SHARE
    if own.available < value or not is_far_off:
        return None
    resource = RESOURCE[threshold.signal]
    shown, said = (amount_text(one.available, resource) for one in (own, reported))
    return (
        f"no pod is evicted for {threshold}: statvfs(2) shows {shown} available, the steward reports {said}"
    )
