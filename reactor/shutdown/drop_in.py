"""The drop-in by which logind waits for long enough. See logind.conf(5).

Drop-ins are ordered by their file names, whatever directory they lie in, and the last one wins: hence the
name. unattended-upgrades ships one of 30 s.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from reactor.kernel import atomic_file

DIRECTORY: Final = Path("/etc/systemd/logind.conf.d")
NAME: Final = "zz-reactor.conf"
_TEXT: Final = """\
# Written by reactor: the sum of the kubelet's shutdownGracePeriod keys in its configuration, and 5 s.
[Login]
InhibitDelayMaxSec={seconds}
"""


def write(directory: Path, seconds: int) -> None:
    """Have logind wait for so many seconds once it has read its configuration again. Raises OSError."""
    # For all to read: logind may not run as root.
    atomic_file.write(directory / NAME, _TEXT.format(seconds=seconds), mode=0o644, directory_mode=0o755)
