"""The last configuration that was right, kept beside the state file for a start with one that is not.

A refused reload leaves the daemon with what it had. Without this file the next crash would be final: the
start that follows would read the refused configuration, and the node would have no guard.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from reactor.kernel.small_file import KeptFile

_LOG: Final = logging.getLogger("reactor.daemon")
NAME: Final = "last-good-config.json"
VERSION: Final = 1
_SMALL: Final = 64 << 10
MAX_BYTES: Final = 4 << 20


class LastGoodFile(KeptFile[str]):
    """Keeps the text of the configuration in force, which came from `path`, beside the state file."""

    def __init__(self, state_path: Path, path: Path) -> None:
        self._path_of_text = str(path.absolute())
        failure = "last good configuration: not kept, a restart with a wrong file would be refused"
        super().__init__(state_path.with_name(NAME), self._document, failure, _LOG)

    def _is_small(self) -> bool:
        return all(len(text) <= _SMALL for text in self._shown)

    def _document(self, text: str) -> object:
        return {"version": VERSION, "path": self._path_of_text, "text": text}
