"""One machine: brought up, reached over ssh, tested, measured in, told apart from a lost one."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from definitions import MACHINES, Definition
from host import ASK_SECONDS, CACHE, NATIVE, ROOT, GuestLostError, HostError, InstallError, run, say

GUEST: Final = "/opt/reactor"
_INSTALL_SECONDS: Final = 900  # ten minutes were seen, emulated on a host with a load of 15
_TESTS_SECONDS: Final = 7200  # an hour on two busy cores without KVM
_KUBE_PATIENCE: Final = 5  # under emulation
_SUITE_PATIENCE: Final = 15
_FOREIGN_PATIENCE: Final = 3  # another architecture is emulated also where the host has KVM
_FIGURES: Final = "hostile.json"
_NONE_CHOSEN: Final = 5  # pytest's exit status
_BENCH_SECONDS: Final = 3 * 3600  # a race under pressure takes half an hour a round
_INTERRUPTED_SECONDS: Final = 300  # then it has cleaned up and stored what it has
_TIMED_OUT: Final = 124  # the status of coreutils' timeout
_SOAK_SECONDS: Final = 6 * 3600
_SOAK: Final = "/var/tmp/reactor-soak"
_STATE: Final = (
    "systemctl --no-pager --failed; free -m; df -h; ps -eo pid,ppid,stat,rss,cgroup:60,args; "
    "head -n 2 /proc/pressure/*; systemd-cgls --no-pager"
)


class Hypervisor(Protocol):
    """What keeps the machines: Vagrant with libvirt, or QEMU alone."""

    def prepare(self) -> None:
        """Make the host ready. Raises HostError."""

    def release(self) -> None:
        """Stop on the host what `prepare` started, unless machines are still up."""

    def was_used(self) -> bool:
        """Tell whether a machine was ever brought up."""

    def console(self, name: str) -> Path:
        """Return the file that the machine's serial console is written to."""

    def is_running(self, name: str) -> bool:
        """Tell whether it is up."""

    def up(self, definition: Definition, log: Path) -> None:
        """Boot it, from a box of the present builder. Raises GuestLostError if it stays away."""

    def ssh_config(self, name: str) -> str:
        """Return what ssh has to know to reach it by its name."""

    def destroy(self, name: str) -> None:
        """Take it away, up or not. Raises HostError or TimeoutExpired where that fails."""

    def forget(self) -> None:
        """Take away what is kept of the boxes, but for the built ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one machine's run ended: `status` 0 passed, 1 a test failed, 3 the machine was lost."""

    machine: str
    status: int
    seconds: float
    detail: str


class Machine:
    """One machine, by its name in vagrant/machines.json."""

    def __init__(self, name: str, hypervisor: Hypervisor) -> None:
        self.name = name
        self.definition = MACHINES[name]
        self.logs = CACHE / "logs" / name
        self.ssh_config = CACHE / f"ssh-{name}"
        self._patience = 1 if self.definition.architecture == NATIVE else _FOREIGN_PATIENCE
        self._hypervisor = hypervisor

    def is_running(self) -> bool:
        """Tell whether it is up already."""
        return self._hypervisor.is_running(self.name)

    def up(self) -> None:
        """Bring it up, from a box of the present builder. Raises GuestLostError if it stays away."""
        started = time.monotonic()
        log = self._fresh_log("up.log")
        if not self.is_running():
            say(f"{self.name}: box and boot")
            self._hypervisor.up(self.definition, log)
        self.ssh_config.write_text(self._hypervisor.ssh_config(self.name))
        asked = self.ssh(
            "uname -r; stat -f -c %T /sys/fs/cgroup", limit_seconds=ASK_SECONDS * self._patience
        ).stdout
        about = ", ".join(asked.split())
        say(f"{self.name}: up after {time.monotonic() - started:.0f} s ({about})")

    def destroy(self) -> None:
        """Take it away, up or not."""
        say(f"{self.name}: destroying")
        try:
            self._hypervisor.destroy(self.name)
        except (HostError, subprocess.TimeoutExpired) as error:
            say(f"{self.name}: {error}")
        self.ssh_config.unlink(missing_ok=True)

    def ssh(
        self, command: str, *, limit_seconds: float, log: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command in it as its user; ssh's own failure shows as status 255."""
        alive = ["-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=8"]
        words: list[str | Path] = ["ssh", "-F", self.ssh_config, *alive, self.name, command]
        return run(words, limit_seconds=limit_seconds, log=log, check=False)

    def answers(self) -> bool:
        """Tell whether it still runs a command: what sets a lost machine apart from a failed one."""
        try:
            return self.ssh("true", limit_seconds=ASK_SECONDS * self._patience).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def install(self, wheels: Path) -> None:
        """Install the wheel and what it needs, from this directory alone; the tests and `bench` beside it."""
        started = time.monotonic()
        log = self._fresh_log("install.log")
        self._expect(f"sudo mkdir -p {GUEST}/checkout-only", log)
        for source, directory in (
            (wheels, "wheels"),
            (ROOT / "bench", "checkout-only/bench"),
            (ROOT / "tests/vm/guest", "tests"),
            (ROOT / "tests/support", "tests/support"),
            (ROOT / "tests/disk/quotas", "tests/quotas"),
            (ROOT / "deploy", "deploy"),
        ):
            if source.is_dir():
                self._copy(source, f"{GUEST}/{directory}")
        self._expect(f"sudo {GUEST}/tests/install.sh {GUEST}", log)
        say(f"{self.name}: installed after {time.monotonic() - started:.0f} s")

    def test(self, arguments: Sequence[str]) -> Result:
        """Run the guest's tests and print what they print."""
        return self._tested(f"cd {GUEST}/tests && sudo", [*arguments, *self.definition.tests])

    def test_kube(self, programs: Path, arguments: Sequence[str]) -> Result:
        """Run what `arguments` say of tests/kube with these programs; systemd makes the pods' cgroups."""
        # The runtime copies resolv.conf into each sandbox, and a guest need not have one.
        prepare = f"sudo mkdir -p {GUEST}/kube && sudo touch /etc/resolv.conf"
        self._expect(prepare, self._fresh_log("kube.log"))
        for source, directory in ((ROOT / "tests/kube", "kube/tests"), (programs, "kube/programs")):
            self._copy(source, f"{GUEST}/{directory}")
        environment = (
            f"PATH={GUEST}/kube/programs:$PATH "
            f"REACTOR_KUBE_CGROUP_DRIVER=systemd REACTOR_KUBE_PATIENCE={_KUBE_PATIENCE}"
        )
        limit = f"--override-ini=timeout={300 * _KUBE_PATIENCE}"
        return self._tested(f"cd {GUEST}/kube/tests && sudo env {environment}", [limit, *arguments])

    def test_suites(self, arguments: Sequence[str]) -> Result:
        """Run suites of the checkout with the installed wheel; `arguments` are pytest's and name them."""
        checkout = f"{GUEST}/checkout"
        self._copy(ROOT, checkout, only=("/pyproject.toml", "/tests/", "/tests/**"))
        environment = f"REACTOR_TEST_PATIENCE={_SUITE_PATIENCE}"
        options = [
            "--verbose",
            "--capture=no",
            "--durations=10",
            f"--override-ini=timeout={180 * _SUITE_PATIENCE}",
            "-pno:cacheprovider",
            "--basetemp=/var/tmp/reactor-suites",  # on a disk: /tmp may be a tmpfs, whose files are memory
        ]
        result = self._tested(
            f"cd {checkout} && sudo rm -f {_FIGURES} && sudo env {environment}", [*options, *arguments]
        )
        found = self.ssh(f"cat {checkout}/{_FIGURES}", limit_seconds=ASK_SECONDS * self._patience)
        if found.returncode == 0:
            (self.logs / _FIGURES).write_text(found.stdout)
            say(f"{self.name}: figures in {self.logs / _FIGURES}")
        return result

    def soak(self, arguments: Sequence[str]) -> Result:
        """Run the soak of the checkout with the installed wheel; what it stores is kept beside the logs."""
        checkout = f"{GUEST}/checkout"
        self._copy(ROOT, checkout, only=("/pyproject.toml", "/tests/", "/tests/**"))
        words = shlex.join(["-m", "tests.soak", *arguments, "--output", _SOAK])
        before = f"cd {checkout} && sudo rm -rf {_SOAK} && sudo"
        try:
            command = f"{before} {GUEST}/venv/bin/python {words}"
            return self._followed(command, "soak", _SOAK_SECONDS, "the soak is not good: status {}")
        finally:
            kept = self.logs / "soak"
            kept.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(HostError, subprocess.TimeoutExpired):
                self._copy_back(_SOAK, kept)

    def _tested(self, before: str, arguments: Sequence[str]) -> Result:
        command = f"{before} {GUEST}/venv/bin/pytest {shlex.join(arguments)}"
        return self._followed(command, "tests", _TESTS_SECONDS, "a test failed (pytest: {})")

    def _followed(self, command: str, what: str, limit_seconds: float, failed: str) -> Result:
        """Run a command that tests, and print what it prints; `failed` says what its status means."""
        started = time.monotonic()
        log = self._fresh_log(f"{what}.log")
        say(f"{self.name}: testing; output in {log}")
        try:
            status: int | None = self.ssh(command, limit_seconds=limit_seconds, log=log).returncode
        except subprocess.TimeoutExpired:
            status = None
        seconds = time.monotonic() - started
        print(log.read_text(errors="replace"), flush=True)
        if status in {None, 255} and not self.answers():
            raise GuestLostError(f"it stopped answering after {seconds:.0f} s of {what}")
        if status == _NONE_CHOSEN and self.definition.tests:
            status = 0  # what was asked for is not for this machine
        detail = {0: "passed", None: f"the {what} did not end within {limit_seconds:g} s"}
        return Result(
            machine=self.name,
            status=0 if status == 0 else 1,
            seconds=seconds,
            detail=detail.get(status, failed.format(status)),
        )

    def packages(self) -> str:
        """Return dpkg's list of what is installed. Raises GuestLostError."""
        asked = self.ssh("cat /var/lib/dpkg/status", limit_seconds=ASK_SECONDS * self._patience)
        if asked.returncode:
            raise GuestLostError(f"it does not say what is installed: {asked.stdout}")
        return asked.stdout

    def provide(self, source: Path, name: str) -> str:
        """Copy a directory of the host to a place of this name, and return where it is in the guest."""
        destination = f"{GUEST}/{name}"
        self._copy(source, destination)
        return destination

    def give_swap(self, mib: int, packages: Path) -> None:
        """Give it a swap file, and systemd-oomd from these packages. Raises InstallError, GuestLostError."""
        directory = self.provide(packages, "race-packages")
        script = f"sudo {GUEST}/tests/swap-for-race.sh {mib} {directory}"
        self._expect(script, self._fresh_log("swap.log"))

    def measure(self, arguments: Sequence[str], kept: str) -> Result:
        """Have `reactor bench` measure the installed wheel in it; the figures are kept beside the logs."""
        started = time.monotonic()
        log = self._fresh_log("bench.log")
        limited = ["timeout", "--signal=INT", f"--kill-after={_INTERRUPTED_SECONDS}", str(_BENCH_SECONDS)]
        command = [f"{GUEST}/venv/bin/reactor", "bench", *arguments, "--results", f"{GUEST}/figures"]
        bench = f"sudo rm -rf {GUEST}/figures && sudo {shlex.join([*limited, *command])}"
        say(f"{self.name}: {bench}; progress in {log}")
        try:
            limit_seconds = _BENCH_SECONDS + 2 * _INTERRUPTED_SECONDS
            status: int | None = self.ssh(bench, limit_seconds=limit_seconds, log=log).returncode
        except subprocess.TimeoutExpired:
            status = None
        seconds = time.monotonic() - started
        if status in {None, 255} and not self.answers():
            raise GuestLostError(f"it stopped answering after {seconds:.0f} s of measuring")
        stored = self.ssh(f"cat {GUEST}/figures/*.json", limit_seconds=ASK_SECONDS * self._patience)
        if status not in {0, _TIMED_OUT} or stored.returncode != 0:
            return Result(machine=self.name, status=1, seconds=seconds, detail=f"not measured: see {log}")
        figures = self.logs / kept
        figures.write_text(stored.stdout)
        what = "measured" if status == 0 else "cut for time, measured until then"
        return Result(
            machine=self.name, status=int(status != 0), seconds=seconds, detail=f"{what}: {figures}"
        )

    def collect(self) -> None:
        """Keep what tells why a run failed: journal, kernel log, state, console. Some may not be had."""
        with contextlib.suppress(OSError):
            shutil.copyfile(self._hypervisor.console(self.name), self._fresh_log("console.log"))
        if self.ssh_config.exists() and self.answers():
            for name, command in {
                "journal.log": "sudo journalctl --no-pager -b -o short-monotonic",
                "dmesg.log": "sudo dmesg",
                "state.log": _STATE,
            }.items():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.ssh(command, limit_seconds=ASK_SECONDS * self._patience, log=self._fresh_log(name))
        say(f"{self.name}: logs in {self.logs}")

    def _copy(self, source: Path, destination: str, *, only: Sequence[str] = ()) -> None:
        """Make the guest's directory the same as the host's; `only` are rsync's patterns for a part of it."""
        options = [
            "--archive",
            "--compress",  # under emulation ssh is what takes long
            "--delete",
            "--exclude=__pycache__",
            *(f"--include={pattern}" for pattern in only),
            *(["--exclude=*"] if only else []),
            *self._transport(),
        ]
        try:
            run(
                ["rsync", *options, f"{source}/", f"{self.name}:{destination}/"],
                limit_seconds=_INSTALL_SECONDS * self._patience,
            )
        except (HostError, subprocess.TimeoutExpired) as error:
            if self.answers():
                raise HostError(f"{self.name}: copying {source} failed: {error}") from error
            raise GuestLostError(f"it stopped answering while {source} was copied") from error

    def _copy_back(self, source: str, destination: Path) -> None:
        """Make the host's directory the same as the guest's. Raises HostError, TimeoutExpired."""
        options = ["--archive", "--compress", "--delete", *self._transport()]
        run(
            ["rsync", *options, f"{self.name}:{source}/", f"{destination}/"],
            limit_seconds=_INSTALL_SECONDS * self._patience,
        )

    def _transport(self) -> Sequence[str]:
        return ("--rsync-path=sudo rsync", "-e", f"ssh -F {self.ssh_config} -o ConnectTimeout=20")

    def _expect(self, command: str, log: Path) -> None:
        """Run a command that has to succeed."""
        try:
            status = self.ssh(command, limit_seconds=_INSTALL_SECONDS * self._patience, log=log).returncode
        except subprocess.TimeoutExpired as error:
            seconds = _INSTALL_SECONDS * self._patience
            raise GuestLostError(f"{command!r} took more than {seconds} s") from error
        if status and not self.answers():
            raise GuestLostError(f"it stopped answering during {command!r}")
        if status:
            raise InstallError(f"{command!r}: exit status {status}: see {log}")

    def _fresh_log(self, name: str) -> Path:
        self.logs.mkdir(parents=True, exist_ok=True)
        path = self.logs / name
        path.write_text("")
        return path
