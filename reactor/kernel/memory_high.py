"""memory.high of a cgroup (v2), set for a while and put back. Source: cgroup-v2.rst, memory.high.

Past memory.high the cgroup's tasks reclaim and are slowed down, and `high` in memory.events counts up.
Writing it below the present usage reclaims before the write returns (310 ms seen): call `set` and `put_back`
from a worker thread.
"""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from reactor.kernel.cgroup_files import parse_limit
from reactor.kernel.files import read_file, write_file

# On the cgroup's directory while memory.high is not the operator's: theirs, ours, and ours before that. It
# outlives a daemon that was killed, so that the next one can put back what was there.
_ATTRIBUTE: Final = "user.reactor.memory_high"


class BorrowedHigh:
    """The memory.high of one cgroup, the operator's value remembered in an extended attribute.

    A value that the operator changes meanwhile is the operator's again: it is never overwritten by an
    older one. Not to be used from two threads at once.
    """

    __slots__ = ("_directory", "_path", "_written")

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "memory.high"
        self._written: str | None = None

    @property
    def path(self) -> Path:
        """Return the path of the file."""
        return self._path

    def stands(self) -> bool:
        """Return whether what was set is still there: systemd, for one, writes its own now and then."""
        return self._written is not None and read_file(self._path).strip() == self._written.encode()

    def set(self, high_bytes: int) -> bool:
        """Set memory.high, unless the operator's own is lower already; return whether it was set.

        Raises OSError with the path: ENOENT where the cgroup is gone or is the root, EOPNOTSUPP where it
        keeps no extended attributes (before 5.7): without them a killed daemon would leave its value.
        """
        wanted = str(high_bytes // mmap.PAGESIZE * mmap.PAGESIZE)
        operators = self._operators()
        operators_bytes = parse_limit(operators.encode(), str(self._path))
        if operators_bytes is not None and operators_bytes <= high_bytes:
            self.put_back()
            return False
        os.setxattr(self._directory, _ATTRIBUTE, f"{operators} {wanted} {self._present()}".encode())
        self._written = wanted
        write_file(self._path, wanted)
        return True

    def put_back(self) -> None:
        """Put back what the operator had. Does nothing where nothing was set, or the cgroup is gone."""
        self._written = None
        try:
            operators = self._operators()
            if self._present() != operators:
                write_file(self._path, operators)
            with suppress(OSError):
                os.removexattr(self._directory, _ATTRIBUTE)
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENODEV}:
                raise

    def _operators(self) -> str:
        """Return the operator's value: what is there, or what was there when ours took its place."""
        present = self._present()
        try:
            remembered = os.getxattr(self._directory, _ATTRIBUTE).decode("ascii", "replace").split()
        except OSError as error:
            if error.errno in {errno.ENODATA, errno.EOPNOTSUPP}:
                return present
            raise
        # Neither value of ours: the operator's, or we were stopped between the attribute and the file.
        if present in remembered[1:]:
            parse_limit(remembered[0].encode(), f"{self._directory}: {_ATTRIBUTE}")
            return remembered[0]
        return present

    def _present(self) -> str:
        present = read_file(self._path).strip()
        parse_limit(present, str(self._path))
        return present.decode("ascii")
