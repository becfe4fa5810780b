from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

import pytest

from reactor.plain import from_plain, to_plain


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Inner:
    share: Fraction
    twice: Fraction = field(init=False, default=Fraction(0))


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    colour: Colour | None = None
    inner: tuple[Inner, ...] = ()
    pair: tuple[float, str] | None = None
    by_colour: Mapping[Colour, int] = field(default_factory=dict)
    by_inner: Mapping[Inner, float] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    is_set: bool = False


FULL = Outer(
    name="a",
    colour=Colour.RED,
    inner=(Inner(share=Fraction(3, 2)),),
    pair=(1.5, "b"),
    by_colour={Colour.RED: 7},
    by_inner={Inner(share=Fraction(1, 3)): 2.0},
    names=frozenset({"x"}),
    is_set=True,
)


@pytest.mark.parametrize("value", [FULL, Outer(name="")])
def test_a_value_comes_back_from_json_as_it_was(value: Outer) -> None:
    assert value == from_plain(Outer, json.loads(json.dumps(to_plain(value))))


def test_fields_that_are_missing_have_their_defaults_and_others_are_ignored() -> None:
    assert Outer(name="a") == from_plain(Outer, {"name": "a", "later": [1]})


@pytest.mark.parametrize(
    "changed",
    [
        {"name": 7},
        {"name": None},
        {"colour": "green"},
        {"inner": {}},
        {"inner": [{}]},
        {"inner": [{"share": 1}]},
        {"pair": [1.5]},
        {"pair": ["x", "b"]},
        {"by_colour": {"red": True}},
        {"by_inner": [[{"share": "1/0"}, 1.0]]},
        {"is_set": 1},
    ],
)
def test_what_is_no_such_value_is_refused(changed: Mapping[str, object]) -> None:
    document = {**to_plain(FULL), **changed}
    with pytest.raises((TypeError, ValueError, KeyError, AttributeError, ArithmeticError)):
        from_plain(Outer, document)
