"""Crossing to kill beside scrapers, silent connections and a tenant's tree that is being counted, in turns.

That every hog is killed is asserted. How long it takes, what both processes take of memory, and what they
take of a CPU at rest, is measured and kept as JSON in .cache/company.json. REACTOR_CHAOS_SECONDS is for how
long, 20 by default, and how long the rest is, up to a minute.
"""

from __future__ import annotations

import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

import pytest

from reactor.testbed.crossing import THRESHOLDS, bench_node, cpu_ns
from reactor.testbed.virtual_node import VirtualNode
from tests.hostile.test_clients import get
from tests.hostile.test_trees import WIDE
from tests.support.crossings import PATIENCE_SECONDS, SECONDS, Hogs, keep
from tests.support.daemon import RunningDaemon
from tests.support.disks import Guarded
from tests.support.processes import descendants_called
from tests.support.running_threads import running
from tests.support.this_machine import cgroup_tree
from tests.support.trees import make_wide
from tests.support.trials import Trial
from tests.support.waiting import eventually

pytestmark = [pytest.mark.suite("hostile clients"), pytest.mark.timeout(PATIENCE_SECONDS)]

_SCRAPERS: Final = 4
_SILENT: Final = 1000
_REST_SECONDS: Final = 60.0
_TREE: Final = "wide"
_AT_A_TIME: Final = 20


@pytest.fixture
def node(tool: Path) -> Iterator[VirtualNode]:
    with bench_node(cgroup_tree(), tool, pods=3) as made:
        yield made


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a tmpfs with a directory of 600,000 directories, `wide`."""
    point = tmp_path_factory.mktemp("volumes")
    options = f"size=1g,nr_inodes={2 * WIDE}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(point)], check=True)
    try:
        (point / _TREE).mkdir()
        make_wide(point / _TREE, WIDE)
        yield point
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)


@pytest.fixture
def port() -> int:
    """Return a port for the metrics."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture
def guarded(node: VirtualNode, daemon: RunningDaemon, tree: Path, tmp_path: Path) -> Guarded:
    """Return the node, with the tree for its disk, and its daemon not yet started."""
    (tmp_path / "pods").mkdir()
    return Guarded(node, daemon, tree, tmp_path / "pods")


def test_every_crossing_is_killed_beside_scrapers_silent_connections_and_a_tree_being_counted(
    guarded: Guarded, trial: Trial, tool: Path, port: int, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    daemon = guarded.daemon
    metrics = f"127.0.0.1:{port}"
    guarded.start(THRESHOLDS, {"metrics": metrics, "housekeepingInterval": "10s"})
    eventually(lambda: get(port, "/healthz") == b"ok\n", "health")
    rest = _rest(daemon)
    assert daemon.stop() == 0
    # The pod with the tree comes and goes, and the housekeeping is what sees that.
    guarded.start(THRESHOLDS, {"metrics": metrics, "housekeepingInterval": "2s"})
    eventually(lambda: get(port, "/healthz") == b"ok\n", "health")

    hogs = Hogs(guarded.node, daemon, tool, tmp_path)
    beside: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "nothing else": nullcontext,
        f"{_SCRAPERS} scrapers": lambda: _scrapers(port),
        f"{_SILENT} silent connections": lambda: _silent_connections(port),
        f"{WIDE} directories being counted": lambda: _counted(guarded),
    }
    until, is_first = time.monotonic() + SECONDS, True
    while time.monotonic() < until or is_first:
        is_first = False
        for name, circumstance in beside.items():
            with circumstance():
                hogs.cross(name, _AT_A_TIME)
    eventually(lambda: len(daemon.evicted()) == hogs.crossed, "all in the journal")

    trial.rounds, trial.right = hogs.count, {"hog"}
    keep("company", {**hogs.document(), "at_rest": rest, "after": _memory(daemon)}, pytestconfig.rootpath)

    assert hogs.not_killed == 0
    assert hogs.count == hogs.crossed
    assert daemon.stop() == 0


@contextmanager
def _scrapers(port: int) -> Iterator[None]:
    """Have the metrics asked for without a pause inside the block."""

    def scrape(ended: threading.Event) -> None:
        while not ended.is_set():
            get(port, "/metrics")

    with running([scrape] * _SCRAPERS):
        yield


@contextmanager
def _silent_connections(port: int) -> Iterator[None]:
    with ExitStack() as open_sockets:
        for _ in range(_SILENT):
            client = open_sockets.enter_context(socket.socket())
            client.settimeout(0)
            with suppress(BlockingIOError):
                client.connect(("127.0.0.1", port))
        yield


@contextmanager
def _counted(guarded: Guarded) -> Iterator[None]:
    """Have a pod with a large tree counted inside the block, from its first directory on."""
    path = guarded.disk / _TREE
    guarded.add_pod(_TREE, path=path)
    try:
        # After a look that took long, as this tree's, the walker rests for a minute.
        eventually(lambda: _is_counting(guarded.daemon), "the tree is being counted", 90, 0.2)
        yield
        # Between two pieces it sleeps; once all is counted it does for a minute.
        eventually(lambda: _is_counting(guarded.daemon), "a tree large enough to be counted still", 20, 0.2)
    finally:
        (guarded.manifests / f"{_TREE}.json").unlink()
        guarded.node.remove_pod(f"{guarded.node.cgroup}/{_TREE}")
    eventually(lambda: not _is_counting(guarded.daemon), "the tree is not counted any more", 60, 0.2)


def _is_counting(daemon: RunningDaemon) -> bool:
    """Return whether the walker has a CPU, waits for one, or for the disk, at one of 20 looks in 0.2 s."""
    assert daemon.process is not None
    for pid in descendants_called(daemon.process.pid, "walker"):
        for _ in range(20):
            with suppress(OSError):
                stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
                if stat.rpartition(") ")[2][0] in "RD":
                    return True
            time.sleep(0.01)
    return False


def _rest(daemon: RunningDaemon) -> dict[str, object]:
    """Return what both processes take while nothing happens."""
    seconds = min(_REST_SECONDS, SECONDS)
    pids = _processes(daemon)
    before = {name: cpu_ns(pid) for name, pid in pids.items()}
    time.sleep(seconds)
    taken = {name: round((cpu_ns(pid) - before[name]) / seconds / 1e7, 3) for name, pid in pids.items()}
    return {"seconds": seconds, "cpu_percent": taken, **_memory(daemon)}


def _memory(daemon: RunningDaemon) -> dict[str, object]:
    """Return each process's resident memory, and its share of what processes have in common, in MiB."""
    found = {name: _rollup(pid) for name, pid in _processes(daemon).items()}
    return {
        "rss_mib": {name: one["Rss"] for name, one in found.items()},
        "pss_mib": {name: one["Pss"] for name, one in found.items()},
    }


def _rollup(pid: int) -> dict[str, float]:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return {
        name: round(int(kib) / 1024, 1) for name, kib in re.findall(r"^(\w+): +(\d+) kB", text, re.MULTILINE)
    }


def _processes(daemon: RunningDaemon) -> dict[str, int]:
    assert daemon.process is not None
    (steward,) = descendants_called(daemon.process.pid, "reactor.steward")
    walkers = descendants_called(daemon.process.pid, "reactor.disks.walker")
    return {"guard": daemon.process.pid, "steward": steward, **dict(zip(("walker",), walkers, strict=False))}
