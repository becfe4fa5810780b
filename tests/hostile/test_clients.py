"""Clients of metrics and status, silent, many, slow and fast: none costs an eviction, or more than its share.

What they cost is counted of all processes of the daemon.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import pytest

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.processes import hold
from tests.support.running_threads import running
from tests.support.trials import Trial
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.suite("hostile clients")

_SCRAPERS = 4
_SECONDS = 8.0


@pytest.fixture
def port(daemon: RunningDaemon, trial: Trial) -> Iterator[int]:
    """Return the metrics port of a running daemon."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = int(free.getsockname()[1])
    trial.right.add("hog")
    daemon.configure({"evictionHard": {"memory.available": "64Mi"}}, {"metrics": f"127.0.0.1:{number}"})
    daemon.start()
    eventually(lambda: get(number, "/healthz") == b"ok\n", "health")
    yield number
    assert daemon.stop() == 0


def get(port: int, path: str) -> bytes:
    """Return a page, nothing where it was not to be had in time."""
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        body: bytes = answer.read()
        return body
    return b""


def test_a_thousand_silent_connections_take_few_descriptors_and_no_eviction(
    node: VirtualNode, daemon: RunningDaemon, port: int
) -> None:
    before = len(daemon.all_descriptors())
    with ExitStack() as open_sockets:
        for _ in range(1000):
            client = open_sockets.enter_context(socket.socket())
            client.settimeout(0)
            with suppress(BlockingIOError):
                client.connect(("127.0.0.1", port))
        most = 0
        victim = node.spawn(node.add_pod("hog"), hold(470))
        assert -signal.SIGKILL == victim.wait(20 * PATIENCE)
        began = time.monotonic()
        for _ in range(10):
            most = max(most, len(daemon.all_descriptors()) - before)
            eventually(lambda: get(port, "/healthz") == b"ok\n", "health among silent connections")
    print(f"1,000 silent connections: {most} descriptors; health in {(time.monotonic() - began) / 10:.3f} s")

    assert most <= 32
    assert {} == {name: why for name, why in daemon.status()["problems"].items() if name.startswith("part")}


def test_half_closed_connections_are_answered_or_closed_upon_and_cost_no_eviction(
    node: VirtualNode, daemon: RunningDaemon, port: int
) -> None:
    """Those that are done with asking get their answer; those that ask half a question hold nothing."""
    before = len(daemon.all_descriptors())
    whole = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with ExitStack() as open_sockets:
        for number in range(300):
            client = open_sockets.enter_context(socket.create_connection(("127.0.0.1", port), 30 * PATIENCE))
            asked = whole if number % 100 == 0 else whole[: number % len(whole)]
            client.sendall(asked)
            client.shutdown(socket.SHUT_WR)
            if asked == whole:
                answer = b""
                while more := client.recv(4096):
                    answer += more
                assert answer.startswith(b"HTTP/1.1 200")
                assert answer.endswith(b"ok\n")
        victim = node.spawn(node.add_pod("hog"), hold(470))
        assert -signal.SIGKILL == victim.wait(20 * PATIENCE)
        eventually(lambda: get(port, "/healthz") == b"ok\n", "health among half-closed connections")
        eventually(lambda: len(daemon.all_descriptors()) - before <= 8, "half-closed connections closed upon")


def test_scrapers_at_full_speed_take_a_small_share_of_a_cpu_and_no_eviction(
    node: VirtualNode, daemon: RunningDaemon, port: int
) -> None:
    assert daemon.process is not None
    answers, ended = [0] * _SCRAPERS, threading.Event()

    def scrape(number: int) -> None:
        while not ended.is_set():
            answers[number] += b"reactor_pods" in get(port, "/metrics")

    idle_from = daemon.cpu_seconds()
    time.sleep(2)
    idle = (daemon.cpu_seconds() - idle_from) / 2
    threads = [threading.Thread(target=scrape, args=(number,)) for number in range(_SCRAPERS)]
    began, began_cpu = time.monotonic(), daemon.cpu_seconds()
    for thread in threads:
        thread.start()
    time.sleep(_SECONDS)
    took, took_cpu = time.monotonic() - began, daemon.cpu_seconds() - began_cpu
    health_began = time.monotonic()
    assert get(port, "/healthz") == b"ok\n"
    health_seconds = time.monotonic() - health_began
    victim = node.spawn(node.add_pod("hog"), hold(470))
    assert -signal.SIGKILL == victim.wait(20 * PATIENCE)
    ended.set()
    for thread in threads:
        thread.join()
    per_second = sum(answers) / took
    print(
        f"{_SCRAPERS} scrapers at full speed: {per_second:.0f} answers a second, "
        f"{took_cpu / took:.1%} of a CPU ({idle:.1%} without); health in {health_seconds:.3f} s"
    )

    assert 0 < per_second <= 40  # 20 a second, and a few at once
    assert took_cpu / took - idle < 0.15


def test_dripping_clients_and_floods_of_nonsense_take_a_small_share_of_a_cpu(
    daemon: RunningDaemon, port: int
) -> None:
    ended = threading.Event()

    def drip() -> None:
        while not ended.is_set():
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while not ended.is_set():
                    client.send(b"G")
                    time.sleep(0.0005)

    def flood() -> None:
        while not ended.is_set():
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as client:
                client.sendall(os.urandom(16384))

    threads = [threading.Thread(target=work) for work in [drip] * 8 + [flood] * 2]
    for thread in threads:
        thread.start()
    began, began_cpu = time.monotonic(), daemon.cpu_seconds()
    time.sleep(_SECONDS)
    share = (daemon.cpu_seconds() - began_cpu) / (time.monotonic() - began)
    eventually(lambda: get(port, "/healthz") == b"ok\n", "health among nonsense")
    ended.set()
    for thread in threads:
        thread.join()
    print(f"8 dripping clients and 2 floods of nonsense: {share:.1%} of a CPU")

    assert share < 0.2


def connected(daemon: RunningDaemon) -> socket.socket:
    """Return a connection to the status socket. Raises OSError."""
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(5)
    try:
        client.connect(str(daemon.socket_path))
    except OSError:  # the backlog is full
        client.close()
        time.sleep(0.005)
        raise
    return client


def drip_questions(daemon: RunningDaemon, ended: threading.Event) -> None:
    """Ask without end, a blank at a time."""
    while not ended.is_set():
        with suppress(OSError), connected(daemon) as client:
            while not ended.is_set():
                client.send(b" ")
                time.sleep(0.0005)


def ask_half_questions(daemon: RunningDaemon, ended: threading.Event) -> None:
    """Hold up to a hundred connections, each with half a question, every other one half-closed."""
    question = b'{"command": "status"}'
    while not ended.is_set():
        with ExitStack() as open_sockets, suppress(OSError):
            for number in range(100):
                client = open_sockets.enter_context(connected(daemon))
                client.sendall(question[: number % len(question)])
                if number % 2:
                    client.shutdown(socket.SHUT_WR)
                if ended.is_set():
                    break


@contextmanager
def status_asked_badly(daemon: RunningDaemon) -> Iterator[None]:
    """Have eight clients treat the status socket badly inside the block."""
    with running([partial(ask, daemon) for ask in [drip_questions] * 4 + [ask_half_questions] * 4]):
        yield


def test_silent_half_closed_and_dripping_clients_of_the_status_socket_take_few_descriptors_and_no_eviction(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial
) -> None:
    trial.right.add("hog")
    daemon.configure({"evictionHard": {"memory.available": "64Mi"}})
    daemon.start()
    assert daemon.status()["pods"] == 0
    before = len(daemon.all_descriptors())
    with status_asked_badly(daemon):
        began, began_cpu = time.monotonic(), daemon.cpu_seconds()
        victim = node.spawn(node.add_pod("hog"), hold(470))
        assert -signal.SIGKILL == victim.wait(20 * PATIENCE)
        most = 0
        for _ in range(5):
            most = max(most, len(daemon.all_descriptors()) - before)
            assert daemon.status()["pods"] == 1
        time.sleep(max(0.0, began + _SECONDS - time.monotonic()))
        share = (daemon.cpu_seconds() - began_cpu) / (time.monotonic() - began)
    print(f"silent, half-closed and dripping clients of status: {most} descriptors, {share:.1%} of a CPU")

    assert most <= 24
    assert share < 0.2
    eventually(lambda: daemon.evicted() == ["hog"], "the eviction in the journal")
    assert {} == {name: why for name, why in daemon.status()["problems"].items() if name.startswith("part")}
    assert daemon.stop() == 0
