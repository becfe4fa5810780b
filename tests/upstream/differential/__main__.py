"""Compare the project's policy with upstream's own code; `make test-upstream` runs this."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.upstream.differential.mutants import run_mutants
from tests.upstream.differential.oracle import OracleError
from tests.upstream.differential.policy_page import with_section
from tests.upstream.differential.run import cores, run
from tests.upstream.differential.sides import Evictions, Images, project

_ROOT = Path(__file__).parents[3]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0: all alike, 1: a difference that is not known, 2: the oracle failed."""
    args = _parser().parse_args(arguments)
    try:
        status: int = args.command(args)
    except OracleError as error:
        print(f"upstream: {error}", file=sys.stderr)
        return 2
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="differential", description=__doc__)
    commands = parser.add_subparsers(required=True)
    compare = commands.add_parser("run", help="compare the scenarios of many seeds")
    compare.add_argument(
        "--seeds", default="0:20000", type=_seeds, metavar="FROM:TO", help="default: 0:20000"
    )
    compare.add_argument(
        "--quick", action="store_true", help="stop at the first difference, and don't shrink it"
    )
    compare.set_defaults(command=_run)
    show = commands.add_parser("show", help="print both answers to one scenario (JSON)")
    show.add_argument("file", type=Path)
    show.set_defaults(command=_show)
    mutants = commands.add_parser("mutants", help="put faults into the project, each of which has to be seen")
    mutants.add_argument("--seeds", default="0:1000", type=_seeds, metavar="FROM:TO", help="default: 0:1000")
    mutants.add_argument(
        "--only", default="", metavar="TEXT", help="of faults in files that have TEXT in their path"
    )
    mutants.set_defaults(command=_mutants)
    for each in (compare, show, mutants):
        each.add_argument(
            "--oracle", required=True, type=Path, metavar="DIR", help="what build-oracle.sh prints"
        )
    for each in (compare, mutants):
        each.add_argument(
            "--jobs", default=cores(), type=int, help="how many run at once; default: the cores"
        )
    page = commands.add_parser("policy-page", help="make the list of differences in docs/policy.md again")
    page.set_defaults(command=_policy_page)
    return parser


def _seeds(text: str) -> range:
    first, _, last = text.rpartition(":")
    try:
        return range(int(first or 0), int(last))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}; accepted: FROM:TO or a number") from error


def _run(args: argparse.Namespace) -> int:
    folder = _ROOT / ".cache" / "upstream"
    return run(args.oracle, args.seeds, jobs=args.jobs, folder=folder, is_quick=args.quick)


def _show(args: argparse.Namespace) -> int:
    document = json.loads(args.file.read_text(encoding="utf-8"))
    runners: list[Evictions | Images] = [Evictions(oracle=args.oracle)]
    if document["images"]:
        runners.append(Images(oracle=args.oracle))
    for line in project(document):
        print("here    ", json.dumps(line))
    status = 0
    for runner in runners:
        for step in runner.answers(document):
            print("upstream", json.dumps(step))
        for difference in runner.differences([document])[0]:
            print("differs ", difference)
            status = 1
    return status


def _mutants(args: argparse.Namespace) -> int:
    return run_mutants(_ROOT, args.oracle, args.seeds, jobs=args.jobs, only=args.only)


def _policy_page(_args: argparse.Namespace) -> int:
    page = _ROOT / "docs" / "policy.md"
    page.write_text(with_section(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
