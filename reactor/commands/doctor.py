"""`reactor doctor`."""

from __future__ import annotations

import argparse

from reactor.commands.arguments import (
    Commands,
    add_command,
    add_config,
    add_config_dir,
    add_output,
    settings_given,
)


def add(commands: Commands) -> None:
    """Declare it."""
    command = add_command(
        commands,
        "doctor",
        _doctor,
        "show what this node offers, which sources would be used, and the remedy for what is missing",
        "reactor doctor --config /etc/reactor/config.yaml",
    )
    add_config(command, default=None)
    add_config_dir(command)
    add_output(command)
    command.add_argument(
        "--strict",
        action="store_true",
        help="exit with 0 if every first choice would be used, 1 if a second one, 2 if this node can't be "
        "guarded (else 0, and 1 if it can't)",
    )
    command.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="with the log of each eBPF program that the kernel refused",
    )


def _doctor(options: argparse.Namespace) -> int:
    from reactor.doctor.doctor import examine

    return examine(settings_given(options), options.output, verbose=options.verbose, strict=options.strict)
