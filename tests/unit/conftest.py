"""Cgroup hierarchies as directory trees, so that both versions can be tested anywhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from reactor.kernel.cgroup import CgroupTree, CgroupVersion

# How hypothesis runs: a busy machine is not a failure, and `make test` tries the same examples each time, so
# that a change fails only by what it changed. `make fuzz` tries others, and more of them.
settings.register_profile(
    "reactor", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "fuzz",
    deadline=None,
    max_examples=int(os.environ.get("EXAMPLES", "5000")),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
# For `make unit-policy`, which counts what is reached: that doubles what an example takes.
settings.register_profile("coverage", settings.get_profile("reactor"), max_examples=20)
settings.load_profile("reactor")

FakeTreeMaker = Callable[[CgroupVersion], "FakeTree"]
V1_UNLIMITED = "9223372036854771712"


@dataclass(frozen=True)
class FakeTree:
    """Directories with the files that reactor reads; files are written as `file(cgroup, name, text)`."""

    tree: CgroupTree

    def add(self, cgroup: str, *, usage_bytes: int = 0, inactive_file_bytes: int = 0) -> None:
        """Make a cgroup (in each v1 hierarchy) without limits."""
        for controller in ("memory", "pids", "cpu", "freezer"):
            self.directory(cgroup, controller).mkdir(parents=True, exist_ok=True)
            self.file(cgroup, "cgroup.procs", "", controller)
        self.file(cgroup, "pids.max", "max\n", "pids")
        self.file(cgroup, "pids.current", "0\n", "pids")
        self.counters(cgroup, usage_bytes=usage_bytes, inactive_file_bytes=inactive_file_bytes)
        if self.tree.version is CgroupVersion.V2:
            for name, text in {"memory.max": "max", "memory.low": "0", "memory.min": "0"}.items():
                self.file(cgroup, name, f"{text}\n")
            self.file(cgroup, "memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n")
            self.file(cgroup, "cpu.stat", "usage_usec 0\n", "cpu")
            self.file(cgroup, "cpu.max", "max 100000\n", "cpu")
        else:
            self.file(cgroup, "memory.limit_in_bytes", f"{V1_UNLIMITED}\n")
            self.file(cgroup, "memory.soft_limit_in_bytes", f"{V1_UNLIMITED}\n")
            self.file(cgroup, "cpu.cfs_quota_us", "-1\n", "cpu")
            self.file(cgroup, "cpu.cfs_period_us", "100000\n", "cpu")

    def counters(self, cgroup: str, *, usage_bytes: int, inactive_file_bytes: int) -> None:
        """Set what the cgroup's memory counters show."""
        if self.tree.version is CgroupVersion.V2:
            self.file(cgroup, "memory.current", f"{usage_bytes}\n")
            self.file(cgroup, "memory.stat", f"anon 1\nfile 2\ninactive_file {inactive_file_bytes}\nslab 7\n")
        else:
            self.file(cgroup, "memory.usage_in_bytes", f"{usage_bytes}\n")
            self.file(
                cgroup,
                "memory.stat",
                f"cache 1\ninactive_file 3\ntotal_inactive_file {inactive_file_bytes}\ntotal_unevictable 0\n",
            )

    def file(self, cgroup: str, name: str, text: str | bytes, controller: str = "memory") -> None:
        """Write one control file."""
        raw = text if isinstance(text, bytes) else text.encode()
        (self.directory(cgroup, controller) / name).write_bytes(raw)

    def read(self, cgroup: str, name: str, controller: str = "memory") -> str:
        """Return what is in a control file."""
        return (self.directory(cgroup, controller) / name).read_text()

    def directory(self, cgroup: str, controller: str = "memory") -> Path:
        """Return the cgroup's directory."""
        root: Path = getattr(self.tree, f"{controller}_root")
        return root / cgroup.lstrip("/")


@pytest.fixture
def make_tree(tmp_path: Path) -> FakeTreeMaker:
    """Return a maker of an empty hierarchy of the version asked for."""

    def make(version: CgroupVersion) -> FakeTree:
        roots = {
            f"{controller}_root": tmp_path
            / "cgroup"
            / (controller if version is CgroupVersion.V1 else "unified")
            for controller in ("memory", "pids", "cpu", "freezer")
        }
        for root in roots.values():
            root.mkdir(parents=True, exist_ok=True)
        return FakeTree(CgroupTree(version=version, **roots))

    return make


@pytest.fixture(params=list(CgroupVersion))
def fake(request: pytest.FixtureRequest, make_tree: FakeTreeMaker) -> FakeTree:
    """Return an empty hierarchy, of each version in turn."""
    return make_tree(request.param)
