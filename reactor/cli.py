"""Arguments, one call, an exit status. Each command's module is imported only when it is asked for.

Exit statuses: 0 done, 1 it failed, 2 the arguments or a document are wrong (every problem on standard error).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import reactor
from reactor.errors import ConfigError, ReactorError

if TYPE_CHECKING:
    from reactor.model.settings import Settings

DEFAULT_CONFIG: Final = Path("/etc/reactor/config.yaml")
_DEFAULT_SOCKET: Final = Path("/run/reactor/reactor.sock")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.call
    try:
        return _flushed(command(options))
    except ConfigError as error:
        for problem in error.problems:
            print(f"reactor: {problem}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read the output has seen enough (`| head`); what is left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ReactorError, OSError) as error:
        print(f"reactor: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _flushed(status: int) -> int:
    """Return the status once the output is out; a reader that is gone is noticed here at the latest."""
    sys.stdout.flush()
    return status


def _run(options: argparse.Namespace) -> int:
    # Blocked from here until the daemon receives them itself, so that none is answered by a default that
    # ends the process halfway: SIGHUP's would, while the modules below are being imported.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP, signal.SIGTERM, signal.SIGINT))
    import trio  # noqa: PLC0415

    from reactor.daemon.log import log_to_stderr  # noqa: PLC0415
    from reactor.daemon.loop import run  # noqa: PLC0415

    settings = dataclasses.replace(_settings(options.config), stand_by=options.stand_by)
    log = log_to_stderr()
    try:
        trio.run(partial(run, settings, dry_run=options.dry_run, config_path=options.config))
    finally:
        log.close()
    return 0


def _simulate(options: argparse.Namespace) -> int:
    from reactor.simulate import run_scenario_file  # noqa: PLC0415

    return run_scenario_file(options.scenario, options.output)


def _record(options: argparse.Namespace) -> int:
    from reactor.simulate.recording import RecordOptions, record  # noqa: PLC0415

    return record(
        RecordOptions(
            config=options.config,
            output=options.output_file,
            interval_seconds=options.interval_seconds,
            seconds=options.seconds,
            journal=options.journal,
        )
    )


def _status(options: argparse.Namespace) -> int:
    from reactor.daemon.show import show_status  # noqa: PLC0415

    return show_status(_socket(options), options.output)


def _explain(options: argparse.Namespace) -> int:
    from reactor.daemon.show import show_explanation  # noqa: PLC0415

    return show_explanation(_socket(options), options.pod, options.output)


def _doctor(options: argparse.Namespace) -> int:
    from reactor.daemon.doctor import examine  # noqa: PLC0415

    settings = None if options.config is None else _settings(options.config)
    return examine(settings, options.output, verbose=options.verbose)


def _demo(_: argparse.Namespace) -> int:
    from reactor.lab.demo import demo  # noqa: PLC0415

    return demo()


def _bench(options: argparse.Namespace) -> int:
    from reactor.lab.bench import bench, bench_by_source  # noqa: PLC0415

    if options.by_source:
        return bench_by_source(options.results, rounds=options.rounds, skip=options.skip.split(","))
    return bench(options.results, runs=options.runs, idle_seconds=options.idle_seconds)


def _check(options: argparse.Namespace) -> int:
    settings = _settings(options.file)
    count = len(settings.eviction.thresholds)
    _warn_where_nothing_brakes(settings, options.file)
    print(f"{options.file}: ok, {count} thresholds: {', '.join(map(str, settings.eviction.thresholds))}")
    return 0


def _warn_where_nothing_brakes(settings: Settings, path: Path) -> None:
    from reactor.model.settings import BrakeMode  # noqa: PLC0415

    if settings.brake is BrakeMode.OFF:
        return
    from reactor.act.brake import unavailable_because  # noqa: PLC0415
    from reactor.kernel.cgroup import CgroupTree  # noqa: PLC0415

    try:
        because = unavailable_because(CgroupTree.discover())
    except (OSError, ReactorError) as error:
        because = str(error)
    if because is not None:
        print(f"reactor: {path}: reactor.brake: has no effect on this machine: {because}", file=sys.stderr)


def _settings(path: Path) -> Settings:
    """Return the settings in a file, its warnings told. Raises ConfigError."""
    from reactor.config import load_settings  # noqa: PLC0415

    settings = load_settings(path)
    for warning in settings.warnings:
        print(f"reactor: {path}: {warning}", file=sys.stderr)
    return settings


def _socket(options: argparse.Namespace) -> Path:
    """Return the daemon's socket: the one given, else the configuration's, else the default."""
    if options.socket is not None:
        return Path(options.socket)
    if options.config is not None:
        return Path(_settings(options.config).socket_path)
    return _DEFAULT_SOCKET


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reactor",
        description="Keeps a Linux node alive: evicts the right pod milliseconds after a crossing.",
        epilog="reactor COMMAND --help shows a command's options and an example.",
    )
    parser.add_argument("--version", action="version", version=f"reactor {reactor.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    run = _command(commands, "run", _run, "guard this node", "reactor run --config /etc/reactor/config.yaml")
    _add_config(run, default=DEFAULT_CONFIG)
    run.add_argument(
        "--dry-run", action="store_true", help="decide and journal, but never reclaim and never end a pod"
    )
    run.add_argument(
        "--stand-by",
        action="store_true",
        help="where a daemon guards this node, wait and take over at its end",
    )

    simulate = _command(
        commands,
        "simulate",
        _simulate,
        "replay a node's history through the same decisions, without root or a cluster",
        "reactor simulate scenario.yaml --output json",
    )
    simulate.add_argument("scenario", metavar="SCENARIO", help="the scenario's file, - for standard input")
    _add_output(simulate)

    record = _command(
        commands,
        "record",
        _record,
        "turn this node's statistics and pods into a scenario for simulate",
        "reactor record --config /etc/reactor/config.yaml --seconds 600 node.json",
    )
    record.add_argument("output_file", metavar="SCENARIO", help="the file to write, - for standard output")
    _add_config(record, default=DEFAULT_CONFIG)
    record.add_argument(
        "--interval-seconds", type=_positive, default=10.0, help="how often the kubelet is asked (10)"
    )
    record.add_argument("--seconds", type=_positive, help="for how long (until Ctrl-C)")
    record.add_argument(
        "--journal", metavar="FILE", type=Path, help="take the reactor's own journal instead of the kubelet"
    )

    status = _command(commands, "status", _status, "show how the node stands", "reactor status --output json")
    explain = _command(
        commands,
        "explain",
        _explain,
        "show why a pod was evicted, or where it stands in the ranking now",
        "reactor explain default/web",
    )
    explain.add_argument("pod", metavar="POD", nargs="?", help="name, namespace/name or uid; without it: all")
    for command in (status, explain):
        _add_config(command, default=None)
        command.add_argument("--socket", metavar="PATH", help=f"the daemon's socket ({_DEFAULT_SOCKET})")
        _add_output(command)

    doctor = _command(
        commands,
        "doctor",
        _doctor,
        "show what this node offers, which sources would be used, and the remedy for what is missing",
        "reactor doctor --config /etc/reactor/config.yaml",
    )
    _add_config(doctor, default=None)
    _add_output(doctor)
    doctor.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="with the log of each eBPF program that the kernel refused",
    )

    _command(commands, "demo", _demo, "watch a memory hog being evicted (root)", "sudo reactor demo")

    bench = _command(commands, "bench", _bench, "measure this machine (root)", "sudo reactor bench --runs 30")
    bench.add_argument(
        "--results", metavar="DIRECTORY", type=Path, default=Path("bench-results"), help="where the JSON goes"
    )
    bench.add_argument("--runs", type=int, default=30, help="evictions for each figure (30)")
    bench.add_argument(
        "--by-source",
        action="store_true",
        help="instead: each source of wakes beside plain polling, and the cost of the eBPF probes",
    )
    bench.add_argument("--rounds", type=int, default=5, help="with --by-source: turns of each source (5)")
    bench.add_argument(
        "--skip", metavar="NAMES", default="", help="with --by-source: not these, such as psi,poll-10s"
    )
    bench.add_argument("--idle-seconds", type=float, default=60.0, help="how long to watch it idle (60)")

    config = _command(
        commands, "config", None, "work on a configuration", "reactor config check /etc/reactor/config.yaml"
    )
    check = _command(
        config.add_subparsers(metavar="COMMAND", required=True),
        "check",
        _check,
        "name every error in a configuration, each by its path",
        "reactor config check /etc/reactor/config.yaml",
    )
    check.add_argument("file", metavar="FILE", type=Path, help="the configuration")
    return parser


def _positive(text: str) -> float:
    """Return a number of seconds above zero. Raises ValueError, which argparse reports."""
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError(text)
    return seconds


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    call: Callable[[argparse.Namespace], int] | None,
    text: str,
    example: str,
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}.", epilog=f"example: {example}"
    )
    if call is not None:
        command.set_defaults(call=call)
    return command


def _add_config(command: argparse.ArgumentParser, default: Path | None) -> None:
    shown = f" ({default})" if default else ""
    command.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        default=default,
        help=f"KubeletConfiguration's keys and a section of reactor's own{shown}",
    )


def _add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument("--output", choices=("table", "json"), default="table", help="what to print (table)")
