"""How many lines of Python are executed: how much work something is, whatever else the machine does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def executed_lines(work: Callable[[], object], of_file: str | None = None) -> int:
    """Return how many lines are executed by the call; with `of_file` those of this file alone."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if of_file is not None and frame.f_code.co_filename != of_file:
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines
