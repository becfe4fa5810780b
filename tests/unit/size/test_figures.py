"""What `make size` counts, and when it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.size import __main__ as size
from tests.size.figures import Row, mentions, rows

TRACE = {"files": ["act/kill.py", "guard/pass_.py"], "lost": {"a": "b"}}


@pytest.mark.parametrize(
    ("row", "committed", "is_worse"),
    [
        (Row(name="lines", value=10), 10, False),
        (Row(name="lines", value=11), 10, True),
        (Row(name="lines", value=9), 10, False),
        (Row(name="median", value=9, more_is_better=True), 10, True),
        (Row(name="median", value=11, more_is_better=True), 10, False),
    ],
)
def test_row_is_worse_above_the_committed_figure_or_below_one_that_is_to_be_high(
    row: Row, committed: int, *, is_worse: bool
) -> None:
    assert is_worse is row.is_worse(committed)


def test_figures_of_a_kill_are_there_with_its_trace_alone() -> None:
    without, found = ({row.name: row.value for row in rows(trace)} for trace in (None, TRACE))
    assert {"modules from the wake to SIGKILL", "lines of those", "hops that no search follows"} == (
        found.keys() - without.keys()
    )
    assert found["modules from the wake to SIGKILL"] == 2
    assert found["hops that no search follows"] == 1


def test_what_is_named_for_a_feature_does_not_mention_it() -> None:
    found = mentions()
    assert "guard/record.py" in found["warrants"]
    assert not any("warrant" in name for name in found["warrants"])


def test_status_is_1_where_a_row_is_worse_than_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(size, "COMMITTED", tmp_path / "committed.json")
    assert size.main(["--static", "--write"]) == 0
    committed = json.loads((tmp_path / "committed.json").read_text())
    (tmp_path / "committed.json").write_text(json.dumps({**committed, "modules in all": 3}))

    assert size.main(["--static"]) == 1
    assert capsys.readouterr().err == "size: worse than committed: modules in all\n"
