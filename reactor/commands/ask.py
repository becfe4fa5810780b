"""Questions about this node: `reactor status`, `top`, `explain` (to the running daemon) and `doctor`."""

from __future__ import annotations

import argparse
from pathlib import Path

from reactor.commands.arguments import (
    CONFIGURED,
    Commands,
    add_command,
    add_config,
    add_config_dir,
    add_output,
    add_socket,
    check_needed,
    instant_or_ago,
    journal_of,
    path_given,
    pod_name,
    positive_number,
    positive_seconds,
    settings_sought,
    socket_of,
)


def add_status(commands: Commands) -> None:
    """Declare `reactor status`."""
    command = add_command(
        commands, "status", _status, "show the node's state", "sudo reactor status --output json"
    )
    add_socket(command)
    add_output(command)


def _status(options: argparse.Namespace) -> int:
    from reactor.terminal.show import show_status

    return show_status(socket_of(options), options.output)


def add_top(commands: Commands) -> None:
    """Declare `reactor top`."""
    command = add_command(
        commands,
        "top",
        _top,
        "watch the node's state: signals, the pods that would be evicted next, sources, events",
        "sudo reactor top --once",
    )
    add_socket(command)
    command.add_argument("--once", action="store_true", help="print once and exit")
    command.add_argument(
        "--interval-seconds",
        metavar="SECONDS",
        type=positive_seconds,
        default=1.0,
        help="how often the daemon is asked (1)",
    )


def _top(options: argparse.Namespace) -> int:
    from reactor.terminal.top import TopOptions, top

    return top(
        TopOptions(
            socket_path=socket_of(options), once=options.once, interval_seconds=options.interval_seconds
        )
    )


def add_explain(commands: Commands) -> None:
    """Declare `reactor explain`."""
    command = add_command(
        commands,
        "explain",
        _explain,
        "show why a pod was evicted, or its place in the ranking now; why a rule acted, or why it does not",
        "sudo reactor explain default/web; without a daemon: sudo reactor explain --journal",
    )
    command.add_argument(
        "pod",
        metavar="POD",
        nargs="?",
        type=pod_name,
        help="name, namespace/name or uid, or the name of a rule; without it: all",
    )
    command.add_argument(
        "--journal",
        metavar="FILE",
        nargs="?",
        type=path_given,
        const=CONFIGURED,
        help="read the journal on disk, with its older files, and ask no daemon (FILE: the configuration's)",
    )
    command.add_argument(
        "--last",
        metavar="N",
        type=positive_number,
        help="with --journal, how many evictions to show, the last ones (10; of one POD all)",
    )
    add_socket(command)
    add_output(command)


def _explain(options: argparse.Namespace) -> int:
    check_needed(options, "--journal", "--last")
    if options.journal is not None:
        from reactor.terminal.journal import explain_journal

        return explain_journal(journal_of(options), options.pod, options.last, options.output)
    from reactor.terminal.show import show_explanation

    return show_explanation(socket_of(options), options.pod, options.output)


def add_report(commands: Commands) -> None:
    """Declare `reactor report`."""
    command = add_command(
        commands,
        "report",
        _report,
        "write one HTML page of an eviction or a span of time, from the journal on disk; without POD and a "
        "span of the last one",
        "sudo reactor report web.service --out web.html; sudo reactor report --since 2h",
    )
    command.add_argument(
        "pod", metavar="POD", nargs="?", type=pod_name, help="this pod alone, named as for explain"
    )
    when = "an instant such as 2026-11-22T10:14 (UTC unless it has a zone), or how long ago: 90s, 30m, 2h, 3d"
    command.add_argument("--since", metavar="WHEN", type=instant_or_ago, help=when)
    command.add_argument("--until", metavar="WHEN", type=instant_or_ago, help="likewise (now)")
    command.add_argument(
        "--last", metavar="N", type=positive_number, help="the last N evictions (1; of a span: all)"
    )
    command.add_argument(
        "--out",
        metavar="FILE",
        type=path_given,
        default=Path("reactor-report.html"),
        help="where to write the page, - for standard output (reactor-report.html)",
    )
    command.add_argument(
        "--journal",
        metavar="FILE",
        type=path_given,
        help="the journal, with its older files (the configuration's)",
    )
    add_config(command)
    add_config_dir(command)


def _report(options: argparse.Namespace) -> int:
    from reactor.report.incident import Span
    from reactor.terminal.journal import write_report

    if options.since is not None and options.until is not None and options.since > options.until:
        options.usage_error("--since, --until: no time is between them; accepted: --since before --until")
    span = Span(since=options.since, until=options.until)
    out = None if str(options.out) == "-" else options.out
    return write_report(journal_of(options), out, options.pod, span, options.last)


def add_doctor(commands: Commands) -> None:
    """Declare it."""
    command = add_command(
        commands,
        "doctor",
        _doctor,
        "show what this node offers, which sources would be used, and the remedy for what is missing",
        "sudo reactor doctor",
    )
    add_config(command)
    add_config_dir(command)
    add_output(command)
    command.add_argument(
        "--strict",
        action="store_true",
        help="exit with 0 if every first choice would be used, 1 if a second one, 2 if this node can't be "
        "guarded (else 0, and 1 if it can't)",
    )
    command.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="with the log of each eBPF program that the kernel refused",
    )


def _doctor(options: argparse.Namespace) -> int:
    from reactor.doctor.doctor import examine

    return examine(settings_sought(options), options.output, verbose=options.verbose, strict=options.strict)
