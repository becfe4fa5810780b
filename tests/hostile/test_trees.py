"""Tenants' trees: 600,000 directories in a volume, others thousands deep, and a daemon with 128 MiB.

Shown before: the daemon OOM-killed at its limit, again after each restart; half a minute of CPU for a tree of
2,000 levels, and no other pod's limit enforced meanwhile.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon, with_other_numbers
from tests.support.disks import Guarded
from tests.support.processes import PAUSE, descendants_called, fill
from tests.support.this_machine import cgroup_tree
from tests.support.trees import make_deep, make_wide
from tests.support.trials import Trial
from tests.support.waiting import eventually

pytestmark = pytest.mark.suite("hostile trees")

WIDE = 600_000
OVERDUE = {"_OVERDUE_SECONDS": 2.0}  # in place of two minutes, after which a count that goes on is named
DEEP = 2_500
LIMIT_BYTES = 128 << 20
LIMIT = "10Mi"


class BoundDaemon(RunningDaemon):
    """A daemon in a cgroup with the unit's limit, its walkers included."""

    cgroup: Path

    def spawn(self, *arguments: str, **options: object) -> subprocess.Popen[bytes]:
        process = super().spawn(*arguments, **options)
        (self.cgroup / "cgroup.procs").write_text(str(process.pid))
        return process

    def walkers(self) -> list[int]:
        """Return the walkers that it has."""
        assert self.process is not None
        return descendants_called(self.process.pid, "walker")


@pytest.fixture
def volumes(tmp_path: Path) -> Iterator[Path]:
    """Return a tmpfs with room for so many inodes."""
    point = tmp_path / "volumes"
    point.mkdir()
    options = f"size=1g,nr_inodes={3 * WIDE}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(point)], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)


@pytest.fixture
def wide(volumes: Path) -> list[Path]:
    """Return two volumes of so many directories, which take long to make."""
    return [make_wide(volumes / name, WIDE) for name in ("wide", "also-wide")]


@pytest.fixture
def daemon(node: VirtualNode, trial: Trial, tmp_path: Path) -> Iterator[BoundDaemon]:
    """Return a daemon with 128 MiB, not yet started; it is stopped after the test."""
    cgroup = cgroup_tree().memory_root / f"reactor-test-{os.getpid()}-daemon"
    cgroup.mkdir()
    running = BoundDaemon(tmp_path, node.cgroup)
    running.cgroup = cgroup
    name = "memory.max" if (cgroup / "memory.max").exists() else "memory.limit_in_bytes"
    (cgroup / name).write_text(str(LIMIT_BYTES))
    yield running
    trial.end(running)
    eventually(lambda: not (cgroup / "cgroup.procs").read_text(), "the daemon's cgroup is empty")
    cgroup.rmdir()


@pytest.fixture
def guarded(volumes: Path, node: VirtualNode, daemon: BoundDaemon, tmp_path: Path) -> Guarded:
    """Return the node with its pods' volumes, and its daemon not yet started."""
    (tmp_path / "pods").mkdir()
    return Guarded(node, daemon, volumes, tmp_path / "pods")


def peak_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) / 1024


@pytest.mark.timeout(func_only=True)
def test_600000_directories_cost_neither_the_daemon_nor_another_pods_limit(
    guarded: Guarded,
    wide: list[Path],
    daemon: BoundDaemon,
    trial: Trial,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with_other_numbers(tmp_path, monkeypatch, module="reactor.disks.usage", numbers=OVERDUE)
    for path in wide:
        guarded.add_pod(path.name, path=path)
    make_deep(guarded.add_pod("deep", volume={"sizeLimit": "10Ki"}), DEEP, file_bytes=20_480)
    small = [guarded.add_pod(f"small{number}", volume={"sizeLimit": LIMIT}) for number in range(3)]
    trial.right |= {"deep", "small0", "small1", "small2"}
    trial.rounds = 4
    guarded.run("wide", PAUSE)
    guarded.run("deep", PAUSE)
    guarded.start({"evictionHard": {"nodefs.available": "1Mi"}})
    assert daemon.process is not None

    eventually(lambda: guarded.evicted() == ["deep"], "the deep tree counted")
    guarded.run("small0", fill(small[0], mib=11))
    eventually(lambda: guarded.evicted() == ["deep", "small0"], "another pod's limit is enforced")

    (walker,) = daemon.walkers()
    walker_mib = peak_mib(walker)
    os.kill(walker, signal.SIGKILL)
    guarded.run("small1", fill(small[1], mib=11))
    eventually(lambda: guarded.evicted()[2:] == ["small1"], "and when the walker was killed")

    overdue: list[str] = []

    def is_named() -> bool:
        problems = daemon.status()["problems"]
        names = [f"storage of pod default/{path.name}" for path in wide]
        overdue[:] = [problems[name] for name in names if name in problems]
        return bool(overdue)

    eventually(is_named, "what is overdue is named", pause_seconds=0.5)
    assert "directories so far" in overdue[0]
    guarded.run("small2", fill(small[2], mib=11))
    eventually(lambda: guarded.evicted()[3:] == ["small2"], "and when it is overdue")

    (walker,) = daemon.walkers()
    walker_mib = max(walker_mib, peak_mib(walker))
    daemon_mib = peak_mib(daemon.process.pid)
    assert daemon.process.poll() is None
    assert walker_mib < 48
    with capsys.disabled():
        print(f"\npeaks: daemon {daemon_mib:.0f} MiB, walker {walker_mib:.0f} MiB; {overdue[0]}")
    ooms = (daemon.cgroup / "memory.oom_control").read_text() if _is_v1(daemon) else ""
    assert "oom_kill 0" in ooms or not ooms


def _is_v1(daemon: BoundDaemon) -> bool:
    return (daemon.cgroup / "memory.oom_control").exists()
