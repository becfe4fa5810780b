"""The drop-in by which logind waits for long enough. See logind.conf(5).

Drop-ins are ordered by their file names, whatever directory they lie in, and the last one wins: hence the
name. unattended-upgrades ships one of 30 s.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

DIRECTORY: Final = Path("/etc/systemd/logind.conf.d")
NAME: Final = "zz-reactor.conf"
_TEXT: Final = """\
# Written by reactor: the sum of the kubelet's shutdownGracePeriod keys in its configuration, and 5 s.
[Login]
InhibitDelayMaxSec={seconds}
"""


def write(directory: Path, seconds: int) -> None:
    """Have logind wait for so many seconds once it has read its configuration again. Raises OSError."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = directory / NAME
    text = _TEXT.format(seconds=seconds)
    beside = path.with_name(f".{NAME}.new")
    beside.unlink(missing_ok=True)
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    with os.fdopen(fd, "w") as file:
        os.fchmod(fd, 0o644)  # whatever the umask: logind may not run as root
        file.write(text)
        file.flush()
        os.fsync(fd)
    beside.replace(path)
