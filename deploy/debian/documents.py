#!/usr/bin/env python3
"""Write the completions and the Markdown of reactor.8 and reactor.yaml.5 from what the checkout says.

usage: documents.py DIRECTORY

Commands and options come from the argument parser, the configuration from docs/configuration.md and
docs/plain-nodes.md.
Needs shtab, and nothing that reactor needs at run time.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import shtab

from reactor import cli

CHECKOUT: Final = Path(__file__).resolve().parents[2]
SHELLS: Final = ("bash", "zsh", "fish")
_FILES: Final = frozenset({"FILE", "PATH", "SCENARIO", "JOURNAL"})
_DIRECTORIES: Final = frozenset({"DIR", "DIRECTORY"})

# What no parser says.
_SECTIONS: Final = """
# EXIT STATUS

0
:   done

1
:   it failed

2
:   the arguments or a document are wrong; every problem is on standard error

# SIGNALS

SIGHUP
:   `reactor run` reads its configuration again. If that is wrong, the configuration in force stays.

SIGTERM, SIGINT
:   `reactor run` ends.

# FILES

*/etc/reactor/config.yaml*
:   the configuration, see **reactor.yaml**(5)

*/var/log/reactor/journal.jsonl*
:   one line of JSON a decision

*/run/reactor*
:   what survives a restart, and the socket of `reactor status`, `top` and `explain`

# SEE ALSO

**reactor.yaml**(5), **systemctl**(1), */usr/share/doc/reactor/install.md*
"""


def main() -> int:
    """Write all of them."""
    (directory,) = (Path(argument) for argument in sys.argv[1:])
    for shell in SHELLS:
        parser = _parser()
        for action in _actions(parser):
            _complete_files(action)
        (directory / f"reactor.{shell}").write_text(shtab.complete(parser, shell=shell))
    (directory / "reactor.8.md").write_text(manual())
    (directory / "reactor.yaml.5.md").write_text(configuration_manual())
    return 0


def manual() -> str:
    """Return reactor(8) as Markdown; `pandoc` makes the manual page."""
    parser = _parser()
    about = "evicts the right pod milliseconds after a threshold of the node is crossed"
    parts = [f"# NAME\n\nreactor - {about}\n\n# SYNOPSIS\n\n**reactor** *COMMAND* \\[*OPTION* ...\\]\n\n# DESCRIPTION\n"]
    parts.append(f"{parser.description}\n\n# COMMANDS\n")
    parts += _commands(parser)
    return "\n".join(parts) + _SECTIONS


def _commands(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield a section for each command, and for each command of a command."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no public name for them
        if not isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            continue
        for command in dict.fromkeys(action.choices.values()):
            usage = " ".join(command.format_usage().removeprefix("usage: ").split())
            yield f"## {command.prog}\n\n```\n{usage}\n```\n\n{_plain(command.description or '')}\n"
            yield from (_option(one) for one in command._actions if one.help and one.dest != "help")  # noqa: SLF001
            if command.epilog:
                yield f"{_plain(command.epilog[:1].upper() + command.epilog[1:])}\n"
            yield from _commands(command)


def _option(action: argparse.Action) -> str:
    """Return an option or argument as an entry of a definition list."""
    value = action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else "")
    takes_none = action.nargs == 0
    names = ", ".join(f"**{_plain(name)}**" for name in action.option_strings)
    shown = f"*{_plain(str(value or action.dest.upper()))}*"
    term = shown if not names else names if takes_none else f"{names} {shown}"
    return f"{term}\n:   {_plain(' '.join((action.help or '').replace('%%', '%').split()))}\n"


def _plain(text: str) -> str:
    """Return text that Markdown leaves as it is."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$^@'\"-])", r"\\\1", text)


def configuration_manual() -> str:
    """Return reactor.yaml(5) as Markdown."""
    page = (CHECKOUT / "docs/configuration.md").read_text(encoding="utf-8").partition("\n")[2]
    raised = re.sub(r"^#(#+ )", r"\1", page, flags=re.MULTILINE)
    pods = (CHECKOUT / "docs/plain-nodes.md").read_text(encoding="utf-8")
    name = "# NAME\n\nreactor.yaml - the configuration of reactor\n\n# DESCRIPTION\n"
    return f"{name}{raised}\n{pods}\n# SEE ALSO\n\n**reactor**(8)\n"


def _parser() -> argparse.ArgumentParser:
    return cli._parser()  # noqa: SLF001 - the one that the command has


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield all options and arguments, those of the commands too."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no public name for them
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in dict.fromkeys(action.choices.values()):
                yield from _actions(command)


def _complete_files(action: argparse.Action) -> None:
    """Have the shell complete a path where the argument is one."""
    if action.metavar in _FILES:
        action.complete = shtab.FILE  # type: ignore[attr-defined]
    elif action.metavar in _DIRECTORIES:
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
