"""What the steward works by, as the guard tells it at first and after a reload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from reactor.model.settings import JournalSettings, RestartLoopSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """`start` names this run of the guard's, as its lines do. All but `restart_loop` holds from the start."""

    start: str
    journal: JournalSettings
    metrics_address: tuple[str, int] | None
    restart_loop: RestartLoopSettings

    def document(self) -> dict[str, Any]:
        """Return them as plain JSON values."""
        return {
            "start": self.start,
            "journal": {
                "path": self.journal.path,
                "max_bytes": self.journal.max_bytes,
                "files": self.journal.files,
            },
            "metrics_address": self.metrics_address,
            "restart_loop": {
                "evictions": self.restart_loop.evictions,
                "within_seconds": self.restart_loop.within_seconds,
            },
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return the orders in a document that the guard has made."""
        address = document["metrics_address"]
        return cls(
            start=document["start"],
            journal=JournalSettings(**document["journal"]),
            metrics_address=None if address is None else (address[0], address[1]),
            restart_loop=RestartLoopSettings(**document["restart_loop"]),
        )
