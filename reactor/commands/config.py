"""`reactor config check`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from reactor.commands.arguments import Commands, add_command, add_config_dir, settings_in
from reactor.errors import ConfigError, ReactorError

if TYPE_CHECKING:
    from reactor.model.settings import Settings

_EXAMPLE = "reactor config check /etc/reactor/config.yaml"


def add(commands: Commands) -> None:
    """Declare it."""
    command = add_command(commands, "config", None, "work on a configuration", _EXAMPLE)
    check = add_command(
        command.add_subparsers(metavar="COMMAND", required=True),
        "check",
        _check,
        "name every error in a configuration, each by its path",
        _EXAMPLE,
    )
    check.add_argument("file", metavar="FILE", type=Path, help="the configuration")
    add_config_dir(check)


def _check(options: argparse.Namespace) -> int:
    settings = settings_in(options.file, options.config_dir)
    _warn_where_commands_are_refused(options.file, options.config_dir)
    _warn_where_no_pod_can_be_evicted(settings, options.file)
    count = len(settings.eviction.thresholds)
    _warn_where_nothing_brakes(settings, options.file)
    _warn_of_thresholds(settings, options.file)
    _warn_of_notifications(settings, options.file)
    print(f"{options.file}: ok, {count} thresholds: {', '.join(map(str, settings.eviction.thresholds))}")
    return 0


def _warn_where_commands_are_refused(path: Path, config_dir: Path | None) -> None:
    """Warn where `run` would refuse the file as it lies here: it may be for another machine."""
    from reactor.config.settings import load_configuration

    try:
        load_configuration(path, config_dir, may_run_commands=True)
    except ConfigError as error:
        print(f"reactor: {path}: reactor run refuses it here: {error}", file=sys.stderr)


def _warn_where_no_pod_can_be_evicted(settings: Settings, path: Path) -> None:
    if not settings.pod_parents:
        why = "empty: no pod can be evicted (set it, or reactor.nodeCgroup, or reactor.kubernetes)"
        print(f"reactor: {path}: reactor.pods.parents: {why}", file=sys.stderr)


def _warn_of_thresholds(settings: Settings, path: Path) -> None:
    from reactor.doctor.thresholds import absurd_on_this_machine, late_on_this_machine

    found = (*absurd_on_this_machine(settings).items(), *late_on_this_machine(settings).items())
    for what, why in found:
        print(f"reactor: {path}: {what}: on this machine {why}", file=sys.stderr)


def _warn_of_notifications(settings: Settings, path: Path) -> None:
    from reactor.doctor.notifications import notification_problems

    for what, why in notification_problems(settings).items():
        print(f"reactor: {path}: {what}: on this machine {why}", file=sys.stderr)


def _warn_where_nothing_brakes(settings: Settings, path: Path) -> None:
    from reactor.model.settings import BrakeMode

    if settings.brake is BrakeMode.OFF:
        return
    from reactor.brake.brake import unavailable_because
    from reactor.kernel.cgroup import CgroupTree

    try:
        because = unavailable_because(CgroupTree.discover())
    except (OSError, ReactorError) as error:
        because = str(error)
    if because is not None:
        print(f"reactor: {path}: reactor.brake: has no effect on this machine: {because}", file=sys.stderr)
