"""A scenario out of a file, and what makes reading a long one bearable."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reactor.errors import ConfigError, Problem
from reactor.simulate.scenario import Scenario, scenario_from_text


def scenario_in(path: str) -> Scenario:
    """Return the scenario in a file (`-`: standard input). Raises ConfigError with every problem."""
    name = "standard input" if path == "-" else path
    return scenario_from_text(_read(path, name), name)


@contextmanager
def without_cycle_collection() -> Iterator[None]:
    """A long recording is millions of values without a cycle; looking for some takes half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def warn(scenario: Scenario) -> None:
    """Tell on standard error what of a scenario has no effect, or is recorded as a failure."""
    failed = [
        f"steps[{index}]: the reclaim of {kind} fails in this step, as recorded"
        for index, step in enumerate(scenario.steps)
        for kind in step.reclaim_error
    ]
    for warning in (*scenario.warnings, *failed):
        print(f"warning: {warning}", file=sys.stderr)


def _read(path: str, name: str) -> str:
    try:
        if path == "-":
            return sys.stdin.buffer.read().decode("utf-8")
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            [Problem(path=name, got=str(error.strerror), accepted="a readable file")]
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(path=name, got=str(error), accepted="UTF-8 text")]) from error
