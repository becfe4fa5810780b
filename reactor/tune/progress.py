"""How far the measuring is: a bar in a terminal, a line for each thing elsewhere. On standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from reactor.tune.measure import Say

_LINE_SECONDS: Final = 15.0


@contextmanager
def progress(seconds: float) -> Iterator[Say]:
    """Show progress while the block runs; yield the call that takes the present step and the seconds gone."""
    if sys.stderr.isatty():
        with _bar(seconds) as say:
            yield say
    else:
        yield _lines()


@contextmanager
def _bar(seconds: float) -> Iterator[Say]:
    from rich.console import Console  # noqa: PLC0415 - only a person's terminal needs it
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (BarColumn(bar_width=24), TimeRemainingColumn(), TextColumn("{task.description}"))
    # Without captured output: what the daemon and the C programs say must not be held back.
    with Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as bar:
        task = bar.add_task("starts", total=seconds)
        yield lambda what, gone: bar.update(task, description=what, completed=min(gone, seconds))


def _lines() -> Say:
    """Return a call that prints each new kind of step (the part before its colon), and one every 15 s."""
    said, at = "", 0.0

    def say(what: str, gone: float) -> None:
        nonlocal said, at
        kind = what.partition(":")[0]
        if kind != said or gone >= at + _LINE_SECONDS:
            said, at = kind, gone
            print(f"reactor tune: after {gone:.0f} s: {what}", file=sys.stderr, flush=True)

    return say
