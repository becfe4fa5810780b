"""Processes that go together: a process with its descendants, or those of a cgroup below the pod's."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.kills import ProcessMemory
from reactor.policy.process_victims import Group, joined, leaf_of, tree_of

MIB = 1 << 20


def process(
    pid: int, mib: int, parent: int = 0, *, group: int = 0, session: int = 0, name: str = "", shared: int = 0
) -> ProcessMemory:
    return ProcessMemory(
        pid=pid,
        name=name or f"p{pid}",
        anonymous_bytes=mib * MIB,
        shared_bytes=shared * MIB,
        swap_bytes=0,
        parent_pid=parent,
        group_pid=group,
        session_pid=session,
    )


def chosen(
    processes: Collection[ProcessMemory],
    wanted_mib: int | None = 1,
    *,
    spared: Collection[str] = ("bash",),
    untouchable: Collection[int] = (),
) -> Group | None:
    return tree_of(
        processes,
        None if wanted_mib is None else wanted_mib * MIB,
        is_spared=lambda one: one.name in spared,
        is_untouchable=lambda one: one.pid in untouchable,
    )


def pids(group: Group | None) -> set[int]:
    return set() if group is None else {one.pid for one in group.members}


SHELL = process(1, 2, name="bash")
# Twenty agents of a shell, each with a tool.
AGENTS = [process(100 * n, 10, 1) for n in range(1, 21)] + [
    process(100 * n + 1, 3, 100 * n) for n in range(1, 21)
]


def test_of_many_agents_the_one_that_has_run_away_goes_with_its_tools_and_no_other() -> None:
    grown = [process(500, 40, 1) if one.pid == 500 else one for one in AGENTS]
    found = chosen([SHELL, *grown, process(502, 30, 500)])
    assert {500, 501, 502} == pids(found)
    assert found is not None
    assert ("p500", 73 * MIB) == (found.named.name, found.held_bytes)


def test_of_an_agent_whose_one_tool_holds_the_better_part_the_tool_alone_goes() -> None:
    tool = [process(502, 400, 500), process(503, 5, 502)]
    assert {502, 503} == pids(chosen([SHELL, *AGENTS, *tool]))


@pytest.mark.parametrize("wanted", [500, None], ids=["more is missing", "nothing is known"])
def test_the_tool_is_not_enough_if_more_is_missing_or_it_is_not_known(wanted: int | None) -> None:
    tool = [process(502, 400, 500), process(503, 5, 502)]
    assert {500, 501, 502, 503} == pids(chosen([SHELL, *AGENTS, *tool], wanted))


def test_a_spared_process_goes_with_a_tree_and_is_the_root_of_none() -> None:
    line = [process(10, 5, 1), process(11, 1, 10, name="bash"), process(12, 3, 11), process(13, 3, 11)]
    assert {10, 11, 12, 13} == pids(chosen([SHELL, *line]))
    assert not pids(chosen([SHELL]))


def test_no_tree_with_an_untouchable_process_goes_but_what_is_below_it_may() -> None:
    line = [process(10, 5, 1), process(11, 3, 10), process(12, 3, 11)]
    assert {12} == pids(chosen(line, untouchable={11}))
    assert {11, 12} == pids(chosen(line, untouchable={10}))
    assert not pids(chosen(line, untouchable={12, 11, 10}))


def test_a_process_whose_parent_is_gone_belongs_to_the_leader_of_its_group_else_of_its_session() -> None:
    agent = process(10, 5, 1)
    assert {10, 20} == pids(chosen([SHELL, agent, process(20, 4, 999, group=10)]))
    assert {10, 20} == pids(chosen([SHELL, agent, process(20, 4, 999, group=20, session=10)]))
    assert {20} == pids(chosen([SHELL, agent, process(20, 9, 999, group=20, session=20)]))


def test_who_is_above_himself_is_a_root() -> None:
    circle = [process(10, 5, 999, group=11), process(11, 4, 10)]
    assert {10, 11} == pids(chosen(circle))


def test_shared_memory_counts_as_far_as_it_is_certainly_the_trees() -> None:
    found = chosen([process(10, 1, shared=20), process(11, 1, 10, shared=20), process(12, 15)])
    assert found is not None
    assert {10, 11} == pids(found)
    assert 22 * MIB == found.held_bytes
    other = chosen([process(10, 1, shared=20), process(12, 1, shared=20), process(13, 3)])
    assert other is not None
    assert {13} == pids(other)


def test_a_fork_of_the_killed_is_known_by_its_parent_its_group_or_its_session() -> None:
    group = chosen([process(10, 5), process(11, 1, 10)])
    assert group is not None
    late = [
        process(20, 1, 11),
        process(21, 1, 999, group=10),
        process(22, 1, 999, session=30),
        process(23, 1, 999),
        process(11, 1, 10),
    ]
    assert [20, 21, 22] == [one.pid for one in joined(group, late, {30})]


def leaf(cgroups: dict[str, list[ProcessMemory]], wanted_mib: int | None = 1) -> set[int]:
    wanted = None if wanted_mib is None else wanted_mib * MIB
    return pids(leaf_of(cgroups, wanted, is_untouchable=lambda one: one.name == "bash"))


def test_the_cgroup_below_the_pod_that_holds_most_goes_and_never_the_pods_own() -> None:
    cgroups = {".": [process(1, 90)], "a": [process(2, 10)], "b": [process(3, 20)], "b/c": [process(4, 5)]}
    assert {3, 4} == leaf(cgroups)
    assert not leaf({".": [process(1, 90)]})


def test_of_a_cgroup_a_part_goes_that_is_enough_and_the_better_part() -> None:
    cgroups = {"b": [process(3, 4)], "b/c/d": [process(4, 50)], "b/e": [process(5, 3)], "f": [process(6, 9)]}
    assert {4} == leaf(cgroups)
    assert {3, 4, 5} == leaf(cgroups, 60)
    assert {3, 4, 5} == leaf(cgroups, None)


def test_a_cgroup_with_an_untouchable_process_stays_and_one_without_any_process_counts_for_nothing() -> None:
    assert {2} == leaf({"a": [process(2, 1)], "b": [process(3, 20, name="bash")], "c": []})


@given(
    st.lists(
        st.tuples(
            st.integers(1, 12), st.integers(0, 50), st.integers(0, 12), st.integers(0, 12), st.booleans()
        ),
        max_size=12,
        unique_by=lambda one: one[0],
    ),
    st.integers(0, 100) | st.none(),
)
def test_whatever_tenants_make_of_their_parents_no_untouchable_process_goes(
    drawn: list[tuple[int, int, int, int, bool]], wanted: int | None
) -> None:
    processes = [process(pid, mib, parent, group=group) for pid, mib, parent, group, _ in drawn]
    untouchable = {pid for pid, *_, kept in drawn if kept}
    found = chosen(processes, wanted, untouchable=untouchable)
    assert not pids(found) & untouchable
    assert untouchable or (found is None) == (not processes)


def test_thousands_of_processes_in_one_line_are_chosen_among_in_a_step_for_each() -> None:
    """Each is the child of the one before: no call within a call, and no list for each."""
    line = [process(1, 1)] + [process(pid, 1, pid - 1) for pid in range(2, 4097)]
    line[-1] = process(4096, 8000, 4095)
    checked: list[int] = []

    def is_untouchable(one: ProcessMemory) -> bool:
        checked.append(one.pid)
        return False

    found = tree_of(line, MIB, is_spared=lambda _: False, is_untouchable=is_untouchable)
    assert pids(found) == {4096}
    assert len(checked) == 4096


def test_thousands_whose_parents_are_a_ring_are_cut_where_it_is_entered() -> None:
    ring = [process(1, 1, 4096)] + [process(pid, 1, pid - 1) for pid in range(2, 4097)]
    assert pids(chosen(ring, None)) == set(range(1, 4097))


@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 30), st.integers(0, 5), st.booleans()),
        min_size=1,
        max_size=12,
    ),
    st.none() | st.integers(0, 200),
)
def test_what_goes_is_a_root_with_all_below_it_and_no_untouchable_one(
    drawn: list[tuple[int, int, int, bool]], wanted_mib: int | None
) -> None:
    """By the plain definition: who is above whom is asked for each pair."""
    processes = [
        process(place, mib, min(parent, place - 1), shared=shared)
        for place, (parent, mib, shared, _) in enumerate(drawn, 1)
    ]
    untouchable = {place for place, one in enumerate(drawn, 1) if one[3]}
    found = chosen(processes, wanted_mib, untouchable=untouchable)
    if found is None:
        assert untouchable or not processes
        return
    assert not pids(found) & untouchable
    by_pid = {one.pid: one for one in processes}
    for one in processes:
        if one.pid != found.named.pid and one.parent_pid in pids(found):
            assert one.pid in pids(found)
    assert {by_pid[pid].parent_pid for pid in pids(found) - {found.named.pid}} <= pids(found)
