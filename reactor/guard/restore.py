"""What an earlier run of the daemon left behind, taken over."""

from __future__ import annotations

import dataclasses
import logging
from typing import Final

from reactor.guard.passes import NodeView
from reactor.guard.state import StateError, StateFile

_LOG: Final = logging.getLogger("reactor.daemon")


def restore(file: StateFile, known: NodeView) -> str | None:
    """Put the saved state into what is known; return why there is none to be had though there was a file."""
    try:
        restored = file.load()
    except StateError as error:
        return f"started without it: {error}"
    if restored is not None:
        # The process ids of the kernel's victims may be others' by now.
        known.state = dataclasses.replace(restored, oom_victims=())
        known.lingering.resume(restored.in_flight)
        for flight in restored.in_flight:
            if flight.left_bytes is None:
                known.under_way.began(flight.uid, 0)
            else:
                known.candidates.ended(flight.uid)
        _LOG.info(
            "state restored: conditions=%s in_flight=%d",
            ",".join(restored.conditions) or "none",
            len(restored.in_flight),
        )
    return None
