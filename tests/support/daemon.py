"""`reactor run` as a process of its own on a virtual node, for the tests of the whole daemon."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from reactor.cli import main
from reactor.tell.status_socket import ask
from tests.support.json_lines import json_lines
from tests.support.processes import descendants
from tests.support.waiting import PATIENCE, eventually

_START_SECONDS: Final = 90.0
_BETWEEN_LOOKS_SECONDS: Final = 0.2


class RunningDaemon:
    """`reactor run` with everything that it writes below `directory`.

    `unasked_ends` are the exit statuses of daemons that ended without having been asked to. `inside` is what
    the command line begins with: a command that executes the rest of it, in namespaces of its own.
    """

    def __init__(self, directory: Path, node_cgroup: str) -> None:
        self.directory = directory
        self.journal_path = directory / "journal.jsonl"
        self.socket_path = directory / "reactor.sock"
        self.config_path = directory / "reactor.json"
        self.log_path = directory / "daemon.log"
        self.node_cgroup = node_cgroup
        self.process: subprocess.Popen[bytes] | None = None
        self.unasked_ends: list[int] = []
        self.inside: list[str] = []
        self._is_asked_to_end = False

    def configure(self, configuration: Mapping[str, Any], section: Mapping[str, Any] | None = None) -> None:
        """Write the configuration."""
        document = {
            **configuration,
            "reactor": {
                "nodeCgroup": self.node_cgroup,
                "metrics": "off",
                "socket": str(self.socket_path),
                "stateFile": str(self.directory / "state.json"),
                "journal": {"path": str(self.journal_path)},
                **(section or {}),
            },
        }
        self.config_path.write_text(json.dumps(document))

    def be_the_machine(self, mib: int) -> None:
        """Have the daemon take its virtual node for the whole machine, which then has so much memory."""
        meminfo = self.directory / "meminfo"
        lines = (f"{name}: {mib << 10} kB\n" for name in ("MemTotal", "MemFree", "MemAvailable"))
        meminfo.write_text("".join(lines))
        mount = 'mount --bind "$1" /proc/meminfo && shift && exec "$@"'
        self.inside = ["unshare", "--mount", "/bin/sh", "-c", mount, "sh", str(meminfo)]

    def start(self, *arguments: str) -> str:
        """Start the daemon and wait until it says that it is ready; return what it says with that.

        Raises AssertionError with its log if it ends instead.
        """
        notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notice_path = self.directory / "notify.sock"
        notice_path.unlink(missing_ok=True)
        notices.bind(str(notice_path))
        notices.settimeout(_BETWEEN_LOOKS_SECONDS)
        deadline = time.monotonic() + _START_SECONDS * PATIENCE
        said = b""
        with notices:
            process = self.spawn(*arguments, environment={"NOTIFY_SOCKET": str(notice_path)})
            while b"READY=1" not in said.split(b"\n"):
                with suppress(TimeoutError):
                    said = notices.recv(4096)
                    continue
                assert process.poll() is None, (
                    f"ended with status {process.returncode}:\n{self.log()[-2000:]}"
                )
                assert time.monotonic() < deadline, f"not ready in time:\n{self.log()[-2000:]}"
        return said.decode()

    def spawn(self, *arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start the daemon without waiting."""
        self._note_unasked_end()
        self._is_asked_to_end = False
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *self.inside,
                    *(sys.executable, "-m", "reactor", "run", "--config", str(self.config_path), *arguments),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
            )
        return self.process

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self._is_asked_to_end |= number in {signal.SIGTERM, signal.SIGINT, signal.SIGKILL}
        self.process.send_signal(number)

    def stop(self) -> int:
        """End the daemon by SIGTERM and return its exit status."""
        if self.process is None:
            return 0
        self._note_unasked_end()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60 * PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def kill(self) -> None:
        """End the daemon as a crash would."""
        assert self.process is not None
        self._note_unasked_end()
        self.process.kill()
        self.process.wait()

    def _note_unasked_end(self) -> None:
        status = None if self.process is None else self.process.poll()
        if status is not None and not self._is_asked_to_end:
            self.unasked_ends.append(status)
        self._is_asked_to_end = True

    def log(self) -> str:
        return self.log_path.read_text()

    def lines(self) -> list[dict[str, Any]]:
        """Return the journal."""
        return json_lines(self.journal_path)

    def evictions(self) -> list[dict[str, Any]]:
        """Return the journal's decisions that evict somebody."""
        return [line for line in self.lines() if line["kind"] == "decision" and line["evictions"]]

    def evicted(self) -> list[str]:
        """Return the names of the evicted, in order."""
        return [one["pod"].rpartition("/")[2] for line in self.evictions() for one in line["evictions"]]

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of reactor's against this daemon, whose lines are not to break: some hold paths.

        In this process: to start one takes a quarter of a second of CPU.
        """
        output, errors = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patched, redirect_stdout(output), redirect_stderr(errors):
            patched.setenv("COLUMNS", "1000")
            status = main([*arguments, "--socket", str(self.socket_path)])
        return subprocess.CompletedProcess(arguments, status, output.getvalue(), errors.getvalue())

    def status(self) -> dict[str, Any]:
        """Return what `reactor status` shows, without starting one: emulated, that takes seconds."""
        return ask(self.socket_path, {"command": "status"}, patience_seconds=90 * PATIENCE)

    def processes(self) -> list[int]:
        """Return the process that guards, those that it has started, and those that they have."""
        assert self.process is not None
        return [self.process.pid, *descendants(self.process.pid)]

    def cpu_seconds(self) -> float:
        """Return what all processes of the daemon have taken of CPUs, but for those that have ended."""
        ticks = 0
        for pid in self.processes():
            with suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        assert self.process is not None
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) / 1024

    def descriptors(self) -> list[str]:
        """Return what the process that guards has open."""
        assert self.process is not None
        return _open_in(self.process.pid)

    def all_descriptors(self) -> list[str]:
        """Return what all processes of the daemon have open."""
        return [name for pid in self.processes() for name in _open_in(pid)]


def _open_in(pid: int) -> list[str]:
    found = []
    with suppress(FileNotFoundError):  # ended meanwhile
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since it was listed
                # A socket is named by its inode: one that is opened anew has another.
                found.append(os.readlink(fd).partition(":[")[0])
    return sorted(found)


def without_steward(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every steward end at its start."""
    broken = directory / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import os, sys\nif 'reactor.steward' in sys.orig_argv:\n    os._exit(3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(broken))


def with_lying_steward(directory: Path, monkeypatch: pytest.MonkeyPatch, *, lie_is_at: Path) -> None:
    """Have every steward see full filesystems everywhere, once there is a file at `lie_is_at`."""
    lying = directory / "lying"
    lying.mkdir()
    (lying / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'reactor.steward' in sys.orig_argv:\n"
        "    honest = os.statvfs\n"
        "    def lie(path):\n"
        "        found = honest(path)\n"
        f"        if not os.path.exists({str(lie_is_at)!r}):\n"
        "            return found\n"
        "        fields = list(found) + [found.f_fsid]\n"
        "        fields[3] = fields[4] = fields[6] = fields[7] = 0\n"
        "        return os.statvfs_result(fields)\n"
        "    os.statvfs = lie\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(lying))


def with_steward_of_another_version(
    directory: Path, monkeypatch: pytest.MonkeyPatch, *, module: str, version: int, ends_at: Path
) -> None:
    """Have every steward be of another version, until there is a file at `ends_at`.

    It is the same program, but for the number that a module of `reactor.link` has for its messages.
    """
    number = {"_VERSION": version}
    with_other_numbers(
        directory, monkeypatch, module=f"reactor.link.{module}", numbers=number, ends_at=ends_at
    )


def with_other_numbers(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    module: str,
    numbers: Mapping[str, float],
    ends_at: Path | None = None,
) -> None:
    """Have every steward be the same program but for constants of a module, until there is that file."""
    other = directory / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text(
        "import os, re, sys\n"
        f"if 'reactor.steward' in sys.orig_argv and not os.path.exists({str(ends_at or '')!r}):\n"
        "    from importlib.machinery import PathFinder, SourceFileLoader\n"
        "    class Other(SourceFileLoader):\n"
        "        def get_code(self, name):\n"
        "            path = self.get_filename(name)\n"
        "            source = self.get_data(path).decode()\n"
        f"            for constant, number in {dict(numbers)}.items():\n"
        "                line = rf'(?m)^{constant}: Final = [0-9.]+$'\n"
        "                source, count = re.subn(line, f'{constant} = {number}', source)\n"
        "                assert count == 1, constant\n"
        "            return self.source_to_code(source, path)\n"
        "    class Finder(PathFinder):\n"
        "        @classmethod\n"
        "        def find_spec(cls, name, path=None, target=None):\n"
        f"            if name != {module!r}:\n"
        "                return None\n"
        "            found = super().find_spec(name, path, target)\n"
        "            found.loader = Other(name, found.origin)\n"
        "            return found\n"
        "    sys.meta_path.insert(0, Finder)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(other))


def with_leak_at_each_kill(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every guard keep a descriptor open for good at each kill of a pod."""
    leaking = directory / "leaking"
    leaking.mkdir()
    (leaking / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if {'reactor', 'run'} <= set(sys.orig_argv):\n"
        "    from reactor.act.reap import Dying\n"
        "    really_hold = Dying.hold\n"
        "    def hold(self, key, directory, pidfds):\n"
        "        os.open(os.devnull, os.O_RDONLY)\n"
        "        return really_hold(self, key, directory, pidfds)\n"
        "    Dying.hold = hold\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(leaking))


class HasStatus(Protocol):
    """A daemon that shows how it stands, as `reactor status --output json` does."""

    def status(self) -> dict[str, Any]:
        """Return that document."""


def after_passes(daemon: HasStatus, count: int) -> dict[str, Any]:
    """Wait until the daemon has made so many passes more; return its status then.

    What has not happened by then does not happen: a pass would have decided it.
    """
    before = daemon.status()["passes"]
    eventually(lambda: daemon.status()["passes"] >= before + count, f"{count} passes", 60 + 2 * count, 0.1)
    return daemon.status()


def after_housekeeping(daemon: HasStatus, count: int) -> dict[str, Any]:
    """Wait until the daemon has been through so many turns of its ticker more, each with a pass.

    As `after_passes`, for what only housekeeping observes: disks, and what pods take of them. The turn that
    is on its way counts for nothing: the file that a test has written may have come too late for it.
    """

    def turns() -> int:
        return next(int(one["wakes"]) for one in daemon.status()["sources"] if one["name"] == "ticker")

    before = turns()
    eventually(lambda: turns() > before + count, f"{count} turns of the ticker", 60 + 2 * count, 0.1)
    return after_passes(daemon, 1)
