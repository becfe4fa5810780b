from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import pytest

from reactor.plain import from_plain, to_plain, write_whole


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Inner:
    share: Fraction
    twice: Fraction = field(init=False, default=Fraction(0))


class Place(NamedTuple):
    at: float
    inner: Inner | None = None


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
    places: tuple[Place, ...] = ()


FULL = Outer(
    name="a",
    colour=Colour.RED,
    inner=(Inner(share=Fraction(3, 2)),),
    pair=(1.5, "b"),
    by_colour={Colour.RED: 7},
    by_inner={Inner(share=Fraction(1, 3)): 2.0},
    names=frozenset({"x"}),
    is_set=True,
    places=(Place(1.5), Place(2.0, Inner(share=Fraction(1)))),
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
        {"places": [[1.5]]},
    ],
)
def test_what_is_no_such_value_is_refused(changed: Mapping[str, object]) -> None:
    document = {**to_plain(FULL), **changed}
    with pytest.raises((TypeError, ValueError, KeyError, AttributeError, ArithmeticError)):
        from_plain(Outer, document)


def test_a_file_is_replaced_through_a_link_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path, link, dangling = tmp_path / "page.html", tmp_path / "link", tmp_path / "dangling"
    path.write_text("before")
    link.symlink_to(path)
    dangling.symlink_to(tmp_path / "new.html")
    for to in (link, dangling):
        write_whole(to, "now \udcff")
        assert to.is_symlink()
        assert to.read_text() == "now \\udcff"
    assert {path, link, dangling, tmp_path / "new.html"} == set(tmp_path.iterdir())


def test_what_is_no_regular_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    link, fifo = tmp_path / "null", tmp_path / "fifo"
    link.symlink_to("/dev/null")
    os.mkfifo(fifo)
    write_whole(link, "text")
    assert Path("/dev/null").is_char_device()
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(fifo, "text")
        assert os.read(reader, 16) == b"text"
    finally:
        os.close(reader)
    assert fifo.is_fifo()


def test_a_directory_and_a_fifo_that_no_process_reads_are_errors_with_their_path(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (tmp_path, fifo, tmp_path / "missing" / "page.html"):
        with pytest.raises(OSError, match=str(path)) as refused:
            write_whole(path, "text")
        assert str(path) == refused.value.filename
    assert fifo.is_fifo()
