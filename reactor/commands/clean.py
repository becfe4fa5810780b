"""`reactor clean`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from reactor.commands.arguments import DEFAULT_CONFIG, Commands, add_command, add_config, add_config_dir
from reactor.errors import ConfigError, ReactorError
from reactor.text import printable

if TYPE_CHECKING:
    from reactor.model.settings import Settings


def add(commands: Commands) -> None:
    """Declare it."""
    command = add_command(
        commands,
        "clean",
        _clean,
        "restore what a killed daemon has left: oom_score_adj of processes, freezers and limits of pods",
        "reactor clean --config /etc/reactor/config.yaml",
    )
    add_config(command, default=DEFAULT_CONFIG)
    add_config_dir(command)


def _clean(options: argparse.Namespace) -> int:
    from reactor.guard.leftovers import LEFTOVERS
    from reactor.guard.single_instance_lock import is_guarded

    settings = _settings(options)
    if is_guarded(Path(settings.state_path)):
        raise ReactorError("a daemon guards this node: what another has left it has restored at its start")
    status = 0
    lines: list[str] = []
    for what, restore in LEFTOVERS:
        try:
            lines += restore(settings)
        except (ReactorError, OSError, ValueError) as error:
            print(f"reactor: {what}: {printable(str(error))}", file=sys.stderr)
            status = 1
    for line in lines:
        print(line)
    if not lines and status == 0:
        print("nothing was left")
    return status


def _settings(options: argparse.Namespace) -> Settings:
    """Return the configuration's settings, the defaults where it can't be had: it may be what is wrong."""
    from reactor.config import load_settings
    from reactor.model.settings import Settings

    try:
        return load_settings(options.config, options.config_dir)
    except (ConfigError, OSError) as error:
        settings = Settings()
        print(f"reactor: {printable(str(error))}; looking beside {settings.state_path}", file=sys.stderr)
        return settings
