"""Project quotas, asked of the privileged process: what the kernel counts, and only CAP_SYS_ADMIN may read.

    question    a number and a project id, with the descriptor of a directory
    answer      the number, an errno, and the kernel's structure

Imports little: the walker has a bound on its address space.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

from reactor.kernel.filesystem import parse_project_quota
from reactor.model.pods import FilesystemUsage

QUESTION: Final = struct.Struct("=QI4x")
_ANSWER: Final = struct.Struct("=QI")
_LONGEST_ANSWER: Final = 256
_NUMBERS: Final = 1 << 32  # of each walker


def write_answer(number: int, error_number: int, quota: bytes = b"") -> bytes:
    return _ANSWER.pack(number, error_number) + quota


class ProjectQuotas:
    """Reads project quotas, on the pair that all walkers of a steward ask on, one after the other."""

    def __init__(self, fd: int) -> None:
        self._connection = socket.socket(fileno=fd)
        # An answer for an earlier walker may still come: each has numbers of its own.
        self._number = os.getpid() * _NUMBERS

    def usage(self, fd: int, project: int) -> FilesystemUsage:
        """Return what a project takes on the filesystem of a descriptor; waits for it. Raises OSError."""
        self._number += 1
        socket.send_fds(self._connection, [QUESTION.pack(self._number, project)], [fd])
        while raw := self._connection.recv(_LONGEST_ANSWER):
            number, error_number = _ANSWER.unpack_from(raw)
            if number != self._number:
                continue
            if error_number:
                raise OSError(error_number, os.strerror(error_number), f"quota of project {project}")
            return parse_project_quota(raw[_ANSWER.size :])
        raise BrokenPipeError("the process that reads quotas has ended")
