"""`reactor tune`: this node's measurements and history, to thresholds with their reasons.

    measure (experiments) ──► measured ─┐
    journals ──► history ───────────────┼─► model (latency) ──► report
    the operator's configuration ───────┘

Measuring happens in virtual nodes alone; `measure` refuses it if even that would hurt. From the numbers on
everything is pure: `latency` bounds a p99.9 by few samples, `model` finds thresholds and compares an existing
configuration with them, `report` prints, draws and writes the configuration.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from reactor.config.documents import load_document
from reactor.config.settings import load_configuration
from reactor.errors import ReactorError, RefusedError, what_failed
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.features import Feature
from reactor.model.settings import Settings
from reactor.model.signals import Signal
from reactor.report import write
from reactor.testbed.allocator import compiled_tool
from reactor.testbed.virtual_node import ended_by_signals
from reactor.tune.experiments import ways
from reactor.tune.history import History, history_in
from reactor.tune.measure import Measuring, Plan, Say, check_calm, facts
from reactor.tune.measured import Measured, document_of, stored_in
from reactor.tune.model import Assumptions, Recommendation, recommend, verdict
from reactor.tune.report import at_once_lines, report_of, show, snippet

EXIT_OK, EXIT_FAILED, EXIT_CANNOT, EXIT_INTERRUPTED = 0, 1, 2, 130
MEASURED, CONFIGURATION, REPORT = "measured.json", "reactor.yaml", "report.html"

_LINE_SECONDS: Final = 15.0
_BAR_CELLS: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """What to measure and what to go by. `stored` takes an earlier run's file instead of measuring.

    `config` None is a node without thresholds of its own, as the kubelet's defaults have it; `config_dir`
    holds its drop-ins. `reservation` asks the Node whether it keeps so much from the scheduler, by resource;
    None where there is none to ask.
    """

    config: Path | None
    config_dir: Path | None
    journals: tuple[Path, ...]
    results: Path
    minutes: float
    loads: tuple[str, ...]
    pods: int
    stored: Path | None
    assumptions: Assumptions
    reservation: Callable[[Settings, Mapping[str, int]], Feature | None] = lambda *_: None


def tune(options: TuneOptions) -> int:
    """Measure, recommend, write, print; return the exit status.

    0 done, 1 too little was measured, pods would be evicted at once, or it can't be written, 2 where nothing
    may or can be measured, 130 when interrupted: then what was measured is printed all the same. Raises
    ConfigError.
    """
    settings, existing = _configuration(options.config, options.config_dir)
    history = history_in(options.journals, settings.eviction.pressure_transition_period_seconds)
    if options.stored is not None:
        measured, stored_history = stored_in(options.stored)
        return _conclude(
            options, settings, existing, measured, history if options.journals else stored_history
        )
    if os.geteuid() != 0:
        print("reactor tune: needs root, to make cgroups: sudo reactor tune", file=sys.stderr)
        return EXIT_CANNOT
    try:
        measured = _measured(options, settings, existing)
    except (ReactorError, OSError) as error:
        print(f"reactor tune: {what_failed(error)}", file=sys.stderr)
        return EXIT_CANNOT
    status = _conclude(options, settings, existing, measured, history)
    return EXIT_INTERRUPTED if measured.interrupted else status


def _configuration(path: Path | None, config_dir: Path | None) -> tuple[Settings, Mapping[str, Any]]:
    """Return the settings, and the document that they are from, its drop-ins in it."""
    if path is None:
        return Settings(), {}
    configuration = load_configuration(path, config_dir)
    return configuration.settings, load_document(configuration.text, str(path)) or {}


def _measured(options: TuneOptions, settings: Settings, existing: Mapping[str, Any]) -> Measured:
    tree = CgroupTree.discover()
    check_calm(tree, settings)
    tool = compiled_tool()
    options.results.mkdir(parents=True, exist_ok=True)  # before minutes of measuring: their results go there
    section = existing.get("reactor") or {}
    plan = Plan(
        seconds=options.minutes * 60,
        ways=ways(tree.version, settings, section),
        loads=options.loads,
        pods=options.pods,
    )
    measuring = Measuring(tree, settings, facts(tree, settings), plan)
    with ended_by_signals():
        try:
            with (
                progress(plan.seconds) as say,
                tempfile.TemporaryDirectory(prefix="reactor-tune-") as directory,
            ):
                measuring.run(tool, Path(directory), say)
        except KeyboardInterrupt:
            print("reactor tune: interrupted; everything is cleaned up", file=sys.stderr)
            return measuring.measured(interrupted=True)
    return measuring.measured()


def _conclude(
    options: TuneOptions,
    settings: Settings,
    existing: Mapping[str, Any],
    measured: Measured,
    history: History,
) -> int:
    directory = _directory(options.results, measured)
    try:
        found = recommend(measured, history, options.assumptions)
    except RefusedError as error:
        _store(directory, measured, history, None)
        print(f"reactor tune: nothing to recommend: {error}", file=sys.stderr)
        for problem in measured.problems:
            print(f"reactor tune: {problem}", file=sys.stderr)
        return EXIT_FAILED
    said = None if options.config is None else verdict(settings, found, history)
    node = options.reservation(settings, {"memory": found.hard_bytes})
    reserved = "" if node is None else "; ".join(filter(None, (node.detail, node.remedy)))
    show(measured, history, found, said, reserved)
    yaml = None if found.evicts_at_once else snippet(measured, found, existing, reserved)
    _store(directory, measured, history, None if yaml is None else found)
    if yaml is not None:
        (directory / CONFIGURATION).write_text(yaml, encoding="utf-8")
        print(f"{directory / CONFIGURATION}:\n{yaml}")
    try:
        present_bytes = None if options.config is None else _present_bytes(settings, measured)
        write(report_of(measured, history, found, said, yaml, present_bytes, reserved), directory / REPORT)
    except RefusedError as error:
        print(f"reactor tune: {error}", file=sys.stderr)
    else:
        print(f"The report is {directory / REPORT}, the measurements are {directory / MEASURED}.")
    for line in at_once_lines(found) if found.evicts_at_once else ():
        print(f"reactor tune: {line}", file=sys.stderr)
    return EXIT_FAILED if found.evicts_at_once else EXIT_OK


def _present_bytes(settings: Settings, measured: Measured) -> int | None:
    """Return the configured hard memory threshold in bytes, None without one."""
    hard = [
        int(one.value.of(measured.node.capacity_bytes))
        for one in settings.eviction.thresholds
        if one.is_hard and one.signal is Signal.MEMORY_AVAILABLE
    ]
    return max(hard, default=None)


def _directory(results: Path, measured: Measured) -> Path:
    when = str(measured.about["date"]).replace(":", "").partition("+")[0]
    directory = results / when
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _store(directory: Path, measured: Measured, history: History, found: Recommendation | None) -> None:
    document = document_of(measured, history)
    if found is not None:
        document["recommendation"] = dataclasses.asdict(found)
    text = json.dumps(document, indent=2, default=str)
    (directory / MEASURED).write_text(f"{text}\n", encoding="utf-8")


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
    """Yield a call that draws one line over and over; it is gone afterwards."""
    width = shutil.get_terminal_size().columns - 1

    def say(what: str, gone: float) -> None:
        done = round(_BAR_CELLS * min(1.0, gone / seconds))
        left = timedelta(seconds=max(0, round(seconds - gone)))
        line = f"{'#' * done}{'.' * (_BAR_CELLS - done)} {left} {what}"
        print(f"\r{line[:width].ljust(width)}", end="", file=sys.stderr, flush=True)

    try:
        yield say
    finally:
        print(f"\r{' ' * width}\r", end="", file=sys.stderr, flush=True)


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
