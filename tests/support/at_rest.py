"""Whether a daemon is done with what it began, by its status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reactor.model.settings import KernelKill
from reactor.model.wakes import SourceHealth
from reactor.sources.chain import NOT_ARMED_YET


def is_busy(status: Mapping[str, Any]) -> bool:
    """Return whether a daemon that reports this waits for a victim's end, or arms a source or warrants."""
    kernel_kill = status["kernel_kill"]
    is_arming = kernel_kill["mode"] != KernelKill.OFF and kernel_kill["state"] == SourceHealth.OFF
    is_arming |= any(one["detail"].startswith(NOT_ARMED_YET) for one in status["sources"])
    return bool(status["in_flight"]) or is_arming
