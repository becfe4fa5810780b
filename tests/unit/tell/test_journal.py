from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import threading

import pytest

from reactor.guard.outbox import encode
from reactor.model.settings import JournalSettings
from reactor.tell.journal import Journal, read_all, read_tail
from reactor.tell.log import LineWriter
from tests.support.executed_lines import executed_lines


def settings(tmp_path, max_bytes=1 << 20, files=2):
    return JournalSettings(path=str(tmp_path / "made" / "journal.jsonl"), max_bytes=max_bytes, files=files)


def written(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_document_is_one_line_of_json(tmp_path):
    journal = Journal(settings(tmp_path))
    journal.start()
    journal.write(encode({"pod": "ä\nb"}))
    journal.write(encode({"n": 2}))
    journal.close()

    assert written(tmp_path / "made" / "journal.jsonl") == [{"pod": "ä\nb"}, {"n": 2}]
    assert (journal.written, journal.lost, journal.problem) == (2, 0, None)


def test_files_are_rotated_and_their_size_and_number_bounded(tmp_path):
    journal = Journal(settings(tmp_path, max_bytes=200, files=3))
    journal.start()
    for n in range(100):
        journal.write(encode({"n": n, "filler": "x" * 40}))
    journal.close()

    files = sorted((tmp_path / "made").iterdir())
    assert [file.name for file in files] == ["journal.jsonl", "journal.jsonl.1", "journal.jsonl.2"]
    assert all(file.stat().st_size <= 200 for file in files)
    assert [one["n"] for file in reversed(files) for one in written(file)] == list(range(93, 100))


def test_one_file_only_starts_again(tmp_path):
    journal = Journal(settings(tmp_path, max_bytes=100, files=1))
    journal.start()
    for n in range(10):
        journal.write(encode({"n": n, "filler": "x" * 40}))
    journal.close()

    assert [file.name for file in (tmp_path / "made").iterdir()] == ["journal.jsonl"]
    assert [one["n"] for one in written(tmp_path / "made" / "journal.jsonl")] == [9]


def test_line_that_a_crash_cut_off_does_not_swallow_the_next(tmp_path):
    path = tmp_path / "made" / "journal.jsonl"
    path.parent.mkdir()
    path.write_text('{"n": 1}\n{"n": ')
    journal = Journal(settings(tmp_path))
    journal.start()
    journal.write(encode({"n": 2}))
    journal.close()

    assert read_tail(path, 10) == ({"n": 1}, {"n": 2})


def test_unwritable_journal_is_reported_once_and_counted_and_well_again_later(tmp_path, caplog):
    (tmp_path / "made").write_text("in the way")
    journal = Journal(settings(tmp_path))
    journal.start()
    for _ in range(3):
        journal.write(encode({"n": 1}))
    while journal.lost < 3:
        os.sched_yield()
    assert journal.problem is not None
    assert "made" in journal.problem

    (tmp_path / "made").unlink()
    journal.write(encode({"n": 2}))
    journal.close()

    assert (journal.written, journal.lost, journal.problem) == (1, 3, None)
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING]


@pytest.mark.parametrize("takes_away", [shutil.rmtree, lambda made: made.rename(made.with_name("moved"))])
def test_journal_whose_directory_was_removed_or_moved_is_made_again_by_the_next_line(tmp_path, takes_away):
    journal = Journal(settings(tmp_path))
    journal.start()
    journal.write(encode({"n": 1}))
    while journal.written < 1:
        os.sched_yield()

    takes_away(tmp_path / "made")
    journal.write(encode({"n": 2}))
    journal.close()

    assert written(tmp_path / "made" / "journal.jsonl") == [{"n": 2}]
    assert (journal.written, journal.lost, journal.problem) == (2, 0, None)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full: mknod /dev/full c 1 7")
def test_full_disk_loses_lines_and_nothing_else(tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "journal.jsonl").symlink_to("/dev/full")
    journal = Journal(settings(tmp_path))
    journal.start()
    journal.write(encode({"n": 1}))
    journal.close()

    assert journal.lost == 1
    assert os.strerror(errno.ENOSPC) in journal.problem


def test_hung_disk_never_blocks_the_writer_and_what_does_not_fit_is_counted():
    hung = threading.Event()
    writer = LineWriter("test", lambda _: hung.wait() and None, limit=10)
    writer.start()

    taken = [writer.put(lambda: b"line") for _ in range(100)]

    assert 10 <= sum(taken) <= 11
    assert writer.lost == 100 - sum(taken)
    assert not writer.close(0.01)
    hung.set()
    assert writer.close(5)


def test_tail_skips_what_is_no_document(tmp_path):
    path = tmp_path / "journal"
    path.write_bytes(b'{"n": 1}\nnonsense\n\xff\xfe\n[3]\n{"n": 2}\n{"n": 3}\n')

    assert read_tail(path, 2) == ({"n": 2}, {"n": 3})
    assert read_tail(tmp_path / "absent", 2) == ()


def test_surrogates_from_a_file_name_do_not_stop_the_journal():
    assert encode({"cgroup": "/a\udcff"}).endswith(b"\n")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_writer_whose_thread_has_ended_is_restarted_by_the_next_line():
    written, second = [], threading.Event()

    def sink(line: bytes) -> None:
        if line == b"first":
            raise SystemExit  # what no handler of exceptions keeps from ending a thread
        written.append(line)
        second.set()

    writer = LineWriter("test", sink)
    writer.start()
    writer.put(lambda: b"first")
    thread = writer._thread
    thread.join(10)
    writer.put(lambda: b"second")

    assert second.wait(10)
    assert writer.close(10)
    assert written == [b"second"]


def test_tail_with_lines_that_nest_too_deeply_is_read_without_them(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"[" * 100_000 + b'\n{"n": 1}\n')

    assert read_tail(path, 5) == ({"n": 1},)


def test_a_line_of_another_kind_of_file_is_passed_over_without_being_parsed(tmp_path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'x\n\n{}\n[1]\n{"no":\n' * 100)
    assert 0 == executed_lines(lambda: list(read_all(path)), json.decoder.__file__)
    path.write_bytes(b'x\n{"kind": "decision"}\n{}\n')
    assert [{"kind": "decision"}] == list(read_all(path))
