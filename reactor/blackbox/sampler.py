"""The steward's side of the black box: reads the node's memory, and its pods' while that moves.

    every 2 s      the node alone: two or three small files
    every second   and its pods, while what is available changes or a threshold is a minute away
    4 times        near a threshold, and for some seconds after the guard has said that one is near

Of 250 pods all usages are read, and memory.stat of the 16 whose usage has changed most, so that page cache
that is free to go counts for nobody; then of those whose memory.stat showed less than half of their usage.
On a node whose memory stands still no pod is read.

Near a threshold, and if a pod comes close to its own limit, the largest processes are looked at of the pods
that would go first or that grow, in a thread that nobody waits for (`reactor.blackbox.processes`).
"""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from reactor.backoff import beat_seconds, next_beat
from reactor.blackbox import NEAR, KnownPod, PodChanges, read_pods
from reactor.blackbox.processes import Seen, largest_processes
from reactor.blackbox.series import MOST_CHANGES, Sample, Series, largest_changes, least_change_bytes
from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree, CgroupVersion
from reactor.kernel.cgroup_memory import MemoryKinds
from reactor.kernel.files import parse_integer, read_value
from reactor.kernel.procfs import PROC
from reactor.kernel.swap import machine_swap
from reactor.link.frames import Message
from reactor.model.pods import Pod
from reactor.model.settings import Settings
from reactor.model.signals import MEMORY_SIGNALS, Signal
from reactor.model.thresholds import Observation
from reactor.observe.node import NodeObserver
from reactor.observe.oom_kills import PodOomKills
from reactor.threads import in_thread

_LOG: Final = logging.getLogger("reactor.blackbox")
_CALM_SECONDS: Final = 2.0
_STILL_SECONDS: Final = 10.0
_MOVING_SECONDS: Final = 1.0
_NEAR_SECONDS: Final = 0.25
_SOON_SECONDS: Final = 60.0
_STAYS_NEAR_SECONDS: Final = 3.0
_MOVED_SHARE: Final = 200  # of the capacity: half a percent
_PODS_AT_ONCE: Final = 64
_MOST_FORGOTTEN: Final = 1000
_PROCESSES_OF: Final = 4
_MOST_SEEN: Final = 32
_LIMIT_SHARE: Final = 0.85
_LIMITS_GOOD_SECONDS: Final = 30.0
_THREAD_SECONDS: Final = 5.0
FINE_SECONDS: Final = 70.0
HOUR_SECONDS: Final = 3600.0


class Held(NamedTuple):
    """What kinds of memory a pod held, and since when it may have been losing them."""

    at_seconds: float
    kinds: MemoryKinds
    lost_at_seconds: float = math.inf


class Sampler:
    """Knows the last minute and the last hour. `pods` are those of the guard, and some that are gone.

    By uid, `seen` has the largest processes of pods and `held` what kinds of memory they held: of a pod that
    is evicted, or has lost half of it within a minute, the most that it held. Processes are looked at only
    where the configuration asks for the black box.
    """

    def __init__(
        self,
        settings: Callable[[], Settings],
        *,
        tree: CgroupTree | None = None,
        proc: Path = PROC,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._tree = tree
        self._proc = proc
        self._clock_seconds = clock_seconds
        self._observer: NodeObserver | None = None
        self._observed_for: Settings | None = None
        self.fine = Series(FINE_SECONDS)
        self.hour = Series(HOUR_SECONDS, _STILL_SECONDS)
        self.pods: OrderedDict[str, KnownPod] = OrderedDict()
        self.seen: dict[str, Seen] = {}
        self.held: dict[str, Held] = {}
        self.began_seconds = clock_seconds()
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._usages: dict[str, int] = {}  # as of the last time that a pod's working set was recorded
        self._recorded: dict[str, int] = {}
        self._oom_kills: PodOomKills | None = None
        self._is_moving = False
        self._near_until_seconds = -math.inf
        self._usage_paths: dict[str, str] = {}
        self._limits: dict[str, tuple[float, int | None]] = {}
        self._poked = trio.Event()
        self._wanted: dict[str, KnownPod] = {}
        self._looking_since_seconds: float | None = None

    @property
    def settings(self) -> Settings:
        return self._settings()

    # --- what the guard reports ---

    def take(self, message: Message) -> None:
        """Take over what the guard has sent."""
        changes = read_pods(message.content)
        if message.number == NEAR:
            self.near(changes.came)
        else:
            self.know(changes)

    def know(self, changes: PodChanges) -> None:
        """Take over which pods there are. Names of the last thousand that are gone are kept."""
        for pod in changes.came:
            self.pods[pod.uid] = pod
            self._usage_paths.pop(pod.uid, None)
            self._gone.pop(pod.uid, None)
        for uid in changes.gone:
            self._limits.pop(uid, None)
            self._usage_paths.pop(uid, None)
            if uid in self.pods:
                self._gone[uid] = None
        while len(self._gone) > _MOST_FORGOTTEN:
            uid, _ = self._gone.popitem(last=False)
            self.pods.pop(uid, None)
            self.held.pop(uid, None)

    def near(self, first: Iterable[KnownPod]) -> None:
        """A crossing is near; these would be evicted."""
        self._near_until_seconds = self._clock_seconds() + _STAYS_NEAR_SECONDS
        self.want_processes(first)
        self._poked.set()

    def want_processes(self, pods: Iterable[KnownPod]) -> None:
        """Have the processes of these looked at, unless that was done lately or is not asked for."""
        if not self._settings().black_box:
            return
        now_seconds = self._clock_seconds()
        each_seconds = _MOVING_SECONDS if self._is_moving else _STILL_SECONDS
        for pod in pods:
            last = self.seen.get(pod.uid)
            if last is None or now_seconds - last.at_seconds >= each_seconds:
                self._wanted.setdefault(pod.uid, pod)
        self._poked.set()

    def want_ordered(self, line: Mapping[str, Any]) -> None:
        """Read what the pods hold whose evictions a line of the journal orders, and want their processes."""
        uids = (one.get("uid") for one in line.get("ordered") or ())
        pods = [self.pods[uid] for uid in uids if uid in self.pods]
        for pod in pods[:MOST_CHANGES]:
            with suppress(OSError, ReactorError):
                self._kinds(pod, is_ordered=True)
        self.want_processes(pods)

    def struck(self) -> KnownPod | None:
        """Return the one pod in which the kernel has killed since this was asked last, if it is just one."""
        if self._oom_kills is None:
            return None
        found = self._oom_kills.struck(self._present())
        return self.pods.get(found[0]) if len(found) == 1 else None

    def _present(self) -> list[Pod]:
        return [
            Pod(name=pod.pod, namespace="", uid=uid, cgroup=pod.cgroup)
            for uid, pod in self.pods.items()
            if uid not in self._gone
        ]

    # --- what is read ---

    async def run(self) -> None:
        """Sample until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                settings = self._settings()
                if not settings.black_box and settings.metrics_address is None:  # nobody would see it
                    await next_beat(_STILL_SECONDS)
                    continue
                self._poked = trio.Event()
                self._begin_looking(nursery)  # first: a victim may be dead in a moment
                pause_seconds = await self.sample()
                if not settings.black_box:  # the page of the last hour alone
                    pause_seconds = max(pause_seconds, _STILL_SECONDS)
                self._begin_looking(nursery)
                with trio.move_on_at(beat_seconds(pause_seconds)):
                    await self._poked.wait()

    async def sample(self) -> float:
        """Read what there is to read now; return for how long to pause."""
        observed = self._observe()
        now_seconds = self._clock_seconds()
        node = observed.get(Signal.MEMORY_AVAILABLE)
        if node is None or node.absurdity is not None:
            return _CALM_SECONDS
        last = self.fine.last
        near = now_seconds < self._near_until_seconds
        pause_seconds = pause(node, last, self._left_bytes(observed), now_seconds, is_near=near)
        self._is_moving = pause_seconds < _CALM_SECONDS and has_moved(node, last)
        changes: Mapping[str, int] = {}
        if pause_seconds < _CALM_SECONDS or last is None or self._has_gone():
            changes = await self._changes(node.capacity, is_first=last is None)
            near_limits = tuple(self._near_own_limit(changes, last))
            if near_limits:
                self.want_processes(near_limits)
                pause_seconds = min(pause_seconds, _NEAR_SECONDS)
            if pause_seconds <= _NEAR_SECONDS:
                self.want_processes(self._growers(changes))
        sample = Sample(
            at_seconds=self._clock_seconds(),
            available_bytes=node.available,
            capacity_bytes=node.capacity,
            swap_free_bytes=self._swap_free_bytes(),
            pods=changes,
        )
        self._recorded.update(changes)
        self._recorded = {uid: used for uid, used in self._recorded.items() if used}
        self.fine.take(sample)
        self.hour.take(sample)
        return pause_seconds

    def _observe(self) -> Mapping[Signal, Observation]:
        settings = self._settings()
        if self._observer is None or self._observed_for is not settings:
            if self._observer is not None:
                self._observer.close()
            self._observer = NodeObserver(self._known_tree(), settings, proc=self._proc)
            self._observed_for = settings
        return self._observer.memory()

    def _left_bytes(self, observed: Mapping[Signal, Observation]) -> int | None:
        """Return how much is left until the nearest memory threshold that is not met, None without one."""
        left = [
            seen.available - int(one.value.of(seen.capacity))
            for one in self._settings().eviction.thresholds
            if one.signal in MEMORY_SIGNALS
            and (seen := observed.get(one.signal)) is not None
            and not one.is_absurd_at(seen.capacity)
        ]
        return min((one for one in left if one >= 0), default=min(left, default=None))

    def _swap_free_bytes(self) -> int | None:
        with suppress(OSError, ReactorError):
            swap = machine_swap(self._proc)
            return swap.free_bytes if swap.total_bytes else None
        return None

    def _has_gone(self) -> bool:
        return any(uid in self._recorded for uid in self._gone)

    async def _changes(self, capacity_bytes: int, *, is_first: bool) -> dict[str, int]:
        """Return the working sets of the pods whose usage has changed most; 0 for one that is gone."""
        usages: dict[str, int] = {}
        for number, (uid, pod) in enumerate(tuple(self.pods.items()), 1):
            if number % _PODS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            if uid not in self._gone:
                with suppress(OSError, ReactorError):
                    usages[uid] = self._usage_bytes(pod)
        if self._oom_kills is None:
            self._oom_kills = PodOomKills(self._known_tree(), proc=self._proc)
            self._oom_kills.recount(self._present())
        found = dict.fromkeys(self._recorded.keys() - usages.keys(), 0)
        self._usages = {uid: used for uid, used in self._usages.items() if uid in usages}
        most = len(usages) if is_first else MOST_CHANGES
        least_bytes = 1 if is_first else least_change_bytes(capacity_bytes)
        changed = largest_changes(self._usages, usages, least_bytes, most)
        short = (uid for uid, used in usages.items() if self._is_short(uid, used, least_bytes))
        for uid in tuple(dict.fromkeys((*changed, *short)))[:most]:
            with suppress(OSError, ReactorError):
                found[uid] = max(0, usages[uid] - self._kinds(self.pods[uid]).inactive_file_bytes)
                self._usages[uid] = usages[uid]
        return found

    def _is_short(self, uid: str, usage_bytes: int, least_bytes: int) -> bool:
        """Return whether the known kinds are less than half of a pod's usage: they may be counted late."""
        known_bytes = self.held[uid].kinds.charged_bytes if uid in self.held else usage_bytes
        return usage_bytes - known_bytes > max(known_bytes, least_bytes)

    def _usage_bytes(self, pod: KnownPod) -> int:
        """Return what is charged to a pod; its file's path is remembered, since to make it costs as much."""
        path = self._usage_paths.get(pod.uid)
        if path is None:
            tree = self._known_tree()
            name = "memory.current" if tree.version is CgroupVersion.V2 else "memory.usage_in_bytes"
            path = self._usage_paths[pod.uid] = f"{tree.path(pod.cgroup)}/{name}"
        return parse_integer(read_value(path), path)

    def _kinds(self, pod: KnownPod, *, is_ordered: bool = False) -> MemoryKinds:
        """Return what kinds of memory a pod holds now; of one that loses them `held` keeps the most."""
        kinds, now_seconds = MemoryKinds.of(self._known_tree(), pod.cgroup), self._clock_seconds()
        held = self.held.get(pod.uid)
        if held is None or now_seconds - held.lost_at_seconds > FINE_SECONDS:
            held = Held(now_seconds, kinds)
        has_lost = kinds.working_set_bytes * 2 < held.kinds.working_set_bytes
        lost_at_seconds = min(held.lost_at_seconds, now_seconds if is_ordered or has_lost else math.inf)
        if lost_at_seconds == math.inf or kinds.working_set_bytes > held.kinds.working_set_bytes:
            held = Held(now_seconds, kinds)
        self.held[pod.uid] = held._replace(lost_at_seconds=lost_at_seconds)
        return kinds

    def _known_tree(self) -> CgroupTree:
        self._tree = self._tree or CgroupTree.discover()
        return self._tree

    # --- whose processes are looked at ---

    def _growers(self, changes: Mapping[str, int]) -> list[KnownPod]:
        """Return the pods that have grown most since the last time, the first one first."""
        grown = {uid: used for uid, used in changes.items() if used > self._recorded.get(uid, 0)}
        first = largest_changes(self._recorded, grown, 1, _PROCESSES_OF)
        return [self.pods[uid] for uid in first if uid in self.pods]

    def _near_own_limit(self, changes: Mapping[str, int], last: Sample | None) -> Iterator[KnownPod]:
        """Yield the pods that grow and reach a limit of their own or of a container's within seconds."""
        if last is None:
            return
        passed_seconds = max(self._clock_seconds() - last.at_seconds, 1e-3)
        for uid, used in changes.items():
            pod, grown = self.pods.get(uid), used - self._recorded.get(uid, 0)
            limit_bytes = None if pod is None or grown <= 0 else self._limit_bytes(pod)
            if pod is None or limit_bytes is None:
                continue
            soon_bytes = used + grown / passed_seconds * _SOON_SECONDS / 10
            if used >= limit_bytes * _LIMIT_SHARE or soon_bytes >= limit_bytes:
                yield pod

    def _limit_bytes(self, pod: KnownPod) -> int | None:
        """Return the least limit of a pod and its containers, as read within half a minute."""
        now_seconds = self._clock_seconds()
        known = self._limits.get(pod.uid)
        if known is not None and now_seconds - known[0] < _LIMITS_GOOD_SECONDS:
            return known[1]
        limits: list[int] = []
        tree = self._known_tree()
        with suppress(OSError, ReactorError):
            children = tree.children(pod.cgroup)[:_PODS_AT_ONCE]
            for cgroup in (pod.cgroup, *(f"{pod.cgroup}/{name}" for name in children)):
                limit_bytes = tree.memory_limit_bytes(cgroup)
                limits += [] if limit_bytes is None else [limit_bytes]
        self._limits[pod.uid] = (now_seconds, min(limits, default=None))
        return self._limits[pod.uid][1]

    @property
    def problem(self) -> str | None:
        """Return that a look at processes hangs, None if none does."""
        since_seconds = self._looking_since_seconds
        if since_seconds is None or self._clock_seconds() - since_seconds < _THREAD_SECONDS:
            return None
        return "the look at a pod's processes hangs: no more are looked at until it is over"

    def _begin_looking(self, nursery: trio.Nursery) -> None:
        """Look at the processes that are asked for. While one thread hangs no other is begun."""
        if self._wanted and self._looking_since_seconds is None:
            self._looking_since_seconds = self._clock_seconds()
            wanted, self._wanted = tuple(self._wanted.values()), {}
            nursery.start_soon(self._look, wanted)

    async def _look(self, pods: Iterable[KnownPod]) -> None:
        tree = self._known_tree()
        began = False

        def look() -> None:
            nonlocal began
            began = True
            try:
                for pod in pods:
                    with suppress(OSError, ReactorError):
                        found = largest_processes(tree, pod.cgroup, proc=self._proc)
                        if found.processes or pod.uid not in self.seen:
                            self.seen[pod.uid] = found
            finally:
                self._looking_since_seconds = None

        try:
            with trio.move_on_after(_THREAD_SECONDS):
                await in_thread(look, abandon_on_cancel=True)
        finally:
            if not began:  # no thread could be had
                self._looking_since_seconds = None
        while len(self.seen) > _MOST_SEEN:
            del self.seen[next(iter(self.seen))]


def has_moved(node: Observation, last: Sample | None) -> bool:
    """Return whether what is available differs from the last sample by enough to be looked at."""
    return last is not None and abs(last.available_bytes - node.available) >= least_change_bytes(
        node.capacity
    )


def pause(
    node: Observation, last: Sample | None, left_bytes: int | None, now_seconds: float, *, is_near: bool
) -> float:
    """Return for how long to pause after this observation.

    `left_bytes` is how much is left until the nearest threshold; `is_near` says that the guard has said so.
    Whatever stands still is calm: a node may stay near a threshold for days, and the guard says when it
    comes near.
    """
    if not has_moved(node, last) or last is None:
        return _MOVING_SECONDS if is_near else _CALM_SECONDS
    passed_seconds = max(now_seconds - last.at_seconds, 1e-3)
    per_second = (last.available_bytes - node.available) / passed_seconds
    soon_seconds = math.inf
    if left_bytes is not None and left_bytes >= 0 and per_second > 0:
        soon_seconds = left_bytes / per_second
    if is_near or soon_seconds < _SOON_SECONDS / 10:
        return _NEAR_SECONDS
    is_fast = abs(per_second) * _STILL_SECONDS * _MOVED_SHARE >= node.capacity
    return _MOVING_SECONDS if is_fast or soon_seconds < _SOON_SECONDS else _CALM_SECONDS
