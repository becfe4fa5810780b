import gc
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from reactor.config.decode import decode, strict
from reactor.config.scalars import Count, Instant, Percent, Seconds, Timestamp
from reactor.errors import ConfigError, join, shorten
from reactor.model.signals import Layout


@strict
@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    whole: int
    text: str = ""
    is_on: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    by_name: Mapping[str, Inner] = field(default_factory=dict)
    by_layout: Mapping[Layout, Count] = field(default_factory=dict)
    span: Seconds = Seconds(0.0)  # noqa: RUF009 - a float
    instant: Instant | None = None
    at: Timestamp | None = None
    share: Percent | None = None
    odd: Count | None = field(default=None, metadata={"key": "odd-one"})


def _problems(raw: Any, root: str = "") -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        decode(raw, Outer, root=root)
    return {problem.path: problem.got for problem in caught.value.problems}


def test_keys_are_in_camel_case_and_nulls_are_absent() -> None:
    found = decode(
        {"inner": None, "byName": {"a": {"whole": 1, "isOn": True}, "b": None}, "odd-one": 3}, Outer
    )
    assert Outer(by_name={"a": Inner(whole=1, is_on=True)}, odd=Count(3)) == found


def test_upstream_documents_may_hold_more_and_ours_may_not() -> None:
    assert Outer() == decode({"somethingElse": 1}, Outer)
    assert {"inner.isOf": "an unknown key (did you mean isOn?)"} == _problems(
        {"inner": {"whole": 1, "isOf": True}}
    )


def test_every_problem_is_reported_at_once_with_its_path_below_the_root() -> None:
    raw = {
        "inner": {},
        "many": [{"whole": "x"}, 5, {"whole": 1, "text": [], "isOn": "false", 3: 4, "z": 1}],
        "byName": {"a.b": {"whole": True}},
        "byLayout": {"none": -1},
        "span": "-1s",
        "instant": 5,
        "at": "noon",
        "share": 101,
        "odd-one": 1.5,
    }
    assert _problems(raw, "doc") == {
        "doc.inner.whole": "nothing",
        "doc.many[0].whole": "'x'",
        "doc.many[1]": "5",
        "doc.many[2].text": "[]",
        "doc.many[2].isOn": "'false'",
        "doc.many[2][3]": "an unknown key",
        "doc.many[2].z": "an unknown key",
        'doc.byName["a.b"].whole': "True",
        "doc.byLayout.none": "-1",
        "doc.span": "'-1s'",
        "doc.instant": "5",
        "doc.at": "'noon'",
        "doc.share": "101",
        "doc.odd-one": "1.5",
    }


@pytest.mark.parametrize("raw", [None, 5, "text", [], True])
def test_what_is_not_a_mapping_is_refused_as_a_whole(raw: object) -> None:
    assert {"document": repr(raw)} == _problems(raw)


@pytest.mark.parametrize("key", ["many", "byName", "byLayout"])
def test_lists_and_mappings_are_not_each_other(key: str) -> None:
    assert [key] == list(_problems({key: "text"}))
    assert [key] == list(_problems({key: {"a": 1} if key == "many" else [1]}))


def test_a_text_of_digits_needs_no_quotes() -> None:
    assert "7" == decode({"whole": 1, "text": 7}, Inner).text
    with pytest.raises(ConfigError):
        decode({"whole": 1, "text": True}, Inner)


@pytest.mark.parametrize("raw", [1.5, "1", True, 2**63, -(2**63) - 1])
def test_a_whole_number_is_one_of_64_bits(raw: object) -> None:
    with pytest.raises(ConfigError):
        decode({"whole": raw}, Inner)


def test_counts_may_be_written_as_floats_without_a_fraction() -> None:
    assert 10 == decode({"odd-one": 1e1}, Outer).odd
    for raw in (1.5, float("inf"), float("nan"), 2**64, "10"):
        assert ["odd-one"] == list(_problems({"odd-one": raw}))


def test_times_are_compared_across_zones() -> None:
    times = ("2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", "2026-01-31T12:00:00")
    assert 1 == len({decode({"at": time}, Outer).at for time in times})


def test_instants_may_be_negative_and_zero_may_be_a_number() -> None:
    assert -72000.0 == decode({"instant": "-20h"}, Outer).instant
    assert 0.0 == decode({"instant": 0}, Outer).instant
    for raw in (False, 0.0, 1):
        assert ["instant"] == list(_problems({"instant": raw}))


def test_a_document_without_an_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert ["byName.a"] == list(_problems({"byName": {"a": endless}}))
    assert "[[" in shorten(endless)


def test_what_was_got_is_shown_shortly() -> None:
    laughs: list[Any] = ["ha"] * 9
    for _ in range(30):
        laughs = [laughs] * 9
    for value in (
        laughs,
        "x" * 10**6,
        {n: n for n in range(10**4)},
        16**9000,
        [16**9000],
        list(range(10**4)),
    ):
        assert 0 < len(shorten(value)) <= 80
    assert "'100 Mi'" == shorten("100 Mi")


@pytest.mark.parametrize(
    ("path", "key", "joined"),
    [
        ("", "a", "a"),
        ("a", "b-c/d", "a.b-c/d"),
        ("a", "b.c", 'a["b.c"]'),
        ("", "b.c", '["b.c"]'),
        ("a", 3, "a[3]"),
        ("a", "", 'a[""]'),
    ],
)
def test_a_path_is_written_as_one_would_write_it(path: str, key: str | int, joined: str) -> None:
    assert joined == join(path, key)


def test_a_document_that_is_refused_leaves_no_cycles_behind() -> None:
    """Python's collector is off in the daemon between its ticks, and peers may send thousands of these."""
    wrong = {"inner": {"text": []}, "many": [3, {"whole": "x"}], "by_name": {"a": {}}, "share": 101}
    _problems(wrong)
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            with suppress(ConfigError):
                decode(wrong, Outer)
        assert 0 == gc.collect()
    finally:
        gc.enable()
