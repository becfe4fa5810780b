"""A virtual node in files, for the daemon's own loop: what it reads is written by the test.

Its pods are processes: what the daemon kills does end.
"""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING, Final, Self

from reactor.kernel.cgroup_directory import CgroupVersion
from tests.support.processes import MIB, PAUSE

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree

NODE: Final = "/node"


class NodeInFiles:
    """A context manager; `NODE` is the node, of 512 MiB, of which 100 MiB are used at first."""

    def __init__(self, fake: FakeTree) -> None:
        self.tree = fake.tree
        self._fake = fake
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        fake.add(NODE)
        self.use(100)
        fake.tree.set_memory_limit(NODE, 512 * MIB)
        if fake.tree.version is CgroupVersion.V2:
            fake.file(NODE, "memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def use(self, mib: int) -> None:
        """Have the node use so much memory."""
        self._fake.counters(NODE, usage_bytes=mib * MIB, inactive_file_bytes=0)

    def add_pod(self, name: str, mib: int, *, stubborn: bool = False) -> None:
        """Make a pod of one process that is charged with so much memory; a stubborn one ignores SIGTERM."""
        cgroup = f"{NODE}/{name}"
        self._fake.add(cgroup, usage_bytes=mib * MIB)
        before = signal.getsignal(signal.SIGTERM)
        if stubborn:  # from its first instruction on: what is ignored here is ignored there
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._processes[name] = subprocess.Popen(PAUSE)
        signal.signal(signal.SIGTERM, before)
        for controller in ("memory", "pids", "cpu", "freezer"):
            self._fake.file(cgroup, "cgroup.procs", f"{self._processes[name].pid}\n", controller)

    def alive(self) -> set[str]:
        """Return the pods whose processes live; a cgroup whose process has ended is empty from now on."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                for controller in ("memory", "pids", "cpu", "freezer"):
                    self._fake.file(f"{NODE}/{name}", "cgroup.procs", "", controller)
        return {name for name, process in self._processes.items() if process.returncode is None}

    def end_status(self, name: str) -> int | None:
        """Return what a pod's process ended with."""
        return self._processes[name].poll()
