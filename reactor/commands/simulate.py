"""`reactor simulate`, and `reactor record`, which makes a scenario for it."""

from __future__ import annotations

import argparse
from pathlib import Path

from reactor.commands.arguments import (
    DEFAULT_CONFIG,
    Commands,
    add_command,
    add_config,
    add_config_dir,
    add_output,
    from_checkout,
    positive_seconds,
)


def add_simulate(commands: Commands) -> None:
    """Declare `reactor simulate`."""
    command = add_command(
        commands,
        "simulate",
        _simulate,
        "replay a node's history through the same decisions, without root or a cluster",
        "reactor simulate scenario.yaml --output json",
    )
    command.add_argument(
        "scenarios",
        metavar="SCENARIO",
        nargs="*",
        help="the scenario's file, - for standard input; with --sweep there may be several",
    )
    add_output(command)
    command.add_argument(
        "--sweep",
        metavar="THRESHOLDS",
        action="append",
        help="try many thresholds instead of the scenario's own: 'memory.available<100Mi..1Gi/50Mi' (hard), "
        "'memory.available<1Gi,2Gi@30s,2m' (soft, with its grace periods); or of a rule of the scenario "
        "'rule:NAME>=40%%,60%%@10s,30s' (the limit of its first condition, its time); given again, all "
        "combinations",
    )
    command.add_argument(
        "--csv", metavar="FILE", type=Path, help="with --sweep: a line for each of them, too"
    )
    command.add_argument("--report", metavar="FILE", type=Path, help="with --sweep: plots, as one HTML file")
    command.add_argument(
        "--benchmark", action="store_true", help="instead: how many passes over 110 pods are made in a second"
    )
    command.set_defaults(usage_error=command.error)


def _simulate(options: argparse.Namespace) -> int:
    if options.benchmark:
        with from_checkout("reactor simulate --benchmark"):
            from bench.simulate import benchmark
        return benchmark()
    if not options.scenarios:
        options.usage_error("the following arguments are required: SCENARIO")
    if options.sweep is not None:
        from reactor.simulate.sweep import SweepOptions, sweep_files

        return sweep_files(
            SweepOptions(
                scenarios=options.scenarios,
                sweeps=options.sweep,
                output=options.output,
                csv_path=options.csv,
                report_path=options.report,
            )
        )
    if len(options.scenarios) > 1 or options.csv is not None or options.report is not None:
        options.usage_error("several scenarios, --csv and --report go with --sweep")
    from reactor.simulate import run_scenario_file

    return run_scenario_file(options.scenarios[0], options.output)


def add_record(commands: Commands) -> None:
    """Declare `reactor record`."""
    command = add_command(
        commands,
        "record",
        _record,
        "turn this node's statistics and pods into a scenario for simulate",
        "reactor record --config /etc/reactor/config.yaml --seconds 600 node.json",
    )
    command.add_argument("output_file", metavar="SCENARIO", help="the file to write, - for standard output")
    add_config(command, default=DEFAULT_CONFIG)
    add_config_dir(command)
    command.add_argument(
        "--interval-seconds",
        type=positive_seconds,
        default=10.0,
        help="how often the node is observed, or its kubelet asked (10)",
    )
    command.add_argument("--seconds", type=positive_seconds, help="for how long (until Ctrl-C)")
    command.add_argument(
        "--journal", metavar="FILE", type=Path, help="take the reactor's own journal instead"
    )


def _record(options: argparse.Namespace) -> int:
    from reactor.simulate.recording import RecordOptions, record

    return record(
        RecordOptions(
            config=options.config,
            config_dir=options.config_dir,
            output=options.output_file,
            interval_seconds=options.interval_seconds,
            seconds=options.seconds,
            journal=options.journal,
        )
    )
