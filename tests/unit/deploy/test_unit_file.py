from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from reactor.threads import MOST_THREADS

UNIT = Path(__file__).parents[3] / "deploy" / "reactor.service"
LOGIND = "/etc/systemd/logind.conf.d"
DROP_IN = UNIT.with_name("reactor-bcc.conf")


@pytest.mark.parametrize("drop_in", [None, DROP_IN], ids=["alone", "with BCC's drop-in"])
def test_systemd_takes_the_unit_without_a_complaint(tmp_path, drop_in):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze: install Debian's package systemd")
    # Only the program's place is exchanged: it is not installed where the tests run.
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/usr/bin/reactor", shutil.which("true") or "/bin/true"))
    if drop_in is not None:
        directory = tmp_path / f"{UNIT.name}.d"
        directory.mkdir()
        (directory / drop_in.name).write_text(drop_in.read_text())

    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )

    assert (checked.returncode, checked.stderr) == (0, "")


def test_threads_of_the_daemon_leave_room_for_its_commands_within_the_units_limit():
    (limit,) = (line for line in UNIT.read_text().splitlines() if line.startswith("TasksMax="))

    assert int(limit.removeprefix("TasksMax=")) >= 3 * MOST_THREADS + 16


def test_unit_gives_what_the_daemon_asks_for():
    lines = UNIT.read_text().splitlines()

    for expected in ("Type=notify", "RuntimeDirectoryPreserve=restart", "RestrictRealtime=no"):
        assert expected in lines
    assert any(line.startswith("WatchdogSec=") for line in lines)


def test_unit_refuses_no_way_to_open_the_files_of_an_evicted_pod():
    """The answer of systemd, where it restricts set-user-ID bits, is ENOSYS."""
    lines = UNIT.read_text().splitlines()

    assert "RestrictSUIDSGID=no" in lines
    (allowed,) = (line for line in lines if line.startswith("SystemCallFilter="))
    assert "openat2" in allowed.split()


def test_death_of_a_process_that_the_guard_starts_again_does_not_have_systemd_stop_the_guard():
    assert "OOMPolicy=continue" in UNIT.read_text().splitlines()


def test_unit_leaves_its_cgroup_to_the_daemon_and_undoes_the_division_of_a_killed_one():
    lines = UNIT.read_text().splitlines()

    assert "Delegate=memory pids" in lines
    assert any(line.startswith("ExecStopPost=-") and "cgroup.subtree_control" in line for line in lines)


def test_systemctl_clean_removes_nothing_but_reactors_own_directories():
    """It removes RuntimeDirectory=, LogsDirectory=, ConfigurationDirectory= and their kin: systemctl(1)."""
    kinds = ("Runtime", "State", "Cache", "Logs", "Configuration")
    lines = [line.partition("=") for line in UNIT.read_text().splitlines()]

    owned = {name: value for name, _, value in lines if name in {f"{kind}Directory" for kind in kinds}}

    assert owned == {"RuntimeDirectory": "reactor", "LogsDirectory": "reactor"}


def test_daemon_may_write_its_drop_in_of_logind_although_the_directory_is_others_too():
    lines = UNIT.read_text().splitlines()

    writable = [
        path for line in lines if line.startswith("ReadWritePaths=") for path in line.split("=")[1].split()
    ]
    assert f"-{LOGIND}" in writable
    # What is not there when the sandbox is made can't be written to in it.
    assert f"ExecStartPre=-+/bin/mkdir -m 0755 -p {LOGIND}" in lines


def test_unit_restores_what_a_killed_daemon_has_left():
    command = "ExecStopPost=-/usr/bin/reactor clean --config /etc/reactor/config.yaml"
    assert command in UNIT.read_text().splitlines()
