"""The loop of plain values that the guard's own tests have."""

from __future__ import annotations

from tests.unit.guard.conftest import make_loop

__all__ = ["make_loop"]
