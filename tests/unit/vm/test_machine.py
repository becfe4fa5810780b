"""A lost machine is told apart from a failed test, on commands that play Vagrant and ssh."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

RUNNER = Path(__file__).resolve().parents[2] / "vm"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a shell script in the place of a command."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory), prepend=":")

    def put(name: str, script: str) -> None:
        (directory / name).write_text(f"#!/bin/sh\n{script}\n")
        (directory / name).chmod(0o755)

    return put


@pytest.fixture
def vm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setenv("REACTOR_VM_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(RUNNER))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "ssh-bookworm").write_text("")
    yield importlib.import_module("run")
    for name in ("run", "machine", "host", "definitions", "direct_qemu", "vagrant_libvirt", "wheelhouse"):
        del sys.modules[name]


def bookworm(vm: ModuleType) -> Any:
    return vm.Machine("bookworm", vm.VagrantLibvirt())


def built(commands, cache: Path) -> None:
    """Have a box in the cache that is of the present builder."""
    commands("sha256sum", "cat >/dev/null; echo built -")
    (cache / "key").write_text("private")
    (cache / "key.pub").write_text("public")
    (cache / "bookworm.box").write_text("box")
    (cache / "bookworm.box.digest").write_text("built\n")


@pytest.mark.parametrize(
    ("pytest_status", "expected_status", "detail"), [(0, 0, "passed"), (1, 1, "a test failed (pytest: 1)")]
)
def test_the_tests_own_verdict_is_the_result(
    vm: ModuleType, commands, pytest_status: int, expected_status: int, detail: str
) -> None:
    commands("ssh", f'case "$*" in *bin/pytest*) exit {pytest_status};; esac')
    result = bookworm(vm).test([])
    assert (expected_status, detail) == (result.status, result.detail)


def test_suites_of_the_checkout_run_without_its_source_tree(vm: ModuleType, commands, tmp_path: Path) -> None:
    commands("rsync", f'echo "$*" >>"{tmp_path}/copied"')
    commands("ssh", f'echo "$*" >>"{tmp_path}/ran"; case "$*" in *cat*) echo figures; esac')
    assert 0 == bookworm(vm).test_suites(["tests/hostile", "-k", "storm"]).status
    (copied,) = (tmp_path / "copied").read_text().splitlines()
    assert "--include=/pyproject.toml --include=/tests/ --include=/tests/** --exclude=*" in copied
    assert "tests/hostile -k storm" in (tmp_path / "ran").read_text()
    assert "figures\n" == (bookworm(vm).logs / "hostile.json").read_text()


def test_a_machine_that_stops_answering_is_lost(vm: ModuleType, commands) -> None:
    commands("ssh", "exit 255")
    with pytest.raises(vm.GuestLostError, match="stopped answering"):
        bookworm(vm).test([])


def test_a_connection_that_broke_while_the_machine_lives_is_a_failed_test(vm: ModuleType, commands) -> None:
    commands("ssh", 'case "$*" in *bin/pytest*) exit 255;; esac')
    assert bookworm(vm).test([]).status == 1


def test_a_wheel_that_does_not_install_is_a_failure_and_no_lack_of_the_hosts(
    vm: ModuleType, commands, tmp_path: Path
) -> None:
    commands("rsync", ":")
    commands("ssh", 'case "$*" in *install.sh*) exit 1;; esac')
    with pytest.raises(vm.InstallError, match="exit status 1"):
        bookworm(vm).install(tmp_path)


def test_a_machine_that_does_not_come_up_is_lost(
    vm: ModuleType, commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands("vagrant", 'case "$1" in up) echo "no boot"; exit 1;; box) echo reactor/bookworm;; esac')
    commands("virsh", "")
    cache = vm.CACHE
    built(commands, cache)
    with pytest.raises(vm.GuestLostError, match="did not come up"):
        bookworm(vm).up()
    assert "no boot" in (cache / "logs" / "bookworm" / "up.log").read_text()


def test_a_qemu_that_ends_while_its_machine_boots_is_a_lost_machine(
    vm: ModuleType, commands, tmp_path: Path
) -> None:
    built(commands, vm.CACHE)
    commands("tar", ":")
    commands("qemu-img", ":")
    commands("qemu-system-x86_64", f'echo "$*" >"{tmp_path}/asked"')
    machine = vm.Machine("bookworm", vm.DirectQemu())
    with pytest.raises(vm.GuestLostError, match="its QEMU ended"):
        machine.up()
    asked = (tmp_path / "asked").read_text()
    assert "root=/dev/vda" in asked
    assert "-no-reboot" in asked


def test_a_process_that_has_got_the_id_of_an_ended_qemu_is_left_alone(vm: ModuleType) -> None:
    direct = vm.DirectQemu()
    own = vm.CACHE / "direct" / "bookworm"
    own.mkdir(parents=True)
    (own / "pid").write_text(str(os.getpid()))
    assert not direct.is_running("bookworm")
    direct.destroy("bookworm")
    assert not own.exists()


@pytest.mark.parametrize(
    ("statuses", "expected"), [([0, 0], 0), ([0, 1], 1), ([0, 3], 3), ([1, 3], 1), ([2, 0], 2)]
)
def test_a_failed_test_is_not_hidden_by_a_machine_that_was_lost(
    vm: ModuleType, statuses: list[int], expected: int
) -> None:
    results = [vm.Result(machine="m", status=status, seconds=1, detail="") for status in statuses]
    assert expected == vm.exit_status(results)


def test_what_a_failed_run_left_is_collected(vm: ModuleType, commands) -> None:
    commands("ssh", 'for last; do :; done; echo "ran: $last"')
    (vm.CACHE / "console-bookworm.log").write_text("Kernel panic")
    machine = bookworm(vm)
    machine.collect()
    assert (machine.logs / "console.log").read_text() == "Kernel panic"
    assert "journalctl" in (machine.logs / "journal.log").read_text()


def test_a_command_that_takes_too_long_is_ended_with_its_children(
    vm: ModuleType, commands, tmp_path: Path
) -> None:
    host = sys.modules["host"]
    commands("slow", f'sleep 60 & echo $! >"{tmp_path}/child"; wait')
    with pytest.raises(host.subprocess.TimeoutExpired):
        host.run(["slow"], limit_seconds=3)
    status = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    deadline = time.monotonic() + 20
    while not _has_ended(status) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert _has_ended(status)


def _has_ended(status: Path) -> bool:
    try:
        return status.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
