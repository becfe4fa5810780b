"""What a service manager's message says of units."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.link.managed_oom import ManagedOomKind, ManagedOomUnit, unit_problem
from reactor.managed_oom.relay import VarlinkError, changes_in

SWAP, PRESSURE, RULES = ManagedOomKind
WHOLE = 2**32 - 1


def element(**changed: Any) -> dict[str, Any]:
    return {"mode": "kill", "path": "/a", "property": "ManagedOOMMemoryPressure", **changed}


def of(*elements: Any, uid: int | None = None) -> tuple[list[ManagedOomUnit | None], int]:
    units, refused = changes_in({"cgroups": list(elements)}, uid)
    return list(units.values()), refused


def test_units_that_say_kill_are_reported_with_their_limits() -> None:
    limit = WHOLE * 20 // 100
    assert (
        [
            ManagedOomUnit(kind=PRESSURE, cgroup="/a", limit_percent=20.0, duration_seconds=5.0),
            ManagedOomUnit(kind=SWAP, cgroup="/"),
        ],
        0,
    ) == of(element(limit=limit, duration=5_000_000), element(property="ManagedOOMSwap", path="", limit=7))


@pytest.mark.parametrize(
    ("limit", "percent"),
    [(0, None), (1, 1.0), (WHOLE, 100.0), (WHOLE // 3, 33.33), (WHOLE + 1, None), (-1, None), (True, None)],
)
def test_a_limit_is_a_share_of_the_whole(limit: Any, percent: float | None) -> None:
    (unit,), _ = of(element(limit=limit))
    assert unit is not None
    assert percent == unit.limit_percent


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [(0, None), (1, 1.0), (2_500_000, 2.5), (2**64 - 1, None), (10**400, None), ("5", None), (-5, None)],
)
def test_a_duration_is_in_microseconds(duration: Any, seconds: float | None) -> None:
    (unit,), _ = of(element(duration=duration))
    assert unit is not None
    assert seconds == unit.duration_seconds


def test_a_unit_that_does_not_say_kill_is_forgotten() -> None:
    assert {(PRESSURE, "/a"): None} == changes_in({"cgroups": [element(mode="auto")]}, None).units


def test_what_can_not_be_is_counted_and_forgotten_and_the_others_count() -> None:
    wrong = [
        element(path="/a/../b"),
        element(path="/*"),
        element(path=None),
        element(mode="maybe"),
        element(mode=["kill"]),
        element(property=None),
        element(property=["ManagedOOMSwap"]),
        element(duration=10**12 * 10),
        "kill",
        None,
    ]
    units, refused = of(*wrong, element(path="/c"))
    assert len(wrong) == refused
    assert [ManagedOomUnit(kind=PRESSURE, cgroup="/c")] == [one for one in units if one is not None]


def test_another_property_is_no_fault() -> None:
    assert ([], 0) == of(element(property="OOMLater", rules=["a"]))


def test_rules_of_a_unit_are_names_each_once() -> None:
    assert ([ManagedOomUnit(kind=RULES, cgroup="/a", rules=("b", "a"))], 0) == of(
        element(property="OOMRules", rules=["b", "a", "b"])
    )
    assert {(RULES, "/a"): None} == changes_in(
        {"cgroups": [element(property="OOMRules", mode="auto")]}, None
    ).units


@pytest.mark.parametrize(
    "rules", [None, [], "a", [1], ["a/b"], [""], ["\n"], ["\ud800"], ["a" * 129], [*"abcdefghi"]]
)
def test_rules_that_can_not_be_are_counted_and_the_unit_has_none(rules: Any) -> None:
    assert ([None], 1) == of(element(property="OOMRules", rules=rules))


def test_a_user_s_unit_counts_below_that_users_slice_alone() -> None:
    own = "/user.slice/user-1000.slice/user@1000.service/app.slice"
    units, refused = of(element(path=own), element(path="/system.slice"), uid=1000)
    assert [ManagedOomUnit(kind=PRESSURE, cgroup=own, uid=1000), None] == units
    assert 1 == refused


@pytest.mark.parametrize(
    "parameters", [None, [], "x", {}, {"cgroups": None}, {"cgroups": "abc"}, {"cgroups": {}}]
)
def test_parameters_of_another_form_are_refused(parameters: Any) -> None:
    with pytest.raises(VarlinkError, match="accepted: an object with a list of cgroups"):
        changes_in(parameters, None)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["kill", "auto", "/a"]),
    lambda some: st.lists(some) | st.dictionaries(st.text() | st.sampled_from(["mode", "path"]), some),
    max_leaves=8,
)
_ELEMENTS = st.fixed_dictionaries(
    {},
    optional={
        "mode": st.sampled_from(["kill", "auto"]) | _JSON,
        "path": st.text() | _JSON,
        "property": st.sampled_from(["ManagedOOMSwap", "ManagedOOMMemoryPressure", "OOMRules"]) | _JSON,
        "limit": st.integers() | _JSON,
        "duration": st.integers() | _JSON,
    },
)


@given(st.lists(_ELEMENTS | _JSON, max_size=5), st.none() | st.integers(0, 2000))
def test_no_json_brings_anything_but_units_that_can_be(elements: list[Any], uid: int | None) -> None:
    units, refused = of(*elements, uid=uid)
    assert 0 <= refused <= len(elements)
    for unit in units:
        assert unit is None or (unit_problem(unit) is None and uid == unit.uid)
