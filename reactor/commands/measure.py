"""Commands that work in a virtual node: `reactor demo`, `tune`, `bench`."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from reactor.commands.arguments import (
    CONFIGURED,
    Commands,
    add_command,
    add_config,
    add_config_dir,
    add_output,
    check_needed,
    check_unused,
    config_sought,
    from_checkout,
    journal_of,
    not_empty,
    path_given,
    path_or_dash,
    positive_seconds,
    whole_number,
)


def add_tune(commands: Commands) -> None:
    """Declare it."""
    command = add_command(
        commands,
        "tune",
        _tune,
        "measure this node in a virtual one, and recommend its memory thresholds with the reasons (root)",
        "sudo reactor tune --config /etc/reactor/config.yaml --journal /var/log/reactor/journal.jsonl",
    )
    add_config(command)
    add_config_dir(command)
    command.add_argument(
        "--journal",
        metavar="FILE",
        type=path_given,
        action="append",
        default=[],
        help="a journal to learn from, with the files it was rotated into, or a directory with those of many "
        "nodes; may be given again",
    )
    command.add_argument("--minutes", type=positive_seconds, help="how long to measure, at the most (5)")
    command.add_argument(
        "--results",
        metavar="DIRECTORY",
        type=path_given,
        default=Path("tune-results"),
        help="where measurements, configuration and report go (tune-results)",
    )
    command.add_argument(
        "--from",
        dest="stored",
        metavar="FILE",
        type=path_given,
        help="use this measured.json instead of measuring",
    )
    command.add_argument(
        "--loads", metavar="NAMES", help="CPU load during the measurement: idle, busy (idle,busy)"
    )
    command.add_argument("--pods", metavar="N", type=_pods, help="pods on the virtual node (10)")
    command.add_argument(
        "--assume",
        choices=("one", "huge", "all", "seen"),
        default="one",
        help="the fastest credible allocator: one process, one with huge pages, one a CPU, "
        "or the fastest in the journals (one)",
    )
    command.add_argument(
        "--victim",
        metavar="SIZE",
        type=_size,
        help="the largest pod's memory, such as 4Gi (default: the largest pod seen)",
    )
    command.add_argument(
        "--reserve", metavar="SIZE", type=_size, help="what must stay free, such as 200Mi (default: computed)"
    )


def _pods(text: str) -> int:
    """Return a number of pods, of which one is the hog. Raises ArgumentTypeError, which argparse reports."""
    return whole_number(text, "a number from 1 to 1000", least=1, most=1000, digits=4)


def _size(text: str) -> int:
    """Return bytes. Raises ArgumentTypeError."""
    from reactor.model.quantity import ACCEPTED, parse_quantity

    try:
        size_bytes = parse_quantity(text).value
    except ValueError:
        size_bytes = 0
    if size_bytes <= 0:
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: {ACCEPTED}, above 0")
    return size_bytes


def _tune(options: argparse.Namespace) -> int:
    from reactor.doctor.kubernetes import node_reservation
    from reactor.tune import TuneOptions, tune
    from reactor.tune.experiments import loads_named
    from reactor.tune.model import Assume, Assumptions

    if options.stored is not None:
        check_unused(options, "--from", "--minutes", "--loads", "--pods")
    return tune(
        TuneOptions(
            config=config_sought(options),
            config_dir=options.config_dir,
            journals=tuple(options.journal),
            results=options.results,
            minutes=options.minutes or 5.0,
            loads=loads_named("idle,busy" if options.loads is None else options.loads),
            pods=options.pods or 10,
            stored=options.stored,
            assumptions=Assumptions(
                assume=Assume(options.assume), victim_bytes=options.victim, reserve_bytes=options.reserve
            ),
            reservation=node_reservation,
        )
    )


_RESULTS = Path("bench-results")
# What neither the race nor the bench by source goes by.
_OF_PARTS = ("--runs", "--turns", "--parts", "--against", "--baseline", "--idle-seconds", "--update-baseline")
_OF_A_RACE = ("--rounds", "--heats", "--full", "--courses", "--only", "--skip", "--peers", "--seed")


def add_demo(commands: Commands) -> None:
    add_command(commands, "demo", _demo, "watch a memory hog being evicted (root)", "sudo reactor demo")


def _demo(_: argparse.Namespace) -> int:
    from reactor.testbed.demo import demo

    return demo()


def add_bench(commands: Commands) -> None:
    """Declare `reactor bench`."""
    command = add_command(
        commands,
        "bench",
        _bench,
        "measure this machine (root)",
        "sudo reactor bench --against main --parts kill-max,rest-110",
    )
    command.add_argument(
        "--results", metavar="DIRECTORY", type=path_given, help="where the JSON goes (bench-results)"
    )
    command.add_argument("--runs", type=_positive_count, help="evictions of each contestant in a part (30)")
    command.add_argument(
        "--turns", type=_positive_count, help="turns of each contestant in a part, at most (4)"
    )
    command.add_argument(
        "--by-source",
        action="store_true",
        help="instead: each source of wakes beside plain polling, and the cost of the eBPF probes",
    )
    command.add_argument("--rounds", type=_positive_count, help="with --by-source: turns of each source (5)")
    command.add_argument(
        "--skip", metavar="NAMES", type=_names, help="with --by-source: not these, such as psi,poll-10s"
    )
    command.add_argument(
        "--parts",
        metavar="NAMES",
        type=_names,
        help="only these, such as kill-max,rest-110 (all but some slow allocators)",
    )
    command.add_argument(
        "--against",
        metavar="COMMIT|DIR",
        type=partial(not_empty, accepted="a commit or a directory"),
        help="measure another tree in turns with this one, and print the ratio of each figure",
    )
    command.add_argument(
        "--baseline",
        metavar="FILE",
        type=path_given,
        help="what to compare with, in multiples of the C floor (docs/figures/baseline.json)",
    )
    command.add_argument(
        "--update-baseline", action="store_true", help="make this run the baseline for its kind of machine"
    )
    command.add_argument("--idle-seconds", type=positive_seconds, help="how long to watch it idle (60)")
    _add_race(command.add_subparsers(metavar="[race]", required=False))


def _add_race(commands: Commands) -> None:
    race = add_command(
        commands,
        "race",
        _race,
        "race reactor against earlyoom, nohang, oomd, pollers and the C floor, in turns (root)",
        "sudo reactor bench race --rounds 5 --courses step,ramp-1000",
    )
    race.add_argument(
        "--results",
        metavar="DIRECTORY",
        type=path_given,
        default=argparse.SUPPRESS,  # as `reactor bench --results` has it
        help="where the JSON and the HTML report go (bench-results; with --render: beside the JSON)",
    )
    race.add_argument(
        "--rounds", type=_positive_count, default=argparse.SUPPRESS, help="turns of each contestant (3)"
    )
    race.add_argument("--heats", type=_positive_count, help="heats of each course in a turn (2)")
    race.add_argument("--full", action="store_true", help="every course and every source, which takes hours")
    race.add_argument(
        "--courses", metavar="NAMES", type=_names, help="only these, such as step,ramp-max-busy"
    )
    race.add_argument(
        "--only",
        metavar="NAMES",
        type=_names,
        help="only these contestants, such as earlyoom,c-floor",
    )
    race.add_argument(
        "--skip", metavar="NAMES", type=_names, default=argparse.SUPPRESS, help="not these contestants"
    )
    race.add_argument(
        "--peers",
        metavar="DIRECTORY",
        type=path_given,
        help="where the peers' packages are unpacked (what is installed)",
    )
    race.add_argument("--seed", type=int, help="the seed of an earlier race, for the same turns and pauses")
    race.add_argument(
        "--render",
        metavar="FILE.json",
        type=path_given,
        help="instead: print a stored result and write its report",
    )
    race.add_argument(
        "--plot",
        metavar="FILE.svg",
        type=path_given,
        help="with --render: also one plot, for a document that shows it",
    )
    race.add_argument(
        "--usage",
        metavar="FILE.svg",
        type=path_given,
        help="with --render: also the node's usage around the crossing of the first course",
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _positive_count(text: str) -> int:
    """Return a number from 1 on. Raises ArgumentTypeError, which argparse reports."""
    return whole_number(text, "a whole number from 1 on", least=1)


def _race(options: argparse.Namespace) -> int:
    with from_checkout("reactor bench race"):
        from bench.race.command import Wanted, race, render
    check_unused(options, "race", *_OF_PARTS, "--by-source")
    check_needed(options, "--render", "--plot", "--usage")
    if options.render is not None:
        check_unused(options, "--render", *_OF_A_RACE)
        return render(options.render, options.plot, options.results, options.usage)
    return race(
        Wanted(
            results=options.results or _RESULTS,
            rounds=options.rounds or 3,
            heats_a_turn=options.heats or 2,
            full=options.full,
            courses=options.courses or (),
            only=options.only or (),
            skip=options.skip or (),
            peers=options.peers,
            seed=options.seed,
        )
    )


def _bench(options: argparse.Namespace) -> int:
    with from_checkout("reactor bench"):
        from bench.baseline import BASELINE
        from bench.figures import Wanted, bench, bench_by_source
        from bench.parts import Effort
    check_needed(options, "--by-source", "--skip", "--rounds")
    if options.by_source:
        check_unused(options, "--by-source", *_OF_PARTS)
        return bench_by_source(
            options.results or _RESULTS, rounds=options.rounds or 5, skip=options.skip or ()
        )
    if options.against:
        check_unused(options, "--against", "--baseline")
    return bench(
        Wanted(
            results=options.results or _RESULTS,
            parts=options.parts or (),
            effort=Effort(
                runs=options.runs or 30,
                idle_seconds=options.idle_seconds or 60.0,
                turns=options.turns or 4,
            ),
            against=options.against or "",
            baseline=options.baseline or BASELINE,
            is_update=options.update_baseline,
        )
    )


def add_simulate(commands: Commands) -> None:
    """Declare `reactor simulate`."""
    command = add_command(
        commands,
        "simulate",
        _simulate,
        "replay a node's history through the same decisions, without root or a cluster",
        "reactor simulate scenario.yaml --output json",
    )
    command.add_argument(
        "scenarios",
        metavar="SCENARIO",
        nargs="*",
        type=path_or_dash,
        help="the scenario's file, - for standard input; with --sweep there may be several, and directories "
        "of recordings",
    )
    add_output(command)
    command.add_argument(
        "--sweep",
        metavar="THRESHOLDS",
        action="append",
        help="try many thresholds instead of the scenario's own: 'memory.available<100Mi..1Gi/50Mi' (hard), "
        "'memory.available<1Gi,2Gi@30s,2m' (soft, with its grace periods); or of a rule of the scenario "
        "'rule:NAME>=40%%,60%%@10s,30s' (the limit of its first condition, its time); given again, all "
        "combinations",
    )
    command.add_argument(
        "--csv", metavar="FILE", type=path_given, help="with --sweep: also write a table as CSV"
    )
    command.add_argument(
        "--report", metavar="FILE", type=path_given, help="with --sweep: also write one HTML page with plots"
    )
    command.add_argument(
        "--benchmark", action="store_true", help="instead: how many passes over 110 pods are made in a second"
    )


def _simulate(options: argparse.Namespace) -> int:
    if options.benchmark:
        check_unused(options, "--benchmark", "--sweep", "--csv", "--report")
        if options.scenarios:
            options.usage_error("SCENARIO: not with --benchmark; accepted: one or the other")
        if options.output != "table":
            options.usage_error(f"--output {options.output}: not with --benchmark; accepted: --output table")
        with from_checkout("reactor simulate --benchmark"):
            from bench.simulate import benchmark
        return benchmark()
    if not options.scenarios:
        options.usage_error("the following arguments are required: SCENARIO")
    if options.sweep is not None:
        from reactor.simulate.sweep import SweepOptions, sweep_files

        scenarios, is_fleet = _recordings(options.scenarios)
        return sweep_files(
            SweepOptions(
                scenarios=scenarios,
                skips_bad=is_fleet,
                sweeps=options.sweep,
                output=options.output,
                csv_path=options.csv,
                report_path=options.report,
            )
        )
    check_needed(options, "--sweep", "--csv", "--report")
    if len(options.scenarios) > 1:
        options.usage_error("several scenarios: only with --sweep")
    from reactor.simulate import run_scenario_file

    return run_scenario_file(options.scenarios[0], options.output)


_WITHIN = "how far apart a decision and what others did may be to belong together, in seconds (600)"
_ANONYMISE = (
    "replace the names of nodes, pools, pods and rules, the same name alike; with FILE, a key of 16 bytes or "
    "more, alike in all reports"
)


def add_shadow(commands: Commands) -> None:
    """Declare `reactor shadow`."""
    command = add_command(
        commands,
        "shadow",
        _shadow,
        "compare what reactor decided, in a dry run or in force, with what kubelet and kernel did then",
        "sudo reactor shadow --journal /var/log/reactor/journal.jsonl --report shadow.html",
    )
    command.add_argument(
        "--journal",
        metavar="FILE",
        type=path_given,
        help="the journal, with its older files (the configuration's)",
    )
    add_config(command)
    add_config_dir(command)
    _add_comparison(command)


def add_fleet(commands: Commands) -> None:
    """Declare `reactor fleet`."""
    command = add_command(
        commands,
        "fleet",
        _fleet,
        "compare what reactor and others did on many nodes, by pool, and try another policy on their history",
        "reactor fleet journals/ --policy new.yaml --allow-fewer 0 --report fleet.html",
    )
    command.add_argument(
        "paths",
        metavar="DIRECTORY",
        nargs="+",
        type=path_given,
        help="journals and recordings: NODE.jsonl, NODE.json, or NODE/journal.jsonl, NODE/recording.json; "
        "each may end in .gz",
    )
    command.add_argument(
        "--policy",
        metavar="FILE",
        type=path_given,
        help="a configuration: which evictions it would make more, and which fewer, in all recordings",
    )
    command.add_argument(
        "--allow-more", metavar="N", type=_count, help="with --policy: exit with 3 if it makes over N more"
    )
    command.add_argument(
        "--allow-fewer", metavar="N", type=_count, help="with --policy: exit with 3 if it makes over N fewer"
    )
    command.add_argument(
        "--allow-disagreements",
        metavar="N",
        type=_count,
        help="exit with 3 if reactor and the others disagreed more than N times",
    )
    command.add_argument(
        "--pool-label", metavar="LABEL", help="the Node's label that names its pool (the usual ones)"
    )
    command.add_argument(
        "--jobs", metavar="N", type=_positive_count, help="how many processes read (one a CPU)"
    )
    _add_comparison(command)


def _add_comparison(command: argparse.ArgumentParser) -> None:
    """Add what both commands have."""
    command.add_argument(
        "--within-seconds", metavar="SECONDS", type=positive_seconds, default=600.0, help=_WITHIN
    )
    command.add_argument("--report", metavar="FILE", type=path_given, help="also write one HTML page")
    command.add_argument(
        "--anonymise", metavar="FILE", nargs="?", type=path_given, const=CONFIGURED, help=_ANONYMISE
    )
    add_output(command)


def _count(text: str) -> int:
    """Return a number from 0 on. Raises ArgumentTypeError, which argparse reports."""
    return whole_number(text, "a whole number from 0 on", least=0)


def _key(options: argparse.Namespace) -> bytes | None:
    from reactor.shadow.fleet import key_in

    if options.anonymise is None:
        return None
    return key_in(None if options.anonymise == CONFIGURED else options.anonymise)


def _shadow(options: argparse.Namespace) -> int:
    import socket

    from reactor.shadow.fleet import Found, Options, Source, journal_files
    from reactor.shadow.page import run

    name = socket.gethostname()
    journal = journal_of(options)
    source = Source(name=name, journals=journal_files(journal))
    key = _key(options)
    run(
        Found(where=str(journal), sources=[source], problems=()),
        Options(within_seconds=options.within_seconds, key=key),
        title="reactor and the others" if key is not None else f"{name}: reactor and the others",
        output=options.output,
        report=options.report,
    )
    return 0


def _fleet(options: argparse.Namespace) -> int:
    import os

    from reactor.shadow.fleet import Options, sources_in
    from reactor.shadow.page import run
    from reactor.shadow.replay import Policy

    check_needed(options, "--policy", "--allow-more", "--allow-fewer")
    policy = None if options.policy is None else Policy.in_file(options.policy)
    found = sources_in(options.paths)
    key = _key(options)
    fleet = run(
        found,
        Options(within_seconds=options.within_seconds, pool_label=options.pool_label, policy=policy, key=key),
        title=f"A fleet of {len(found.sources)} nodes: reactor and the others",
        output=options.output,
        report=options.report,
        jobs=options.jobs or len(os.sched_getaffinity(0)),
    )
    limits = (
        (options.allow_more, fleet.total.more),
        (options.allow_fewer, fleet.total.fewer),
        (options.allow_disagreements, fleet.total.disagreements),
    )
    return 3 if any(allowed is not None and count > allowed for allowed, count in limits) else 0


def _recordings(paths: list[str]) -> tuple[list[str], bool]:
    """Return the scenarios that paths name, and whether a directory is among them. Raises ReactorError."""
    from reactor.errors import ReactorError
    from reactor.shadow.fleet import sources_in

    if not any(Path(path).is_dir() for path in paths):
        return paths, False
    found: list[str] = []
    for path in paths:
        if not Path(path).is_dir():
            found.append(path)
            continue
        there = [str(file) for source in sources_in([Path(path)]).sources for file in source.recordings]
        if not there:
            raise ReactorError(f"{path}: no recording (NAME.json) is there")
        found += there
    return found, True


def add_record(commands: Commands) -> None:
    """Declare `reactor record`."""
    command = add_command(
        commands,
        "record",
        _record,
        "turn this node's statistics and pods into a scenario for simulate",
        "sudo reactor record --config /etc/reactor/config.yaml --seconds 600 node.json",
    )
    command.add_argument(
        "output_file", metavar="SCENARIO", type=path_or_dash, help="the file to write, - for standard output"
    )
    add_config(command, is_needed=True)
    add_config_dir(command)
    command.add_argument(
        "--interval-seconds",
        metavar="SECONDS",
        type=positive_seconds,
        help="how often the node is observed, or its kubelet asked (10)",
    )
    command.add_argument("--seconds", type=positive_seconds, help="for how long (until Ctrl-C)")
    command.add_argument(
        "--journal", metavar="FILE", type=path_given, help="make it of this file of the journal instead"
    )
    command.add_argument(
        "--rotate-hours",
        metavar="HOURS",
        type=positive_seconds,
        help="begin a new file this often, and compress the one before to SCENARIO-TIME.json.gz",
    )
    command.add_argument(
        "--keep",
        metavar="N",
        type=_positive_count,
        help="with --rotate-hours: how many compressed files are kept (30)",
    )
    command.add_argument(
        "--label",
        metavar="KEY=VALUE",
        type=_label,
        action="append",
        default=[],
        help="a label of the node, such as pool=gpu, beside those of its Node; may be given again",
    )


def _label(text: str) -> tuple[str, str]:
    """Return a label. Raises ArgumentTypeError, which argparse reports."""
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: KEY=VALUE, such as pool=gpu")
    return key, value


def _record(options: argparse.Namespace) -> int:
    from reactor.simulate.recording import RecordOptions, record

    if options.rotate_hours is not None and (options.output_file == "-" or options.journal is not None):
        options.usage_error("--rotate-hours goes with a file, and not with --journal")
    check_needed(options, "--rotate-hours", "--keep")
    if options.journal is not None:
        check_unused(options, "--journal", "--interval-seconds", "--seconds")
    labels = dict(options.label)
    twice = next((f"{key}={value}" for key, value in options.label if labels[key] != value), None)
    if twice is not None:
        key = twice.partition("=")[0]
        options.usage_error(
            f"--label {twice}: not with --label {key}={labels[key]}; accepted: one or the other"
        )
    return record(
        RecordOptions(
            config=options.config,
            config_dir=options.config_dir,
            output=options.output_file,
            interval_seconds=options.interval_seconds or 10.0,
            seconds=options.seconds,
            journal=options.journal,
            rotate_seconds=None if options.rotate_hours is None else 3600 * options.rotate_hours,
            keep=options.keep or 30,
            labels=labels,
        )
    )
