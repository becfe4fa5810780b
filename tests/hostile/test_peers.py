"""A container runtime and an API server that answer garbage, too much, too slowly or not: a hog is evicted.

Both misbehave alike and from the start on, so that nothing is known of the pods but their cgroups.
"""

from __future__ import annotations

import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import hpack
import pytest

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.kubelet_tree import HOG, OTHER, add_pod, kubeconfig, pods_of_a_kubelet
from tests.support.processes import descendants_called, hold
from tests.support.trials import Trial
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.suite("hostile peers")

PIECE = 1 << 16
MOST_BYTES = 256 << 20  # that one connection is sent: far more than a daemon may ever hold
MOST_RSS_MIB = 96  # of the guard, and of the steward at its peak
ROUNDS = 3

Send = Callable[[bytes], object]


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


_OF_GRPC = frame(4, 0, 0, b"") + frame(
    1, 4, 1, hpack.Encoder().encode([(":status", "200"), ("content-type", "application/grpc")], huffman=False)
)
_OF_HTTP = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


class Peers:
    """A socket for each peer; every connection to them is treated in the same way."""

    def __init__(self, directory: Path, treat: Callable[[Peers, Send, bool], None]) -> None:
        self.over = threading.Event()
        self.connections = 0
        self.asked = {"API server": 0, "runtime": 0}
        self._treat = treat
        self._stack = ExitStack()
        self.api = self._stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.url = f"http://127.0.0.1:{self.api.getsockname()[1]}"
        self.endpoint = directory / "runtime.sock"
        self.runtime = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        self.runtime.bind(str(self.endpoint))
        self.runtime.listen()
        for listener, is_grpc in ((self.api, False), (self.runtime, True)):
            threading.Thread(target=self._serve, args=(listener, is_grpc), daemon=True).start()

    def close(self) -> None:
        self.over.set()
        for listener in (self.api, self.runtime):
            listener.shutdown(socket.SHUT_RDWR)
        self._stack.close()

    def _serve(self, listener: socket.socket, is_grpc: bool) -> None:  # noqa: FBT001 - which of the two
        with suppress(OSError):
            while not self.over.is_set():
                connection, _ = listener.accept()
                self.connections += 1
                self.asked["runtime" if is_grpc else "API server"] += 1
                threading.Thread(target=self._answer, args=(connection, is_grpc), daemon=True).start()

    def _answer(self, connection: socket.socket, is_grpc: bool) -> None:  # noqa: FBT001
        with connection, suppress(OSError):
            self._treat(self, connection.sendall, is_grpc)


def peak_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def silence(peers: Peers, send: Send, is_grpc: bool) -> None:  # noqa: FBT001
    del send, is_grpc
    peers.over.wait()


def refusal(peers: Peers, send: Send, is_grpc: bool) -> None:  # noqa: FBT001
    """Close at once."""
    del peers, send, is_grpc


def garbage(peers: Peers, send: Send, is_grpc: bool) -> None:  # noqa: FBT001
    """Send any bytes, after a proper beginning in every other connection."""
    drawn = random.Random(peers.connections)
    if peers.connections % 2:
        send(_OF_GRPC if is_grpc else _OF_HTTP)
    send(drawn.randbytes(PIECE))
    peers.over.wait(0.01)


def flood(peers: Peers, send: Send, is_grpc: bool) -> None:  # noqa: FBT001
    """Send an answer without end, as fast as it is taken."""
    if is_grpc:
        send(_OF_GRPC)
        piece = frame(0, 0, 1, b"\0" + (1 << 30).to_bytes(4, "big") + bytes(16_000))
    else:
        send(_OF_HTTP + b"b\r\n" + b'{"items": [' + b"\r\n")
        pods = b'{"metadata": {"annotations": {"a": "' + b"x" * 1000 + b'"}}},'
        piece = f"{len(pods):x}".encode() + b"\r\n" + pods + b"\r\n"
    for _ in range(MOST_BYTES // len(piece)):
        if peers.over.is_set():
            return
        send(piece)


def drip(peers: Peers, send: Send, is_grpc: bool) -> None:  # noqa: FBT001
    """Send an answer without end, byte for byte."""
    for byte in _OF_GRPC if is_grpc else _OF_HTTP:
        send(bytes([byte]))
    while not peers.over.wait(0.005):
        send(frame(6, 0, 0, bytes(8)) if is_grpc else b"1\r\n \r\n")


@contextmanager
def peers_that(directory: Path, treat: Callable[[Peers, Send, bool], None]) -> Iterator[Peers]:
    peers = Peers(directory, treat)
    try:
        yield peers
    finally:
        peers.close()


@pytest.mark.parametrize("treat", [silence, refusal, garbage, flood, drip])
def test_the_hog_is_evicted_and_the_daemon_stays_small_however_its_peers_answer(
    node: VirtualNode,
    daemon: RunningDaemon,
    trial: Trial,
    tmp_path: Path,
    treat: Callable[[Peers, Send, bool], None],
) -> None:
    inside = pods_of_a_kubelet(node)
    other = node.spawn(inside[OTHER], hold(20))
    trial.must_live([other])
    hogs = [f"{HOG[:-2]}{number:02}" for number in range(ROUNDS)]
    trial.right.update(f"pod{uid}" for uid in hogs)
    trial.rounds = ROUNDS
    with peers_that(tmp_path, treat) as peers:
        daemon.configure(
            {"evictionHard": {"memory.available": "96Mi"}},
            {
                "kubernetes": {
                    "nodeName": "node-a",
                    "kubeconfig": kubeconfig(tmp_path, peers.url),
                    "role": "sole",
                },
                "runtime": {"endpoint": str(peers.endpoint)},
                "pods": {"parents": [f"{node.cgroup}/kubepods"]},
            },
        )
        daemon.start()
        for uid in hogs:
            victim = node.spawn(add_pod(node, uid), hold(470))
            assert -signal.SIGKILL == victim.wait(20 * PATIENCE)
            eventually(
                lambda name=f"pod{uid}": daemon.evicted()[-1:] == [name], "the eviction in the journal"
            )
        assert daemon.rss_mib() < MOST_RSS_MIB
        assert other.poll() is None
        assert daemon.process is not None
        (steward,) = descendants_called(daemon.process.pid, "reactor.steward")
        # Whatever they answer is theirs: no fault of a part, and no end of the process that asks them.
        assert 0 == daemon.status()["processes"]["steward"]["restarts"]
        assert "Traceback" not in daemon.log()
        print(f"guard {daemon.rss_mib():.0f} MiB, steward at its peak {peak_mib(steward):.0f} MiB")
        assert peak_mib(steward) < MOST_RSS_MIB
        eventually(lambda: peers.asked["runtime"] > 2, "the runtime is asked again", 90)
    assert 0 == daemon.stop()
