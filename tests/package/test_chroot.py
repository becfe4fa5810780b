"""The package installed, upgraded, removed and purged in fresh roots of Debian 12 and 13, with no systemd.

With one, in virtual machines: tests/vm/guest/test_package.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)  # a root of Debian is made first
NOT_COMPARED = ("var/cache", "var/lib/apt", "var/lib/dpkg", "var/log", "tmp", "proc", "sys", "dev", "run")


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a root with the package's dependencies and without it."""
    if shutil.which("mmdebstrap") is None or os.geteuid() != 0:
        pytest.skip("no roots of Debian: needs root and Debian's package mmdebstrap")
    directory = tmp_path_factory.mktemp(request.param)
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    source = f"deb [signed-by={keyring}] http://deb.debian.org/debian {request.param} main"
    options = [
        "--quiet",
        "--mode=root",
        "--variant=minbase",
        "--include=python3,libbpf1",
        "--format=directory",
    ]
    made = subprocess.run(
        ["mmdebstrap", *options, request.param, str(directory / "root"), source],
        capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"no root of {request.param}: {made.stderr.strip()[-300:]}")
    yield directory / "root"
    shutil.rmtree(directory)


def files(root: Path) -> set[str]:
    found = (path.relative_to(root) for path in root.glob("**/*"))
    return {str(path) for path in found if not str(path).startswith(NOT_COMPARED)}


def inside(root: Path, *command: str) -> str:
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "DEBIAN_FRONTEND": "noninteractive",
        "LC_ALL": "C.UTF-8",
    }
    done = subprocess.run(
        ["chroot", root, *command], capture_output=True, text=True, check=False, env=environment, timeout=300
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_it_is_installed_upgraded_removed_and_purged_and_leaves_nothing(root: Path, deb: Path) -> None:
    before = files(root)
    shutil.copy(deb, root / "tmp/reactor.deb")
    configuration = root / "etc/reactor/config.yaml"

    inside(root, "dpkg", "--install", "/tmp/reactor.deb")
    assert inside(root, "reactor", "--version").startswith("reactor ")
    assert list(root.glob("usr/lib/reactor/site-packages/reactor/guard/__pycache__/loop.*.pyc"))
    assert (root / "etc/systemd/system/multi-user.target.wants/reactor.service").is_symlink()
    assert "dryRun: true" in configuration.read_text()

    configuration.write_text(configuration.read_text().replace("dryRun: true", "dryRun: false"))
    inside(root, "dpkg", "--install", "/tmp/reactor.deb")
    assert "dryRun: false" in configuration.read_text()

    pins = root / "sys/fs/bpf/reactor"
    (pins / "memory_1_2").mkdir(parents=True)  # of a daemon that was killed
    (pins / "memory_1_2/program").touch()

    inside(root, "dpkg", "--remove", "reactor")
    assert not pins.exists()
    assert {"etc/reactor", "etc/reactor/config.yaml"} == {
        name for name in files(root) - before if "systemd" not in name
    }

    inside(root, "dpkg", "--purge", "reactor")
    assert files(root) - before == set()
    assert "reactor" not in inside(root, "dpkg", "--get-selections")
