"""No pod is evicted for what a victim is still to give back: a pod, a process, the kernel's victim, files."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.decisions import Claim, ClaimKind, Inputs, PolicyState, Snapshot
from reactor.model.kills import OomKill, OomScope
from reactor.model.pods import Pod, PodUsage
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Resource, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.claims import (
    STILL_SECONDS,
    are_unknown,
    awaited,
    credited,
    still_claimed,
    struck_pods,
)
from reactor.policy.decide import decide
from reactor.policy.events import KernelKilled, PodsStruck, ProcessesExited, StruckPodsObserved, apply

from . import strategies as draw

MIB = 1 << 20
HARD = Threshold(signal=Signal.MEMORY_AVAILABLE, value=draw.amount(100 * MIB))
SETTINGS = EvictionSettings(thresholds=(HARD,), in_flight_deadline_seconds=10.0)
PODS = (Pod(name="innocent", namespace="n", uid="innocent"),)
START = PolicyState()


def oom(**changed: object) -> OomKill:
    kill = OomKill(source="ebpf-oom", scope=OomScope.NODE, at_ns=1, pid=42, victim_bytes=250 * MIB)
    return replace(kill, **changed)


COUNTED = oom(pid=None, victim_bytes=None)


def killed(*kills: OomKill, state: PolicyState = START, at: float = 0.0) -> PolicyState:
    for kill in kills:
        state = apply(SETTINGS, state, KernelKilled(kill=kill, uid="uid"), at)
    return state


def passed(state: PolicyState, available_mib: int, at: float) -> tuple[PolicyState, str | None, int]:
    """Make a pass; return the state, why it evicts nobody, and how many it evicts."""
    seen = Observation(available=available_mib * MIB, capacity=512 * MIB, taken_at_seconds=at)
    snapshot = Snapshot(
        signals={Signal.MEMORY_AVAILABLE: seen},
        pods={"innocent": PodUsage(memory_working_set_bytes=50 * MIB)},
    )
    state, decision = decide(SETTINGS, state, snapshot, PODS, at)
    return state, decision.deferred_because, len(decision.evictions)


def test_what_a_victim_frees_is_waited_for_where_it_is_enough() -> None:
    state, because, evicted = passed(killed(oom()), 0, 1.0)
    assert 0 == evicted
    assert "in flight: 250Mi still to be freed by process 42 (killed by the kernel's OOM killer)" in (
        because or ""
    )
    _, _, evicted = passed(state._replace(claims=()), 0, 1.1)
    assert 1 == evicted


def test_a_victim_that_holds_too_little_spares_no_pod() -> None:
    assert 1 == passed(killed(oom(victim_bytes=50 * MIB)), 0, 1.0)[2]


def test_what_came_back_already_is_not_credited_twice() -> None:
    state, _, evicted = passed(killed(oom(victim_bytes=120 * MIB)), 0, 1.0)
    assert 0 == evicted
    state, _, evicted = passed(state, 60, 1.1)
    assert 0 == evicted
    assert [60 * MIB] == [claim.left for claim in state.claims]
    # What came back has been taken by others meanwhile.
    assert 1 == passed(state, 30, 1.2)[2]


def test_a_victim_is_waited_for_until_its_deadline_and_not_longer() -> None:
    state = killed(oom())
    state, _, evicted = passed(state, 0, 9.9)
    assert 0 == evicted
    assert 1 == passed(state, 0, 10.0)[2]


def test_a_kill_that_was_only_counted_is_waited_for_while_memory_comes_back() -> None:
    state = killed(COUNTED)
    for step in range(20):
        at = step * STILL_SECONDS * 0.9
        state, because, evicted = passed(state, 4 * step, at)
        assert (0, True) == (evicted, "in flight: the kernel's OOM killer" in (because or ""))
    assert 0 == passed(state, 76, at + STILL_SECONDS * 0.9)[2]
    assert 1 == passed(state, 76, at + STILL_SECONDS)[2]


def test_a_kill_is_waited_for_though_there_was_memory_meanwhile() -> None:
    for kill in (COUNTED, oom()):
        state, _, _ = passed(killed(kill), 150, 0.01)
        assert 0 == passed(state, 20, 0.02)[2]


def test_further_kills_that_are_only_counted_do_not_put_off_an_eviction() -> None:
    state = killed(COUNTED)
    state = killed(COUNTED, state=state, at=STILL_SECONDS * 0.9)
    assert 1 == len(state.claims)
    assert 1 == passed(state, 0, STILL_SECONDS)[2]


def test_a_kill_is_noted_once() -> None:
    assert 1 == len(killed(oom(), oom()).claims)
    assert 2 == len(killed(oom(), oom(pid=43)).claims)


def test_a_kill_at_a_pods_own_limit_spares_no_pod() -> None:
    assert () == killed(oom(scope=OomScope.OWN_LIMIT)).claims


def test_a_victim_is_kept_as_it_was_where_memory_is_not_observed() -> None:
    state = killed(oom())
    assert state.claims == still_claimed(state.claims, PODS, None, 1.0)


@pytest.mark.parametrize(
    ("available", "left"), [((), 250), ((10,), 250), ((10, 300), 0), ((10, 5, 60, 20, 70), 190)]
)
def test_credit_is_what_has_not_come_back(available: tuple[int, ...], left: int) -> None:
    for victim_bytes, expected in ((250 * MIB, left * MIB), (None, None)):
        claims = killed(oom(victim_bytes=victim_bytes)).claims
        for mib in available:
            seen = Observation(available=mib * MIB, capacity=512 * MIB)
            claims = still_claimed(claims, PODS, seen, 0.1)
        assert [expected] == [claim.left for claim in claims]


def test_disks_do_not_wait_for_memory() -> None:
    threshold = Threshold(signal=Signal.NODEFS_AVAILABLE, value=draw.amount(100))
    settings = EvictionSettings(thresholds=(threshold,), in_flight_deadline_seconds=10.0)
    seen = {Signal.NODEFS_AVAILABLE: Observation(available=1, capacity=1000)}
    _, decision = decide(settings, killed(COUNTED), Snapshot(signals=seen), PODS, 0.1)
    assert decision.deferred_because is None


def with_evicted(state: PolicyState, *uids: str) -> PolicyState:
    pods = (
        Claim(kind=ClaimKind.POD, uid=uid, kill_at_seconds=0.0, deadline_seconds=10.0, amount=None)
        for uid in uids
    )
    return state._replace(claims=(*state.claims, *pods))


def found(state: PolicyState, at: float = 0.0, being_evicted: tuple[str, ...] = (), **held_mib: int):
    held = {uid: mib * MIB for uid, mib in held_mib.items()}
    return apply(SETTINGS, with_evicted(state, *being_evicted), PodsStruck(held_bytes=held), at)


def test_pod_that_the_kernel_has_killed_in_is_waited_for_only_with_what_it_still_holds() -> None:
    state = found(killed(COUNTED), victim=250)
    assert not are_unknown(state)
    state, because, evicted = passed(state, 0, 0.01)
    assert (0, True) == (evicted, "250Mi still to be freed by pod victim (killed by" in (because or ""))
    state = apply(SETTINGS, state, StruckPodsObserved(held_bytes={"victim": 60 * MIB}), 0.02)
    assert 1 == passed(state, 0, 0.02)[2]


def test_pods_that_the_kernel_has_killed_in_are_named_while_they_hold_something() -> None:
    state = found(killed(COUNTED), victim=250, other=0)
    assert ("victim",) == struck_pods(state)
    state = apply(SETTINGS, state, StruckPodsObserved(held_bytes={"victim": 0}), 0.01)
    assert () == struck_pods(state)


def test_a_process_that_has_exited_is_awaited_no_more_and_another_is() -> None:
    state = killed(oom(pid=42), oom(pid=43))
    assert [43] == [
        claim.pid for claim in apply(SETTINGS, state, ProcessesExited(pids=frozenset({42})), 0.1).claims
    ]


def test_pod_that_has_given_back_all_puts_off_no_eviction() -> None:
    state = apply(
        SETTINGS,
        found(killed(COUNTED), victim=250),
        StruckPodsObserved(held_bytes={"victim": MIB // 2}),
        0.01,
    )
    state, _, evicted = passed(state, 99, 0.01)
    assert (1, ()) == (evicted, state.claims)
    state = found(killed(COUNTED), victim=0)
    assert 1 == passed(state, 99, 0.01)[2]


def test_pod_that_shrinks_is_waited_for_and_no_longer_once_it_stands_still() -> None:
    state = found(killed(COUNTED), victim=250)
    for step in range(10):
        at = step * STILL_SECONDS * 0.9
        state = apply(SETTINGS, state, StruckPodsObserved(held_bytes={"victim": (250 - 10 * step) * MIB}), at)
        state, _, evicted = passed(state, 0, at)
        assert 0 == evicted
    assert 1 == passed(state, 0, at + STILL_SECONDS)[2]


def test_what_a_pod_has_taken_again_is_not_given_back() -> None:
    state = apply(
        SETTINGS,
        found(killed(COUNTED), victim=250),
        StruckPodsObserved(held_bytes={"victim": 20 * MIB}),
        0.01,
    )
    state = apply(SETTINGS, state, StruckPodsObserved(held_bytes={"victim": 300 * MIB}), 0.02)
    assert [20 * MIB] == [claim.left for claim in state.claims]


def test_pod_that_can_not_be_read_is_waited_for_as_it_was() -> None:
    state = found(killed(COUNTED), victim=250)
    assert state == apply(SETTINGS, state, StruckPodsObserved(held_bytes={"victim": None}), 0.01)
    assert state.claims == still_claimed(state.claims, PODS, None, 0.01)


def test_what_a_pod_holds_that_is_being_evicted_is_not_credited_twice() -> None:
    assert () == found(killed(COUNTED), being_evicted=("victim",), victim=250).killed_alone


def test_counter_that_rises_again_puts_off_no_eviction() -> None:
    state = found(killed(COUNTED), one=250)
    state, _, evicted = passed(state, 0, 0.1)
    assert 0 == evicted
    state = found(killed(COUNTED, state=state, at=0.2), 0.2, two=250)
    assert () == state.claims
    assert 1 == passed(state, 0, 0.2)[2]


@pytest.mark.parametrize(("at", "awaited"), [(0.9, 0), (1.1, 1)])
def test_kill_that_comes_after_a_while_is_waited_for_again(at: float, awaited: int) -> None:
    state = passed(found(killed(COUNTED), one=0), 0, 0.01)[0]
    state = found(killed(COUNTED, state=state, at=at), at, one=250)
    assert awaited == len(state.claims)


def test_notice_of_a_kill_that_no_counter_shows_leaves_the_wait_as_it_is() -> None:
    """On cgroup v1 each process that meets the limit while the victim is dying gives one."""
    state = found(killed(COUNTED), one=250)
    assert state == killed(COUNTED, state=state, at=0.2)
    assert 0 == passed(state, 0, 0.2)[2]


def test_victims_of_which_the_process_is_known_are_waited_for_however_many() -> None:
    state = found(killed(oom(), COUNTED), one=60)
    state = found(killed(oom(pid=43), state=state, at=0.1), 0.1, one=60)
    assert [42, 43] == [claim.pid for claim in state.claims]
    assert [42, 43, 44] == [claim.pid for claim in killed(oom(pid=44), state=state, at=0.2).claims]


def test_no_more_is_credited_to_a_pod_than_one_of_its_processes_may_hold() -> None:
    held = {"bomb": 400 * MIB}
    state = apply(
        SETTINGS, killed(COUNTED), PodsStruck(held_bytes=held, largest_bytes={"bomb": 30 * MIB}), 0.0
    )
    assert [30 * MIB] == [claim.left for claim in state.claims]
    assert 1 == passed(state, 60, 0.01)[2]

    state = apply(SETTINGS, state, StruckPodsObserved(held_bytes={"bomb": 390 * MIB}), 0.02)
    assert [20 * MIB] == [claim.left for claim in state.claims]
    state = apply(SETTINGS, state, StruckPodsObserved(held_bytes={"bomb": 360 * MIB}), 0.03)
    assert [0] == [claim.left for claim in state.claims]


times = st.floats(0.001, 0.99)


@given(st.lists(st.tuples(times, st.sampled_from(["one", "two"]), st.integers(0, 500)), min_size=1))
def test_rising_counter_never_defers(kills: list[tuple[float, str, int]]) -> None:
    state, at = found(killed(COUNTED), first=500), 0.0
    for step, uid, mib in kills:
        at += step
        state = found(killed(COUNTED, state=state, at=at), at, **{uid: mib})
        state, because, evicted = passed(state, 0, at)
        assert (None, 1) == (because, evicted)


sizes = st.integers(1, 200)


@given(
    st.lists(sizes, max_size=3),
    st.none() | sizes,
    st.none() | sizes,
    st.none() | sizes,
    st.integers(0, 99),
    st.randoms(use_true_random=False),
)
def test_one_owner_counts_once(
    processes: list[int],
    struck: int | None,
    held: int | None,
    files: int | None,
    available: int,
    order: Random,
) -> None:
    """Of the kernel's victims of a pod and the pod's own eviction the larger is credited.

    What the pod leaves in files counts beside that by what it is more, where half of the threshold is there.
    """
    state = killed(*(oom(pid=pid, victim_bytes=mib * MIB) for pid, mib in enumerate(processes, 1)))
    claims = [
        Claim(
            kind=kind,
            uid="uid",
            deadline_seconds=10.0,
            amount=None if amount is None else amount * MIB,
            mark=0,
        )
        for kind, amount, is_there in (
            (ClaimKind.STRUCK_POD, struck, struck is not None),
            (ClaimKind.POD, None, held is not None),
            (ClaimKind.FILES, files, held is None and files is not None),
        )
        if is_there
    ]
    in_any_order = [*state.claims, *claims]
    order.shuffle(in_any_order)
    state = state._replace(claims=tuple(in_any_order))
    hog = Pod(name="hog", namespace="n", uid="hog")
    victim = Pod(name="victim", namespace="n", uid="uid")
    snapshot = Snapshot(
        signals={Signal.MEMORY_AVAILABLE: Observation(available=available * MIB, capacity=512 * MIB)},
        pods={
            "hog": PodUsage(memory_working_set_bytes=100 * MIB),
            "uid": PodUsage(memory_working_set_bytes=(held or 0) * MIB),
        },
    )
    _, decision = decide(SETTINGS, state, snapshot, (hog, victim), 0.1)

    once = max(sum(processes), struck or 0, held or 0)
    if held is None and files is not None and available + once >= 50:
        once = max(once, files)
    assert (available + once >= 100) == (decision.deferred_because is not None)


def test_one_pods_eviction_and_its_process_that_the_kernel_killed_are_credited_once() -> None:
    state = killed(oom(victim_bytes=2000 * MIB))
    state = with_evicted(state, "uid")
    seen = Observation(available=0, capacity=8192 * MIB)
    snapshot = Snapshot(
        signals={Signal.MEMORY_AVAILABLE: seen},
        pods={
            "uid": PodUsage(memory_working_set_bytes=2100 * MIB),
            "hog": PodUsage(memory_working_set_bytes=3000 * MIB),
        },
    )
    settings = replace(SETTINGS, thresholds=(replace(HARD, value=draw.amount(3000 * MIB)),))
    pods = tuple(Pod(name=uid, namespace="n", uid=uid) for uid in ("uid", "hog"))
    _, decision = decide(settings, state, snapshot, pods, 0.1)

    assert ["hog"] == [eviction.pod.name for eviction in decision.evictions]


amounts = st.none() | st.integers(0, 200)
claims = st.builds(
    Claim,
    kind=st.sampled_from(ClaimKind),
    uid=st.none() | st.sampled_from(["a", "b"]),
    resource=st.sampled_from(Resource),
    deadline_seconds=st.floats(0, 20),
    kill_at_seconds=st.none() | st.floats(0, 20),
    amount=amounts,
    came_back=st.integers(0, 100),
    mark=amounts,
    progress_seconds=st.floats(0, 20),
    pid=st.none() | st.integers(1, 3),
)


@given(st.lists(claims, max_size=6), st.none() | st.integers(0, 300), st.floats(0, 30))
def test_no_claim_outlives_its_deadline_and_none_grows(
    found: list[Claim], available: int | None, now: float
) -> None:
    memory = None if available is None else Observation(available=available, capacity=300)
    pods = (Pod(name="a", namespace="n", uid="a"),)
    kept = still_claimed(found, pods, memory, now)

    expected = [one for one in kept if one.kind is not ClaimKind.STRUCK_POD or one.left]
    assert all(now < one.deadline_seconds for one in expected)
    assert sum(one.left or 0 for one in kept) <= sum(one.left or 0 for one in found)
    assert not kept or any(one.left != 0 or one.kind is not ClaimKind.STRUCK_POD for one in kept)


@given(st.lists(claims, max_size=8), st.randoms(use_true_random=False))
def test_credit_is_the_same_in_any_order_and_is_no_more_than_each_owner_holds(
    found: list[Claim], order: Random
) -> None:
    total = credited([(one, one.left) for one in found])
    shuffled = list(found)
    order.shuffle(shuffled)
    assert total == credited([(one, one.left) for one in shuffled])

    most = 0
    for owner in {(one.uid, None if one.uid else one.pid) for one in found}:
        own = [one for one in found if (one.uid, None if one.uid else one.pid) == owner]
        left = {kind: [one.left or 0 for one in own if one.kind is kind] for kind in ClaimKind}
        whole = [left[kind] for kind in (ClaimKind.POD, ClaimKind.ENDING_PROCESS, ClaimKind.STRUCK_POD)]
        killed = sum(left[ClaimKind.PROCESS] + left[ClaimKind.KERNEL_KILL])
        most += max(killed, sum(left[ClaimKind.FILES]), *(max(one, default=0) for one in whole))
    assert sum(total) == most


def test_a_pod_that_vanished_is_named_as_it_was_and_credits_nothing() -> None:
    """A reclaim of the node's takes its time: the pod of an eviction that is awaited may be gone by then."""
    nodefs = Threshold(signal=Signal.NODEFS_AVAILABLE, value=draw.amount(100))
    settings = EvictionSettings(thresholds=(nodefs,))
    gone = Pod(name="gone", namespace="n", uid="gone")
    claim = Claim(
        kind=ClaimKind.POD,
        uid="gone",
        resource=Resource.EPHEMERAL_STORAGE,
        deadline_seconds=10.0,
        pod=gone,
    )
    seen = Snapshot(signals={nodefs.signal: Observation(available=1, capacity=1000)})
    for known, name in ((claim, "n/gone"), (replace(claim, pod=None), "gone")):
        state = PolicyState(claims=(known,))
        because = awaited(Inputs(settings, state, seen, PODS, 0.1), nodefs)
        assert f"in flight: how much the eviction of {name} frees is not known yet" == because
