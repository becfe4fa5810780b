"""When the node's last shutdown began and came to its end: a small file that outlives the boot.

It lies beside the journal, on a disk. A shutdown without an end was cut off: what held it up was lost, its
time was over before the last pods had ended, or the machine went down by force. Source:
pkg/kubelet/nodeshutdown, graceful_node_shutdown_state.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from reactor.kernel.small_file import KeptFile, document_of
from reactor.link.documents import instant

_LOG: Final = logging.getLogger("reactor.shutdown")
NAME: Final = "graceful_node_shutdown_state"
_VERSION: Final = 1
_MAX_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownTimes:
    """When a shutdown began and ended, in seconds since 1970; `end` None: it has not, or was cut off.

    `is_cancelled`: it did not take place, and no pod is missing for it that has not ended by then.
    `is_reported`: that it was cut off is in the journal.
    """

    start_unix_seconds: float
    end_unix_seconds: float | None = None
    is_cancelled: bool = False
    is_reported: bool = False

    def document(self) -> dict[str, Any]:
        """Return it as plain JSON values, with upstream's keys."""
        end = self.end_unix_seconds
        return {
            "startTime": instant(self.start_unix_seconds),
            "endTime": None if end is None else instant(end),
            "cancelled": self.is_cancelled,
        }


class ShutdownFile(KeptFile[ShutdownTimes]):
    """Keeps the times. Nothing raises: a file that can't be had is a `problem`."""

    def __init__(self, journal_path: Path) -> None:
        failure = "shutdown: its times are not saved, a later start will not know whether it was cut off"
        super().__init__(journal_path.with_name(NAME), _document, failure, _LOG)

    def load(self) -> ShutdownTimes | None:
        """Return the last shutdown's times, None where none is known. Blocks on the disk."""
        return self._restore(_MAX_BYTES, _parsed)


def _document(times: ShutdownTimes) -> object:
    return {"version": _VERSION, **times.document(), "reported": times.is_reported}


def _parsed(content: bytes) -> ShutdownTimes:
    document = document_of(content, version=_VERSION, max_bytes=_MAX_BYTES)
    start, end = document["startTime"], document["endTime"]
    return ShutdownTimes(
        start_unix_seconds=_unix_seconds(start),
        end_unix_seconds=None if end is None else _unix_seconds(end),
        is_cancelled=document["cancelled"] is True,
        is_reported=document.get("reported") is True,  # an older file does not say
    )


def _unix_seconds(text: object) -> float:
    found = datetime.fromisoformat(str(text))
    if found.tzinfo is None:
        raise ValueError(f"got {text!r}; accepted: a time with its zone")
    return found.timestamp()
