"""Evictions for a full filesystem or process ids: on what is true when they are decided, and if they help."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from reactor.model.decisions import Decision, Eviction, Inputs, PolicyState, Snapshot
from reactor.model.kills import Slowdown, SlowReason
from reactor.model.pods import (
    ContainerUsage,
    FilesystemUsage,
    Pod,
    PodUsage,
    StorageKind,
    StoragePlace,
    Volume,
)
from reactor.model.rules import Firing
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Layout, LimitSignal, NodeCondition, Resource, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.decide import after_reclaim, decide
from reactor.policy.disks import freed, may_free
from reactor.policy.events import EvictionOrdered, apply
from reactor.policy.judged_evictions import unhelpful_pause_seconds, with_judged_eviction
from reactor.policy.rules import rule_holds
from reactor.policy.storm import is_newly_slowed

from . import strategies as draw
from .test_rules import make_rule

DISK = Threshold(signal=Signal.NODEFS_AVAILABLE, value=draw.amount(100))
IMAGES = replace(DISK, signal=Signal.IMAGEFS_AVAILABLE)
INODES = replace(DISK, signal=Signal.NODEFS_INODES_FREE)
MEMORY = Threshold(signal=Signal.MEMORY_AVAILABLE, value=draw.amount(100))
START = PolicyState()


def _settings(*thresholds: Threshold, **others: Any) -> EvictionSettings:
    return replace(
        EvictionSettings(
            thresholds=thresholds,
            in_flight_deadline_seconds=10.0,
            unhelpful_eviction_pause_seconds=10.0,
            rechecks_disks=True,
        ),
        **others,
    )


def _pod(name: str) -> Pod:
    return Pod(name=name, namespace="n", uid=name, volumes=(Volume(name="scratch", is_empty_dir=True),))


def _used(used_bytes: int, inodes: int = 5) -> PodUsage:
    return PodUsage(volumes={"scratch": FilesystemUsage(used_bytes=used_bytes, inodes_used=inodes)})


PODS = tuple(map(_pod, ("big", "small", "tiny")))
USED = {"big": _used(300), "small": _used(30), "tiny": _used(10)}


def _seen(used: dict[str, PodUsage] | None = None, **available: int) -> Snapshot:
    """Return a node with so much of each, by names such as nodefs."""
    signals = {
        "nodefs": Signal.NODEFS_AVAILABLE,
        "imagefs": Signal.IMAGEFS_AVAILABLE,
        "inodes": Signal.NODEFS_INODES_FREE,
        "memory": Signal.MEMORY_AVAILABLE,
        "pids": Signal.PID_AVAILABLE,
        "swap": Signal.SWAP_AVAILABLE,
    }
    return Snapshot(
        signals={
            signals[name]: Observation(available=amount, capacity=1000) for name, amount in available.items()
        },
        pods=USED if used is None else used,
    )


class _Node:
    """A node of which passes are made as the daemon makes them; `now` moves on by hand."""

    def __init__(self, settings: EvictionSettings, pods: tuple[Pod, ...] = PODS) -> None:
        self.settings = settings
        self.pods = pods
        self.state = START
        self.now = 0.0

    def ask(self, seen: Snapshot) -> Decision:
        self.state, decision = decide(self.settings, self.state, seen, self.pods, self.now)
        return decision

    def after(
        self, asked: Decision, before: Snapshot, after: Snapshot | None, *, seconds: float = 0.0
    ) -> Decision:
        self.now += seconds
        self.state, decision = after_reclaim(
            self.settings, self.state, asked, before, after, self.pods, self.now
        )
        for eviction in decision.evictions:
            self.order(eviction, before)
        return decision

    def order(self, eviction: Eviction, seen: Snapshot) -> None:
        self.state = apply(
            self.settings,
            self.state,
            EvictionOrdered(eviction=eviction, snapshot=seen, pods=self.pods),
            self.now,
        )

    def act(self, seen: Snapshot) -> Decision:
        """Make a pass over a disk that no reclaim helps."""
        asked = self.ask(seen)
        return self.after(asked, seen, seen) if asked.reclaim else asked

    def goes(self, seen: Snapshot) -> list[str]:
        return [eviction.pod.name for eviction in self.act(seen).evictions]

    def end(self, name: str) -> None:
        """Have a pod gone, and its eviction over."""
        self.pods = tuple(pod for pod in self.pods if pod.name != name)
        self.state = self.state._replace(claims=())


# After a reclaim


LEAK = Slowdown(
    signal=Signal.MEMORY_AVAILABLE,
    reason=SlowReason.OUTSIDE_PODS,
    since_seconds=0.0,
    until_seconds=60.0,
    message="a leak",
)


@pytest.mark.parametrize("rechecks", [True, False])
def test_no_pod_is_evicted_for_a_disk_that_a_reclaim_has_emptied_while_memory_is_deferred(
    *, rechecks: bool
) -> None:
    node = _Node(_settings(MEMORY, DISK, rechecks_disks=rechecks))
    node.state = START._replace(slowdowns=(LEAK,))
    asked = node.ask(_seen(nodefs=50, memory=50))
    assert ((), DISK) == (asked.evictions, asked.acted_on)
    after = node.after(asked, _seen(nodefs=50, memory=50), _seen(nodefs=600, memory=50))
    assert ((), ()) == (after.evictions, after.ranking)


def test_a_memory_threshold_that_was_not_deferred_counts_after_a_reclaim_as_upstream_has_it() -> None:
    soft = replace(MEMORY, grace_period_seconds=30.0)
    for rechecks, evicted in ((False, 1), (True, 0)):
        node = _Node(_settings(soft, DISK, rechecks_disks=rechecks))
        asked = node.ask(_seen(nodefs=50, memory=50))
        after = node.after(asked, _seen(nodefs=50, memory=50), _seen(nodefs=600, memory=50))
        assert evicted == len(after.evictions)


def test_a_signal_that_is_missing_after_a_reclaim_meets_no_threshold_and_others_count_as_upstream() -> None:
    soft = replace(MEMORY, grace_period_seconds=30.0)
    for rechecks, memory, evicted in ((False, 150, 0), (False, 50, 1), (True, 50, 0)):
        node = _Node(_settings(soft, DISK, rechecks_disks=rechecks))
        asked = node.ask(_seen(nodefs=50, memory=50))
        after = node.after(asked, _seen(nodefs=50, memory=50), _seen(memory=memory))
        assert evicted == len(after.evictions)


def test_no_pod_is_evicted_for_a_disk_that_can_not_be_rechecked() -> None:
    for after in (None, Snapshot()):
        node = _Node(_settings(DISK))
        asked = node.ask(_seen(nodefs=50))
        assert () == node.after(asked, _seen(nodefs=50), after).evictions


def test_what_a_storage_limit_evicted_during_the_reclaim_is_waited_for() -> None:
    node = _Node(_settings(DISK))
    short = _seen(nodefs=50)
    asked = node.ask(short)
    node.order(
        Eviction(
            pod=PODS[0],
            signal=LimitSignal.EMPTY_DIR,
            resource=Resource.EPHEMERAL_STORAGE,
            grace_period_seconds=0,
            message="",
        ),
        short,
    )
    after = node.after(asked, short, short, seconds=5.0)
    assert () == after.evictions
    assert str(after.deferred_because).startswith("nodefs.available<100: in flight: ")
    later = node.after(asked, short, short, seconds=11.0)  # beyond its deadline, in the next pass
    assert () == later.evictions
    node.now += 1
    assert ["small"] == node.goes(short._replace(pods={**USED, "big": _used(0)}))


def test_the_rate_is_asked_again_after_the_reclaim() -> None:
    node = _Node(_settings(DISK, evictions_per_minute=1))
    asked = node.ask(_seen(nodefs=50))
    node.now = 30.0
    node.state = node.state._replace(evicted_at=(29.0,))
    after = node.after(asked, _seen(nodefs=50), _seen(nodefs=50))
    assert () == after.evictions
    assert "rate: 1 evictions in the last minute" in str(after.deferred_because)
    assert 30.0 == after.at_seconds


def test_a_threshold_that_a_pass_meanwhile_found_fine_evicts_no_pod() -> None:
    node = _Node(_settings(replace(DISK, minimum_reclaim=draw.amount(50))))
    asked = node.ask(_seen(nodefs=50))
    node.now = 1.0
    node.ask(_seen(nodefs=500))
    assert () == node.after(asked, _seen(nodefs=50), _seen(nodefs=120)).evictions


def test_a_decision_by_its_own_time_is_that_of_the_pass_that_asked() -> None:
    short = _seen(nodefs=50)
    state, asked = decide(_settings(DISK), START, short, PODS, 7.0)
    _, after = after_reclaim(_settings(DISK), state, asked, short, short, PODS)
    assert (7.0, ["big"]) == (after.at_seconds, [one.pod.name for one in after.evictions])


STEPS = st.lists(
    st.tuples(draw.snapshots(), draw.snapshots(), draw.pods(), st.floats(0.1, 40.0)), min_size=1, max_size=5
)


@pytest.mark.slow
@examples(max_examples=min(60, examples().max_examples))  # each is up to five passes
@given(draw.settings, STEPS, st.none() | st.integers(1, 2), st.booleans())
def test_a_pod_goes_for_a_disk_only_if_that_is_short_then_and_nothing_keeps_it(
    drawn: EvictionSettings,
    steps: list[tuple[Snapshot, Snapshot, tuple[Pod, ...], float]],
    per_minute: int | None,
    holders: bool,  # noqa: FBT001 - drawn
) -> None:
    settings = replace(
        drawn, rechecks_disks=True, evictions_per_minute=per_minute, evicts_holders_only=holders
    )
    state, now = START, 0.0
    for before, after, pods, seconds in steps:
        now += seconds
        state, decision = decide(settings, state, before, pods, now)
        if decision.reclaim:
            now += seconds
            state, decision = after_reclaim(settings, state, decision, before, after, pods, now)
            for eviction in decision.evictions:
                threshold = eviction.threshold
                assert threshold is not None
                seen = after.signals[threshold.signal]
                assert seen.absurdity is None
                assert seen.available < threshold.target(seen.capacity)
                assert all(claim.uid != eviction.pod.uid for claim in state.claims)
                recent = [at for at in state.evicted_at if now - at < 60]
                assert per_minute is None or len(recent) < per_minute
                used = before.pods.get(eviction.pod.uid)
                assert not holders or freed(eviction.pod, used, threshold.signal, settings.layout)
        for eviction in decision.evictions:
            state = apply(
                settings, state, EvictionOrdered(eviction=eviction, snapshot=before, pods=pods), now
            )


# Pods that hold something


def test_on_a_plain_node_no_pod_is_evicted_for_a_disk_on_which_none_holds_anything() -> None:
    node = _Node(_settings(DISK, evicts_holders_only=True), (Pod(name="a", namespace="n", uid="a"),))
    decision = node.act(_seen(used={"a": PodUsage(ephemeral_storage_bytes=0)}, nodefs=50))
    assert () == decision.evictions
    assert "is known to have files there that are removed with it" in str(decision.deferred_because)
    assert [place.holds_nothing for place in decision.ranking] == [True]
    (slowdown,) = decision.slowdowns
    assert (Signal.NODEFS_AVAILABLE, SlowReason.OUTSIDE_PODS) == (slowdown.signal, slowdown.reason)
    node.now = 20.0
    (again,) = node.act(_seen(used={}, nodefs=50)).slowdowns
    assert (0.0, 320.0) == (again.since_seconds, again.until_seconds)
    node.now = 40.0
    assert () == node.act(_seen(nodefs=500)).slowdowns  # the disk is fine
    assert (NodeCondition.DISK_PRESSURE,) == node.state.conditions


CRITICAL = replace(_pod("critical"), critical_because="static pod")


@pytest.mark.parametrize("pods", [(), (CRITICAL,), (_pod("a"),)])
@pytest.mark.parametrize("holders_only", [True, False])
def test_that_no_pod_can_be_evicted_for_a_disk_is_reported_once(
    pods: tuple[Pod, ...], *, holders_only: bool
) -> None:
    node = _Node(_settings(DISK, evicts_holders_only=holders_only), pods)
    decision = node.act(_seen(used={}, nodefs=50))
    reported = (len(decision.slowdowns), len(decision.evictions), decision.no_victim is not None)
    is_evicted = pods == (_pod("a"),)
    assert ((1, 0, False) if holders_only else (0, is_evicted, not is_evicted)) == reported


def test_no_rate_and_no_slowdown_is_the_reason_where_no_pod_can_be_evicted_for_a_disk() -> None:
    node = _Node(_settings(DISK, evictions_per_minute=1), (_pod("big"), CRITICAL))
    assert ["big"] == node.goes(_seen(nodefs=50))
    node.end("big")
    node.now = 11.0
    decision = node.act(_seen(nodefs=50))  # the rate is used up, and nothing came back
    assert decision.deferred_because is None
    assert decision.no_victim is not None
    assert "n/critical: static pod" in decision.no_victim


def test_a_disk_has_one_slowdown_when_its_last_holder_was_evicted_in_vain() -> None:
    node = _Node(_settings(DISK, evicts_holders_only=True), (_pod("big"), CRITICAL))
    assert ["big"] == node.goes(_seen(nodefs=50))
    node.end("big")
    for now in (11.0, 21.0):
        node.now = now
        decision = node.act(_seen(nodefs=50))
        (slowdown,) = decision.slowdowns
        assert (SlowReason.OUTSIDE_PODS, 11.0) == (slowdown.reason, slowdown.since_seconds)
        assert slowdown.message == decision.deferred_because


def test_a_slowdown_for_a_disk_ends_with_its_time_while_an_eviction_is_in_flight() -> None:
    node = _Node(_settings(DISK, in_flight_deadline_seconds=900.0))
    node.act(_seen(nodefs=50))
    slowdown = replace(LEAK, signal=Signal.NODEFS_AVAILABLE, until_seconds=300.0)
    node.state = node.state._replace(slowdowns=(slowdown,))
    empty = {**USED, "big": _used(0)}
    for now, slowdowns in ((299.0, (slowdown,)), (300.0, ())):
        node.now = now
        assert slowdowns == node.act(_seen(used=empty, nodefs=50)).slowdowns


def test_a_slowdown_for_a_disk_stays_through_passes_over_memory() -> None:
    slowdown = replace(LEAK, signal=Signal.NODEFS_AVAILABLE)
    both = PolicyState(slowdowns=(LEAK, slowdown), first_observed={DISK: 0.0})
    node = _Node(_settings(MEMORY, DISK, unhelpful_eviction_pause_seconds=60.0))
    node.state = both
    assert {LEAK, slowdown} == set(node.ask(_seen(nodefs=50)).slowdowns)
    assert not is_newly_slowed(both._replace(slowdowns=(LEAK,)), both)
    assert is_newly_slowed(both._replace(slowdowns=(slowdown,)), both)


def test_on_a_kubernetes_node_a_pod_of_which_nothing_is_known_is_evicted_as_upstream_does() -> None:
    node = _Node(_settings(DISK), (Pod(name="a", namespace="n", uid="a"),))
    assert ["a"] == node.goes(_seen(used={}, nodefs=50))


def test_on_a_plain_node_the_pods_that_hold_something_go_by_the_ranking_and_the_others_stay() -> None:
    pods = (_pod("empty"), _pod("unread"), CRITICAL, *PODS)
    used = {
        **USED,
        "empty": _used(4096, inodes=1),
        "unread": _used(900)._replace(unreadable=frozenset({Resource.EPHEMERAL_STORAGE})),
        "critical": _used(999),
    }
    node = _Node(_settings(DISK, evicts_holders_only=True), pods)
    decision = node.act(_seen(used=used, nodefs=50))
    assert ["big"] == [eviction.pod.name for eviction in decision.evictions]
    assert ["big", "small", "tiny", "empty", "unread", "critical"] == [
        place.pod.name for place in decision.ranking
    ]


def test_what_is_removed_with_a_pod_is_its_empty_dirs_and_writable_layers() -> None:
    pod = Pod(
        name="a",
        namespace="n",
        uid="a",
        volumes=(
            Volume(name="scratch", is_empty_dir=True),
            Volume(name="host"),
            Volume(name="tmpfs", is_empty_dir=True, is_local=False),
            Volume(name="uncounted", is_empty_dir=True),
        ),
    )
    used = PodUsage(
        volumes={
            name: FilesystemUsage(used_bytes=10, inodes_used=4) for name in ("scratch", "host", "tmpfs")
        },
        containers=(
            ContainerUsage(
                name="main",
                rootfs=FilesystemUsage(used_bytes=100),
                logs=FilesystemUsage(used_bytes=1000, inodes_used=3),
            ),
            ContainerUsage(name="bare"),
            ContainerUsage(name="unknown", rootfs=FilesystemUsage(inodes_used=2)),
        ),
    )
    of = {
        (signal, layout): freed(pod, used, signal, layout)
        for signal in (Signal.NODEFS_AVAILABLE, Signal.IMAGEFS_AVAILABLE, Signal.NODEFS_INODES_FREE)
        for layout in Layout
    }
    assert {
        (Signal.NODEFS_AVAILABLE, Layout.SINGLE): 110,
        (Signal.NODEFS_AVAILABLE, Layout.DEDICATED): 10,
        (Signal.NODEFS_AVAILABLE, Layout.SPLIT): 110,
        (Signal.IMAGEFS_AVAILABLE, Layout.SINGLE): 110,
        (Signal.IMAGEFS_AVAILABLE, Layout.DEDICATED): 100,
        (Signal.IMAGEFS_AVAILABLE, Layout.SPLIT): 0,
        (Signal.NODEFS_INODES_FREE, Layout.SINGLE): 4,
        (Signal.NODEFS_INODES_FREE, Layout.DEDICATED): 3,
        (Signal.NODEFS_INODES_FREE, Layout.SPLIT): 4,
    } == of
    assert freed(pod, None, Signal.NODEFS_AVAILABLE, Layout.SINGLE) is None


@pytest.mark.parametrize(
    ("kind", "name", "may"),
    [
        (StorageKind.VOLUME, "scratch", {Layout.SINGLE, Layout.DEDICATED, Layout.SPLIT}),
        (StorageKind.VOLUME, "host", set()),
        (StorageKind.WRITABLE_LAYER, "main", {Layout.SINGLE, Layout.SPLIT}),
        (StorageKind.LOGS, "main", set()),
    ],
)
def test_whether_a_pod_can_free_anything_is_reported_by_its_places(
    kind: StorageKind, name: str, may: set[Layout]
) -> None:
    pod = replace(
        _pod("a"),
        volumes=(Volume(name="scratch", is_empty_dir=True), Volume(name="host")),
        storage=(StoragePlace(kind=kind, name=name, path="/a/b"),),
    )
    assert may == {layout for layout in Layout if may_free(pod, Signal.NODEFS_AVAILABLE, layout)}


# Whether it helps


def test_after_an_eviction_that_brought_back_too_little_there_is_one_in_each_pause() -> None:
    settings = _settings(DISK, IMAGES, INODES)
    node = _Node(settings)
    assert ["big"] == node.goes(_seen(nodefs=50))
    node.end("big")
    node.now = 11.0
    slowed = node.act(_seen(nodefs=50 + 74))  # of 300; above the threshold, so that nothing is asked
    assert () == slowed.slowdowns
    slowed = node.act(_seen(nodefs=90))
    assert () == slowed.evictions
    assert (
        "nodefs.available<100: the last eviction, of n/big, should have freed 300, but 40 came back: "
        "evicting does not help; one eviction in 300 s" == slowed.deferred_because
    )
    assert ["big"] == [one.uid for one in slowed.unhelpful]
    (slowdown,) = slowed.slowdowns
    assert (SlowReason.UNHELPFUL, 11.0, 300.0) == (
        slowdown.reason,
        slowdown.since_seconds,
        slowdown.until_seconds,
    )
    node.now = 30.0
    again = node.act(_seen(nodefs=90))
    assert ((), (), 11.0) == (again.evictions, again.unhelpful, again.slowdowns[0].since_seconds)
    node.now = 40.0
    assert [] == node.goes(_seen(imagefs=90))  # the same filesystem by its other name
    assert ["small"] == node.goes(_seen(inodes=90))  # inodes are another resource
    node.end("small")
    node.now = 299.0
    assert [] == node.goes(_seen(nodefs=90))
    node.now = 300.0
    assert ["tiny"] == node.goes(_seen(nodefs=90))


@pytest.mark.parametrize(
    ("available", "small", "evicted"),
    [
        (50 + 75, 30, []),  # back above the threshold
        (50, 30 + 75, ["small"]),  # another pod has taken what came back
        (50, 30 + 74, []),
        (99, 30 + 26, ["small"]),
        (20, 30, []),  # less than before
    ],
)
def test_what_came_back_is_what_is_available_more_and_what_other_pods_have_taken_since(
    available: int, small: int, evicted: list[str]
) -> None:
    node = _Node(_settings(DISK))
    node.act(_seen(nodefs=50))
    node.end("big")
    node.now = 11.0
    assert evicted == node.goes(_seen(used={**USED, "small": _used(small)}, nodefs=available))


def test_what_the_evicted_pod_takes_again_did_not_come_back() -> None:
    node = _Node(_settings(DISK, evicts_holders_only=True))
    assert ["big"] == node.goes(_seen(nodefs=50))
    node.end("big")
    node.pods = (replace(_pod("big"), uid="big#2"), *node.pods)  # started again, its files never removed
    node.now = 11.0
    assert [] == node.goes(_seen(used={**USED, "big#2": _used(300)}, nodefs=50))


def test_an_eviction_that_was_credited_with_nothing_is_judged_by_what_was_missing() -> None:
    for available, evicted in ((62, []), (63, ["small"])):
        node = _Node(_settings(DISK))
        node.act(_seen(used={}, nodefs=50))
        node.end("big")
        node.now = 11.0
        assert evicted == node.goes(_seen(used={}, nodefs=available))


@pytest.mark.parametrize("holders", [False, True])
@pytest.mark.parametrize("name", ["nodefs", "inodes"])
def test_of_pods_that_hold_less_than_is_missing_one_goes_in_each_pause(name: str, *, holders: bool) -> None:
    """Each brings back the little that it holds, and all together would not end what a log has filled."""
    node, small = _filled(11, holders=holders)
    available, gone_at = 40, []
    for node.now in range(0, 900, 10):
        for evicted in node.goes(_seen(small, **{name: available})):
            node.end(evicted)
            gone_at.append(node.now)
            del small[evicted]
            available += 4
    assert [0, 300, 600] == gone_at


def _filled(pods: int, *, holders: bool = False) -> tuple[_Node, dict[str, PodUsage]]:
    """Return a node and its pods' usage, who hold 4 bytes and free 4 inodes each."""
    small = {f"p{number}": _used(4) for number in range(pods)}
    node = _Node(_settings(DISK, INODES, evicts_holders_only=holders), tuple(map(_pod, small)))
    return node, small


@pytest.mark.parametrize("image", [15, 14])
def test_a_pod_whose_image_brought_back_a_quarter_of_what_is_missing_helped(image: int) -> None:
    node, small = _filled(11)
    assert ["p0"] == node.goes(_seen(small, nodefs=40))
    node.end("p0")
    node.now = 11.0
    assert (["p1"] if image == 15 else []) == node.goes(_seen(small, nodefs=40 + image))


@pytest.mark.parametrize("name", ["nodefs", "inodes"])
def test_a_log_that_grows_slowly_costs_one_pod_in_each_pause(name: str) -> None:
    """Each pod brings back more than has come since the last, and all of them less than has come in all."""
    node, small = _filled(12, holders=True)
    available, gone_at = 101.0, []
    for node.now in range(0, 1500, 10):
        available -= 0.2
        for evicted in node.goes(_seen(small, **{name: int(available)})):
            node.end(evicted)
            gone_at.append(node.now)
            del small[evicted]
            available += 4
    assert [40, 340, 640, 940, 1240] == gone_at


def test_a_disk_that_a_never_evicted_pod_fills_costs_one_pod_in_each_pause() -> None:
    node, small = _filled(3)
    node.pods = (*node.pods, CRITICAL)
    assert ["p0"] == node.goes(_seen({**small, "critical": _used(100)}, nodefs=98))
    node.end("p0")
    node.now = 11.0
    assert [] == node.goes(_seen({**small, "critical": _used(106)}, nodefs=96))


def test_while_an_eviction_is_in_flight_it_is_not_judged() -> None:
    node = _Node(_settings(DISK))
    node.act(_seen(nodefs=50))
    node.now = 5.0
    waits = node.act(_seen(used={**USED, "big": _used(0)}, nodefs=50))
    assert "in flight" in str(waits.deferred_because)
    assert () == waits.slowdowns


def test_evictions_for_disks_are_not_slowed_down_where_that_is_switched_off() -> None:
    settings = _settings(DISK, unhelpful_eviction_pause_seconds=0.0)
    assert 0 == unhelpful_pause_seconds(settings)
    node = _Node(settings)
    assert ["big"] == node.goes(_seen(nodefs=50))
    node.end("big")
    node.now = 11.0
    assert ["small"] == node.goes(_seen(nodefs=50))


def test_a_slowdown_for_a_disk_keeps_no_pod_from_dying_for_memory_and_no_rule_from_acting() -> None:
    node = _Node(_settings(MEMORY, DISK))
    node.act(_seen(nodefs=50, memory=500))
    node.end("big")
    node.now = 11.0
    assert SlowReason.UNHELPFUL in {one.reason for one in node.act(_seen(nodefs=50, memory=500)).slowdowns}
    firing = Firing(rule=make_rule(), cgroup="/apps/a", since_seconds=0.0, at_seconds=12.0, inputs=())
    assert [] == list(rule_holds(node.settings, node.state, firing))
    assert ["small"] == node.goes(_seen(nodefs=50, memory=50))


def test_only_an_eviction_for_a_filesystem_that_was_observed_is_judged() -> None:
    settings = _settings(MEMORY, DISK)
    by_disk, by_memory = (
        Eviction(
            pod=PODS[0],
            signal=threshold.signal,
            resource=resource,
            grace_period_seconds=0,
            message="",
            threshold=threshold,
        )
        for threshold, resource in ((DISK, Resource.EPHEMERAL_STORAGE), (MEMORY, Resource.MEMORY))
    )
    by_limit = by_disk._replace(threshold=None)
    for eviction, judged in ((by_disk, 1), (by_memory, 0), (by_limit, 0)):
        state = with_judged_eviction(Inputs(settings, START, _seen(nodefs=50), PODS, 0.0), eviction)
        assert judged == len(state.judged_evictions)
    assert START == with_judged_eviction(Inputs(settings, START, _seen(memory=50), PODS, 0.0), by_disk)


def test_an_eviction_for_a_disk_remembers_its_threshold() -> None:
    soft = replace(IMAGES, grace_period_seconds=0.0)
    node = _Node(_settings(DISK, soft))
    node.act(_seen(nodefs=500, imagefs=50))
    (flight,) = node.state.in_flight
    assert soft == flight.threshold


# Process ids

PIDS = Threshold(signal=Signal.PID_AVAILABLE, value=draw.amount(100))


def _processes(**counts: int | None) -> dict[str, PodUsage]:
    return {name: PodUsage(process_count=count) for name, count in counts.items()}


def test_processes_outside_the_pods_cost_no_pod_at_once_and_one_in_each_pause() -> None:
    node, calm = _Node(_settings(PIDS), PODS), _processes(a=1, b=1, c=1)
    node.pods = tuple(_pod(name) for name in calm)

    def goes() -> list[str]:
        found = node.ask(_seen(calm, pids=20))
        for eviction in found.evictions:
            node.order(eviction, _seen(calm, pids=20))
            node.end(eviction.pod.name)
        return [eviction.pod.name for eviction in found.evictions]

    assert [] == goes()
    (slowdown,) = node.state.slowdowns
    assert (SlowReason.OUTSIDE_PODS, 0.0, 10.0) == (
        slowdown.reason,
        slowdown.since_seconds,
        slowdown.until_seconds,
    )
    assert "977 processes are outside the pods" in slowdown.message
    node.now = 10.0
    assert ["a"] == goes()
    node.now = 19.0
    assert [] == goes()
    node.now = 20.0
    assert ["b"] == goes()
    node.ask(_seen(calm, pids=500))
    assert () == node.state.slowdowns


def test_a_pod_that_holds_the_missing_processes_is_evicted_at_once_also_amid_a_slowdown() -> None:
    node = _Node(_settings(PIDS))
    node.pods = tuple(_pod(name) for name in ("a", "b"))
    assert () == node.ask(_seen(_processes(a=1, b=1), pids=20)).evictions
    bomb = _seen(_processes(a=1, b=150), pids=20)
    assert ["b"] == node.goes(bomb)
    assert () == node.state.slowdowns


def test_the_next_pod_waits_where_another_took_the_processes_that_an_eviction_freed() -> None:
    node = _Node(_settings(PIDS))
    node.pods = tuple(_pod(name) for name in ("a", "b", "c"))
    short = _seen(_processes(a=5, b=5, c=5), pids=98)
    (eviction,) = node.ask(short).evictions
    node.order(eviction, short)
    assert () == node.ask(short).evictions, "it is still dying"
    node.end(eviction.pod.name)
    node.now = 1.0
    (judged,) = node.ask(short).unhelpful
    assert eviction.pod.uid == judged.uid
    assert [SlowReason.UNHELPFUL] == [one.reason for one in node.state.slowdowns]
    node.now = 10.0
    assert 1 == len(node.ask(short).evictions)


def _ordered(node: _Node, seen: Snapshot) -> list[str]:
    """Return which pods go, and are still dying."""
    evictions = node.ask(seen).evictions
    for eviction in evictions:
        node.order(eviction, seen)
    return [eviction.pod.name for eviction in evictions]


def test_processes_that_come_one_by_one_outside_the_pods_cost_one_pod_also_while_it_is_dying() -> None:
    node, calm = _Node(_settings(PIDS)), _processes(a=1, b=1, c=1)
    node.pods = tuple(_pod(name) for name in calm)
    assert ["a"] == _ordered(node, _seen(calm, pids=99))
    assert [] == _ordered(node, _seen(calm, pids=98))
    assert [SlowReason.UNHELPFUL] == [one.reason for one in node.state.slowdowns]
    assert not any(_ordered(node, _seen(calm, pids=available)) for available in range(97, 80, -1))


def test_processes_that_come_outside_the_pods_during_a_pause_cost_one_pod_after_it() -> None:
    """Each that went on would bring back its own, and all together more than came outside."""
    node, calm = _Node(_settings(PIDS)), _processes(**dict.fromkeys("abcdefgh", 8))
    node.pods = tuple(_pod(name) for name in calm)
    available, gone_at = 99, []
    for node.now in range(40):
        short = _seen(calm, pids=available)
        for name in _ordered(node, short):
            node.end(name)
            gone_at.append(node.now)
            del calm[name]
            available += 8
        available -= 2
    assert [0, 10, 20, 30] == gone_at


def test_a_bomb_is_evicted_at_once_though_more_has_come_outside_than_several_brought_back() -> None:
    node = _Node(_settings(PIDS))
    node.pods = tuple(_pod(name) for name in "abc")
    assert ["a"] == _ordered(node, _seen(_processes(a=8, b=8, c=7), pids=99))
    node.end("a")
    node.now = 10.0
    assert ["b"] == _ordered(node, _seen(_processes(b=8, c=7), pids=87))
    node.end("b")
    assert [] == _ordered(node, _seen(_processes(c=7), pids=95))
    assert ["c"] == _ordered(node, _seen(_processes(c=67), pids=35))


def test_a_second_bomb_is_evicted_while_the_first_is_dying() -> None:
    node = _Node(_settings(PIDS))
    node.pods = tuple(_pod(name) for name in ("a", "b", "c"))
    assert ["a"] == _ordered(node, _seen(_processes(a=40, b=5, c=5), pids=80))
    assert [] == _ordered(node, _seen(_processes(a=40, b=20, c=5), pids=65))
    assert ["b"] == _ordered(node, _seen(_processes(a=40, b=45, c=5), pids=40))
    assert () == node.state.slowdowns


# Swap

SWAP = Threshold(signal=Signal.SWAP_AVAILABLE, value=draw.amount(100))


def _in_swap(**sizes: int | None) -> dict[str, PodUsage]:
    return {name: PodUsage(memory_working_set_bytes=8, swap_bytes=size) for name, size in sizes.items()}


def test_swap_that_is_used_outside_the_pods_costs_one_pod_in_each_pause() -> None:
    node, calm = _Node(_settings(SWAP)), _in_swap(a=0, b=0, c=0)
    node.pods = tuple(_pod(name) for name in calm)
    assert [] == _ordered(node, _seen(calm, swap=20))
    (slowdown,) = node.state.slowdowns
    assert (SlowReason.OUTSIDE_PODS, 10.0) == (slowdown.reason, slowdown.until_seconds)
    assert (
        "980 of swap are used outside the pods, and these have less there than is missing" in slowdown.message
    )
    node.now = 10.0
    assert ["a"] == _ordered(node, _seen(calm, swap=20))
    node.end("a")
    node.now = 19.0
    assert [] == _ordered(node, _seen(calm, swap=20))


def test_swap_that_comes_bit_by_bit_outside_the_pods_costs_one_pod() -> None:
    node, calm = _Node(_settings(SWAP)), _in_swap(a=5, b=5, c=5)
    node.pods = tuple(_pod(name) for name in calm)
    assert ["a"] == _ordered(node, _seen(calm, swap=98))
    node.end("a")
    assert [] == _ordered(node, _seen(calm, swap=97))
    assert [SlowReason.UNHELPFUL] == [one.reason for one in node.state.slowdowns]


def test_a_pod_that_has_the_missing_swap_is_evicted_at_once_and_so_is_one_if_that_is_unknown() -> None:
    for sizes in ({"a": 0, "b": 150}, {"a": 0, "b": None}):
        node = _Node(_settings(SWAP))
        node.pods = tuple(_pod(name) for name in sizes)
        assert 1 == len(_ordered(node, _seen(_in_swap(**sizes), swap=20)))
        assert () == node.state.slowdowns


def test_no_soft_eviction_for_processes_is_judged_within_its_grace_period() -> None:
    node = _Node(_settings(replace(PIDS, grace_period_seconds=0.0), max_pod_grace_period_seconds=30))
    node.pods = tuple(_pod(name) for name in ("a", "b"))
    short = _seen(_processes(a=10, b=10), pids=80)
    (eviction,) = node.ask(short).evictions
    node.order(eviction, short)
    node.now = 1.0
    decision = node.ask(short)
    assert ((), ()) == (decision.unhelpful, node.state.slowdowns)


def _after_a_bomb() -> _Node:
    """Return a node a second after the pod a was evicted for its processes."""
    node = _Node(_settings(PIDS))
    node.pods = tuple(_pod(name) for name in ("a", "b", "c"))
    bomb = _seen(_processes(a=200, b=5, c=5), pids=50)
    (eviction,) = node.ask(bomb).evictions
    node.order(eviction, bomb)
    node.end("a")
    node.now = 1.0
    return node


def test_a_second_bomb_is_evicted_at_once_after_the_first() -> None:
    node = _after_a_bomb()
    assert ["b"] == node.goes(_seen(_processes(b=205, c=5), pids=50))


def test_a_bomb_that_was_restarted_is_evicted_again_at_once() -> None:
    node = _after_a_bomb()
    node.pods = (*node.pods, replace(_pod("a"), uid="a#2"))
    again = {"a#2": PodUsage(process_count=201), **_processes(b=5, c=5)}
    assert ["a#2"] == [one.pod.uid for one in node.ask(_seen(again, pids=49)).evictions]


def test_processes_that_are_unobserved_slow_nothing_down_and_no_pause_means_no_slowdown() -> None:
    unobserved, calm = _seen(_processes(a=None), pids=20), _seen(_processes(a=1), pids=20)
    for settings, seen in (
        (_settings(PIDS), unobserved),
        (_settings(PIDS, unhelpful_eviction_pause_seconds=0.0), calm),
    ):
        node = _Node(settings, (_pod("a"),))
        assert 1 == len(node.ask(seen).evictions)
