"""`reactor config check`, `show` and `init`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from reactor.commands.arguments import (
    DEFAULT_CONFIG,
    Commands,
    add_command,
    add_config_dir,
    add_output,
    check_needed,
    check_unused,
    path_given,
    warn_of,
)
from reactor.text import counted, printable

if TYPE_CHECKING:
    from reactor.kernel.cgroup import CgroupTree

_EXAMPLE = "reactor config check /etc/reactor/config.yaml"


def add(commands: Commands) -> None:
    """Declare them."""
    command = add_command(commands, "config", None, "work on a configuration", _EXAMPLE)
    those = command.add_subparsers(metavar="COMMAND", required=True)
    check = add_command(
        those,
        "check",
        _check,
        "list every error with its path, and warn of settings without effect or with a harmful one",
        _EXAMPLE,
    )
    _add_file(check)
    check.add_argument(
        "--strict", action="store_true", help="exit with 1 if there is a warning, for a pipeline"
    )
    show = add_command(
        those,
        "show",
        _show,
        "show what is in force, and who is guarded, spared and never touched",
        "reactor config show /etc/reactor/config.yaml",
    )
    _add_file(show)
    add_output(show)
    show.add_argument("--changed", action="store_true", help="without the values that are defaults")
    init = add_command(
        those,
        "init",
        _init,
        "write a first configuration for this machine, with the reason of each line",
        f"sudo reactor config init {DEFAULT_CONFIG}",
    )
    init.add_argument("file", metavar="FILE", type=path_given, nargs="?", help="where to (standard output)")
    init.add_argument(
        "--preset",
        choices=("server", "desktop", "containers"),
        help="guard what such a machine runs: services and users, applications, containers",
    )
    init.add_argument("--force", action="store_true", help="replace a file that exists")
    init.add_argument(
        "--thresholds-from",
        metavar="FILE",
        type=path_given,
        help="take the thresholds of this configuration, such as the reactor.yaml of reactor tune",
    )


def _add_file(command: argparse.ArgumentParser) -> None:
    """Add the file and its drop-ins; `--config` as the other commands have it is the same file."""
    command.add_argument(
        "file", metavar="FILE", type=path_given, nargs="?", help=f"the configuration ({DEFAULT_CONFIG})"
    )
    command.add_argument("--config", metavar="FILE", type=path_given, help="the same")
    add_config_dir(command)


def _file(options: argparse.Namespace) -> Path:
    if options.file is not None:
        check_unused(options, "FILE", "--config")
    return Path(options.file or options.config or DEFAULT_CONFIG)


def _check(options: argparse.Namespace) -> int:
    file = _file(options)
    from reactor.config.settings import load_configuration

    found = load_configuration(file, options.config_dir)
    from reactor.doctor.findings import findings, nobody_because, refusals
    from reactor.doctor.kubernetes import node_reservation
    from reactor.doctor.thresholds import observed_on_this_machine

    settings, tree = found.settings, _tree()
    warn_of(settings)
    warnings: list[object] = [*refusals(found), *findings(settings, found.layers, tree)]
    reservation = node_reservation(settings)
    if reservation is not None and reservation.remedy:
        warnings.append(f"{reservation.detail}; {reservation.remedy}")
    for finding in warnings:
        print(f"reactor: {printable(str(finding))}", file=sys.stderr)
    thresholds, seen = settings.eviction.thresholds, observed_on_this_machine(settings, tree)
    marks = (
        " (ignored)" if one.signal in seen and one.is_absurd_at(seen[one.signal].capacity) else ""
        for one in thresholds
    )
    named = ", ".join(f"{one}{mark}" for one, mark in zip(thresholds, marks, strict=True))
    shown = printable(str(file))
    print(f"{shown}: ok, {counted(len(thresholds), 'threshold')}: {named}")
    if reservation is not None and not reservation.remedy:
        print(printable(reservation.detail))
    because = nobody_because(settings, tree)
    if because is not None:
        print(f"{shown}: guards nobody: {because}")
    return int(options.strict and bool(warnings or settings.warnings or because is not None))


def _tree() -> CgroupTree | None:
    from reactor.errors import ReactorError
    from reactor.kernel.cgroup import CgroupTree

    try:
        return CgroupTree.discover()
    except (OSError, ReactorError):
        return None


def _show(options: argparse.Namespace) -> int:
    from reactor.doctor.in_force import show

    return show(_file(options), options.config_dir, options.output, only_changed=options.changed)


def _init(options: argparse.Namespace) -> int:
    from reactor.doctor.first_configuration import Preset, first_configuration, this_machine, warnings
    from reactor.kernel.small_file import write

    if str(options.file) == "-":
        options.file = None
    check_needed(options, "FILE", "--force")
    machine = this_machine()
    preset = None if options.preset is None else Preset(options.preset)
    text = first_configuration(machine, options.thresholds_from, preset)
    for warning in warnings(text, machine):
        print(f"reactor: {printable(warning)}", file=sys.stderr)
    if options.file is None:
        print(text, end="")
        return 0
    try:
        write(options.file, text, mode=0o644, directory_mode=0o755, replace=options.force)
    except FileExistsError:
        print(f"reactor: {printable(str(options.file))}: exists; --force replaces it", file=sys.stderr)
        return 1
    file = printable(str(options.file))
    print(f"{file}: written; see what it does by: reactor config show {file}")
    return 0
