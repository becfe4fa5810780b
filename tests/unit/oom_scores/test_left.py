"""What a dead guard has left is restored by the process that stands by, and by `reactor clean`."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reactor.cli import main
from reactor.kernel.oom import open_process, read_birth
from reactor.kernel.procfs import BOOT_ID, read_oom_score_adj
from reactor.kernel.small_file import replace
from reactor.oom_scores.order import OrderError, Restorer
from reactor.oom_scores.written import NAME, Held, Written
from tests.support.processes import PAUSE
from tests.support.waiting import until

OWN, WRITTEN = 300, 617


@pytest.fixture
def lowered() -> Iterator[int]:
    """Return a process that has another score than its own; whether that is lower makes no difference."""
    process = subprocess.Popen(PAUSE)
    score(process.pid, WRITTEN)
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def file(lowered: int, tmp_path: Path) -> Path:
    """Return the file that a guard has left of it."""
    process = open_process(lowered)
    start_ticks = read_birth(process).start_ticks
    os.close(process)
    held = Held(
        uid="uid",
        key="cgroup/pod",
        cgroup="/pod",
        since_ticks=1 << 60,
        written={WRITTEN},
        own={lowered: (start_ticks, OWN)},
    )
    path = tmp_path / NAME
    written = Written("/proc")
    written.held = {"uid": held}
    replace(path, {**written.document(), "boot_id": BOOT_ID.read_text().strip()})
    return path


@pytest.fixture
def config(tmp_path: Path) -> list[str]:
    path = tmp_path / "reactor.json"
    path.write_text(json.dumps({"reactor": {"stateFile": str(tmp_path / "state.json")}}))
    return ["--config", str(path)]


def score(pid: int, value: int) -> None:
    Path(f"/proc/{pid}/oom_score_adj").write_text(str(value))


def pid_of(restorer: Restorer) -> int | None:
    return None if restorer._process is None else restorer._process.pid


def test_clean_restores_scores_and_says_so_and_the_second_time_nothing_is_left(lowered, file, config, capsys):
    assert main(["clean", *config]) == 0
    assert read_oom_score_adj(lowered) == OWN
    assert capsys.readouterr().out == "oom_score_adj: 1 process restored\n"
    assert json.loads(file.read_text())["pods"] == []
    assert main(["clean", *config]) == 0
    assert capsys.readouterr().out == "nothing was left\n"


def test_clean_leaves_a_node_that_a_daemon_guards_to_it(lowered, file, config, capsys):
    with (file.parent / "state.json.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["clean", *config]) == 1
    assert read_oom_score_adj(lowered) == WRITTEN
    assert "a daemon guards this node" in capsys.readouterr().err
    assert json.loads(file.read_text())["pods"] != []


def test_clean_names_what_can_not_be_restored(file, config, capsys):
    file.write_text("{}")
    assert main(["clean", *config]) == 1
    assert "the OOM killer's order: " in capsys.readouterr().err


def test_clean_goes_by_the_defaults_where_the_configuration_is_what_is_wrong(tmp_path, capsys):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("evictionHard: [")
    main(["clean", "--config", str(wrong)])
    assert "looking beside /run/reactor/state.json" in capsys.readouterr().err


async def test_scores_are_restored_when_the_guards_end_of_the_pair_is_closed_and_not_before(lowered, file):
    restorer = Restorer(file)
    for _ in range(3):
        await restorer.stand_by()
    assert read_oom_score_adj(lowered) == WRITTEN
    assert pid_of(restorer) is not None
    await restorer.end()
    assert read_oom_score_adj(lowered) == OWN
    assert json.loads(file.read_text())["pods"] != []


async def test_process_that_stands_by_is_replaced_where_it_has_ended(lowered, file):
    restorer = Restorer(file)
    await restorer.relax()
    await restorer.stand_by()
    first = pid_of(restorer)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    await restorer.stand_by()
    assert pid_of(restorer) not in {None, first}
    await restorer.end()
    assert read_oom_score_adj(lowered) == OWN


async def test_process_that_does_not_come_to_stand_by_is_an_error(tmp_path):
    restorer = Restorer(tmp_path / NAME, [sys.executable, "-S", "-c", "raise SystemExit(3)"])
    with pytest.raises(OrderError, match="ended with status 3"):
        await restorer.stand_by()
    assert pid_of(restorer) is None
