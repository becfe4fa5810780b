"""Scenarios: the same decision under a virtual clock; `sweep` tries many thresholds on them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from reactor.errors import ConfigError
from reactor.simulate.replay import replay
from reactor.simulate.scenario import Scenario, scenario_in, warn, without_cycle_collection
from reactor.text import printable


def run_scenario_file(path: str, output: str) -> int:
    """Replay the scenario in a file (`-`: standard input), print each step, return the exit status.

    Status 2 where the scenario is not valid, with one line per problem on standard error.
    """
    with without_cycle_collection():
        return _run(path, output)


def _run(path: str, output: str) -> int:
    try:
        scenario = scenario_in(path)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    warn(scenario)
    if output == "json":
        for line in replay(scenario):
            print(json.dumps(line))
    else:
        _print_table(scenario, replay(scenario))
    return 0


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
        table.add_row(f"{line['at']:g} s", *("\n".join(map(printable, cell)) for cell in cells))
    Console(highlight=False, markup=False, emoji=False).print(table)
