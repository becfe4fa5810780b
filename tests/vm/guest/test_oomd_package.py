"""In the place of systemd-oomd and back, as the page on pressure says, with Debian's packages of both.

Needs the Debian package, the pages, and Debian's systemd-oomd: `make vm-test-package`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from guarded import CONFIG, V2, eventually, prop, run
from packaged import PACKAGES, Page, follow, versions

PAGE: Final = Page("pressure.md", followed_by="test_oomd_package.py")
INSTALL: Final = Page("install.md", followed_by="test_package.py")
OOMD: Final = ("systemd-oomd.service", "systemd-oomd.socket")
# What a unit says of itself; for how long, Debian's package says for all.
SAYS: Final = ("--property=ManagedOOMMemoryPressure=kill", "--property=ManagedOOMMemoryPressureLimit=40%")
RULE: Final = "systemd-oomd:pressure-40%-20s"

pytestmark = [
    pytest.mark.skipif(not PACKAGES.is_dir(), reason="no package in this machine: make vm-test-package"),
    pytest.mark.skipif(not V2, reason="systemd-oomd needs cgroup v2"),
]


@pytest.fixture
def systemd_oomd(debian: None) -> Iterator[None]:
    """Have systemd-oomd run, as its package starts it."""
    run("apt-get", "install", "--yes", "systemd-oomd")
    try:
        run("systemctl", "start", *OOMD)
        yield
    finally:
        run("systemctl", "stop", "says-kill.service", *OOMD, check=False)
        run("apt-get", "purge", "--yes", "systemd-oomd", check=False)
        for unit in OOMD:
            Path("/etc/systemd/system", unit).unlink(missing_ok=True)
        run("systemctl", "daemon-reload")


def program() -> list[str]:
    """Return what systemd-oomd.service runs; empty while it runs nothing."""
    try:
        return Path(f"/proc/{prop(OOMD[0], 'MainPID')}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


def status() -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(run("reactor", "status", "--output", "json"))
    return shown


def rules() -> set[str]:
    return {one["name"] for one in status()["rules"]}


@pytest.mark.usefixtures("systemd_oomd")
def test_reactor_takes_the_place_of_systemd_oomd_and_gives_it_back(package_directory: Path) -> None:
    assert [os.path.basename(one) for one in program()] == ["systemd-oomd"]
    shutil.copy(versions()[0], package_directory)
    for command in INSTALL.commands("install"):
        follow(command, package_directory)

    CONFIG.write_text(PAGE.block("configuration", "yaml"))
    for command in PAGE.commands("instead"):
        follow(command, package_directory)
    eventually(lambda: program()[-1:] == ["managed-oom"], "reactor runs in the place of systemd-oomd")
    run("systemd-run", "--unit=says-kill", *SAYS, "sleep", "infinity")
    eventually(lambda: RULE in rules(), "what a unit says is a rule")
    eventually(lambda: "systemdOomd" not in status()["problems"], "systemd's answer")
    follow("sudo reactor config check /etc/reactor/config.yaml", package_directory)

    # A removal says what is left in another's place.
    remove, _ = INSTALL.commands("remove")
    warning = "systemd-oomd.service runs reactor"
    assert warning in follow(f"{remove} 2>&1", package_directory)
    for command in INSTALL.commands("install"):
        follow(command, package_directory)

    CONFIG.write_text(PAGE.block("configuration", "yaml").replace("replace", "ignore"))
    for command in PAGE.commands("back"):
        follow(command, package_directory)
    eventually(lambda: [os.path.basename(one) for one in program()] == ["systemd-oomd"], "systemd-oomd")
    eventually(lambda: not rules(), "no rule is left")
    assert prop(OOMD[0], "UnitFileState") == "enabled"
    assert warning not in follow(f"{remove} 2>&1", package_directory)
