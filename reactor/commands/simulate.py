"""`reactor simulate`."""

from __future__ import annotations

import argparse

from reactor.commands.arguments import Commands, add_command, add_output


def add(commands: Commands) -> None:
    """Declare it."""
    command = add_command(
        commands,
        "simulate",
        _simulate,
        "replay a node's history through the same decisions, without root or a cluster",
        "reactor simulate scenario.yaml --output json",
    )
    command.add_argument("scenario", metavar="SCENARIO", help="the scenario's file, - for standard input")
    add_output(command)


def _simulate(options: argparse.Namespace) -> int:
    from reactor.simulate import run_scenario_file

    return run_scenario_file(options.scenario, options.output)
