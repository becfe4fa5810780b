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


def test_of_a_daemon_that_ends_at_its_start_the_log_is_shown_and_its_end_is_not_waited_for(
    tmp_path: Path,
) -> None:
    daemon = RunningDaemon(tmp_path, "/node")
    daemon.configure({}, {"nodeCgroup": "no path"})
    with pytest.raises(AssertionError, match=r"ended with status 2:\n(.|\n)*nodeCgroup: got 'no path'"):
        daemon.start()
