"""`reactor run`."""

from __future__ import annotations

import argparse
import dataclasses
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from reactor.commands.arguments import (
    DEFAULT_CONFIG,
    Commands,
    add_command,
    add_config,
    add_config_dir,
    warn_of,
)

if TYPE_CHECKING:
    from reactor.model.start import Start

# 3 MiB, which the guard's own modules then take: a configuration is read once, and again at a reload.
_READS_CONFIGURATIONS: Final = ("reactor.guard.start", "reactor.config", "ruamel")


def add(commands: Commands) -> None:
    """Declare it."""
    command = add_command(
        commands, "run", _run, "guard this node", "reactor run --config /etc/reactor/config.yaml"
    )
    add_config(command, default=DEFAULT_CONFIG)
    add_config_dir(command)
    command.add_argument(
        "--dry-run", action="store_true", help="decide and journal, but never reclaim or kill"
    )
    command.add_argument(
        "--stand-by",
        action="store_true",
        help="if a daemon already guards this node, wait and take over when it ends",
    )


def add_managed_oom(commands: Commands) -> None:
    """Declare `reactor managed-oom`."""
    add_command(
        commands,
        "managed-oom",
        _managed_oom,
        "internal: systemd runs it as systemd-oomd.service, to receive what units set by ManagedOOM…=",
        "reactor managed-oom",
    )


def _managed_oom(_: argparse.Namespace) -> int:
    from reactor.managed_oom.__main__ import main

    return main()


def _run(options: argparse.Namespace) -> int:
    # Blocked from here until the daemon receives them itself, so that none is answered by a default that
    # ends the process halfway: SIGHUP's would, while the modules below are being imported.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP, signal.SIGTERM, signal.SIGINT))
    from reactor.lean_imports import UNUSED, passing, postpone

    postpone(UNUSED)
    with passing(_READS_CONFIGURATIONS):
        start = _start(options.config, options.config_dir)
    import trio

    from reactor.guard.run import run
    from reactor.tell.log import log_to_stderr

    warn_of(start.settings)
    settings = dataclasses.replace(start.settings, stand_by=options.stand_by)
    log = log_to_stderr()
    try:
        trio.run(partial(run, settings, dry_run=options.dry_run, config_path=options.config, start=start))
    finally:
        log.close()
    return 0


def _start(config: Path, config_dir: Path | None) -> Start:
    from reactor.guard.start import configuration_to_start_with

    return configuration_to_start_with(config, config_dir)
