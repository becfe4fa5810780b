"""The built package: `make test-deb` names it in REACTOR_DEB."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def deb() -> Path:
    name = os.environ.get("REACTOR_DEB")
    if name is None:
        pytest.skip("no package: make test-deb builds it and names it in REACTOR_DEB")
    return Path(name).resolve()


@pytest.fixture(scope="session")
def unpacked(deb: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the package's files, and with Debian's Python where the package finds it."""
    if not Path("/usr/bin/python3").exists():
        pytest.skip("no /usr/bin/python3: install Debian's package python3")
    directory = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["dpkg-deb", "--extract", deb, directory], check=True)
    (directory / "usr/bin/python3").symlink_to("/usr/bin/python3")
    return directory
