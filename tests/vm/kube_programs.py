"""What the runtime's tests need in a guest beside the wheel: the host's containerd, runc and busybox."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from host import HostError

# Installed on the host by tests/kube/install-packages.sh: linked with the glibc of Debian 12, or with none.
_PROGRAMS: Final = ("containerd", "containerd-shim-runc-v2", "ctr", "runc", "busybox")


def collect(cache: Path) -> Path:
    """Return a directory of the host's programs. Raises HostError that names those that are missing."""
    directory = cache / "kube-programs"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    found = {name: shutil.which(name) for name in _PROGRAMS}
    missing = sorted(name for name, path in found.items() if path is None)
    if missing:
        raise HostError(f"no {', '.join(missing)}: run tests/kube/install-packages.sh as root")
    for path in found.values():
        shutil.copy(str(path), directory)
    return directory
