"""What goes on beside a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def running(targets: Sequence[Callable[[threading.Event], None]]) -> Iterator[None]:
    """Have each of these run in a thread inside the block; the event says that it is to end."""
    ended = threading.Event()
    threads = [threading.Thread(target=target, args=(ended,)) for target in targets]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
