"""The daemon as an operator starts it, on a virtual node: a process of its own, followed by its journal."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from reactor.errors import RefusedError

_READY_SECONDS: Final = 120.0  # an emulated machine beside other load
_END_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.002


class DaemonProcess:
    """`reactor run` on `node_cgroup`, what it writes in a directory of its own below `directory`.

    `configuration` are KubeletConfiguration's keys, `section` those of reactor's own; `environment` is added
    to ours. A context manager, entered once the daemon says that its sources are armed; `armed_ns` is then.
    Raises RefusedError where it doesn't come up.
    """

    def __init__(
        self,
        tool: Path,
        directory: Path,
        node_cgroup: str,
        configuration: Mapping[str, Any],
        section: Mapping[str, Any],
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._tool = tool
        self._directory = Path(tempfile.mkdtemp(prefix="daemon-", dir=directory))
        self._journal = self._directory / "journal.jsonl"
        self._read_bytes = 0
        self._environment = environment or {}
        document = {
            **configuration,
            "reactor": {
                "nodeCgroup": node_cgroup,
                "metrics": "off",
                "socket": str(self._directory / "reactor.sock"),
                "stateFile": str(self._directory / "state.json"),
                # Of a thousand pods a decision has 300 KiB: what we read on from is not to be moved aside.
                "journal": {"path": str(self._journal), "maxSize": "4Gi"},
                **section,
            },
        }
        self._config = self._directory / "reactor.json"
        self._config.write_text(json.dumps(document, indent=2), encoding="utf-8")
        self.armed_ns = 0

    def __enter__(self) -> Self:
        notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with notices, (self._directory / "daemon.log").open("wb") as log:
            notices.bind(str(self._directory / "notify.sock"))
            notices.settimeout(0.1)
            self._process = subprocess.Popen(
                # Through the tool, so that it ends with us whatever becomes of us.
                [
                    self._tool,
                    "lead",
                    sys.executable,
                    "-P",
                    "-m",
                    "reactor",
                    "run",
                    "--config",
                    str(self._config),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    **self._environment,
                    "NOTIFY_SOCKET": str(self._directory / "notify.sock"),
                },
            )
            try:
                self._wait_ready(notices)
            except BaseException:
                self.stop()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status_socket(self) -> Path:
        return self._directory / "reactor.sock"

    def is_running(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        return (self._directory / "daemon.log").read_text(encoding="utf-8", errors="replace")

    def wait_armed(self, source: str, timeout_seconds: float) -> str:
        """Return what a source says of itself once it is armed. Raises RefusedError if it isn't in time."""
        armed = re.compile(rf"source {re.escape(source)}: armed: (.*)")
        wait_until(lambda: armed.search(self.log()) is not None, timeout_seconds)
        found = armed.search(self.log())
        if found is None:
            raise RefusedError(f"{source} is not armed after {timeout_seconds:g} s:\n{self.log()[-2000:]}")
        return found[1]

    def evictions(self) -> list[Mapping[str, Any]]:
        """Return the decisions in the journal that evict a pod and were not returned before."""
        return [line for line in self._new_lines() if line.get("evictions")]

    def next_eviction(self, timeout_seconds: float) -> Mapping[str, Any] | None:
        """Return the next decision in the journal that evicts a pod, None where none comes in time.

        The daemon writes it when its pods have ended, so its timing is complete.
        """
        found: list[Mapping[str, Any]] = []

        def read() -> bool:
            found.extend(self.evictions())
            return bool(found) or self._process.poll() is not None

        wait_until(read, timeout_seconds)
        if len(found) > 1:
            raise RefusedError(f"expected one eviction, got {len(found)}: {found}")
        return found[0] if found else None

    def stop(self) -> None:
        """End the daemon and wait for it; harmless when repeated."""
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_ready(self, notices: socket.socket) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                message = notices.recv(4096)
            except TimeoutError:
                continue
            if b"READY=1" in message.split(b"\n"):
                self.armed_ns = time.monotonic_ns()
                return
        raise RefusedError(f"the daemon did not come up:\n{self.log().strip()}")

    def _new_lines(self) -> list[Mapping[str, Any]]:
        try:
            with self._journal.open("rb") as journal:
                journal.seek(self._read_bytes)
                text = journal.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def wait_until(true: Callable[[], bool], timeout_seconds: float) -> bool:
    """Return whether `true` became so in time, checking every 2 ms."""
    deadline = time.monotonic() + timeout_seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
