"""What the commands' declarations share: the parser of a command, its common options, their values."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from reactor.errors import ConfigError
from reactor.text import counted, printable

if TYPE_CHECKING:
    from reactor.model.settings import Settings

# argparse has no public name for what add_subparsers() returns.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001
Call = Callable[[argparse.Namespace], int]

DEFAULT_CONFIG: Final = Path("/etc/reactor/config.yaml")
_DEFAULT_SOCKET: Final = Path("/run/reactor/reactor.sock")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
CONFIGURED: Final = Path()  # of `--journal` without a file: the configuration's


def add_command(
    commands: Commands, name: str, call: Call | None, text: str, example: str
) -> argparse.ArgumentParser:
    """Return a new command's parser; `call` takes what it parses and returns the exit status.

    None for one that only holds others.
    """
    command = commands.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}.", epilog=f"example: {example}"
    )
    if call is not None:
        command.set_defaults(call=call, usage_error=command.error)
    return command


def check_needed(options: argparse.Namespace, needed: str, *names: str) -> None:
    """Exit with 2 if options are given without the one that they need."""
    if not _given(options, needed):
        _refuse(options, names, f"only with {needed}")


def check_unused(options: argparse.Namespace, beside: str, *names: str) -> None:
    """Exit with 2 if options are given that have no effect beside another one, which is given."""
    _refuse(options, names, f"not with {beside}; accepted: one or the other")


def _refuse(options: argparse.Namespace, names: Sequence[str], why: str) -> None:
    given = [name for name in names if _given(options, name)]
    if given:
        options.usage_error(f"{', '.join(given)}: {why}")


def _given(options: argparse.Namespace, name: str) -> bool:
    """Return whether an option, or an operand by its own name, is given: one that is not is None or False."""
    value = getattr(options, name.removeprefix("--").replace("-", "_").lower())
    return value is not None and value is not False


def add_config(command: argparse.ArgumentParser, *, is_needed: bool = False) -> None:
    """Add `--config`: without it the default file, which has to exist only if `is_needed` (config_sought)."""
    command.add_argument(
        "--config",
        metavar="FILE",
        type=path_given,
        default=DEFAULT_CONFIG if is_needed else None,
        help=f"the configuration ({DEFAULT_CONFIG}{'' if is_needed else ', if it exists'}): "
        "KubeletConfiguration's keys and a section of reactor's own",
    )


def add_config_dir(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config-dir",
        metavar="DIR",
        type=path_given,
        help="drop-ins (*.conf), merged over the configuration as by the kubelet",
    )


def add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument("--output", choices=("table", "json"), default="table", help="what to print (table)")


def add_socket(command: argparse.ArgumentParser) -> None:
    """Add the options for where the daemon listens; `socket_of` reads it."""
    add_config(command)
    add_config_dir(command)
    command.add_argument(
        "--socket", metavar="PATH", type=path_given, help="the daemon's socket (the configuration's)"
    )


def socket_of(options: argparse.Namespace) -> Path:
    """Return the daemon's socket: the one given, else the configuration's, else the default.

    A configuration that is invalid, as after a refused reload, is no reason not to ask the daemon.
    """
    if options.socket is not None:
        return Path(options.socket)
    path = config_sought(options)
    if path is None:
        return _DEFAULT_SOCKET
    from reactor.config.settings import load_settings

    try:
        return Path(load_settings(path, options.config_dir).socket_path)
    except ConfigError as error:
        socket = _socket_named(path, options.config_dir)
        wrong = f"invalid, {counted(len(error.problems), 'error')} (reactor config check {path})"
        what = wrong if path.exists() else "there is no such file"
        print(f"reactor: {path}: {what}; asking the daemon at {socket}", file=sys.stderr)
        return socket


def _socket_named(path: Path, config_dir: Path | None) -> Path:
    """Return the socket that an invalid configuration names as far as it can be read, else the default."""
    from reactor.config.settings import layers_of

    try:
        section = layers_of(path, config_dir).document.get("reactor")
    except ConfigError:
        section = None
    named = section.get("socket") if isinstance(section, Mapping) else None
    return Path(named) if isinstance(named, str) and named.startswith("/") else _DEFAULT_SOCKET


def config_sought(options: argparse.Namespace) -> Path | None:
    """Return the configuration given, else the default one, None if there is none and no drop-in is given."""
    if options.config is not None:
        return Path(options.config)
    return DEFAULT_CONFIG if options.config_dir is not None or DEFAULT_CONFIG.exists() else None


def settings_sought(options: argparse.Namespace) -> Settings | None:
    """Return the settings that `config_sought` finds, None without; prints warnings. Raises ConfigError."""
    from reactor.config.settings import load_settings

    path = config_sought(options)
    if path is None:
        return None
    settings = load_settings(path, options.config_dir)
    warn_of(settings)
    return settings


def warn_of(settings: Settings) -> None:
    """Print the warnings of settings, each with its file."""
    for warning in settings.warnings:
        print(f"reactor: {printable(warning)}", file=sys.stderr)


@contextmanager
def from_checkout(command: str) -> Iterator[None]:
    """Import from `bench`, which lies beside the package in a checkout alone. Exits with 2 without it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "bench":
            raise
        print(
            f"{command}: part of a checkout, not of an installed package: git clone, then make setup",
            file=sys.stderr,
        )
        raise SystemExit(2) from None


def path_given(text: str) -> Path:
    """Return a path. Raises ArgumentTypeError for an empty one, as a variable that is not set leaves it."""
    return Path(not_empty(text, "a path"))


def path_or_dash(text: str) -> str:
    """Return a path, or `-` for a standard stream. Raises ArgumentTypeError for an empty one."""
    return not_empty(text, "a path, or - for a standard stream")


def pod_name(text: str) -> str:
    """Return what a pod or a rule is called. Raises ArgumentTypeError for an empty name."""
    return not_empty(text, "name, namespace/name or uid; without it all")


def not_empty(text: str, accepted: str) -> str:
    """Return the text. Raises ArgumentTypeError, which argparse reports, if there is none."""
    if not text:
        raise argparse.ArgumentTypeError(f"got ''; accepted: {accepted}")
    return text


def positive_seconds(text: str) -> float:
    """Return a number of seconds above zero. Raises ArgumentTypeError, which argparse reports."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: a number above 0, such as 2.5")
    return seconds


def positive_number(text: str) -> int:
    """Return a whole number above zero. Raises ArgumentTypeError, which argparse reports."""
    return whole_number(text, "a whole number above 0", least=1, digits=18)


def whole_number(
    text: str, accepted: str, *, least: int, most: float = math.inf, digits: int | None = None
) -> int:
    """Return a whole number, of so many digits at most. Raises ArgumentTypeError with what is accepted."""
    if text.isascii() and text.isdigit() and (digits is None or len(text) <= digits):
        number = int(text)
        if least <= number <= most:
            return number
    raise argparse.ArgumentTypeError(f"got {text!r}; accepted: {accepted}")


def instant_or_ago(text: str) -> datetime:
    """Return an instant, or so long ago (`90s`, `30m`, `2h`, `3d`). Raises ArgumentTypeError."""
    number, unit = text[:-1], text[-1:]
    if number.isascii() and number.isdigit() and unit in _SECONDS:
        with suppress(OverflowError):
            return datetime.now(UTC) - timedelta(seconds=int(number) * _SECONDS[unit])
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        accepted = "an instant such as 2026-11-22T10:14, or 90s, 30m, 2h, 3d for so long ago"
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: {accepted}") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def journal_of(options: argparse.Namespace) -> Path:
    """Return the journal: the one given, else the configuration's, else the default. Raises ConfigError."""
    from reactor.model.settings import JournalSettings

    if options.journal not in {None, CONFIGURED}:
        return Path(options.journal)
    settings = settings_sought(options)
    return Path((JournalSettings() if settings is None else settings.journal).path)
