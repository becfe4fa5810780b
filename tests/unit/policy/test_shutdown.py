import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.pods import SYSTEM_CRITICAL_PRIORITY, Pod
from reactor.model.settings import ShutdownGroup
from reactor.policy.shutdown import next_step, shutdown_seconds, shutdown_steps

GROUPS = (
    ShutdownGroup(priority=100_000, seconds=10),
    ShutdownGroup(priority=10_000, seconds=180),
    ShutdownGroup(priority=1_000, seconds=120),
    ShutdownGroup(priority=0, seconds=60),
)


def _pod(name: str, priority: int = 0, *, grace_seconds: int = 30, critical: str | None = None) -> Pod:
    return Pod(
        name=name,
        namespace="n",
        uid=name,
        priority=priority,
        termination_grace_period_seconds=grace_seconds,
        critical_because=critical,
    )


def _names(groups: Sequence[ShutdownGroup], pods: Sequence[Pod]) -> list[tuple[int, list[str]]]:
    return [(step.group.priority, [pod.name for pod in step.pods]) for step in shutdown_steps(groups, pods)]


def test_groups_end_from_the_lowest_priority_to_the_highest() -> None:
    pods = [_pod("a", 100_000), _pod("b", 99_999), _pod("c", 10_000), _pod("d", 999), _pod("e", 5_000)]
    assert [(0, ["d"]), (1_000, ["e"]), (10_000, ["b", "c"]), (100_000, ["a"])] == _names(GROUPS, pods)


def test_a_pod_below_the_lowest_group_ends_with_that_and_one_above_all_with_the_highest() -> None:
    groups = (ShutdownGroup(priority=10, seconds=1), ShutdownGroup(priority=20, seconds=1))
    pods = [_pod("below", -5), _pod("between", 15), _pod("above", 2**31 - 1)]
    assert [(10, ["below", "between"]), (20, ["above"])] == _names(groups, pods)


def test_of_two_groups_of_one_priority_the_first_has_its_pods_and_the_last_those_above() -> None:
    # As sort.Search finds them upstream.
    groups = (ShutdownGroup(priority=0, seconds=1), ShutdownGroup(priority=0, seconds=2))
    steps = shutdown_steps(groups, [_pod("equal", 0), _pod("above", 1)])
    assert [(1, "equal"), (2, "above")] == [(step.group.seconds, step.pods[0].name) for step in steps]


def test_a_group_without_a_pod_is_skipped() -> None:
    assert [(10_000, ["only"])] == _names(GROUPS, [_pod("only", 10_000)])


def test_without_groups_or_pods_there_is_nothing_to_do() -> None:
    assert () == shutdown_steps((), [_pod("a")])
    assert () == shutdown_steps(GROUPS, [])


def test_critical_and_static_pods_are_ended_too() -> None:
    pod = _pod("static", SYSTEM_CRITICAL_PRIORITY, critical="static pod")
    assert [(100_000, ["static"])] == _names(GROUPS, [pod])


@pytest.mark.parametrize(("own", "expected"), [(5, 5), (60, 60), (61, 60), (0, 0), (-1, 0)])
def test_a_pod_has_its_groups_time_or_its_own_whichever_is_shorter(own: int, expected: int) -> None:
    (step,) = shutdown_steps(GROUPS, [_pod("a", grace_seconds=own)])
    assert expected == step.grace_seconds(step.pods[0])


def test_a_shutdown_is_held_up_for_the_sum_of_all_groups() -> None:
    assert 370 == shutdown_seconds(GROUPS)
    assert 0 == shutdown_seconds(())


def test_the_next_step_is_that_of_the_next_group_with_a_pod() -> None:
    pods = [_pod("low"), _pod("high", 100_000)]
    first = next_step(GROUPS, pods, -1)
    assert first is not None
    assert 0 == first.group.priority
    second = next_step(GROUPS, pods, first.place)
    assert second is not None
    assert 100_000 == second.group.priority
    assert next_step(GROUPS, pods, second.place) is None


priorities = st.integers(-(2**31), 2**31 - 1)
group_lists = st.lists(
    st.builds(ShutdownGroup, priority=priorities | st.integers(-2, 2), seconds=st.integers(0, 600)),
    max_size=6,
)
pod_lists = st.lists(st.tuples(priorities | st.integers(-3, 3), st.integers(-5, 900)), max_size=12).map(
    lambda some: [_pod(f"p{n}", priority, grace_seconds=own) for n, (priority, own) in enumerate(some)]
)


@given(group_lists, pod_lists)
def test_every_pod_ends_once_where_there_is_a_group_and_in_no_longer_than_its_time(
    groups: list[ShutdownGroup], pods: list[Pod]
) -> None:
    steps = shutdown_steps(groups, pods)
    ended = [pod.uid for step in steps for pod in step.pods]
    assert sorted(ended) == (sorted(pod.uid for pod in pods) if groups else [])
    for step in steps:
        assert step.pods
        for pod in step.pods:
            own_seconds = max(0, pod.termination_grace_period_seconds)
            assert step.grace_seconds(pod) == min(own_seconds, step.group.seconds)


@given(group_lists, pod_lists)
def test_no_pod_ends_in_a_later_step_than_one_of_higher_priority(
    groups: list[ShutdownGroup], pods: list[Pod]
) -> None:
    steps = shutdown_steps(groups, pods)
    assert [step.group.priority for step in steps] == sorted(step.group.priority for step in steps)
    for earlier, later in itertools.pairwise(steps):
        highest = max(pod.priority for pod in earlier.pods)
        assert highest <= min(pod.priority for pod in later.pods)


@given(group_lists, pod_lists)
def test_a_pod_belongs_to_the_highest_group_that_is_not_above_it(
    groups: list[ShutdownGroup], pods: list[Pod]
) -> None:
    known = [group.priority for group in groups]
    for step in shutdown_steps(groups, pods):
        for pod in step.pods:
            below = [priority for priority in known if priority <= pod.priority]
            assert step.group.priority == (max(below) if below else min(known))


@given(group_lists, pod_lists)
def test_step_by_step_a_shutdown_comes_to_its_end(groups: list[ShutdownGroup], pods: list[Pod]) -> None:
    ended: list[str] = []
    after = -1
    for _ in range(len(groups) + 1):
        step = next_step(groups, pods, after)
        if step is None:
            break
        ended += [pod.uid for pod in step.pods]
        after = step.place
    assert next_step(groups, pods, after) is None
    assert sorted(ended) == (sorted(pod.uid for pod in pods) if groups else [])
