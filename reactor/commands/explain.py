"""`reactor explain`."""

from __future__ import annotations

import argparse

from reactor.commands.arguments import Commands, add_command, add_output, add_socket, socket_of


def add(commands: Commands) -> None:
    """Declare it."""
    command = add_command(
        commands,
        "explain",
        _explain,
        "show why a pod was evicted, or its place in the ranking now",
        "reactor explain default/web",
    )
    command.add_argument("pod", metavar="POD", nargs="?", help="name, namespace/name or uid; without it: all")
    add_socket(command)
    add_output(command)


def _explain(options: argparse.Namespace) -> int:
    from reactor.terminal.show import show_explanation

    return show_explanation(socket_of(options), options.pod, options.output)
