"""What operators are notified of."""

from __future__ import annotations

from enum import StrEnum


class EventKind(StrEnum):
    """What has happened.

    `EVICTION`: a pod was evicted, or could not be. `OOM_KILL`: the kernel's OOM killer has killed.
    `SOURCE_LOST`: a source of wakes has failed, and another stands in for it, or only the ticker is left.
    """

    EVICTION = "eviction"
    OOM_KILL = "oom-kill"
    SOURCE_LOST = "source-lost"
