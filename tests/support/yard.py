"""Cgroups of a test's own with pods to end in them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.model.pods import Pod
from tests.support.this_machine import cgroup_tree

_UNIFIED: Final = Path("/sys/fs/cgroup/unified")  # where a machine with v1 controllers has v2, without them
WAIT_FOR_EVER = "import signal; signal.pause()"
IGNORE_TERM = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(flush=True)
while True:
    signal.pause()
"""
FORK_STORM = """
import os
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except BlockingIOError:
        pass
"""


class Yard:
    """A parent cgroup of the test's own; makes pods below it, mirrored in every mounted hierarchy."""

    def __init__(self, tree: CgroupTree) -> None:
        self.tree = tree
        self.parent = f"/reactor-test-act-{os.getpid()}"
        self.children: list[subprocess.Popen[str]] = []
        self.make(self.parent)

    def directories(self, cgroup: str) -> list[Path]:
        roots = [self.tree.memory_root, self.tree.pids_root, self.tree.cpu_root, self.tree.freezer_root]
        return list(dict.fromkeys(root / cgroup[1:] for root in roots if root))

    def make(self, cgroup: str) -> str:
        for directory in self.directories(cgroup):
            directory.mkdir()
        return cgroup

    def pod(self, name: str = "pod") -> Pod:
        return pod_at(self.make(f"{self.parent}/{name}"))

    def spawn(self, cgroup: str, code: str = WAIT_FOR_EVER) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", f"input()\n{code}"], stdin=-1, stdout=-1, text=True
        )
        self.children.append(child)
        for directory in self.directories(cgroup):
            (directory / "cgroup.procs").write_text(str(child.pid))
        assert child.stdin
        child.stdin.write("\n")
        child.stdin.flush()
        return child

    def cgroups(self) -> list[Path]:
        """Return every directory made, and what was made in them, the innermost first."""
        found = [p.parent for d in self.directories(self.parent) for p in d.rglob("cgroup.procs")]
        return sorted(found, key=lambda path: len(path.parts), reverse=True)

    def clean(self) -> None:
        for state in [cgroup / "freezer.state" for cgroup in self.cgroups()]:
            if state.exists():
                state.write_text("THAWED")
        while pids := [
            pid for cgroup in self.cgroups() for pid in (cgroup / "cgroup.procs").read_text().split()
        ]:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            for child in self.children:
                child.poll()
            time.sleep(0.005)
        for child in self.children:
            child.communicate()
        for cgroup in self.cgroups():
            cgroup.rmdir()


def home(yard: Yard) -> Path:
    """Return the list of processes that this one is in, where the pods are."""
    path = next(
        path
        for number, controllers, path in (
            line.split(":") for line in Path("/proc/self/cgroup").read_text().splitlines()
        )
        if ("memory" in controllers.split(",") if yard.tree.version is CgroupVersion.V1 else number == "0")
    )
    return yard.tree.memory_root / path.lstrip("/") / "cgroup.procs"


def pod_at(cgroup: str | None) -> Pod:
    return Pod(name="pod", namespace="test", uid="1", cgroup=cgroup)


def tree_of(version: CgroupVersion) -> CgroupTree:
    """Return this machine's hierarchies of a version, or skip; v2 may be without controllers."""
    tree = cgroup_tree()
    if tree.version is version:
        return tree
    if tree.version is CgroupVersion.V2:
        pytest.skip("no v1 hierarchies here; boot with systemd.unified_cgroup_hierarchy=0")
    if not _UNIFIED.is_mount():
        pytest.skip(f"no v2 hierarchy here; mount -t cgroup2 none {_UNIFIED}")
    return CgroupTree(version=CgroupVersion.V2, memory_root=_UNIFIED, freezer_root=_UNIFIED)


@contextmanager
def yard_in(tree: CgroupTree) -> Iterator[Yard]:
    """Yield a yard that is cleaned after the test."""
    yard = Yard(tree)
    try:
        yield yard
    finally:
        yard.clean()
