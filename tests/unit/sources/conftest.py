from collections.abc import Callable
from fractions import Fraction

import pytest

from reactor.model.signals import Signal
from reactor.model.thresholds import Threshold, ThresholdValue
from reactor.sources.levels import MemoryLevel

MIB = 1 << 20
LevelFactory = Callable[..., MemoryLevel]


@pytest.fixture
def level() -> LevelFactory:
    """Return a function that makes a level of a cgroup at so many MiB."""

    def make(
        mib: float, cgroup: str = "/node", *, working_set_mib: float | None = None, grace_seconds: float = 0
    ) -> MemoryLevel:
        threshold = Threshold(
            signal=Signal.MEMORY_AVAILABLE,
            value=ThresholdValue(text="100Mi", amount=Fraction(100 * MIB)),
            grace_period_seconds=grace_seconds,
        )
        return MemoryLevel(
            signal=Signal.MEMORY_AVAILABLE,
            cgroup=cgroup,
            level_bytes=int(mib * MIB),
            threshold=threshold,
            working_set_bytes=None if working_set_mib is None else int(working_set_mib * MIB),
        )

    return make
