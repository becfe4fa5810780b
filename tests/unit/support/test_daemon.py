"""The journal of a daemon under test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.daemon import RunningDaemon


def test_a_line_that_is_being_written_is_not_read_yet(tmp_path: Path) -> None:
    daemon = RunningDaemon(tmp_path, "/node")
    daemon.journal_path.write_text('{"kind": "decision"}\n{"kind": "deci')
    assert [{"kind": "decision"}] == daemon.lines()
    with daemon.journal_path.open("a") as journal:
        journal.write('sion"}\n')
    assert [{"kind": "decision"}] * 2 == daemon.lines()


def test_a_whole_line_that_is_no_json_is_an_error(tmp_path: Path) -> None:
    daemon = RunningDaemon(tmp_path, "/node")
    daemon.journal_path.write_text('{"kind": "deci\n')
    with pytest.raises(json.JSONDecodeError):
        daemon.lines()
