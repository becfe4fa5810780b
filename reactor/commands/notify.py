"""`reactor notify`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from reactor.commands.arguments import DEFAULT_CONFIG, Commands, add_command, add_config_dir
from reactor.text import printable


def add(commands: Commands) -> None:
    """Declare it."""
    command = add_command(
        commands,
        "notify",
        _notify,
        "try the notifications: send a test by the webhook, the commands and all else that is configured",
        "sudo reactor notify --test",
    )
    command.add_argument("--test", action="store_true", required=True, help="send one test event by each way")
    command.add_argument(
        "--config", metavar="FILE", type=Path, default=DEFAULT_CONFIG, help=f"whose ways ({DEFAULT_CONFIG})"
    )
    add_config_dir(command)


def _notify(options: argparse.Namespace) -> int:
    import time

    import trio

    from reactor.config.settings import load_configuration
    from reactor.guard.wording import instant
    from reactor.steward.notifications import send_trial

    settings = load_configuration(options.config, options.config_dir, may_run_commands=True).settings
    results = trio.run(send_trial, settings, instant(time.time()))
    for name, problem in results:
        if problem is None:
            print(f"{printable(name)}: sent")
        else:
            print(f"reactor: {printable(name)}: {printable(problem)}", file=sys.stderr)
    if not results:
        print(f"reactor: {options.config}: no webhook and no command is configured", file=sys.stderr)
    return 0 if results and all(problem is None for _, problem in results) else 1
