"""Triggers on pressure without a kernel that has them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Kernel:
    """Grants triggers: sockets, which urgent data signals as a stall does a trigger. `refuses` by errno."""

    refuses: Callable[[str, int], int | None] = lambda _, __: None
    asked: list[tuple[str, str, int, int]] = field(default_factory=list)
    far_ends: dict[str, socket.socket] = field(default_factory=dict)

    def open(self, path: Path, kind: str, stall_us: int, window_us: int) -> int:
        self.asked.append((self.name_of(path), kind, stall_us, window_us))
        refused = self.refuses(self.name_of(path), window_us)
        if refused is not None:
            raise OSError(refused, os.strerror(refused), str(path))
        with socket.create_server(("127.0.0.1", 0)) as server:
            far = socket.create_connection(server.getsockname())
            near, _ = server.accept()
        self.far_ends[self.name_of(path)] = far
        return near.detach()

    @staticmethod
    def name_of(path: Path) -> str:
        """Return by what name the trigger of a file goes: that of its directory."""
        return path.parent.name

    def stall(self, name: str) -> None:
        self.far_ends[name].send(b"!", socket.MSG_OOB)

    def close(self) -> None:
        for far in self.far_ends.values():
            far.close()
