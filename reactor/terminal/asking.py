"""A command's question to the daemon, with a word to the user where the answer takes a while."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reactor.tell.status_socket import ask


def asked(socket_path: Path, question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the daemon's answer. Raises NoDaemonError."""
    return ask(socket_path, question, on_wait=_say_that_it_waits)


def _say_that_it_waits() -> None:
    print("reactor: waiting for the daemon's answer: it is starting, or busy", file=sys.stderr)
