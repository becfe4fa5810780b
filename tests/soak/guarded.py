"""The daemon under test: configured, reloaded, stopped, crashed and measured from outside."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from reactor.errors import NoDaemonError
from reactor.tell.status_socket import ask
from tests.soak.oracle import Rules
from tests.soak.plan import KEPT
from tests.soak.pods import PODS
from tests.soak.stage import StageError
from tests.support.at_rest import is_busy

# As in deploy/reactor.service: without them the C library's heaps grow by some MiB in half an hour.
_UNIT_ENVIRONMENT: Final = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
_READY_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 20.0
_REST_SECONDS: Final = 20.0
DISK_BYTES: Final = 4 << 20
_MOST_GRACE_SECONDS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the daemon takes on a node without pods.

    `generation` counts its processes, `kills` what was killed by then, by all of them.
    """

    at_seconds: float
    generation: int
    kills: int
    descriptors: int
    threads: int
    rss_kib: int


class Guarded:
    """`reactor run` on a virtual node, everything that it writes below `directory`. A context manager."""

    def __init__(
        self,
        directory: Path,
        node_cgroup: str,
        manifests: Path,
        section: Mapping[str, Any],
        slowness: float = 1.0,
    ) -> None:
        self._directory = directory
        self._slowness = slowness
        self._journal_path = directory / "journal.jsonl"
        self._config_path = directory / "reactor.json"
        self._log = (directory / "daemon.log").open("ab")
        self.disk = directory / "full"
        self._section = {
            "filesystems": {"nodefs": str(self.disk), "imagefs": str(self.disk)},
            "layout": "single",
            "nodeCgroup": node_cgroup,
            "pods": {
                "parents": [f"{node_cgroup}/{PODS}"],
                "manifests": str(manifests),
                "never": [f"{KEPT}*"],
            },
            "metrics": "off",
            "socket": str(directory / "reactor.sock"),
            "stateFile": str(directory / "state.json"),
            "journal": {"path": str(self._journal_path), "maxSize": "16Mi", "files": 4},
            **section,
        }
        self._notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notices.bind(str(directory / "notify.sock"))
        self._notices.setblocking(False)  # noqa: FBT003 (the socket's own signature)
        self._words: list[str] = []
        self._is_reloading = False
        self._process: subprocess.Popen[bytes] | None = None
        self._journal_inode, self._journal_read = 0, 0
        self.generation = 0
        self.pids: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._notices.close()
        self._log.close()

    @property
    def pid(self) -> int:
        """Return the process id of the running daemon."""
        assert self._process is not None
        return self._process.pid

    def configure(self, rules: Rules) -> None:
        """Write these rules as the configuration."""
        document: dict[str, Any] = {
            "evictionHard": {"memory.available": str(rules.hard_bytes), "nodefs.available": "50%"},
            "evictionPressureTransitionPeriod": "1s",
            "reactor": self._section,
        }
        if rules.minimum_reclaim_bytes:
            document["evictionMinimumReclaim"] = {"memory.available": str(rules.minimum_reclaim_bytes)}
        if rules.soft_bytes is not None:
            document["evictionSoft"] = {"memory.available": str(rules.soft_bytes)}
            grace = f"{rules.soft_grace_ns // 1_000_000}ms"
            document["evictionSoftGracePeriod"] = {"memory.available": grace}
        if rules.in_time:
            document["evictionMaxPodGracePeriod"] = _MOST_GRACE_SECONDS
        self._write(json.dumps(document))

    def fill_disk(self, *, is_full: bool) -> None:
        """Have the disk that it watches be full, or empty."""
        path = self.disk / "file"
        path.unlink(missing_ok=True)
        if is_full:
            path.write_bytes(bytes(int(DISK_BYTES * 0.9)))

    def spoil(self) -> None:
        """Write a configuration that is refused."""
        self._write('{"evictionHard": {"memory.available": "much"}}')

    def start(self, wait: Callable[[Callable[[], bool], float], bool]) -> None:
        """Start the daemon and wait, by `wait`, until it says that it is ready. Raises StageError."""
        self.is_ready()  # what the one before still said is not the next one's word
        self._words.clear()
        self._is_reloading = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "reactor", "run", "--config", str(self._config_path)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, **_UNIT_ENVIRONMENT, "NOTIFY_SOCKET": str(self._directory / "notify.sock")},
        )
        self.generation += 1
        self.pids.append(self._process.pid)
        wait(lambda: self.is_ready() or self.exit_status() is not None, _READY_SECONDS * self._slowness)
        if self.exit_status() is not None or not self.is_ready():
            raise StageError(f"the daemon does not come up: {self.log_tail()}")

    def is_ready(self) -> bool:
        """Tell whether the daemon has said READY since it was started, or since it was told to reload."""
        with suppress(BlockingIOError):
            while True:
                self._words += self._notices.recv(4096).decode().split("\n")
        if self._is_reloading and "RELOADING=1" in self._words:
            self._words = self._words[self._words.index("RELOADING=1") :]
            self._is_reloading = False
        return not self._is_reloading and "READY=1" in self._words

    def reload(self, *, is_refused: bool = False) -> None:
        """Send SIGHUP; `is_ready` tells when a configuration that is not refused is in force."""
        if not is_refused:
            self.is_ready()
            self._words.clear()
            self._is_reloading = True
        self.signal(signal.SIGHUP)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the daemon."""
        assert self._process is not None
        self._process.send_signal(number)

    def crash(self) -> None:
        """End the daemon as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        """End the daemon by SIGTERM. Harmless when repeated."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS * self._slowness)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def exit_status(self) -> int | None:
        """Return the status with which the daemon ended by itself; None while it runs."""
        return None if self._process is None else self._process.poll()

    def measured(self, wait: Callable[[Callable[[], bool], float], bool], kills: int) -> Measured:
        """Return what the daemon takes, once it is done with the pods that were there; none is there now.

        A victim in hand holds a descriptor of its cgroup and one of each of its processes. An eBPF object
        that is being loaded takes 5 MiB, and its descriptors are still to come. `wait` waits.
        """
        before: list[str] = []

        def is_at_rest() -> bool:
            status = self._status()
            last, before[:] = list(before), sorted(self._held())
            return status is not None and not is_busy(status) and last == before

        wait(is_at_rest, _REST_SECONDS * self._slowness)
        fields = dict(
            line.split(":", 1) for line in Path(f"/proc/{self.pid}/status").read_text().splitlines()
        )
        return Measured(
            at_seconds=time.monotonic(),
            generation=self.generation,
            kills=kills,
            descriptors=len(before),
            threads=int(fields["Threads"]),
            rss_kib=int(fields["VmRSS"].split()[0]),
        )

    def warrants(self) -> Mapping[str, int] | None:
        """Return what has become of the daemon's warrants so far; None where it does not answer."""
        status = self._status()
        return None if status is None else dict(status["kernel_kill"]["counted"])

    def _status(self) -> Mapping[str, Any] | None:
        try:
            return ask(self._directory / "reactor.sock", {"command": "status"})
        except NoDaemonError:
            return None

    def _held(self) -> Iterator[str]:
        """Yield what the daemon's descriptors are open on."""
        directory = Path(f"/proc/{self.pid}/fd")
        for number in os.listdir(directory):
            with suppress(FileNotFoundError):  # closed since
                yield os.readlink(directory / number)

    def log_tail(self) -> str:
        """Return the end of what the daemon wrote to standard error."""
        return (self._directory / "daemon.log").read_text(errors="replace")[-2000:]

    def journal(self) -> Iterator[Mapping[str, Any]]:
        """Yield what was written to the journal since the last time."""
        if not self._journal_path.exists():
            return
        status = self._journal_path.stat()
        if self._journal_inode not in {0, status.st_ino}:
            before = self._journal_path.with_name(f"{self._journal_path.name}.1")
            if before.exists() and before.stat().st_ino == self._journal_inode:
                yield from self._lines(before)
            self._journal_read = 0
        self._journal_inode = status.st_ino
        yield from self._lines(self._journal_path)

    def _lines(self, path: Path) -> Iterator[Mapping[str, Any]]:
        with path.open("rb") as journal:
            journal.seek(self._journal_read)
            text = journal.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._journal_read += len(whole)
        for line in whole.splitlines():
            if line:
                with suppress(ValueError):  # cut off by a crash
                    yield json.loads(line)

    def _write(self, text: str) -> None:
        beside = self._config_path.with_suffix(".new")
        beside.write_text(text)
        beside.replace(self._config_path)
