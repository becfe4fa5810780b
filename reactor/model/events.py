"""What operators are notified of."""

from __future__ import annotations

from enum import StrEnum


class EventKind(StrEnum):
    """What has happened.

    `EVICTION`: a pod was evicted, or could not be. `OOM_KILL`: the kernel's OOM killer has killed.
    `SOURCE_LOST`: a source of wakes has failed, and another stands in for it, or only the ticker is left.
    `NO_VICTIM`: a threshold is met and no pod can be evicted. `TEST`: an operator tries the notifications.
    """

    EVICTION = "eviction"
    OOM_KILL = "oom-kill"
    SOURCE_LOST = "source-lost"
    NO_VICTIM = "no-victim"
    TEST = "test"
