"""Arguments, one call, an exit status. The commands themselves are in reactor/commands.

Exit statuses: 0 done, 1 it failed, 2 the arguments or a document are wrong (every problem on standard error).
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import reactor
from reactor.commands import COMMANDS
from reactor.errors import ConfigError, ReactorError
from reactor.text import printable

if TYPE_CHECKING:
    from reactor.commands.arguments import Call

# What is made is never for others to write, parents of what is made with a mode of its own among it.
_UMASK: Final = 0o022


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    options = _parser().parse_args(arguments)
    command: Call = options.call
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may not know every character
        sys.stdout.reconfigure(errors="backslashreplace")
    os.umask(os.umask(_UMASK) | _UMASK)
    try:
        return _flushed(command(options))
    except ConfigError as error:
        for problem in error.problems:
            print(f"reactor: {printable(str(problem))}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of the output has closed it (`| head`); what is left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ReactorError, OSError) as error:
        print(f"reactor: {printable(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _flushed(status: int) -> int:
    """Return the status once the output is out; a reader that is gone is noticed here at the latest."""
    sys.stdout.flush()
    return status


def _parser() -> argparse.ArgumentParser:
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
