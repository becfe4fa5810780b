"""Commands and web servers that are notified and do what they like: no kill and no line is lost by it."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.processes import descendants_called, hold
from tests.support.trials import Trial
from tests.support.waiting import eventually

pytestmark = pytest.mark.suite("hostile receivers")

_ROUNDS = 15
# Forks, floods what it may write, keeps its input, ignores what asks it to end, and never ends.
_HOSTILE = (
    "trap '' TERM INT HUP; for n in 1 2 3 4; do sleep 86399 & done; yes >&2 & yes & while :; do sleep 1; done"
)


@contextmanager
def endless_server() -> Iterator[int]:
    """Take connections inside the block, and answer each with a head that never ends; give the port."""
    ended = threading.Event()
    threads: list[threading.Thread] = []

    def answer(client: socket.socket) -> None:
        with client, suppress(OSError):
            client.sendall(b"HTTP/1.1 200 OK\r\n")
            while not ended.wait(0.01):
                client.sendall(b"X-Filler: " + b"x" * 100 + b"\r\n")

    def accept() -> None:
        while not ended.is_set():
            with suppress(TimeoutError):
                client, _ = server.accept()
                threads.append(threading.Thread(target=answer, args=(client,)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        threads.append(threading.Thread(target=accept))
        threads[0].start()
        try:
            yield int(server.getsockname()[1])
        finally:
            ended.set()
            for thread in threads:
                thread.join()


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _channels(daemon: RunningDaemon) -> dict[str, dict[str, Any]]:
    return {one["channel"]: one for one in daemon.status()["notifications"]}


def test_receivers_that_never_end_cost_no_kill_no_line_and_no_steward(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial
) -> None:
    trial.rounds = _ROUNDS
    names = [f"hog-{number}" for number in range(_ROUNDS)]
    trial.right |= set(names)
    with endless_server() as port:
        section = {
            "onEviction": ["/bin/sh", "-c", _HOSTILE],
            "webhook": {"url": f"http://127.0.0.1:{port}/"},
            "notifyTimeout": "300ms",
        }
        daemon.configure({"evictionHard": {"memory.available": "64Mi"}}, section)
        daemon.start()
        trial.must_live([node.spawn(node.add_pod("innocent"), hold(20))])
        steward = daemon.status()["processes"]["steward"]["pid"]
        before = _descriptors(steward)
        for name in names:
            assert -signal.SIGKILL == node.spawn(node.add_pod(name), hold(470)).wait(30)
            eventually(lambda: not daemon.status()["in_flight"], "the memory is back")

        eventually(lambda: _channels(daemon)["command"]["failed"] == _ROUNDS, "each command was ended", 60)
        webhook = _channels(daemon)["webhook"]
        assert webhook["sent"] == 0
        assert webhook["waiting"] + webhook["failed"] == _ROUNDS
        status, after = daemon.status(), _descriptors(steward)
        assert daemon.process is not None
        left = descendants_called(daemon.process.pid, "86399") + descendants_called(daemon.process.pid, "yes")
        assert [] == left

    assert {"notifications by command", "notifications by webhook"} <= status["problems"].keys()
    assert 0 == status["processes"]["steward"]["restarts"]
    assert after <= before + 4  # an attempt at the webhook is under way
    seqs = [line["seq"] for line in daemon.lines()]
    assert list(range(1, len(seqs) + 1)) == sorted(seqs)
