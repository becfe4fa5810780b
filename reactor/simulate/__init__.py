"""Scenarios: the same decision under a virtual clock; `sweep` tries many thresholds on them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, Final

from reactor.errors import ConfigError
from reactor.policy.messages import absurd_thresholds
from reactor.simulate.replay import Pass, line_of, passes
from reactor.simulate.scenario import scenario_in, warn, without_cycle_collection
from reactor.simulate.summary import Summary
from reactor.text import printable

_WHAT_COLUMNS: Final = 13


def run_scenario_file(path: str, output: str) -> int:
    """Replay the scenario in a file (`-`: standard input), print each step, return the exit status.

    Status 2 where the scenario is not valid, with one line per problem on standard error.
    """
    with without_cycle_collection():
        return _run(path, output)


def _run(path: str, output: str) -> int:
    try:
        scenario = scenario_in(path)
    except ConfigError as error:
        for problem in error.problems:
            print(printable(str(problem)), file=sys.stderr)
        return 2
    warn(scenario)
    if output != "json":
        if scenario.name:
            print(printable(scenario.name))
        print(f"{'AT':>10}  {'WHAT':<{_WHAT_COLUMNS}}  WHO")
    absurd: dict[str, str] = {}
    for made in passes(scenario, scenario.settings, Summary.snapshot):
        if output == "json":
            print(json.dumps(line_of(made)))
        else:
            _print_rows(made)
        if made.snapshot is not None:
            absurd |= absurd_thresholds(scenario.settings.thresholds, made.snapshot.signals)
            absurd |= {
                signal: f"{why}: it counts as unobserved" for signal, why in made.decision.absurd.items()
            }
    for what, why in absurd.items():
        print(f"warning: {what}: {why}", file=sys.stderr)
    return 0


def _print_rows(made: Pass) -> None:
    """Print what happens in a step, a line each: names stay whole however narrow the screen is."""
    at = f"{made.step.at:g} s"
    for what, who in _happened(made) or [("nothing", "")]:
        print(f"{at:>10}  {what:<{_WHAT_COLUMNS}}  {printable(who)}".rstrip())
        at = ""


def _rule(line: Mapping[str, Any]) -> str:
    """Return what a rule did in a step, or why it did nothing although its conditions hold."""
    if "cgroup" not in line:
        return f"{line['name']}: {line['because']}"
    inputs = "; ".join(f"{one['condition']}: {one['value']:g}" for one in line["inputs"])
    held = (
        f"{line['name']} ({line['action']}): held in {line['cgroup']} for {line['heldSeconds']:g} s, {inputs}"
    )
    return held if line["because"] is None else f"{held}; {line['because']}"


def _happened(made: Pass) -> list[tuple[str, str]]:
    line = line_of(made)

    def within(seconds: int) -> str:
        return f"within {seconds} s" if seconds else "at once"

    return [
        *(("condition", one) for one in line["conditions"]),
        *(("met", one) for one in line["thresholdsMet"]),
        *(("reclaimed", one) for one in line["reclaimed"]),
        *(
            happened
            for pod in line["evicted"]
            for happened in (
                ("evicted", pod["pod"]),
                ("", f"for {pod['signal']}, {within(pod['gracePeriodSeconds'])}"),
            )
        ),
        *(("rule", _rule(one)) for one in line.get("rules") or () if one["acted"] or one["holdsIn"]),
        *(
            ("never evicted" if one.pod.critical_because else f"{place}. in order", one.pod.key)
            for place, one in enumerate(made.decision.ranking, 1)
        ),
        *(("image removed", one) for one in line["imagesRemoved"]),
        *(("not admitted", key) for key, answer in line["admit"].items() if not answer["admitted"]),
        *([("error", line["error"])] if line["error"] else []),
    ]
