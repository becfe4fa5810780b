"""Samples are taken while memory is short and at no other time; a pass is asked for when it is due."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from reactor.model.decisions import Eviction, PolicyState, Snapshot, TimeLeft, Wait
from reactor.model.pods import PodUsage
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Resource, Signal
from reactor.model.thresholds import Observation, ThresholdValue
from reactor.model.wakes import Wake
from reactor.time_left.watch import Needs, TimeLeftWatch
from tests.support.builders import MIB, make_claim, make_observation, make_pod, make_threshold

MEMORY = Signal.MEMORY_AVAILABLE
SOFT = make_threshold(300 * MIB, grace_period_seconds=30)
HARD = make_threshold(100 * MIB)
SETTINGS = EvictionSettings(thresholds=(HARD, SOFT), max_pod_grace_period_seconds=20, soft_in_time=True)


@dataclass
class Shown:
    """A node whose available memory falls at a rate from a moment on."""

    settings: EvictionSettings = SETTINGS
    within: ThresholdValue | None = None
    mib_per_second: float = 0.0
    since: float = 0.0
    start_mib: float = 299.0
    state: PolicyState = field(default_factory=PolicyState)
    sampled: list[float] = field(default_factory=list)
    lefts: list[Mapping[Signal, TimeLeft]] = field(default_factory=list)
    wakes: list[Wake] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.watch = TimeLeftWatch(
            self.settings,
            state=lambda: self.state,
            observe=self.observe,
            held_bytes=self.held.get,
            report=self.lefts.append,
            wake=self.wakes.append,
            needs=Needs(),
            within=self.within,
            clock_seconds=trio.current_time,
        )

    def observe(self) -> Mapping[Signal, Observation]:
        self.sampled.append(trio.current_time())
        return self.seen()

    def seen(self) -> Mapping[Signal, Observation]:
        fallen = self.mib_per_second * max(0.0, trio.current_time() - self.since)
        return {MEMORY: make_observation(max(0, int((self.start_mib - fallen) * MIB)))}

    def fall(self, mib_per_second: float, start_mib: float = 299.0) -> None:
        """Begin to fall, and have a pass find it."""
        self.mib_per_second, self.since, self.start_mib = mib_per_second, trio.current_time(), start_mib
        self.state = PolicyState(first_observed={SOFT: trio.current_time()})
        self.watch.passed(Snapshot(signals=self.seen()), ())

    def evict(self, mib: int, name: str = "a") -> None:
        """Have a pass order the eviction of a pod that holds so much."""
        pod = make_pod(name)
        self.held[pod.uid] = mib * MIB
        used = {pod.uid: PodUsage(memory_working_set_bytes=mib * MIB)}
        eviction = Eviction(pod, MEMORY, Resource.MEMORY, 1, threshold=SOFT)
        self.state = self.state._replace(claims=(make_claim(pod.uid),))
        self.watch.passed(Snapshot(signals=self.seen(), pods=used), (eviction,))

    def free(self, mib: int) -> None:
        """Have it give back so much, and be gone."""
        self.start_mib += mib
        self.held.clear()
        self.state = self.state._replace(claims=())

    def seconds(self) -> list[float | None]:
        return [one[MEMORY].seconds for one in self.lefts if MEMORY in one]


async def test_an_idle_node_is_not_sampled(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """Not before a pass finds memory short, and not after it is so no more."""
    del autojump_clock
    shown = Shown(start_mib=400)
    nursery.start_soon(shown.watch.run)
    await trio.sleep(100)
    assert len(shown.sampled) == 1
    shown.watch.passed(Snapshot(signals=shown.seen()), ())
    await trio.sleep(100)
    assert len(shown.sampled) == 1
    shown.fall(0.1)
    await trio.sleep(100)
    assert len(shown.sampled) > 100
    shown.start_mib, shown.mib_per_second = 400, 0
    await trio.sleep(1)
    before = len(shown.sampled)
    await trio.sleep(100)
    assert len(shown.sampled) == before
    assert shown.lefts[-1] == {}
    nursery.cancel_scope.cancel()


async def test_samples_are_four_to_ten_a_second(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    del autojump_clock
    for rate in (0.0, 0.5, 5.0, 100.0):
        shown = Shown()
        nursery.start_soon(shown.watch.run)
        await wait_all_tasks_blocked()
        shown.fall(rate)
        shown.sampled.clear()
        await trio.sleep(10)
        assert 40 <= len(shown.sampled) <= 101, rate
    nursery.cancel_scope.cancel()


async def test_a_pass_is_asked_for_once_the_crossing_comes_before_the_grace_period_is_over(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    del autojump_clock
    shown = Shown()
    nursery.start_soon(shown.watch.run)
    shown.fall(20.0)  # 10 s
    await trio.sleep(5)
    assert shown.wakes
    left = shown.lefts[-1][MEMORY]
    assert left.earliest_seconds is not None
    assert left.latest_seconds is not None
    assert left.earliest_seconds <= 5 <= left.latest_seconds
    # Once the policy has taken it over, nothing more is asked for.
    shown.state = shown.state._replace(thresholds_met=(SOFT,))
    before = len(shown.wakes)
    await trio.sleep(2)
    assert len(shown.wakes) == before
    nursery.cancel_scope.cancel()


async def test_a_sample_is_taken_when_no_more_time_is_left_than_a_pod_needs(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """A tenth of a second later a pod that needs a second would have a tenth of it too little."""
    del autojump_clock
    shown = Shown()
    nursery.start_soon(shown.watch.run)
    shown.fall(20.0)  # 10 s
    wait = Wait(threshold=SOFT, uid="hog", needed_seconds=1.0, at_seconds=0.0, until_seconds=math.inf)
    shown.state = shown.state._replace(waits=(wait,))
    await trio.sleep(10)
    assert shown.wakes
    earliest = [one[MEMORY].earliest_seconds for one in shown.lefts if MEMORY in one]
    assert 0.97 < next(one for one in earliest if one is not None and one <= 1.0)
    nursery.cancel_scope.cancel()


async def test_no_pass_is_asked_for_that_would_do_nothing(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """Upstream's way, a fall that takes longer than the grace period, and one that stops."""
    del autojump_clock
    for settings, rate in ((replace(SETTINGS, soft_in_time=False), 20.0), (SETTINGS, 2.0), (SETTINGS, 0.0)):
        shown = Shown(settings=settings)
        nursery.start_soon(shown.watch.run)
        shown.fall(rate)
        await trio.sleep(5)
        assert len(shown.sampled) > 10
        assert shown.wakes == []
    nursery.cancel_scope.cancel()


async def test_a_forecast_says_for_how_long_it_has_held(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    del autojump_clock
    shown = Shown()
    nursery.start_soon(shown.watch.run)
    shown.fall(20.0)
    await trio.sleep(5)
    lefts = [one[MEMORY] for one in shown.lefts if MEMORY in one]
    gap = max(place for place, one in enumerate(lefts) if one.seconds is None)
    first = lefts[gap + 1]
    assert first.held_seconds == 0
    assert lefts[-1].held_seconds == lefts[-1].at_seconds - first.at_seconds > 1
    shown.start_mib, shown.mib_per_second = 250, 0.0
    await trio.sleep(2)
    assert shown.lefts[-1][MEMORY].held_seconds == 0
    nursery.cancel_scope.cancel()


async def test_sampling_begins_at_the_configured_distance(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    del autojump_clock
    within = ThresholdValue(text="350Mi", amount=Fraction(350 * MIB))
    shown = Shown(settings=replace(SETTINGS, thresholds=(HARD,)), within=within)
    nursery.start_soon(shown.watch.run)
    shown.fall(10.0, 460)
    await trio.sleep(5)
    assert len(shown.sampled) == 1
    shown.fall(50.0, 440)
    await trio.sleep(5)
    assert any(seconds is not None for seconds in shown.seconds())
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("ends_after_seconds", [0.01, 0.35])
async def test_what_an_evicted_pod_is_to_free_counts_from_the_start_and_the_fall_goes_on(
    autojump_clock: MockClock, nursery: trio.Nursery, ends_after_seconds: float
) -> None:
    """Also if it has ended before the next sample: else its memory would look like a fall that came back."""
    del autojump_clock
    shown = Shown()
    nursery.start_soon(shown.watch.run)
    shown.fall(40.0)
    await trio.sleep(3)
    left_seconds, before = shown.seconds()[-1], len(shown.lefts)
    shown.evict(60)
    await trio.sleep(ends_after_seconds)
    shown.free(60)
    await trio.sleep(1 - ends_after_seconds)
    after = [one[MEMORY] for one in shown.lefts[before:]]
    assert len(after) > 5
    assert left_seconds is not None
    expected = [left_seconds + 60 / 40 - (one.at_seconds - 3) for one in after]
    assert expected == pytest.approx([one.seconds for one in after], abs=0.2)
    nursery.cancel_scope.cancel()


async def test_what_an_evicted_pod_does_not_free_counts_no_longer_once_it_is_not_awaited(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """It is asked to end, and killed before it has; what it leaves is no fall."""
    del autojump_clock
    shown = Shown()
    nursery.start_soon(shown.watch.run)
    shown.fall(20.0)
    await trio.sleep(4)
    shown.evict(60)
    await trio.sleep(0.3)
    shown.evict(60)
    await trio.sleep(0.3)
    shown.free(20)
    shown.held["uid-a"] = 40 * MIB
    await trio.sleep(0.5)
    last = shown.lefts[-1][MEMORY]
    assert (199 + 20 - 20 * last.at_seconds) / 20 == pytest.approx(last.seconds, abs=0.2)
    nursery.cancel_scope.cancel()


async def test_a_victim_of_which_nothing_is_known_begins_the_samples_anew(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """What comes back of it is no sawtooth: the next fall is foreseen as the first one was."""
    del autojump_clock
    shown = Shown()
    nursery.start_soon(shown.watch.run)
    shown.fall(40.0)
    await trio.sleep(3)
    assert shown.seconds()[-1] is not None
    shown.state = shown.state._replace(claims=(make_claim(),))
    await trio.sleep(0.3)
    shown.start_mib, shown.since = 280, trio.current_time()
    shown.state = shown.state._replace(claims=())
    await trio.sleep(0.3)
    assert shown.seconds()[-1] is None
    await trio.sleep(3)
    assert shown.seconds()[-1] is not None
    nursery.cancel_scope.cancel()


async def test_absurd_numbers_give_no_time(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    del autojump_clock
    shown = Shown()
    nursery.start_soon(shown.watch.run)
    shown.fall(40.0)
    await trio.sleep(2)
    assert shown.seconds()[-1] is not None
    shown.start_mib = math.inf
    shown.seen = lambda: {MEMORY: make_observation(700 * MIB)}  # type: ignore[method-assign]
    await trio.sleep(1)
    assert shown.lefts[-1] == {}
    nursery.cancel_scope.cancel()


async def test_victims_that_are_gone_are_not_kept_while_others_are_waited_for(
    autojump_clock: MockClock,
) -> None:
    """As with pods that die one after the other under names of their own, each while another still does."""
    del autojump_clock
    shown = Shown()
    shown.fall(1.0)
    shown.watch.sample()
    for generation in range(100):
        shown.evict(10, f"pod-{generation}")
        shown.held.pop(f"uid-pod-{generation - 1}", None)
        await trio.sleep(0.1)
        shown.watch.sample()
    assert len(shown.watch._victims) <= 2
