"""`reactor bench`: the figures, measured on this machine, printed, stored as one JSON object and compared.

Kills are measured with every CPU kept busy by something else, those by source on an idle machine.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import reactor
from bench.baseline import BASELINE, kind_of, report, stored_in, update
from bench.by_source import PROBE_COST, by_source, check_skipped, probe_cost
from bench.page import PAGE, write_page
from bench.parts import FLOOR, HERE, Contestant, Effort, Part, check_tree, measured, parts_named, tree_at
from bench.rows import Turns, against
from reactor.errors import ReactorError, RefusedError, what_failed
from reactor.kernel.bpf.objects import absent_because
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.testbed.allocator import compiled_tool
from reactor.testbed.crossing import about, bench_node
from reactor.testbed.virtual_node import ended_by_signals

_ROOT: Final = Path(reactor.__file__).parents[1]

Figures = Iterator[
    dict[str, Any]
]  # some by their names at a time; a later one of a name replaces the earlier


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What `reactor bench` is asked for.

    `parts` are names, none for all. `against` is another tree's directory or commit. With `is_update` the
    run becomes the baseline for its kind of machine, and the table in docs/figures.md is of it.
    """

    results: Path = Path("bench-results")
    parts: Sequence[str] = ()
    effort: Effort = field(default_factory=Effort)
    against: str = ""
    baseline: Path = BASELINE
    is_update: bool = False


def bench(wanted: Wanted) -> int:
    """Measure, print, store below `results`, say what differs; return the exit status."""
    try:
        parts = parts_named(wanted.parts)
        if wanted.is_update and (wanted.against or wanted.parts):
            raise RefusedError("--update-baseline: not with --against or --parts: a baseline has all parts")
        if wanted.against:
            check_tree(wanted.against, _ROOT)
        else:
            stored_in(wanted.baseline)
    except ReactorError as error:
        _say(str(error))
        return 2
    names: list[str] = []

    def measure(tree: CgroupTree, tool: Path, directory: Path) -> Figures:
        with ExitStack() as stack:
            contestants = [HERE]
            if wanted.against:
                other = stack.enter_context(tree_at(wanted.against, _ROOT, directory))
                names.append(other.name)
                contestants = [other, HERE]
            yield from figures(parts, [*contestants, FLOOR], wanted.effort, tree, tool, directory)

    def compare(found: Mapping[str, Any]) -> None:
        if names:
            lines = against(found["rows"], names[0])
            print("\n".join(lines))
            return
        for line in report(found, wanted.baseline):
            _say(line)
        if wanted.is_update:
            update(found, wanted.baseline)
            write_page(wanted.baseline)
            _say(f"now the baseline for {kind_of(found)}: {wanted.baseline}; {PAGE} is written anew")

    return _measured(wanted.results, measure, compare, is_printed=not wanted.against)


def figures(
    parts: Mapping[str, Part],
    contestants: Sequence[Contestant],
    effort: Effort,
    tree: CgroupTree,
    tool: Path,
    directory: Path,
    measure: Callable[..., Iterator[tuple[str, Mapping[str, Sequence[float]]]]] = measured,
) -> Figures:
    """Yield the rows of all parts until then, after each turn."""
    rows: dict[str, Any] = {}
    for name, part in parts.items():
        _say(f"{name}: {part.text}")
        turns = Turns()
        for contestant, values in measure(part, contestants, effort, tree, tool, directory):
            turns.add(contestant, values)
            rows[name] = turns.rows()
            yield {"rows": rows}


def bench_by_source(
    results: Path = Path("bench-results"), *, rounds: int = 5, skip: Sequence[str] = ()
) -> int:
    """Measure each source of wakes beside the others, and on v2 what the eBPF probes cost; as `bench`."""
    try:
        check_skipped(skip)
    except (ReactorError, OSError) as error:
        _say(what_failed(error))
        return 2
    return _measured(results, lambda tree, tool, directory: _sources(tree, tool, directory, rounds, skip))


def _sources(tree: CgroupTree, tool: Path, directory: Path, rounds: int, skip: Sequence[str]) -> Figures:
    for found in by_source(tree, tool, directory, rounds, skip):
        yield {"by_source": found}
    if tree.version is CgroupVersion.V2 and absent_because("memory") is None and PROBE_COST not in skip:
        _say("the probes' cost")
        with bench_node(tree, tool, pods=1) as node:
            cost = probe_cost(node, tool, directory, rounds=max(2, 4 * rounds))
        yield {"probe_cost_percent": cost}


def _measured(
    results: Path,
    measure: Callable[[CgroupTree, Path, Path], Figures],
    compare: Callable[[Mapping[str, Any]], None] = lambda _: None,
    *,
    is_printed: bool = True,
) -> int:
    """Measure, print, store, compare; return the exit status.

    0 when measured (goals are goals), 1 where a run failed, 2 where this machine can't do it, 130 when
    interrupted: what was measured until then is printed and stored all the same.
    """
    if os.geteuid() != 0:
        print("reactor bench: needs root, to make cgroups: sudo reactor bench", file=sys.stderr)
        return 2
    try:
        tree, tool = CgroupTree.discover(), compiled_tool()
        results.mkdir(parents=True, exist_ok=True)
    except (ReactorError, OSError) as error:
        _say(what_failed(error))
        return 2
    try:
        with ended_by_signals(), tempfile.TemporaryDirectory(prefix="reactor-bench-") as directory:
            found = collected(about(tree.version), measure(tree, tool, Path(directory)))
        if is_printed:
            print(json.dumps(found, indent=2))
        print(f"stored as {_store(found, results)}", file=sys.stderr)
        for broken_off, status in (("interrupted", 130), ("failed", 1)):
            if broken_off in found["about"]:
                why = found["about"][broken_off]
                _say(f"{broken_off} {why}; everything is cleaned up; compared with nothing")
                return status
        compare(found)
    except KeyboardInterrupt:
        _say("interrupted; everything is cleaned up")
        return 130
    except (ReactorError, OSError) as error:
        _say(what_failed(error))
        return 1
    return 0


def collected(facts: Mapping[str, object], measured: Figures) -> dict[str, Any]:
    """Return the figures together, below `about` what they were measured on.

    If the measuring is interrupted or fails, `about` has `interrupted` or `failed`, and the figures are those
    until then. Raises KeyboardInterrupt, ReactorError, OSError if there are none.
    """
    found: dict[str, Any] = {"about": dict(facts)}
    started = time.monotonic()
    try:
        for figures_so_far in measured:
            found |= figures_so_far
    except (KeyboardInterrupt, ReactorError, OSError) as error:
        if found.keys() == {"about"}:
            raise
        after = f"after {time.monotonic() - started:.0f} s"
        if isinstance(error, KeyboardInterrupt):
            found["about"]["interrupted"] = after
        else:
            found["about"]["failed"] = f"{after}: {what_failed(error)}"
    return found


def _store(found: Mapping[str, Any], results: Path) -> Path:
    when = str(found["about"]["date"]).replace(":", "").partition("+")[0]
    path = results / f"{when}.json"
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return path


def _say(what: str) -> None:
    print(f"reactor bench: {what}", file=sys.stderr, flush=True)
