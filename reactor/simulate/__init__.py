"""Scenarios: the same decision under a virtual clock."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reactor.errors import ConfigError, Problem
from reactor.simulate.replay import replay
from reactor.simulate.scenario import Scenario, scenario_from_text


def run_scenario_file(path: str, output: str) -> int:
    """Replay the scenario in a file (`-`: standard input), print each step, return the exit status.

    Status 2 where the scenario is not valid, with one line per problem on standard error.
    """
    with _without_cycle_collection():
        return _run(path, output)


@contextmanager
def _without_cycle_collection() -> Iterator[None]:
    """A long recording is millions of values without a cycle; looking for some takes half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _run(path: str, output: str) -> int:
    name = "standard input" if path == "-" else path
    try:
        scenario = scenario_from_text(_read(path, name), name)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    for warning in _warnings(scenario):
        print(f"warning: {warning}", file=sys.stderr)
    if output == "json":
        for line in replay(scenario):
            print(json.dumps(line))
    else:
        _print_table(scenario, replay(scenario))
    return 0


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


def _warnings(scenario: Scenario) -> Iterable[str]:
    yield from scenario.warnings
    for index, step in enumerate(scenario.steps):
        for kind in step.reclaim_error:
            yield f"steps[{index}]: the reclaim of {kind} fails in this step, as recorded"


def _print_table(scenario: Scenario, lines: Iterable[dict[str, Any]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - only a person's terminal needs it
    from rich.table import Table  # noqa: PLC0415

    table = Table(title=scenario.name or None, title_justify="left")
    for column in ("at", "conditions", "thresholds met", "reclaimed", "evicted", "ranking", "images removed"):
        table.add_column(column, overflow="fold")
    for line in lines:
        evicted = [
            f"{pod['pod']} ({pod['signal']}, {pod['gracePeriodSeconds']} s)" for pod in line["evicted"]
        ]
        refused = [f"{key} not admitted" for key, answer in line["admit"].items() if not answer["admitted"]]
        cells = (
            line["conditions"],
            line["thresholdsMet"],
            line["reclaimed"],
            [*evicted, *refused, *([line["error"]] if line["error"] else [])],
            line["ranking"],
            line["imagesRemoved"],
        )
        table.add_row(f"{line['at']:g} s", *("\n".join(cell) for cell in cells))
    Console().print(table)
