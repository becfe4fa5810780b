"""`reactor status`."""

from __future__ import annotations

import argparse

from reactor.commands.arguments import Commands, add_command, add_output, add_socket, socket_of


def add(commands: Commands) -> None:
    """Declare it."""
    command = add_command(
        commands, "status", _status, "show the node's state", "reactor status --output json"
    )
    add_socket(command)
    add_output(command)


def _status(options: argparse.Namespace) -> int:
    from reactor.terminal.show import show_status

    return show_status(socket_of(options), options.output)
