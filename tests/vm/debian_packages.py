"""Debian's packages for a guest, and what they need there: its apt installs them without a network."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from host import HOST_SECONDS, run

_FETCH: Final = Path(__file__).resolve().with_name("fetch-packages.sh")


def collect(cache: Path, suite: str, status: str, names: Sequence[str]) -> Path:
    """Return a directory that is a repository of these packages, fetched once for each set of them.

    `status` is the guest's /var/lib/dpkg/status: what it has is not fetched. Raises HostError if a package
    can't be had.
    """
    directory = cache / f"debian-packages-{suite}"
    digest = hashlib.sha256(repr((status, *names)).encode()).hexdigest()
    stamp = directory / "digest"
    if not (stamp.exists() and stamp.read_text() == digest):
        shutil.rmtree(directory, ignore_errors=True)
        installed = cache / f"status-{suite}"
        installed.write_text(status)
        run([_FETCH, suite, installed, directory, *names], limit_seconds=HOST_SECONDS)
        stamp.write_text(digest)
    return directory
