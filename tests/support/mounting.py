"""Filesystems of a few hundred MiB in image files, on loop devices. Needs nothing else of the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.processes import MIB

_PACKAGES = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}


@contextmanager
def mounted(directory: Path, kind: str, mib: int, *options: str, mount: str = "loop") -> Iterator[Path]:
    """Make a filesystem in an image file and mount it; skip, and say why, where this machine can't."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount filesystems; run as root")
    maker = shutil.which(f"mkfs.{kind}", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if maker is None:
        pytest.skip(f"no mkfs.{kind}; install {_PACKAGES[kind]}")
    image, point = directory / f"{kind}.image", directory / kind
    with image.open("wb") as file:
        file.truncate(mib * MIB)
    point.mkdir()
    subprocess.run([maker, "-q", *options, str(image)], check=True, timeout=60)
    done = subprocess.run(
        ["mount", "-o", mount, str(image), str(point)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode:
        pytest.skip(f"{kind} with {mount} can't be mounted here: {done.stderr.strip()}")
    try:
        yield point
    finally:
        with suppress(subprocess.CalledProcessError):
            subprocess.run(["umount", str(point)], check=True, timeout=60, capture_output=True)
        if os.path.ismount(point):
            subprocess.run(["umount", "-l", str(point)], check=True, timeout=60)
        image.unlink()
