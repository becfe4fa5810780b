"""`python -m tests.soak.simulated`: the falls of `make soak IN_TIME=1`, thousands of them, simulated.

Rules, pods and falls are drawn as in the soak. The guard's watch samples, its policy decides and learns how
long pods take to end; memory and clock are simulated. A pod that is asked to end takes no more, and holds
what it has until its state is saved. The figures are by how much of the time between the thresholds the pod
needs, since that is the operator's choice.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import Pool
from pathlib import Path
from typing import Final

from reactor.model.decisions import Eviction, PolicyState, Snapshot, TimeLeft
from reactor.model.pods import Pod, PodUsage
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Resource, Signal
from reactor.model.thresholds import Observation
from reactor.policy.decide import decide
from reactor.policy.events import EndingObserved, EvictionOrdered, PodEmptied, PodEnded, apply
from reactor.time_left.watch import Needs, TimeLeftWatch
from tests.soak.falls import MIB, End, FallPlan, Growth, Need, growths, need
from tests.soak.oracle import PAUSE_NS, place
from tests.soak.plan import BEFORE_FALL_BYTES, MANIFESTED, Draw, PodPlan
from tests.support.builders import make_threshold

_MEMORY: Final = Signal.MEMORY_AVAILABLE
_FALLS_A_ROUND: Final = 25
_STEP_SECONDS: Final = 0.004
_LATE_SECONDS: Final = (0.0, 0.03)  # a sample, on a busy machine
_NOISE_BYTES: Final = MIB // 10
_PASS_SECONDS: Final = 1.0
_HARD_PASS_SECONDS: Final = 0.02
_OVER_SECONDS: Final = 1.5
_REST_SECONDS: Final = 3.0
_MOST_SECONDS: Final = 20
_BINS: Final = (1 / 8, 1 / 4, 1 / 2, math.inf)
_NAMES: Final = ("up to 1/8", "1/8 to 1/4", "1/4 to 1/2", "more than 1/2")


@dataclass(slots=True, kw_only=True)
class Evicted:
    """A pod that was evicted. `need` is of one that only the forecast caused.

    `is_too_late`: without it the fall would have left the pod no more time than it needs.
    """

    needs_seconds: float
    way_seconds: float
    is_hard: bool
    need: Need | None = None
    is_too_late: bool = False
    saved: bool = False


@dataclass(slots=True, kw_only=True)
class _Live:
    """A pod, what it grows, and what becomes of it."""

    plan: PodPlan
    pod: Pod
    size_bytes: int
    growths: Sequence[Growth] = ()
    asked_seconds: float = math.inf
    kill_seconds: float = math.inf

    def held_bytes(self, at_seconds: float) -> int:
        at_ns = int(min(at_seconds, self.asked_seconds) * 1e9)
        return self.size_bytes + int(sum(one.until(at_ns) for one in self.growths))


@dataclass(eq=False)
class _World:
    """A virtual node, its pods, clock and guard."""

    draw: Draw
    late: random.Random
    now_seconds: float = 1000.0
    endings: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    pods: dict[str, _Live] = field(default_factory=dict)
    evicted: list[Evicted] = field(default_factory=list)
    going: list[tuple[_Live, Evicted]] = field(default_factory=list)
    uids: int = 0
    still_bytes: int | None = None  # what pods hold that don't grow; None: it may have changed
    growing: Sequence[_Live] = ()
    lefts: Mapping[Signal, TimeLeft] = field(default_factory=dict)
    next_pass_seconds: float = 0.0

    def begin(self) -> None:
        """Have other pods below other rules; what is known of endings stays."""
        rules = self.rules = self.draw.rules()
        assert rules.soft_bytes is not None
        self.soft_bytes, self.grace_seconds = rules.soft_bytes, rules.soft_grace_ns / 1e9
        self.soft = make_threshold(self.soft_bytes, grace_period_seconds=self.grace_seconds)
        self.settings = EvictionSettings(
            thresholds=(make_threshold(rules.hard_bytes), self.soft),
            max_pod_grace_period_seconds=_MOST_SECONDS,
            soft_in_time=True,
            unhelpful_eviction_pause_seconds=PAUSE_NS / 1e9,
        )
        self.state = PolicyState(endings=self.endings)
        self.pods.clear()
        self.going.clear()
        for plan in self.draw.pods(rules):
            self.add(plan)
        self.watch = TimeLeftWatch(
            self.settings,
            state=lambda: self.state,
            observe=self.observe,
            held_bytes=lambda uid: next(
                (one.held_bytes(self.now_seconds) for one in self.pods.values() if one.pod.uid == uid), None
            ),
            report=self.take_over,
            wake=lambda _: self.make_pass(),
            needs=Needs(),
            clock_seconds=lambda: self.now_seconds,
        )

    def add(self, plan: PodPlan) -> None:
        self.uids += 1
        pod = Pod(
            name=plan.name,
            namespace="default",
            uid=str(self.uids),
            priority=plan.spec.priority,
            critical_because="never" if plan.spec.is_critical else None,
            requests={Resource.MEMORY: plan.spec.request_bytes},
        )
        self.pods.setdefault(plan.name, _Live(plan=plan, pod=pod, size_bytes=plan.size_bytes + MIB // 2))
        self.still_bytes = None

    def take_over(self, lefts: Mapping[Signal, TimeLeft]) -> None:
        self.lefts = lefts

    def available_bytes(self) -> int:
        if self.still_bytes is None:  # there is a step each 4 ms
            pods = self.pods.values()
            self.still_bytes = sum(one.held_bytes(self.now_seconds) for one in pods if not one.growths)
            self.growing = [one for one in pods if one.growths]
        growing_bytes = sum(one.held_bytes(self.now_seconds) for one in self.growing)
        return self.rules.capacity_bytes - self.still_bytes - growing_bytes

    def observe(self) -> Mapping[Signal, Observation]:
        available_bytes = self.available_bytes() - self.late.randrange(_NOISE_BYTES)
        capacity_bytes = self.rules.capacity_bytes
        return {_MEMORY: Observation(available=max(0, available_bytes), capacity=capacity_bytes)}

    def make_pass(self) -> None:
        now_seconds, by_uid = self.now_seconds, {one.pod.uid: one for one in self.pods.values()}
        used = {
            uid: PodUsage(memory_working_set_bytes=one.held_bytes(now_seconds)) for uid, one in by_uid.items()
        }
        snapshot = Snapshot(signals=self.observe(), pods=used, time_left=self.lefts)
        pods = tuple(one.pod for one in by_uid.values())
        self.state, decision = decide(self.settings, self.state, snapshot, pods, now_seconds)
        for eviction in decision.evictions:
            self.evict(by_uid[eviction.pod.uid], eviction)
            ordered = EvictionOrdered(
                eviction=eviction,
                snapshot=snapshot,
                pods=pods,
                held_bytes=used[eviction.pod.uid].memory_working_set_bytes,
            )
            self.state = apply(self.settings, self.state, ordered, now_seconds)
        self.watch.passed(snapshot, decision.evictions)
        over_seconds = self.state.first_observed.get(self.soft, math.inf) + self.grace_seconds
        is_hard = any(one.is_hard for one in self.state.first_observed)
        again_seconds = now_seconds + (_HARD_PASS_SECONDS if is_hard else _PASS_SECONDS)
        self.next_pass_seconds = (
            again_seconds if now_seconds >= over_seconds else min(again_seconds, over_seconds)
        )

    def evict(self, one: _Live, eviction: Eviction) -> None:
        if all(one is not other for other, _ in self.going):
            found = self.judged(one, eviction)
            self.evicted.append(found)
            self.going.append((one, found))
            one.asked_seconds = self.now_seconds
        one.kill_seconds = min(one.kill_seconds, self.now_seconds + eviction.grace_period_seconds + 0.002)

    def judged(self, one: _Live, eviction: Eviction) -> Evicted:
        """Return an eviction with what it was; what those that go hold counts as available."""
        is_hard = eviction.threshold is not None and eviction.threshold.is_hard
        found = Evicted(
            needs_seconds=one.plan.save_seconds, way_seconds=self.fall.way_seconds, is_hard=is_hard
        )
        until_seconds = self.state.first_observed.get(self.soft, -math.inf) + self.grace_seconds
        if is_hard or self.now_seconds >= until_seconds:
            return found
        going = [other for other, _ in self.going]
        left_bytes = self.available_bytes() + sum(other.held_bytes(self.now_seconds) for other in going)
        growing = [growth for other in self.growing if other not in going for growth in other.growths]
        way_bytes = self.soft_bytes - self.rules.hard_bytes
        needed_bytes = int(way_bytes * one.plan.save_seconds / self.fall.way_seconds)

        def with_hard(hard_bytes: int) -> Need:
            """Return what it was, had the hard threshold been there."""
            return need(
                growing,
                int(self.now_seconds * 1e9),
                left_bytes,
                int(until_seconds * 1e9),
                soft_bytes=self.soft_bytes,
                hard_bytes=hard_bytes,
            )

        found.need = with_hard(self.rules.hard_bytes)
        found.is_too_late = with_hard(self.rules.hard_bytes + needed_bytes) is Need.NEEDED
        return found

    def end(self, one: _Live, evicted: Evicted) -> None:
        """Have a pod end that was asked to, or killed."""
        ends_seconds = one.asked_seconds + one.plan.save_seconds
        evicted.saved = not evicted.is_hard and ends_seconds <= one.kill_seconds
        del self.pods[one.plan.name]
        self.going.remove((one, evicted))
        self.still_bytes = None
        if not evicted.is_hard:
            seconds = self.now_seconds - one.asked_seconds
            ending = EndingObserved(pod=one.pod, seconds=seconds, was_cut=not evicted.saved)
            self.state = apply(self.settings, self.state, ending, self.now_seconds)
        for event in (PodEmptied(uid=one.pod.uid), PodEnded(uid=one.pod.uid)):
            self.state = apply(self.settings, self.state, event, self.now_seconds)
        self.make_pass()
        name = one.plan.name if one.plan.name in MANIFESTED or self.draw.seconds(1) < 0.5 else None
        self.coming.append(self.draw.pod(one.plan.size_bytes, name=name, may_be_kept=False))

    def next_fall(self) -> FallPlan | None:
        """Have a fall happen, if one is drawn, and return it."""
        free = {name: one for name, one in self.pods.items() if not one.plan.spec.is_critical}
        first = min(free, key=lambda name: place(free[name].plan.spec, free[name].size_bytes), default=None)
        plan = self.draw.fall(sorted(free), self.rules, first=first) if first is not None else None
        if plan is None or plan.fall is None:
            return None
        self.fall = plan.fall
        hog = self.pods[self.fall.name]
        hog.size_bytes += max(0, self.available_bytes() - self.soft_bytes - BEFORE_FALL_BYTES)
        hog.growths = list(growths(0, self.fall.orders, int(self.now_seconds * 1e9)))
        self.still_bytes = None
        self.coming: list[PodPlan] = []
        self.follow(max(one.ended_ns for one in hog.growths) / 1e9)
        for one in [hog, *(one for one, _ in self.going)]:  # those that are still there
            if self.pods.pop(one.plan.name, None) is not None:
                self.coming.append(self.draw.pod(one.plan.size_bytes, may_be_kept=False))
        self.going.clear()
        for new in self.coming:
            self.add(new)
        self.now_seconds += _REST_SECONDS
        self.make_pass()
        self.watch.sample()
        return self.fall

    def follow(self, grown_seconds: float) -> None:
        """Let the time pass until all is taken, nobody goes any more, and the node has room again."""
        sample_seconds, before = math.inf, (False, False)
        while self.now_seconds < grown_seconds + self.grace_seconds + _OVER_SECONDS:
            available_bytes = self.available_bytes()
            met = available_bytes < self.soft_bytes, available_bytes < self.rules.hard_bytes
            if met != before or self.now_seconds >= self.next_pass_seconds:
                self.make_pass()
                before, sample_seconds = met, min(sample_seconds, self.now_seconds)
            for one, evicted in tuple(self.going):
                if self.now_seconds >= min(one.asked_seconds + one.plan.save_seconds, one.kill_seconds):
                    self.end(one, evicted)
            if self.now_seconds >= sample_seconds:
                sample_seconds = self.now_seconds + self.watch.sample() + self.late.uniform(*_LATE_SECONDS)
            is_grown = self.now_seconds > grown_seconds or self.fall.name not in self.pods
            if is_grown and not self.going and not met[0]:
                return
            self.now_seconds += _STEP_SECONDS


def falls(seed: int) -> Iterator[tuple[FallPlan, Sequence[Evicted]]]:
    """Yield falls, with who was evicted, as a soak of that seed might have them; without an end."""
    world = _World(Draw(seed, in_time=True), random.Random(seed))
    while True:
        world.begin()
        for _ in range(_FALLS_A_ROUND):
            world.evicted = []
            fall = world.next_fall()
            if fall is not None:
                yield fall, world.evicted
            if world.available_bytes() < world.soft_bytes:
                break
        world.endings = world.state.endings


def summary(found: Sequence[tuple[FallPlan, Sequence[Evicted]]]) -> dict[str, dict[str, int]]:
    """Return the figures of all, and by what a pod needs of the time between the thresholds.

    `could_save` are first victims of falls that cross which had twice the time, or of the last row more
    than once that.
    """
    rows: dict[str, Counter[str]] = {name: Counter() for name in (*_NAMES, "all")}
    for fall, evicted in found:
        for number, one in enumerate(evicted):
            share = one.needs_seconds / one.way_seconds
            is_first = number == 0 and fall.end is End.CROSSES and 0 < share < 1
            is_vain = one.need is Need.IN_VAIN
            for row in (rows[_NAMES[bisect_left(_BINS, share)]], rows["all"]):
                row["evictions"] += 1
                row["in_time"] += one.need is not None
                row["in_vain"] += is_vain
                row["in_vain_too_late_to_know"] += is_vain and one.is_too_late
                if is_first and (share <= _BINS[-2] or row is not rows["all"]):
                    row["could_save"] += 1
                    row["saved"] += one.saved
    return {name: {"falls": len(found), **row} for name, row in rows.items()}


def table(found: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return the figures as a table in Markdown."""
    lines = ["| needs of the time | in time | in vain | too late to know | saved |", "|---|--:|--:|--:|--:|"]
    for name, row in found.items():
        vain, late = (_share(row[key], row["in_time"]) for key in ("in_vain", "in_vain_too_late_to_know"))
        lines.append(
            f"| {name} | {row['in_time']} | {vain} | {late} | {_share(row['saved'], row['could_save'])} |"
        )
    return lines


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def first_falls(seed: int, count: int) -> list[tuple[FallPlan, Sequence[Evicted]]]:
    return list(islice(falls(seed), count))


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, and print the figures as a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.simulated", description=__doc__)
    parser.add_argument("--seeds", type=int, default=16, help="how many (16)")
    parser.add_argument("--falls", type=int, default=300, help="of each, as many as 17 minutes have (300)")
    parser.add_argument("--out", type=Path, help="the file for the figures, JSON")
    asked = parser.parse_args(arguments)
    with Pool() as pool:
        each = pool.starmap(first_falls, [(seed, asked.falls) for seed in range(asked.seeds)])
    found = summary([one for some in each for one in some])
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(table(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
