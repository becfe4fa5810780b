"""What asks the running daemon: `reactor status`, `reactor top`, `reactor explain`."""

from __future__ import annotations

import argparse

from reactor.commands.arguments import (
    Commands,
    add_command,
    add_output,
    add_socket,
    positive_seconds,
    socket_of,
)


def add_status(commands: Commands) -> None:
    """Declare `reactor status`."""
    command = add_command(
        commands, "status", _status, "show the node's state", "reactor status --output json"
    )
    add_socket(command)
    add_output(command)


def _status(options: argparse.Namespace) -> int:
    from reactor.terminal.show import show_status

    return show_status(socket_of(options), options.output)


def add_top(commands: Commands) -> None:
    """Declare `reactor top`."""
    command = add_command(
        commands,
        "top",
        _top,
        "watch the node's state: signals, the pods that would be evicted next, sources, events",
        "reactor top --config /etc/reactor/config.yaml",
    )
    add_socket(command)
    command.add_argument("--once", action="store_true", help="print once and exit")
    command.add_argument(
        "--interval-seconds", type=positive_seconds, default=1.0, help="how often the daemon is asked (1)"
    )


def _top(options: argparse.Namespace) -> int:
    from reactor.terminal.top.live import TopOptions, top

    return top(
        TopOptions(
            socket_path=socket_of(options), once=options.once, interval_seconds=options.interval_seconds
        )
    )


def add_explain(commands: Commands) -> None:
    """Declare `reactor explain`."""
    command = add_command(
        commands,
        "explain",
        _explain,
        "show why a pod was evicted, or its place in the ranking now; why a rule acted, or why it does not",
        "reactor explain default/web",
    )
    command.add_argument(
        "pod",
        metavar="POD",
        nargs="?",
        help="name, namespace/name or uid, or the name of a rule; without it: all",
    )
    add_socket(command)
    add_output(command)


def _explain(options: argparse.Namespace) -> int:
    from reactor.terminal.show import show_explanation

    return show_explanation(socket_of(options), options.pod, options.output)
