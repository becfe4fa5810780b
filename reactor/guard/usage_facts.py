"""What each pod takes of the node's filesystems, as the steward counts it: writable layers, logs, volumes.

The guard walks no tenant's tree. It gives each place a number, sends the steward the places, and takes what
comes back for what it may be: of numbers that it has given, within bounds, observed lately. What is not
reported any more grows stale, and is unknown then. No count is waited for but before a ranking.

A count under way is a lower bound: what has been found so far is there. It may show that a limit is exceeded,
and it ranks its pod at the place that the whole count would give it or behind, never before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from reactor.errors import StewardError
from reactor.forms import FormError
from reactor.link.orders import MOST_PLACES, CountedPlace, Places
from reactor.link.requests import PlaceUsage, UsageKind, Usages
from reactor.model.pods import FilesystemUsage, Pod, PodUsage, StoragePlace, Volume
from reactor.observe.storage import pod_usage

if TYPE_CHECKING:
    from reactor.guard.node import Node
    from reactor.guard.steward_link import StewardLink

FRESH_SECONDS: Final = 300.0
_OLDEST_NS: Final = 60 * 10**9
_NOTHING: Final = PodUsage(ephemeral_storage_bytes=0)

_AGAIN_SECONDS: Final = 0.1


@dataclass(slots=True)
class _Place:
    """What is known of one place.

    `number` is what the steward calls it (None: it was not sent), `uid` and `pod` the uid and name of its
    pod. `usage` is the last whole count, confirmed at `counted_seconds`; `so_far` what the count under way
    has found, reported at `so_far_seconds` (None: none is).
    """

    uid: str
    pod: str
    path: str
    number: int | None = None
    usage: FilesystemUsage | None = None
    counted_seconds: float = -math.inf
    so_far: FilesystemUsage | None = None
    so_far_seconds: float = -math.inf

    def is_whole(self, now_seconds: float) -> bool:
        return self.usage is not None and now_seconds - self.counted_seconds < FRESH_SECONDS

    def known(self, now_seconds: float) -> FilesystemUsage | None:
        """Return what the place takes at the least: the last whole count while it is fresh, or more."""
        whole = self.usage if self.is_whole(now_seconds) else None
        so_far = self.so_far if now_seconds - self.so_far_seconds < FRESH_SECONDS else None
        if whole is None or so_far is None:
            return whole or so_far
        return FilesystemUsage(
            used_bytes=max(whole.used_bytes or 0, so_far.used_bytes or 0),
            inodes_used=max(whole.inodes_used or 0, so_far.inodes_used or 0),
        )

    def fresh_until_seconds(self, now_seconds: float) -> float:
        """Return when what is known now changes by growing stale; infinity if nothing is known."""
        reported = (self.counted_seconds, self.so_far_seconds)
        return min(
            (at + FRESH_SECONDS for at in reported if now_seconds - at < FRESH_SECONDS), default=math.inf
        )

    def take(self, reported: PlaceUsage, at_seconds: float) -> bool:
        """Take over what is reported; return whether that changes what is known, but for its time."""
        usage = FilesystemUsage(used_bytes=reported.used_bytes, inodes_used=reported.inodes)
        if reported.kind is UsageKind.COUNTED:
            is_as_it_was = self.so_far is None and self.is_whole(at_seconds) and self.usage == usage
            self.counted_seconds, self.so_far, self.usage = at_seconds, None, usage
            return not is_as_it_was
        if reported.kind is UsageKind.SO_FAR:
            self.so_far, self.so_far_seconds = usage, at_seconds
        else:
            self.so_far = None
        return True


@dataclass(slots=True)
class _Counted:
    """A pod's places, and what they come to.

    `storage` is what it was listed with when all its places got their numbers (None: they are to get others).
    `usage` is made of what is known of the places by the pod's storage and volumes, `made_of` (None: by
    nothing), and holds until `until_seconds`.
    """

    storage: tuple[StoragePlace, ...] | None = None
    places: dict[StoragePlace, _Place] = field(default_factory=dict)
    made_of: tuple[tuple[StoragePlace, ...], tuple[Volume, ...]] | None = None
    usage: PodUsage | None = None
    until_seconds: float = math.inf


class UsageFacts:
    """Knows what pods take. `assign` says which places there are, `take` is given what the steward counts."""

    def __init__(self, *, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self._clock_seconds = clock_seconds
        self._pods: dict[str, _Counted] = {}
        self._by_number: dict[int, _Place] = {}
        self._next_number = 1
        self._held: set[str] = set()

    def __len__(self) -> int:
        return sum(len(one.places) for one in self._pods.values())

    def usages(self, pods: Sequence[Pod]) -> dict[str, PodUsage]:
        """Return what is known of these pods, by uid.

        A pod that has no place of its own takes nothing. One of which nothing is known is absent.
        """
        now_seconds = self._clock_seconds()
        found = {}
        for pod in pods:
            usage = self._usage(pod, now_seconds) if pod.storage else _NOTHING
            if usage is not None:
                found[pod.uid] = usage
        return found

    def is_whole(self, pod: Pod) -> bool:
        """Return whether each of the pod's places was counted as a whole, lately."""
        now_seconds = self._clock_seconds()
        known = self._pods.get(pod.uid, _Counted()).places
        return all(place in known and known[place].is_whole(now_seconds) for place in pod.storage)

    def assign(self, pods: Sequence[Pod]) -> None:
        """Have the places of these pods counted, and forget all others."""
        present = {pod.uid: pod for pod in pods if pod.storage}
        for uid in self._pods.keys() - present.keys():
            self._withdraw(self._pods.pop(uid).places.values())
        for uid, pod in present.items():
            if uid in self._held:
                continue
            counted = self._pods.get(uid) or self._pods.setdefault(uid, _Counted())
            if counted.storage == pod.storage:
                continue  # mostly: a thousand pods take 3 ms so, and else 20
            self._withdraw([counted.places.pop(gone) for gone in counted.places.keys() - set(pod.storage)])
            for one in pod.storage:
                place = counted.places.setdefault(one, _Place(uid, pod.key, one.path))
                if place.number is None:
                    place.number = self._next_number
                    self._next_number += 1
                    self._by_number[place.number] = place
            counted.storage, counted.made_of = pod.storage, None

    def hold(self, uid: str) -> None:
        """Let what is known of a pod stand as it is until `release`: its files are being removed.

        A file's name goes before its blocks come back (0.4 s were seen for 120 MiB on ext4).
        """
        self._held.add(uid)
        counted = self._pods.get(uid, _Counted())
        self._withdraw(counted.places.values())
        counted.storage = counted.made_of = None

    def release(self, uid: str) -> None:
        """Have a pod counted again, from the next `assign` on; nothing that was seen before is believed."""
        self._held.discard(uid)

    def is_emptied(self, pod: Pod) -> bool:
        """Return whether a pod took something of the filesystems and does so no more.

        For a pod that is not known to have taken anything this is not known. Others are spared meanwhile, so
        that not all of them go for what none of them holds.
        """
        if pod.uid in self._held:
            return False
        used = self.usages([pod]).get(pod.uid)
        # Of a count under way less may have been found than there is.
        is_known = bool(pod.storage) and used is not None and self.is_whole(pod)
        return used is not None and is_known and not _takes_something(used)

    def changes(self, sent: set[int]) -> Iterator[Places]:
        """Yield what a steward is to be sent that has these places, which are brought up to date."""
        gone = sorted(sent - self._by_number.keys())
        new = sorted(self._by_number.keys() - sent)
        for start in range(0, len(gone), MOST_PLACES):
            sent.difference_update(gone[start : start + MOST_PLACES])
            yield Places(forget=tuple(gone[start : start + MOST_PLACES]))
        for start in range(0, len(new), MOST_PLACES):
            # Others may have gone meanwhile: sending takes as long as the steward likes.
            numbers = [number for number in new[start : start + MOST_PLACES] if number in self._by_number]
            sent.update(numbers)
            yield Places(count=tuple(map(self._counted_place, numbers)))

    def take(self, usages: Usages) -> None:
        """Take over what the steward has counted, where the places are still to be counted.

        Raises FormError, and takes nothing, where it can't be: a number that was never given, or seen at a
        time that is no time to have seen it.
        """
        age_ns = time.monotonic_ns() - usages.at_ns
        if not 0 <= age_ns <= _OLDEST_NS:
            raise FormError(f"got usages {age_ns / 1e9:.3f} s old; accepted: 0 to {_OLDEST_NS / 1e9:g} s")
        unknown = max(one.place for one in usages.places)
        if unknown >= self._next_number:
            raise FormError(f"got place {unknown}; accepted: 1 to {self._next_number - 1}")
        at_seconds = self._clock_seconds() - age_ns / 1e9
        for one in usages.places:
            place = self._by_number.get(one.place)
            if place is not None and place.take(one, at_seconds):
                self._pods[place.uid].made_of = None

    def steward_ended(self) -> None:
        """Drop the counts under way."""
        for counted in self._pods.values():
            counted.made_of = None
            for place in counted.places.values():
                place.so_far = None

    def _counted_place(self, number: int) -> CountedPlace:
        place = self._by_number[number]
        return CountedPlace(number=number, uid=place.uid, pod=place.pod, path=place.path)

    def _withdraw(self, places: Iterable[_Place]) -> None:
        """Have places counted no longer; what is reported of them from now on is dropped."""
        for place in places:
            if place.number is not None:
                del self._by_number[place.number]
            place.number, place.so_far = None, None

    def _usage(self, pod: Pod, now_seconds: float) -> PodUsage | None:
        """Return what is to be said of a pod, made up of what is known of its places (None: nothing)."""
        counted = self._pods.get(pod.uid)
        if counted is None:
            return None
        made_of = pod.storage, pod.volumes
        if counted.made_of != made_of or now_seconds >= counted.until_seconds:
            places = {one: counted.places[one] for one in pod.storage if one in counted.places}
            known = {one: place.known(now_seconds) for one, place in places.items()}
            usages = {one: usage for one, usage in known.items() if usage is not None}
            counted.usage = pod_usage(pod, usages) if usages else None
            fresh_until = (place.fresh_until_seconds(now_seconds) for place in places.values())
            counted.made_of, counted.until_seconds = made_of, min(fresh_until, default=math.inf)
        return counted.usage


def _takes_something(used: PodUsage) -> bool:
    """Return whether a place has more than its directory, which is left of a volume that was emptied."""
    of_containers = (one for container in used.containers for one in (container.rootfs, container.logs))
    return any(
        one is not None and (one.inodes_used or 0) > 1 for one in (*used.volumes.values(), *of_containers)
    )


class StorageCounts:
    """Has the steward count the places of the known pods.

    Housekeeping asks for a count at each of its turns; the steward makes it with a share of a CPU, and pauses
    after one that took long. A filesystem that fills, and an eviction whose files are to go, are urgent.
    """

    def __init__(self, known: Node, steward: StewardLink) -> None:
        self._known = known
        self._steward = steward
        self._due = trio.Event()
        self._is_urgent = False

    def due(self, *, urgent: bool = False) -> None:
        """Have everything counted soon; an urgent count takes a larger share of a CPU."""
        self._is_urgent |= urgent
        self._due.set()

    async def count_now(self, most_seconds: float) -> None:
        """Have everything counted now; return when that is done, or `most_seconds` are over."""
        if not any(pod.storage for pod in self._pods()):
            return
        with trio.move_on_after(most_seconds):
            while True:
                self._known.storage.assign(self._pods())
                with suppress(StewardError):
                    await self._steward.counted()
                    return
                await trio.sleep(_AGAIN_SECONDS)  # the next one is being started

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ask for counts whenever they are due, until cancelled."""
        task_status.started()
        while True:
            await self._due.wait()
            self._due = trio.Event()
            urgent, self._is_urgent = self._is_urgent, False
            self._known.storage.assign(self._pods())
            # A steward that comes later is asked at the next turn.
            with suppress(StewardError):
                await self._steward.count(urgent=urgent)

    def _pods(self) -> Sequence[Pod]:
        return self._known.with_lingering(self._known.pods)
