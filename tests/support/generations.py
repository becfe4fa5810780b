"""What is kept of things that come and go under ever new names, in blocks of the interpreter."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Generations:
    """Counts what is allocated in all, once garbage is collected, before, half way and at the end.

    `half` generations fill histories, and as many come after them.
    """

    half: int
    _blocks: list[int] = field(default_factory=list)

    def __iter__(self) -> Iterator[int]:
        for generation in range(2 * self.half + 1):
            if generation % self.half == 0:
                gc.collect()
                self._blocks.append(sys.getallocatedblocks())
            yield generation

    @property
    def filling(self) -> int:
        return self._blocks[1] - self._blocks[0]

    @property
    def more(self) -> int:
        return self._blocks[2] - self._blocks[1]


@contextmanager
def generations(half: int) -> Iterator[Generations]:
    """Yield them without a log, whose lines are kept for the report of a failure."""
    logging.disable()
    try:
        yield Generations(half)
    finally:
        logging.disable(logging.NOTSET)
