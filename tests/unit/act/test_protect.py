import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from reactor.act.protect import collect_garbage, expect_garbage, gc_paused, protect_self
from reactor.model.settings import RealtimeSettings

NOTHING = RealtimeSettings(fifo_priority=0, lock_memory=False, oom_score_adj=None)


def test_nothing_is_touched_that_is_not_asked_for(tmp_path: Path) -> None:
    assert () == protect_self(NOTHING, tmp_path)
    assert [] == list(tmp_path.iterdir())


def test_the_score_is_written_as_given(tmp_path: Path) -> None:
    score = tmp_path / "oom_score_adj"
    score.touch()
    asked = RealtimeSettings(fifo_priority=0, lock_memory=False, oom_score_adj=-999)
    assert () == protect_self(asked, tmp_path)
    assert "-999" == score.read_text()


def test_a_refusal_is_one_line_with_its_remedy_and_is_survived(tmp_path: Path) -> None:
    asked = RealtimeSettings(fifo_priority=1000, lock_memory=False, oom_score_adj=-999)
    refused = protect_self(asked, tmp_path)
    assert [
        "SCHED_FIFO 1000: refused: Invalid argument;",
        "oom_score_adj -999: refused: No such file or directory;",
    ] == [problem[: problem.index(";") + 1] for problem in refused]
    assert all("grant CAP_" in problem and "\n" not in problem for problem in refused)


def test_root_becomes_real_time_and_locked_and_its_children_do_not() -> None:
    if os.geteuid():
        pytest.skip("needs root: run `sudo make test`")
    code = (
        "import os, subprocess, sys\n"
        "from reactor.act.protect import collect_garbage, gc_paused, protect_self\n"
        "from reactor.model.settings import RealtimeSettings\n"
        "print(protect_self(RealtimeSettings(oom_score_adj=500)), os.sched_getscheduler(0) & os.SCHED_FIFO)\n"
        "print([line.split()[1] == '0' for line in open('/proc/self/status') if line.startswith('VmLck')])\n"
        "print(open('/proc/self/oom_score_adj').read(), end='', flush=True)\n"
        "subprocess.run([sys.executable, '-c', 'import os; print(os.sched_getscheduler(0))'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ["() 1", "[False]", "500", "0"] == done.stdout.splitlines()


def test_what_a_started_daemon_has_is_skipped_by_later_collections_and_what_came_after_is_not() -> None:
    with gc_paused():
        started = [[] for _ in range(1000)]
        before = gc.get_freeze_count()
        collect_garbage()
        assert gc.get_freeze_count() >= before + len(started)
        frozen = gc.get_freeze_count()
        later = [[] for _ in range(1000)]
        collect_garbage()
        assert gc.get_freeze_count() == frozen
        assert len(later) == len(started)
    assert 0 == gc.get_freeze_count()


def test_what_a_reload_replaces_is_freed_though_it_was_there_at_the_start() -> None:
    class Replaced:
        def __init__(self) -> None:
            self.itself = self

    with gc_paused():
        one = Replaced()
        gone = weakref.ref(one)
        collect_garbage()
        del one
        collect_garbage()
        assert gone() is not None  # skipped, as all that was there
        expect_garbage()
        collect_garbage()
        assert gone() is None
        assert gc.get_freeze_count() > 0


def test_nothing_is_made_to_stay_where_the_collector_was_not_paused() -> None:
    before = gc.get_freeze_count()
    collect_garbage()
    assert gc.get_freeze_count() == before
