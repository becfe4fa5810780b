"""The loop of plain values that the guard's own tests have."""

from __future__ import annotations

from tests.unit.guard.conftest import fake_kills, make_loop

__all__ = ["fake_kills", "make_loop"]
