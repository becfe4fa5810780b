"""The machine is what the Vagrantfile says, and the wheel is what runs in it."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path


def test_the_wheel_is_installed_and_the_source_tree_is_not_here() -> None:
    spec = importlib.util.find_spec("reactor")
    assert spec is not None
    assert spec.origin is not None
    assert "/venv/lib/" in spec.origin
    assert not Path("/vagrant").exists()


def test_the_machine_came_up_whole() -> None:
    state = subprocess.run(
        ["systemctl", "is-system-running", "--wait"], capture_output=True, text=True, check=False
    )
    assert state.stdout.strip() == "running"


def test_the_memory_controller_is_on_exactly_one_version_of_cgroups() -> None:
    v2 = "memory" in _read("/sys/fs/cgroup/cgroup.controllers").split()
    assert Path("/sys/fs/cgroup/memory/cgroup.event_control").exists() != v2


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except FileNotFoundError:
        return ""
