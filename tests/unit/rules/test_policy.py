from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.rules import (
    Acted,
    Acts,
    Condition,
    Measure,
    Metric,
    Rule,
    RuleAction,
    RuleInput,
)
from reactor.rules.policy import (
    RuleState,
    Sample,
    after_acting,
    cooldown_left_seconds,
    cooldown_of_seconds,
    due,
    last_acted,
    observed,
    why_not,
)
from tests.support.processes import MIB
from tests.support.rules import FULL, THRASHES, firing_of, make_rule

USAGE = Metric(Measure.USAGE)
MAX = Metric(Measure.EVENTS, "max")
REACHES_ITS_LIMIT = Condition(MAX, 10.0, within_seconds=30.0)


def after(rule: Rule, *seen: tuple[float, Mapping[Metric, float | None]]) -> RuleState | None:
    """Return how a rule stands after these observations, each with its time."""
    state, earlier = None, dict[Metric, Sample]()
    for at_seconds, values in seen:
        state = observed(rule, state, values, at_seconds, earlier)
        earlier |= {
            metric: Sample(at_seconds, value) for metric, value in values.items() if value is not None
        }
    return state


def since(state: RuleState | None) -> float | None:
    return None if state is None else state.since_seconds


def test_a_rule_is_due_once_its_conditions_have_held_for_its_time_and_not_before() -> None:
    rule = make_rule()
    state = after(rule, (0.0, {FULL: 59.99}), (1.0, {FULL: 60.0}), (5.0, {FULL: 90.0}))
    assert state is not None
    assert due(rule, {"/apps/hog": state}, {}, 10.99) is None

    state = observed(rule, state, {FULL: 70.0}, 11.0)

    assert state is not None
    firing = due(rule, {"/apps/hog": state}, {}, 11.0)
    assert firing is not None
    assert (RuleInput(THRASHES, 70.0, 60.0, 90.0),) == firing.inputs
    assert ("/apps/hog", 1.0, 10.0, 0) == (
        firing.cgroup,
        firing.since_seconds,
        firing.held_seconds,
        firing.others,
    )


@pytest.mark.parametrize("between", [59.9, None], ids=["below", "unobserved"])
def test_what_did_not_hold_in_between_begins_afresh(between: float | None) -> None:
    assert 3.0 == since(after(make_rule(), (1.0, {FULL: 80.0}), (2.0, {FULL: between}), (3.0, {FULL: 80.0})))


def test_what_was_not_observed_for_long_begins_afresh() -> None:
    seen = (1.0, {FULL: 80.0}), (15.9, {FULL: 80.0})
    assert 1.0 == since(after(make_rule(), *seen))
    assert 31.0 == since(after(make_rule(), *seen, (31.0, {FULL: 80.0})))


def test_all_conditions_have_to_hold_and_one_that_is_not_observed_does_not() -> None:
    rule = make_rule(THRASHES, Condition(USAGE, 90.0))
    assert after(rule, (1.0, {FULL: 99.0, USAGE: 89.0})) is None
    assert after(rule, (1.0, {FULL: 99.0, USAGE: None})) is None
    assert after(rule, (1.0, {FULL: 99.0})) is None
    assert 1.0 == since(after(rule, (1.0, {FULL: 99.0, USAGE: 90.0})))


def test_of_a_counter_its_growth_within_the_window_counts() -> None:
    rule = make_rule(REACHES_ITS_LIMIT)
    assert since(after(rule, (0.0, {MAX: 1000.0}), (1.0, {MAX: 1009.0}))) is None
    assert 2.0 == since(after(rule, (0.0, {MAX: 1000.0}), (1.0, {MAX: 1009.0}), (2.0, {MAX: 1010.0})))
    assert since(after(rule, (0.0, {MAX: 0.0}), (25.0, {MAX: 5.0}), (31.0, {MAX: 10.0}))) is None
    later = observed(rule, None, {MAX: 1010.0}, 1.0, {MAX: Sample(0.0, 1000.0)})
    assert 1.0 == since(later)
    assert since(observed(rule, None, {MAX: 1010.0}, 1.0, {FULL: Sample(0.0, 1000.0)})) is None


def test_of_growth_that_began_before_the_window_its_share_counts() -> None:
    """Observed once in a second and a little more, a window of a second has never two observations in it."""
    stalls = Metric(Measure.STALL, "memory full")
    rule = make_rule(Condition(stalls, 0.5, within_seconds=1.0))
    state = after(rule, (0.0, {stalls: 7.0}), (1.25, {stalls: 7.75}))
    assert (state, since(state)) != (None, None)
    assert state is not None
    assert [one.value for one in state.inputs] == [pytest.approx(0.6)]
    assert since(after(rule, (0.0, {stalls: 7.0}), (1.25, {stalls: 7.5}))) is None
    longer = make_rule(Condition(stalls, 1.5, within_seconds=2.0))
    seen = (0.0, {stalls: 0.0}), (1.25, {stalls: 1.0}), (2.5, {stalls: 2.0})
    assert since(after(longer, *seen)) == 2.5


def test_growth_over_more_than_two_windows_does_not_count_but_is_followed() -> None:
    """So it is where very many cgroups are observed: once it grows, a cgroup is observed each second."""
    rule = make_rule(Condition(MAX, 10.0, within_seconds=10.0))
    state = after(rule, (0.0, {MAX: 0.0}), (24.0, {MAX: 500.0}))
    assert state is not None
    assert ([one.value for one in state.inputs], state.since_seconds) == ([0.0], None)
    assert 25.0 == since(observed(rule, state, {MAX: 510.0}, 25.0))
    assert observed(rule, state, {MAX: 500.0}, 25.0) is None
    assert after(rule, (0.0, {MAX: 500.0}), (24.0, {MAX: 500.0})) is None


def test_a_counter_that_goes_back_is_another_one_and_one_that_is_unobserved_does_not_hold() -> None:
    rule = make_rule(REACHES_ITS_LIMIT)
    assert since(after(rule, (0.0, {MAX: 10.0}), (1.0, {MAX: 1000.0}), (2.0, {MAX: 900.0}))) is None
    unread = after(rule, (0.0, {MAX: 0.0}), (1.0, {MAX: 1000.0}), (2.0, {MAX: None}))
    assert unread is not None
    assert () == unread.inputs
    assert 3.0 == since(observed(rule, unread, {MAX: 1000.0}, 3.0))
    assert observed(rule, unread, {MAX: None}, 40.0) is None


def test_a_counter_that_stands_still_is_forgotten_after_its_window() -> None:
    rule = make_rule(REACHES_ITS_LIMIT)
    seen = (0.0, {MAX: 0.0}), (1.0, {MAX: 5.0})
    assert after(rule, *seen, (30.0, {MAX: 5.0})) is not None
    assert after(rule, *seen, (31.5, {MAX: 5.0})) is None


@given(st.lists(st.tuples(st.floats(0.01, 20), st.integers(0, 50)), min_size=1, max_size=80))
def test_growth_is_never_more_than_there_was_and_samples_are_few(steps: list[tuple[float, int]]) -> None:
    rule = make_rule(REACHES_ITS_LIMIT)
    state, at, value, history = None, 0.0, 0.0, list[tuple[float, float]]()
    for pause, growth in steps:
        at, value = at + pause, value + growth
        history.append((at, value))
        earlier = {MAX: Sample(*history[-2])} if len(history) > 1 else None
        state = observed(rule, state, {MAX: value}, at, earlier)
        least = min(then for when, then in history if at - when <= 30.0)
        counted = 0.0 if state is None else state.inputs[0].value
        assert counted <= value - min(then for when, then in history if at - when <= 60.0)
        if state is not None:
            assert len(state.samples[0]) <= 67
        if all(pause >= 1 for pause, _ in steps):  # all samples are kept: it is what there was at least
            assert counted >= value - least


@given(st.lists(st.none() | st.floats(0, 100), min_size=1, max_size=40), st.floats(1, 20))
def test_a_rule_is_due_only_where_each_observation_of_its_time_held(
    values: list[float | None], for_seconds: float
) -> None:
    rule = make_rule(for_seconds=for_seconds)
    state = after(rule, *((float(at), {FULL: value}) for at, value in enumerate(values)))
    now = float(len(values) - 1)
    firing = None if state is None else due(rule, {"/a": state}, {}, now)
    held = [value is not None and value >= 60 for value in values]
    longest = next((count for count, one in enumerate(reversed(held)) if not one), len(held))
    assert (firing is not None) == (longest > 0 and longest - 1 >= for_seconds)


def test_the_cgroup_that_has_held_for_longest_goes_first_and_a_cool_down_is_the_rules() -> None:
    rule = make_rule(for_seconds=1.0)
    states = {
        name: found
        for name, at in {"/apps/b": 2.0, "/apps/a": 1.0, "/apps/c": 4.5}.items()
        if (found := after(rule, (at, {FULL: 90.0}))) is not None
    }
    states["/apps/d"] = RuleState(at_seconds=1.0, samples=((),))
    firing = due(rule, states, {}, 5.0)
    assert firing is not None
    assert ("/apps/a", 1) == (firing.cgroup, firing.others)
    assert due(rule, states, {"/apps/c": Acted(-54.9)}, 5.0) is None
    assert due(rule, states, {"/apps/c": Acted(-55.0)}, 5.0) is not None


def test_a_cool_down_is_longer_for_the_cgroup_alone_that_is_not_helped() -> None:
    rule = make_rule(for_seconds=1.0)
    held = {one: state for one in "ab" if (state := after(rule, (1.0, {FULL: 90.0}))) is not None}
    acted = {"a": Acted(0.0, unhelpful=1)}
    assert due(rule, held, acted, 59.9) is None
    for at_seconds, cgroup in ((60.0, "b"), (119.9, "b"), (120.0, "a")):
        firing = due(rule, held, acted, at_seconds)
        assert firing is not None
        assert cgroup == firing.cgroup
        assert why_not(rule, held, acted, at_seconds) is None
    acted["b"] = Acted(60.0)
    assert last_acted(acted) == acted["b"]
    for cgroups, at_seconds, left_seconds in (
        ("ab", 60.0, 60.0),
        ("ab", 121.0, 0.0),
        ("a", 119.0, 1.0),
        ("ac", 119.5, 0.5),
        ("", 200.0, 0.0),
    ):
        assert left_seconds == cooldown_left_seconds(rule, acted, cgroups, at_seconds)
    alone = {"a": acted["a"]}
    assert 30.0 == cooldown_left_seconds(rule, alone, "a", 90.0)
    assert 0.0 == cooldown_left_seconds(rule, alone, "ab", 90.0)


def test_a_rule_that_is_due_says_how_often_it_did_not_help() -> None:
    rule = make_rule(for_seconds=1.0, action=RuleAction.EVICT)
    state = after(rule, (70.0, {FULL: 90.0}))
    assert state is not None
    for acted, unhelpful in (({}, 0), ({"/apps": Acted(15.0)}, 1), ({"/other": Acted(15.0)}, 0)):
        firing = due(rule, {"/apps": state}, acted, 75.0)
        assert firing is not None
        assert unhelpful == firing.unhelpful


@pytest.mark.parametrize(
    ("at_seconds", "acted", "why"),
    [
        (5.0, {}, "it has held in /a for 4 of 10 s"),
        (10.9, {}, "it has held in /a for 10 of 10 s"),
        (11.0, {}, None),
        (11.0, {"/a": Acted(-49.0)}, None),
        (11.0, {"/a": Acted(-48.0)}, "it acted 59 s ago, and rests for 1 s more"),
        (11.0, {"/a": Acted(-49.0, 1)}, "it has held in /b for 8 of 10 s"),
        (
            11.0,
            {"/a": Acted(-49.0, 1), "/b": Acted(-50.0, 1)},
            "it acted for /a 60 s ago, and rests there for 60 s more: 1 times in a row it did not help",
        ),
    ],
)
def test_why_a_rule_does_not_act_is_reported_and_nothing_where_it_is_due(
    at_seconds: float, acted: Acts, why: str | None
) -> None:
    rule = make_rule()
    states = {
        name: found
        for name, at in {"/a": 1.0, "/b": 3.0}.items()
        if (found := after(rule, (at, {FULL: 90.0}))) is not None
    }
    assert why == why_not(rule, states, acted, at_seconds)
    assert (why is None) == (due(rule, states, acted, at_seconds) is not None)


def test_a_rule_that_holds_nowhere_says_so() -> None:
    counted = RuleState(at_seconds=1.0, samples=((),))
    for states in ({}, {"/a": counted}):
        assert "its conditions hold in none of its cgroups" == why_not(make_rule(), states, {}, 2.0)


def test_a_recording_has_no_gaps_between_its_steps() -> None:
    rule = make_rule()
    first = observed(rule, None, {FULL: 90.0}, 0.0)
    assert 0.0 == since(observed(rule, first, {FULL: 90.0}, 600.0, longest_gap_seconds=600.0))
    assert 600.0 == since(observed(rule, first, {FULL: 90.0}, 600.0, longest_gap_seconds=599.0))


STALLS = Metric(Measure.STALL, "memory some")
STALLED = make_rule(Condition(STALLS, 0.5, within_seconds=2.0))


def test_what_the_kernel_reports_of_a_counter_counts_as_observed() -> None:
    reported = {STALLS: Sample(8.2, 99.5), FULL: Sample(8.2, 1.0)}
    first = observed(STALLED, None, {STALLS: 100.0}, 10.0, reported=reported)
    assert 10.0 == since(first)
    assert 10.0 == since(observed(STALLED, first, {STALLS: 100.0}, 10.15))
    assert since(observed(STALLED, first, {STALLS: 100.0}, 12.0)) is None
    assert observed(STALLED, None, {STALLS: None}, 10.0, reported=reported) is None


@pytest.mark.parametrize(
    "kept",
    [
        (Sample(9.9, 99.9),),  # observed too late to see it grow
        (Sample(9.9, 99.0),),  # it was lower even later: it has grown by more
        (Sample(7.0, 99.4), Sample(9.9, 99.8)),
        (Sample(7.0, 99.6), Sample(9.9, 99.8)),  # contradicts the kernel, and is left out
    ],
)
def test_what_is_reported_and_what_was_observed_stand_beside_each_other(kept: tuple[Sample, ...]) -> None:
    before = RuleState(at_seconds=9.9, samples=(kept,))
    reported = {STALLS: Sample(8.2, 99.5)}
    assert 10.0 == since(observed(STALLED, before, {STALLS: 100.0}, 10.0, reported=reported))


@given(
    st.lists(st.tuples(st.floats(0.1, 3.0), st.floats(0.0, 1.0)), min_size=1, max_size=8),
    st.floats(0.1, 1.8),
)
def test_what_is_reported_truly_never_makes_growth_of_more_than_there_was(
    steps: list[tuple[float, float]], ago_seconds: float
) -> None:
    at_seconds, value, history = 0.0, 0.0, [(0.0, 0.0)]
    state = None
    for pause_seconds, growth in steps:
        at_seconds, value = at_seconds + pause_seconds, value + growth
        then = at_seconds - ago_seconds
        lower = max(one for at, one in history if at <= then) if then >= 0 else 0.0
        reported = {STALLS: Sample(then, lower)} if then >= 0 else None
        state = observed(STALLED, state, {STALLS: value}, at_seconds, reported=reported)
        history.append((at_seconds, value))
        if state is not None:
            ((_, grown, _, _),) = state.inputs
            assert grown is not None
            assert grown <= value + 1e-9


def test_a_rule_that_does_not_help_rests_twice_as_long_each_time_and_a_report_never_does() -> None:
    firing = replace(firing_of(), since_seconds=100.0, at_seconds=130.0)
    rule, apps = firing.rule, firing.cgroup
    first = after_acting(firing, {})
    assert ({apps: Acted(130.0)}, 60.0) == (first, cooldown_of_seconds(rule, first[apps]))
    again = replace(firing, since_seconds=189.0, at_seconds=200.0)
    second = after_acting(again, first)
    assert (1, 120.0) == (second[apps].unhelpful, cooldown_of_seconds(rule, second[apps]))
    assert 240.0 == cooldown_of_seconds(rule, after_acting(replace(again, since_seconds=201.0), second)[apps])
    assert 64 * 60.0 == cooldown_of_seconds(rule, Acted(0.0, unhelpful=99))
    for helped in (
        replace(again, since_seconds=190.0),
        replace(again, cgroup="/other"),
        replace(again, rule=replace(rule, action=RuleAction.REPORT)),
    ):
        assert 0 == after_acting(helped, first)[helped.cgroup].unhelpful


def test_how_a_rule_acted_is_kept_by_cgroup_for_as_long_as_it_may_matter() -> None:
    firing = replace(firing_of(), at_seconds=10_000.0)
    longest_seconds = 128 * firing.rule.cooldown_seconds
    before = {"/old": Acted(9_999.9 - longest_seconds), "/other": Acted(10_000.0 - longest_seconds, 2)}
    assert {"/other": before["/other"], firing.cgroup: Acted(10_000.0)} == after_acting(firing, before)


def test_conditions_read_as_they_are_meant() -> None:
    assert "stall io some >= 0.5 s within 2 s" == str(Condition(Metric(Measure.STALL, "io some"), 0.5, 2.0))
    assert "pages scanned >= 100 within 10 s" == str(Condition(Metric(Measure.PAGES_SCANNED), 100, 10.0))
    traffic = Condition(Metric(Measure.SWAP_TRAFFIC), 100 * MIB, 10.0)
    assert "swap traffic >= 100Mi within 10 s" == str(traffic)
    assert "swap used >= 90 %" == str(Condition(Metric(Measure.SWAP_USED), 90.0))
    assert "unknown" == THRASHES.amount_text(None)
