"""`reactor top`."""

from __future__ import annotations

import argparse

from reactor.commands.arguments import Commands, add_command, add_socket, positive_seconds, socket_of


def add(commands: Commands) -> None:
    """Declare it."""
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
