"""The process as systemd starts it: with the sockets of users' service managers, see sd_listen_fds(3)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from reactor.link.managed_oom import PATH
from reactor.managed_oom.relay import USER_SLICES
from reactor.processes import child_environment
from tests.support.waiting import PATIENCE

# LISTEN_PID is the process's own number, which only it has before it becomes the program.
START = 'LISTEN_PID=$$ LISTEN_FDS=2 exec "$@"'


@contextmanager
def started(directory: Path) -> Iterator[list[Path]]:
    """Run the process with two sockets for the length of the block."""
    paths = [directory / "io.systemd.ManagedOOM", directory / "io.system.ManagedOOM"]
    listening = [socket.socket(socket.AF_UNIX) for _ in paths]
    for one, path in zip(listening, paths, strict=True):
        one.bind(os.fspath(path))
        one.listen()
    fds = [one.fileno() for one in listening]
    # The program expects them from 3 on; what pass_fds keeps has other numbers.
    moved = " ".join(f"{number}<&{fd}" for number, fd in enumerate(fds, start=3))
    process = subprocess.Popen(
        ["bash", "-c", f"{START} {moved}", "sh", sys.executable, "-P", "-m", "reactor.managed_oom"],
        env={**child_environment(), "PATH": os.environ["PATH"]},
        pass_fds=fds,
        stderr=subprocess.PIPE,
    )
    try:
        yield paths
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30 * PATIENCE)
        for one in listening:
            one.close()


@pytest.mark.parametrize("index", [0, 1])
def test_the_sockets_that_systemd_passes_on_are_served(tmp_path: Path, index: int) -> None:
    with started(tmp_path) as paths, socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30 * PATIENCE)
        connection.connect(os.fspath(paths[index]))
        connection.sendall(b'{"method": "org.varlink.service.GetInfo"}\0')
        raw = b""
        with suppress(ConnectionResetError):  # it is closed with the question unread
            while not raw.endswith(b"\0") and (read := connection.recv(4096)):
                raw += read
    if not (USER_SLICES / f"user-{os.getuid()}.slice").is_dir():
        assert b"" == raw  # who has no slice is not heard
    else:
        assert "org.varlink.service.MethodNotFound" == json.loads(raw[:-1])["error"]


@pytest.mark.skipif(
    Path(PATH).parent.is_dir(), reason="this machine runs it: systemd-oomd.service is reactor's"
)
def test_started_by_hand_it_ends_with_one_line_that_names_the_unit() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "reactor", "managed-oom"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30 * PATIENCE,
    )
    assert (1, "") == (done.returncode, done.stdout)
    (line,) = done.stderr.splitlines()
    assert line.startswith("reactor: /run/reactor-managed-oom: ")
    assert "systemd-oomd.service" in line
