"""A scenario's file as it is recorded: valid JSON after every step, however the recording ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

from reactor.simulate.scenario import API_VERSION, KIND

_END: Final = b"\n]}\n"


class ScenarioFile:
    """Appends steps to `file`; where that can be sought in, it ends well after each, else after `close`."""

    def __init__(self, file: BinaryIO, name: str, header: Mapping[str, Any]) -> None:
        self._file = file
        self._seekable = file.seekable()
        self.steps = 0
        document = {"apiVersion": API_VERSION, "kind": KIND, "name": name, **header}
        self._put(json.dumps(document, separators=(",", ":")).encode()[:-1] + b',"steps":[\n')

    def add(self, step: Mapping[str, Any]) -> None:
        """Append a step."""
        if self.steps and self._seekable:
            self._file.seek(-len(_END), 1)
        line = json.dumps(step, separators=(",", ":")).encode()
        self._put((b",\n" if self.steps else b"") + line + (_END if self._seekable else b""))
        self.steps += 1

    def close(self) -> None:
        """End the document."""
        if not self._seekable or not self.steps:
            self._put(_END)

    def _put(self, content: bytes) -> None:
        self._file.write(content)
        self._file.flush()


def at(seconds: float) -> str:
    """Return an instant since the start as a scenario has it."""
    return f"{max(0.0, seconds):.3f}s"
