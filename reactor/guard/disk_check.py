"""A filesystem observed by the guard itself, before a pod is evicted for it.

What the steward reports of a filesystem is reason enough to reclaim, and none to kill: it reads what tenants
write, and may be wrong or worse. So the guard calls statvfs(2) once more. That may hang for good: it is
called in a thread and given up after a while, and without an answer no pod is evicted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from reactor.kernel.filesystem import FilesystemSpace, read_mounts, read_space
from reactor.kernel.scheduling import Bounded
from reactor.model.quantity import amount_text
from reactor.model.settings import Settings
from reactor.model.signals import RESOURCE, Filesystem, Signal, filesystems_of
from reactor.model.thresholds import Observation, Threshold
from reactor.observe.filesystems import filesystem_paths, observations

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
