"""The report: one file, everything escaped, the same colours throughout."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from reactor.errors import RefusedError
from reactor.report import (
    Bars,
    Distribution,
    Lines,
    Report,
    Section,
    Table,
    html,
    numeric_columns,
    write,
    write_figure,
)

pytest.importorskip("matplotlib", reason="needs the extra: pip install '.[report]'")

FIGURES = (
    Distribution(title="Latency", x_label="ms", series={"one": [1, 2, 30], "other": [0, 4]}),
    Lines(
        title="Usage",
        x_label="s",
        y_label="MiB",
        series={"one": [(0, 1), (1, 5)], "other": [(0, 2)]},
        levels={"threshold": 3},
        instants={"crossing": 0.5},
        steps=True,
    ),
    Bars(
        title="Medians",
        y_label="ms",
        series={"one": {"idle": 1}, "other": {"idle": 2, "busy": 3}},
        log_y=True,
    ),
)


def report() -> Report:
    section = Section(
        heading="A <heading>",
        paragraphs=["one & all"],
        tables=[Table(columns=["who", "ms"], rows=[["<b>me</b>", "1.5"]], caption="A table")],
        figures=FIGURES,
    )
    return Report(title="A title", facts={"date": "today"}, sections=[section], summary=["In short."])


class _Loads(HTMLParser):
    """Collects what the page would have a browser fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in {"src", "href", "xlink:href"}]


def test_a_report_is_one_file_that_loads_and_runs_nothing(tmp_path: Path) -> None:
    write(report(), tmp_path / "report.html")
    assert ["report.html"] == [path.name for path in tmp_path.iterdir()]
    page = _Loads()
    page.feed((tmp_path / "report.html").read_text())
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert all(reference.startswith("#") for reference in page.references)
    assert 3 == page.tags.count("figure")


def test_text_is_escaped() -> None:
    page = html(report())
    assert "A &lt;heading&gt;" in page
    assert "&lt;b&gt;me&lt;/b&gt;" in page
    assert "<b>me</b>" not in page


def test_the_same_report_is_the_same_bytes() -> None:
    assert html(report()) == html(report())


def test_a_column_of_numbers_is_set_to_the_right_and_one_of_words_is_not() -> None:
    rows = [["earlyoom", "1.5", "1.2 / 3.4", "5 %", ""], ["nohang", "\u2013", "2 / 3", "17.5 %", "12 \u00d7"]]
    assert [False, True, True, True, True] == numeric_columns(Table(columns=list("abcde"), rows=rows))


def test_describing_a_report_imports_nothing_that_draws() -> None:
    code = "import sys, reactor.report; print({'matplotlib', 'jinja2'} & set(sys.modules))"
    assert "set()\n" == subprocess.check_output([sys.executable, "-c", code], text=True)


@pytest.mark.parametrize("missing", ["matplotlib", "jinja2"])
def test_without_the_extra_its_name_is_reported(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "reactor.report.figures", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(RefusedError, match=r"pip install '\.\[report\]'"):
        html(report())


def test_a_report_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OSError, match=r"report\.html"):
        write(report(), tmp_path / "report.html")
    assert ["report.html"] == [path.name for path in tmp_path.iterdir()]


def test_a_figure_can_be_had_as_a_file_of_its_own(tmp_path: Path) -> None:
    write_figure(FIGURES[0], tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text()
    assert text.startswith("<svg")
    assert text.endswith("</svg>\n")
    assert "Latency" in text


def drawn(figure: Distribution | Lines | Bars, directory: Path) -> str:
    write_figure(figure, directory / "figure.svg")
    return (directory / "figure.svg").read_text()


def numbers(svg: str) -> set[str]:
    """Return the texts of a figure that are numbers: the labels of its ticks."""
    return {text for text in re.findall(r">([^<>]+)</text>", svg) if re.fullmatch(r"[\u2212\d.]+", text)}


def test_a_logarithmic_axis_has_plain_ticks(tmp_path: Path) -> None:
    for figure in (
        Distribution(title="t", x_label="ms", series={"one": [0.4, 3, 30]}),
        Bars(title="t", y_label="ms", series={"one": {"a": 0.4, "b": 30}}, log_y=True),
    ):
        assert {"0.5", "1", "2", "5", "10", "20"} <= numbers(drawn(figure, tmp_path))


def test_counts_have_whole_ticks(tmp_path: Path) -> None:
    for whole in (True, False):
        figure = Lines(
            title="t",
            x_label="MiB",
            y_label="pods",
            series={"one": [(100, 0), (200, 1)]},
            whole_y=whole,
        )
        bars = Bars(title="t", y_label="pods", series={"one": {"a": 1}}, whole_y=whole)
        for text in (drawn(figure, tmp_path), drawn(bars, tmp_path)):
            assert any("." in number for number in numbers(text)) is not whole


def test_experiments_of_their_own_are_dots_without_a_line(tmp_path: Path) -> None:
    points = {"one": [(1.0, 1.0), (2.0, 5.0)]}
    for dots in ((), ("one",)):
        text = drawn(Lines(title="t", x_label="x", y_label="y", series=points, dots=dots), tmp_path)
        strokes = re.findall(r"<path [^>]*stroke: #0072b2; stroke-width: 1.5[^>]*>", text)
        assert bool(strokes) is not bool(dots)
        assert text.count("<use ") > 0 or not dots
