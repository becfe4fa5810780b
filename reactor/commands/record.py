"""`reactor record`."""

from __future__ import annotations

import argparse
from pathlib import Path

from reactor.commands.arguments import DEFAULT_CONFIG, Commands, add_command, add_config, positive_seconds


def add(commands: Commands) -> None:
    """Declare it."""
    command = add_command(
        commands,
        "record",
        _record,
        "turn this node's statistics and pods into a scenario for simulate",
        "reactor record --config /etc/reactor/config.yaml --seconds 600 node.json",
    )
    command.add_argument("output_file", metavar="SCENARIO", help="the file to write, - for standard output")
    add_config(command, default=DEFAULT_CONFIG)
    command.add_argument(
        "--interval-seconds", type=positive_seconds, default=10.0, help="how often the kubelet is asked (10)"
    )
    command.add_argument("--seconds", type=positive_seconds, help="for how long (until Ctrl-C)")
    command.add_argument(
        "--journal", metavar="FILE", type=Path, help="take the reactor's own journal instead of the kubelet"
    )


def _record(options: argparse.Namespace) -> int:
    from reactor.simulate.recording import RecordOptions, record

    return record(
        RecordOptions(
            config=options.config,
            output=options.output_file,
            interval_seconds=options.interval_seconds,
            seconds=options.seconds,
            journal=options.journal,
        )
    )
