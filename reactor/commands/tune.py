"""`reactor tune`."""

from __future__ import annotations

import argparse
from pathlib import Path

from reactor.commands.arguments import (
    DEFAULT_CONFIG,
    Commands,
    add_command,
    add_config,
    add_config_dir,
    positive_seconds,
)


def add(commands: Commands) -> None:
    """Declare it."""
    command = add_command(
        commands,
        "tune",
        _tune,
        "measure this node in a virtual one, and recommend its memory thresholds with the reasons (root)",
        "sudo reactor tune --config /etc/reactor/config.yaml --journal /var/log/reactor/journal.jsonl",
    )
    add_config(command, default=None)
    add_config_dir(command)
    command.add_argument(
        "--journal",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="a journal to learn from, with the files it was rotated into; may be given again",
    )
    command.add_argument(
        "--minutes", type=positive_seconds, default=5.0, help="how long to measure, at the most (5)"
    )
    command.add_argument(
        "--results",
        metavar="DIRECTORY",
        type=Path,
        default=Path("tune-results"),
        help="where measurements, configuration and report go (tune-results)",
    )
    command.add_argument(
        "--from", dest="stored", metavar="FILE", type=Path, help="use this measured.json instead of measuring"
    )
    command.add_argument(
        "--loads", metavar="NAMES", default="idle,busy", help="what else the CPUs do: idle, busy (idle,busy)"
    )
    command.add_argument("--pods", metavar="N", type=_pods, default=10, help="pods on the virtual node (10)")
    command.add_argument(
        "--assume",
        choices=("one", "huge", "all", "seen"),
        default="one",
        help="the fastest credible allocator: one process, one with huge pages, one a CPU, "
        "or the fastest in the journals (one)",
    )
    command.add_argument(
        "--victim", metavar="SIZE", type=_size, help="the largest pod's memory, such as 4Gi (what is known)"
    )
    command.add_argument(
        "--reserve", metavar="SIZE", type=_size, help="what must stay free, such as 200Mi (what is needed)"
    )


def _pods(text: str) -> int:
    """Return a number of pods, of which one is the hog. Raises ValueError, which argparse reports."""
    pods = int(text)
    if not 1 <= pods <= 1000:
        raise ValueError(text)
    return pods


def _size(text: str) -> int:
    """Return bytes. Raises ArgumentTypeError."""
    from reactor.model.quantity import ACCEPTED, parse_quantity

    try:
        size_bytes = parse_quantity(text).value
    except ValueError:
        size_bytes = 0
    if size_bytes <= 0:
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: {ACCEPTED}")
    return size_bytes


def _tune(options: argparse.Namespace) -> int:
    from reactor.tune import TuneOptions, tune
    from reactor.tune.cases import Assume
    from reactor.tune.model import Assumptions
    from reactor.tune.reactions import loads_named

    return tune(
        TuneOptions(
            config=options.config or (None if options.config_dir is None else DEFAULT_CONFIG),
            config_dir=options.config_dir,
            journals=tuple(options.journal),
            results=options.results,
            minutes=options.minutes,
            loads=loads_named(options.loads),
            pods=options.pods,
            stored=options.stored,
            assumptions=Assumptions(
                assume=Assume(options.assume), victim_bytes=options.victim, reserve_bytes=options.reserve
            ),
        )
    )
