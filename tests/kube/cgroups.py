"""The tests' own look at memory control groups, of either version."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_V1: Final = Path("/sys/fs/cgroup/memory")
ROOT: Final = _V1 if _V1.exists() else _V1.parent
IS_V1: Final = ROOT == _V1
_USAGE: Final = "memory.usage_in_bytes" if IS_V1 else "memory.current"
_LIMIT: Final = "memory.limit_in_bytes" if IS_V1 else "memory.max"


def directory(cgroup: str) -> Path:
    """Return where a cgroup, named from the hierarchy's root on, is in the memory controller's hierarchy."""
    return ROOT / cgroup.lstrip("/")


def usage_bytes(cgroup: str) -> int:
    """Return what is charged to a cgroup. Raises FileNotFoundError where it is gone."""
    return int((directory(cgroup) / _USAGE).read_text())


def limit_bytes(cgroup: str) -> int:
    """Return a cgroup's limit."""
    return int((directory(cgroup) / _LIMIT).read_text())


def set_limit(cgroup: str, limit: int) -> None:
    """Give a cgroup a limit."""
    (directory(cgroup) / _LIMIT).write_text(str(limit))


def processes(cgroup: str) -> list[int]:
    """Return the processes of a cgroup itself, those of cgroups below it aside."""
    return [int(pid) for pid in (directory(cgroup) / "cgroup.procs").read_text().split()]
