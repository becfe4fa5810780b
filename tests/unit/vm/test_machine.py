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
    for name in (
        "run",
        "machine",
        "host",
        "definitions",
        "direct_qemu",
        "vagrant_libvirt",
        "wheelhouse",
        "boots",
    ):
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


@pytest.mark.parametrize(("soak_status", "detail"), [(0, "passed"), (1, "the soak is not good: status 1")])
def test_the_soak_runs_in_the_machine_and_what_it_stores_is_kept(
    vm: ModuleType, commands, tmp_path: Path, soak_status: int, detail: str
) -> None:
    commands("rsync", f'echo "$*" >>"{tmp_path}/copied"')
    commands("ssh", f'echo "$*" >>"{tmp_path}/ran"; case "$*" in *tests.soak*) exit {soak_status};; esac')
    result = bookworm(vm).soak(["--warrants", "--crossings", "50"])
    assert (soak_status, detail) == (result.status, result.detail)
    assert "python -m tests.soak --warrants --crossings 50 --output " in (tmp_path / "ran").read_text()
    _, back = (tmp_path / "copied").read_text().splitlines()
    assert back.endswith(f"bookworm:/var/tmp/reactor-soak/ {bookworm(vm).logs / 'soak'}/")


@pytest.mark.parametrize(
    ("status", "detail"), [(0, "measured: "), (124, "cut for time, measured until then: ")]
)
def test_figures_of_a_measurement_that_was_cut_for_time_are_kept(
    vm: ModuleType, commands, status: int, detail: str
) -> None:
    commands("ssh", f"case \"$*\" in *'cat '*.json) echo figures;; *' bench '*) exit {status};; esac")
    machine = bookworm(vm)
    result = machine.measure(["race"], "race.json")
    assert (int(status != 0), f"{detail}{machine.logs / 'race.json'}") == (result.status, result.detail)
    assert (machine.logs / "race.json").read_text() == "figures\n"


def test_a_measurement_that_was_cut_before_it_stored_anything_shows_no_figures_of_an_earlier_one(
    vm: ModuleType, commands, tmp_path: Path
) -> None:
    commands(
        "ssh",
        f"case \"$*\" in *'rm -rf /opt/reactor/figures && '*) touch {tmp_path}/gone; exit 124;;"
        f" *'cat '*.json) test ! -e {tmp_path}/gone && echo earlier;; esac",
    )
    machine = bookworm(vm)
    result = machine.measure(["race"], "race.json")
    assert (1, f"not measured: see {machine.logs / 'bench.log'}") == (result.status, result.detail)
    assert not (machine.logs / "race.json").exists()


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


def test_a_machine_of_another_architecture_is_emulated_from_a_box_of_its_own(
    vm: ModuleType, commands, tmp_path: Path
) -> None:
    built(commands, vm.CACHE)
    for suffix, content in (("", "box"), (".digest", "built\n")):
        (vm.CACHE / f"bookworm-arm64.box{suffix}").write_text(content)
    commands("dpkg-query", "printf installed")
    commands("tar", f'echo "$*" >"{tmp_path}/unpacked"')
    commands("qemu-img", ":")
    commands("qemu-system-aarch64", f'echo "$*" >"{tmp_path}/asked"')
    machine = vm.Machine("bookworm-arm64", vm.DirectQemu())
    with pytest.raises(vm.GuestLostError, match="its QEMU ended"):
        machine.up()
    assert "bookworm-arm64.box " in (tmp_path / "unpacked").read_text()
    asked = (tmp_path / "asked").read_text()
    assert "-machine virt -accel tcg,thread=multi -cpu neoverse-n1" in asked
    assert "console=ttyAMA0" in asked


def test_a_machine_of_another_architecture_is_not_for_vagrant_and_runs_where_it_is_named(
    vm: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(vm.HostError, match="bookworm-arm64 is for QEMU alone: --direct"):
        vm.VagrantLibvirt().up(vm.MACHINES["bookworm-arm64"], vm.CACHE / "log")
    monkeypatch.setattr(sys, "argv", ["run.py", "test"])
    assert "bookworm-arm64" not in vm._arguments().machines
    monkeypatch.setattr(sys, "argv", ["run.py", "test", "bookworm-arm64"])
    assert ["bookworm-arm64"] == vm._arguments().machines


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
    deadline = time.monotonic() + 90
    while not _has_ended(status) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert _has_ended(status)


class Machines:
    """Plays the hypervisor of one machine, which goes down by itself if it `ends` when it is asked to."""

    def __init__(self, *, ends: bool) -> None:
        self._ends = ends
        self._is_up = True
        self.did: list[str] = []

    def is_running(self, _name: str) -> bool:
        if self._is_up and self._ends:
            self._is_up = False
            return True
        return self._is_up

    def cut_power(self, _name: str) -> None:
        self.did.append("cut")
        self._is_up = False

    def boot_again(self, _definition: object, _log: Path) -> None:
        assert not self._is_up
        self.did.append("booted")
        self._is_up, self._ends = True, False

    def ssh_config(self, _name: str) -> str:
        return ""


def _over_a_boot(vm: ModuleType, machines: Machines, **when: str) -> Any:
    stories = [vm.boots.Story(name="story", **when)]
    return vm.boots.run_stories(vm.Machine("bookworm", machines), machines, stories, [])


def _asked(tmp_path: Path) -> list[str]:
    return (tmp_path / "asked").read_text().splitlines()


def test_a_story_goes_on_after_the_machine_went_down_and_was_booted(
    vm: ModuleType, commands, tmp_path: Path
) -> None:
    commands("ssh", f'for last; do :; done; echo "$last" >>"{tmp_path}/asked"')
    machines = Machines(ends=True)
    assert 0 == _over_a_boot(vm, machines).status
    assert ["booted"] == machines.did
    before, down, *_, after = _asked(tmp_path)
    assert "-m before boots/story.py" in before
    assert "sudo systemctl poweroff" == down
    assert "-m after boots/story.py" in after


def test_power_is_cut_when_the_condition_holds_in_the_guest(vm: ModuleType, commands, tmp_path: Path) -> None:
    commands(
        "ssh",
        f'for last; do :; done; echo "$last" >>"{tmp_path}/asked"; '
        f'[ "$last" != middle ] || [ "$(grep -c middle "{tmp_path}/asked")" -ge 2 ]',
    )
    machines = Machines(ends=False)
    assert 0 == _over_a_boot(vm, machines, power_is_cut_when="middle").status
    assert ["cut", "booted"] == machines.did
    assert 2 == _asked(tmp_path).count("middle")


def test_a_machine_that_goes_down_before_its_power_is_cut_fails_its_story(vm: ModuleType, commands) -> None:
    commands("ssh", 'for last; do :; done; [ "$last" != never ]')
    machines = Machines(ends=True)
    result = _over_a_boot(vm, machines, power_is_cut_when="never")
    assert (1, "story: it went down before its power could be cut") == (result.status, result.detail)
    assert [] == machines.did


def test_a_test_that_fails_before_the_boot_is_the_storys_result(vm: ModuleType, commands) -> None:
    commands("ssh", 'case "$*" in *bin/pytest*) exit 1;; esac')
    machines = Machines(ends=True)
    assert "a test failed (pytest: 1)" == _over_a_boot(vm, machines).detail
    assert [] == machines.did


def test_a_machine_that_is_booted_again_has_its_own_disk(vm: ModuleType, commands, tmp_path: Path) -> None:
    """It ends at once here, so it is lost; what QEMU was asked for is what is looked at."""
    commands("qemu-system-x86_64", f'echo "$*" >"{tmp_path}/asked"')
    own = vm.CACHE / "direct" / "bookworm"
    own.mkdir(parents=True)
    disk = own / "disk.qcow2"
    disk.write_text("what the last boot has written")
    with pytest.raises(vm.GuestLostError, match="its QEMU ended"):
        vm.DirectQemu().boot_again(vm.MACHINES["bookworm"], tmp_path / "log")
    assert f"file={disk}" in (tmp_path / "asked").read_text()
    assert "what the last boot has written" == disk.read_text()


def _has_ended(status: Path) -> bool:
    try:
        return status.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
