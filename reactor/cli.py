"""Arguments, one call, an exit status. The commands themselves are in reactor/commands.

Exit statuses: 0 done, 1 it failed, 2 the arguments or a document are wrong (every problem on standard error).
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import reactor
from reactor.errors import ConfigError, ReactorError, what_failed
from reactor.run import run_by_child
from reactor.text import printable

if TYPE_CHECKING:
    import argparse

    from reactor.commands.arguments import Call
    from reactor.run import Order

# What is made is never for others to write, parents of what is made with a mode of its own among it.
_UMASK: Final = 0o022


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    _open_closed_streams()
    if arguments is None and sys.argv[1:2] == ["run"]:
        return _called(partial(run_by_child, _order))
    return _called(partial(_command, arguments))


def _command(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    call: Call = options.call
    return call(options)


def _order(give: Callable[[Order], int]) -> int:
    """Give what `reactor run` is to do by the arguments; return the exit status."""
    from reactor.commands.daemon import order  # noqa: PLC0415 - for the child, as all that it imports

    options = _parser().parse_args()
    return _called(lambda: give(order(options)))


def _open_closed_streams() -> None:
    """Have /dev/null in place of a closed standard stream, whose number a counter or a socket would get."""
    for fd, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
            setattr(sys, name, os.fdopen(fd, mode))


def _called(command: Callable[[], int]) -> int:
    """Return a command's exit status, what is wrong printed."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may not know every character
        sys.stdout.reconfigure(errors="backslashreplace")
    os.umask(os.umask(_UMASK) | _UMASK)
    try:
        return _finished(command)
    except ConfigError as error:
        for problem in error.problems:
            print(f"reactor: {printable(str(problem))}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        _discard_output()  # the reader has closed it (`| head`)
        return 1
    except (ReactorError, OSError) as error:
        print(f"reactor: {printable(what_failed(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _finished(command: Callable[[], int]) -> int:
    """Return a command's exit status once its output is out, also the help that argparse prints."""
    try:
        return _flushed(command())
    except SystemExit:
        _flushed(0)
        raise


def _flushed(status: int) -> int:
    """Return the status once the output is out; a reader that is gone is noticed here at the latest."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _discard_output()
        raise OSError(error.errno, error.strerror, "standard output") from None
    return status


def _discard_output() -> None:
    """Have what is left in the buffer go nowhere, since it can't be written where it should go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    import argparse  # noqa: PLC0415 - a guard holds nothing of what is for people

    from reactor.commands import COMMANDS  # noqa: PLC0415

    parser = argparse.ArgumentParser(
        prog="reactor",
        description="Keeps a Linux node alive: evicts the right pod milliseconds after a crossing.",
        epilog="reactor COMMAND --help shows a command's options and an example.",
    )
    parser.add_argument("--version", action="version", version=f"reactor {reactor.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for add in COMMANDS:
        add(commands)
    return parser
