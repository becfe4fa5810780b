"""What the runtime's tests need in a guest beside the wheel: its own suite's containerd, runc and busybox."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from host import HOST_SECONDS, run

_FETCH: Final = Path(__file__).resolve().with_name("fetch-programs.sh")


def collect(cache: Path, suite: str) -> Path:
    """Return a directory with the suite's programs, fetched once. Raises HostError if they can't be had."""
    directory = cache / f"kube-programs-{suite}"
    run([_FETCH, suite, directory], limit_seconds=HOST_SECONDS)
    return directory
