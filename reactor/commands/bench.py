"""`reactor bench`."""

from __future__ import annotations

import argparse
from pathlib import Path

from reactor.commands.arguments import Commands, add_command


def add(commands: Commands) -> None:
    """Declare it."""
    command = add_command(
        commands, "bench", _bench, "measure this machine (root)", "sudo reactor bench --runs 30"
    )
    command.add_argument(
        "--results", metavar="DIRECTORY", type=Path, default=Path("bench-results"), help="where the JSON goes"
    )
    command.add_argument("--runs", type=int, default=30, help="evictions for each figure (30)")
    command.add_argument(
        "--by-source",
        action="store_true",
        help="instead: each source of wakes beside plain polling, and the cost of the eBPF probes",
    )
    command.add_argument("--rounds", type=int, default=5, help="with --by-source: turns of each source (5)")
    command.add_argument(
        "--skip", metavar="NAMES", default="", help="with --by-source: not these, such as psi,poll-10s"
    )
    command.add_argument("--idle-seconds", type=float, default=60.0, help="how long to watch it idle (60)")


def _bench(options: argparse.Namespace) -> int:
    from reactor.lab.bench import bench, bench_by_source

    if options.by_source:
        return bench_by_source(options.results, rounds=options.rounds, skip=options.skip.split(","))
    return bench(options.results, runs=options.runs, idle_seconds=options.idle_seconds)
