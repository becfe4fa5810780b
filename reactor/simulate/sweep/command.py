"""`reactor simulate --sweep`: scenarios from files, the answers to standard output and into files."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reactor.errors import ConfigError, Problem
from reactor.report import write
from reactor.simulate.scenario import Scenario, scenario_in, warn, without_cycle_collection
from reactor.simulate.sweep.axes import axes_of, combinations
from reactor.simulate.sweep.outcome import Speed, Swept, sweep
from reactor.simulate.sweep.present import print_json, print_table, report_of, write_csv


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """Which scenarios, what is varied, and where the answers go; the files are optional."""

    scenarios: Sequence[str]
    sweeps: Sequence[str]
    output: str
    csv_path: Path | None = None
    report_path: Path | None = None


def sweep_files(options: SweepOptions) -> int:
    """Try every combination on every scenario, and return the exit status.

    Raises ConfigError where an axis or a scenario is wrong, RefusedError where a report can't be drawn.
    """
    axes = axes_of(options.sweeps)
    count = sum(1 for _ in combinations(axes))
    speed = Speed()
    with without_cycle_collection():
        rows = list(_told(sweep(_scenarios(options.scenarios), axes, speed), count * len(options.scenarios)))
    if options.output == "json":
        print_json(axes, rows)
    else:
        print_table(axes, rows)
    if options.csv_path is not None:
        with options.csv_path.open("w", encoding="utf-8", newline="") as file:
            write_csv(axes, rows, file)
    if options.report_path is not None:
        write(report_of(axes, rows, speed), options.report_path)
    print(
        f"reactor: {speed.passes} passes in {speed.seconds:.2f} s, {speed.per_second:.0f} a second",
        file=sys.stderr,
    )
    return 0


def _scenarios(paths: Iterable[str]) -> Iterator[tuple[str, Scenario]]:
    for path in paths:
        try:
            scenario = scenario_in(path)
        except ConfigError as error:  # of which file it is says nothing in a document's own paths
            raise ConfigError([_in_file(one, path) for one in error.problems]) from error
        if not scenario.steps:
            raise ConfigError([Problem(path=path, got="no steps", accepted="a scenario with some")])
        warn(scenario)
        yield path, scenario


def _in_file(problem: Problem, path: str) -> Problem:
    return problem if problem.path == path else replace(problem, path=f"{path}: {problem.path}")


def _told(swept: Iterable[Swept], count: int) -> Iterator[Swept]:
    """Yield the same, the progress shown where standard error is a terminal."""
    is_shown = sys.stderr.isatty()
    for number, row in enumerate(swept, 1):
        if is_shown:
            end = "\n" if number == count else ""
            print(f"\r{number} of {count} combinations", end=end, file=sys.stderr, flush=True)
        yield row
