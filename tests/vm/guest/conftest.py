"""A guarded slice and the service, fresh for each test."""

from __future__ import annotations

from collections.abc import Iterator

import guarded
import pytest


@pytest.fixture
def service() -> Iterator[guarded.Service]:
    guarded.clear()
    guarded.start_slice()
    try:
        yield guarded.Service()
    finally:
        guarded.clear()
