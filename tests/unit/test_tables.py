"""Tables in the terminal: how they give way, and that names that others chose do no harm."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.tables import Column, Screen, Styled, Table, table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_columns_are_as_wide_as_their_cells_and_no_line_ends_with_blanks() -> None:
    shown = table(("NAME", "USES"), [("a", "1Mi"), ("longer", "100Mi")], right="USES")
    assert [" NAME     USES", " a         1Mi", " longer  100Mi"] == list(shown.lines(80))


def test_the_widest_column_is_broken_at_spaces_and_a_whole_one_never() -> None:
    shown = table(("PATH", "WHY"), [("/a/path/of/that/length", "one two three four")], whole="PATH")
    assert list(shown.lines(34)) == [
        " PATH                    WHY",
        " /a/path/of/that/length  one two",
        "                         three",
        "                         four",
    ]


def test_a_word_that_fits_nowhere_is_cut() -> None:
    shown = table(("A", "B"), [("x" * 12, "y")])
    assert [" A         B", " xxxxxxxx  y", " xxxx"] == list(shown.lines(12))


def test_headings_of_several_lines_stand_above_their_cells() -> None:
    shown = Table(columns=[Column(title="a\nb"), Column(title="c")], rows=[("1", "2")], indented=False)
    assert ["a", "b  c", "1  2"] == list(shown.lines(80))


def test_wide_and_combining_characters_count_by_their_cells() -> None:
    shown = table(("A", "B"), [("日本", "x"), ("e\u0301a", "y")])
    assert [" A     B", " 日本  x"] == list(shown.lines(80))[:2]
    assert "e\u0301a    y" in list(shown.lines(80))[2]


@pytest.mark.parametrize("name", ["\x1b[2J", "a\u202eb", "c\rd"])
def test_what_moves_the_cursor_is_shown_as_its_escape(name: str) -> None:
    out = io.StringIO()
    screen = Screen(out, width=80)
    screen.print(table(("POD",), [(name,)], title=name), name)
    screen.say(name)
    assert not set(out.getvalue()) & {"\x1b", "\u202e", "\r"}


def test_styles_show_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    paper, terminal = io.StringIO(), Terminal()
    for file in (paper, terminal):
        Screen(file, width=80).print(Styled("dead", "red"))
    assert ("dead\n", "\x1b[31mdead\x1b[0m\n") == (paper.getvalue(), terminal.getvalue())
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    Screen(plain, width=80).print(Styled("dead", "red"))
    assert "dead\n" == plain.getvalue()


@given(st.lists(st.tuples(st.text(max_size=40), st.text(max_size=40)), max_size=5), st.integers(20, 100))
def test_no_cell_loses_text_and_no_line_is_wider_than_the_screen(
    rows: list[tuple[str, str]], columns: int
) -> None:
    lines = list(table(("A", "B"), rows).lines(columns))
    assert all(len(line) <= columns for line in lines)
    shown = "".join("".join(lines).split())
    for cell in (cell for row in rows for cell in row):
        assert set("".join(cell.split())) <= set(shown) or not cell.isprintable()
