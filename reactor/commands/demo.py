"""`reactor demo`."""

from __future__ import annotations

import argparse

from reactor.commands.arguments import Commands, add_command


def add(commands: Commands) -> None:
    """Declare it."""
    add_command(commands, "demo", _demo, "watch a memory hog being evicted (root)", "sudo reactor demo")


def _demo(_: argparse.Namespace) -> int:
    from reactor.lab.demo import demo

    return demo()
