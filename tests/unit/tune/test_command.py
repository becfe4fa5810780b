import dataclasses
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from reactor.cli import main
from reactor.tune import progress
from reactor.tune.history import History
from reactor.tune.measured import Measured, document_of
from reactor.tune.model import Assume

Line = Callable[..., bytes]
MIB = 1 << 20


@pytest.fixture
def stored(tmp_path: Path, measured: Measured) -> Path:
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(document_of(measured, History())))
    return path


def test_a_stored_run_gives_a_configuration_a_report_and_the_reasons(
    tmp_path: Path, stored: Path, line: Line, capsys: pytest.CaptureFixture[str]
) -> None:
    config, journal = tmp_path / "config.yaml", tmp_path / "journal.jsonl"
    config.write_text("evictionHard: {memory.available: 120Mi}\n")
    journal.write_bytes(line(10, 900) + line(11, 800))
    arguments = ["--config", str(config), "--journal", str(journal), "--results", str(tmp_path / "out")]
    assert 0 == main(["tune", "--from", str(stored), *arguments])
    shown = capsys.readouterr().out
    assert "It misses" in shown
    assert "no soft threshold for memory.available" in shown
    assert "2 decisions from 2027-01-15" in shown
    (directory,) = (tmp_path / "out").iterdir()
    assert {"measured.json", "reactor.yaml", "report.html"} == {file.name for file in directory.iterdir()}
    assert 0 == main(["config", "check", str(directory / "reactor.yaml")])
    page = (directory / "report.html").read_text()
    assert "Why these numbers" in page
    assert "<svg" in page
    stored_again = json.loads((directory / "measured.json").read_text())
    assert stored_again["recommendation"]["hard_bytes"] > 0
    assert 2 == stored_again["history"]["decisions"]


def test_what_would_evict_at_once_is_no_recommendation_and_leaves_nothing_to_copy(
    tmp_path: Path, measured: Measured, capsys: pytest.CaptureFixture[str]
) -> None:
    node = dataclasses.replace(measured.node, available_bytes=150 * MIB)
    path = tmp_path / "measured.json"
    short = dataclasses.replace(measured, node=node)
    path.write_text(json.dumps(document_of(short, History())))
    out = tmp_path / "out"
    arguments = ["--reserve", "20Mi", "--results", str(out)]
    assert 1 == main(["tune", "--from", str(path), *arguments])
    told = capsys.readouterr()
    assert "With 70Mi, half of what was available: safe up to" in told.err
    assert "pods would be evicted at once" in told.err
    assert "reactor.yaml" not in told.out
    (directory,) = out.iterdir()
    assert {"measured.json", "report.html"} == {file.name for file in directory.iterdir()}
    assert "recommendation" not in json.loads((directory / "measured.json").read_text())
    page = (directory / "report.html").read_text()
    box = page[: page.index("Why these numbers")]
    assert "Nothing is recommended. With 70Mi, half of what was available: safe up to" in box
    assert "The configuration</h2>" not in page


def test_the_reports_box_says_what_the_text_says(tmp_path: Path, stored: Path) -> None:
    out = ["--victim", "64Gi", "--results", str(tmp_path / "out")]
    assert 0 == main(["tune", "--from", str(stored), *out])
    [page] = (tmp_path / "out").glob("*/report.html")
    text = page.read_text()
    box = text[: text.index("Why these numbers")]
    assert "half of this node, serves up to" in box
    assert "It would take" in box


def test_what_the_drop_ins_say_of_other_signals_is_in_the_recommended_configuration(
    tmp_path: Path, stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, drop_ins = tmp_path / "config.yaml", tmp_path / "config.d"
    drop_ins.mkdir()
    config.write_text("evictionHard: {memory.available: 4Gi, pid.available: 7%}\n")
    (drop_ins / "10.conf").write_text("evictionHard: {memory.available: 100Mi, nodefs.available: 3Gi}\n")
    arguments = ["--config", str(config), "--config-dir", str(drop_ins), "--results", str(tmp_path / "out")]
    assert 0 == main(["tune", "--from", str(stored), *arguments])
    (recommended,) = (tmp_path / "out").glob("*/reactor.yaml")
    said = recommended.read_text()
    assert '"pid.available": "7%"' in said
    assert '"nodefs.available": "3Gi"' in said
    assert "It misses" in capsys.readouterr().out  # by the drop-in's threshold


def test_bars_of_an_allocator_stand_together_below_its_name(tmp_path: Path, stored: Path) -> None:
    assert 0 == main(["tune", "--from", str(stored), "--results", str(tmp_path / "out")])
    [page] = (tmp_path / "out").glob("*/report.html")
    plots = [part.partition("</svg>")[0] for part in page.read_text().split("<svg")[1:]]

    words = [{word.strip() for word in re.findall(r">([^<>]+)</text>", plot)} for plot in plots]
    [bars] = [some for some in words if "one allocator at full speed" in some]
    assert bars.isdisjoint({str(kind) for kind in Assume})


def test_without_the_extra_the_report_is_missing_and_the_rest_is_there(
    tmp_path: Path, stored: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert 0 == main(["tune", "--from", str(stored), "--results", str(tmp_path / "out")])
    (directory,) = (tmp_path / "out").iterdir()
    assert {"measured.json", "reactor.yaml"} == {file.name for file in directory.iterdir()}
    assert ".[report]" in capsys.readouterr().err


def test_what_is_assumed_can_be_changed_afterwards(
    tmp_path: Path, stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--results", str(tmp_path / "out")]
    main(["tune", "--from", str(stored), "--assume", "huge", "--victim", "1Gi", "--reserve", "200Mi", *out])
    shown = capsys.readouterr().out
    assert "one allocator with huge pages *" in shown
    assert "victim of 1 GiB (as asked for)" in shown.replace("\n", " ")
    assert "Reserve 200 MiB, as asked for" in shown


def test_what_is_printed_fits_80_columns_and_breaks_no_path(
    tmp_path: Path, stored: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    config = tmp_path / "config.yaml"
    config.write_text("evictionHard: {memory.available: 120Mi}\n")
    results = tmp_path / "a-directory-with-a-name-that-alone-is-longer-than-most-screens-are-wide-by-far"
    main(["tune", "--from", str(stored), "--config", str(config), "--results", str(results)])
    tables, _, files = capsys.readouterr().out.partition(f"{results}")
    assert "one allocator with huge pages" in tables
    assert max(map(len, tables.splitlines())) <= 80
    (directory,) = results.iterdir()
    assert str(directory / "report.html") in files


def test_what_can_not_be_told_is_an_error_and_the_measurements_are_kept(
    tmp_path: Path, stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert 1 == main(["tune", "--from", str(stored), "--assume", "seen", "--results", str(out)])
    assert "--assume seen: the history has no rate" in capsys.readouterr().err
    (directory,) = out.iterdir()
    assert ["measured.json"] == [file.name for file in directory.iterdir()]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--minutes", "0"], "--minutes"),
        (["--victim", "many"], "got 'many'; accepted: a quantity"),
        (["--reserve", "0"], "got '0'; accepted: a quantity"),
        (["--pods", "0"], "--pods"),
    ],
)
def test_a_wrong_argument_is_reported(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["tune", *arguments])
    assert told in capsys.readouterr().err


def test_a_wrong_load_a_wrong_file_and_a_missing_journal_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == main(["tune", "--loads", "none"])
    assert "--loads: got 'none'" in capsys.readouterr().err
    (tmp_path / "x.json").write_text("{}")
    assert 2 == main(["tune", "--from", str(tmp_path / "x.json")])
    assert "accepted: 'reactor-tune/1'" in capsys.readouterr().err
    assert 1 == main(["tune", "--journal", str(tmp_path / "nowhere")])
    assert "nowhere" in capsys.readouterr().err


def test_without_root_it_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert 2 == main(["tune"])
    assert "needs root" in capsys.readouterr().err


def test_results_that_can_not_be_stored_are_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("reactor.tune.check_calm", lambda *_: None)
    monkeypatch.setattr("reactor.tune.compiled_tool", lambda: tmp_path)
    (tmp_path / "file").touch()
    config = tmp_path / "config.yaml"
    config.write_text("{}\n")
    assert 2 == main(["tune", "--config", str(config), "--results", str(tmp_path / "file")])
    assert f"reactor tune: {tmp_path}/file: File exists\n" == capsys.readouterr().err


def test_progress_outside_a_terminal_is_a_line_for_each_thing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress(60) as say:
        for done in range(20):
            say(f"crossings: {done}", done)
        say("others: 1", 20)
    assert [
        "reactor tune: after 0 s: crossings: 0",
        "reactor tune: after 15 s: crossings: 15",
        "reactor tune: after 20 s: others: 1",
    ] == capsys.readouterr().err.splitlines()


def test_progress_in_a_terminal_is_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress(60) as say:
        say("crossings: 1", 30)
    assert "crossings: 1" in terminal.getvalue()
    *_, blank, rest = terminal.getvalue().split("\r")
    assert not blank.strip()
    assert not rest
