"""What the project said of a scenario against what upstream's code did.

Free are ties in a ranking, and upstream's choice among several thresholds that are due: both are the order of
a Go map or of an unstable sort. All else is not.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reactor.model.thresholds import ThresholdValue
from reactor.simulate.scenario import scenario_from_text
from tests.upstream.differential.messages import limit_signal, message_difference, worst_kind
from tests.upstream.differential.words import Json, amount

_Values = Mapping[tuple[str, float], Sequence[ThresholdValue]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where and how the two differ; `kind` groups those that have one cause."""

    step: int
    kind: str
    text: str


def compare(document: Json, lines: Sequence[Json], result: Json) -> list[Difference]:
    """Return the differences of each step: `lines` are the project's, `result` is the oracle's answer."""
    if result.get("error"):
        return [Difference(step=0, kind="refused upstream", text=result["error"])]
    if len(lines) != len(result["steps"]):
        return [Difference(step=0, kind="steps", text=f"{len(lines)} here, {len(result['steps'])} upstream")]
    found: list[Difference] = []
    values, pods, diverged = _values(document), document["pods"], False
    for index, (step, line, made) in enumerate(zip(document["steps"], lines, result["steps"], strict=True)):
        pods = step.get("pods", pods)
        problems = _state(step, line, made, values)
        diverged = diverged or bool(problems)
        if not problems:
            problems = _outcome(line, made, _critical_of(pods))
        if not diverged:
            problems += _admission(line, made)
        problems += _memcg(line, made, values)
        found += [Difference(step=index, kind=kind, text=text) for kind, text in problems]
    return found


def _values(document: Json) -> _Values:
    """Return the ways in which the configuration writes a threshold's value, by signal and grace period."""
    found: dict[tuple[str, float], list[ThresholdValue]] = {}
    for threshold in scenario_from_text(json.dumps(document), "scenario").settings.thresholds:
        key = (str(threshold.signal), float(threshold.grace_period_seconds))
        found.setdefault(key, []).append(threshold.value)
    return found


def _critical_of(pods: Sequence[Json]) -> frozenset[str]:
    return frozenset(f"{p['metadata']['namespace']}/{p['metadata']['name']}" for p in pods if _is_critical(p))


def _is_critical(pod: Json) -> bool:
    notes = pod["metadata"].get("annotations", {})
    is_static = notes.get("kubernetes.io/config.source", "api") != "api"
    return is_static or "kubernetes.io/config.mirror" in notes or pod["spec"].get("priority", 0) >= 2000000000


def _state(step: Json, line: Json, made: Json, values: _Values) -> list[tuple[str, str]]:
    found = []
    if line["conditions"] != made["conditions"]:
        found.append(("conditions", f"{line['conditions']} here, {made['conditions']} upstream"))
    if not step.get("statsError"):
        theirs, mine = set(_as_written(made["met"], values)), set(line["thresholdsMet"])
        if mine != theirs:
            signal = min(mine ^ theirs).split("<")[0]
            found.append((f"met:{signal}", f"{sorted(mine)} here, {sorted(theirs)} upstream"))
    return found


def _as_written(met: Sequence[Json], values: _Values) -> list[str]:
    """Return upstream's thresholds as `signal<value`, the value as the configuration has it."""
    found = []
    for threshold in met:
        possible = values.get((threshold["signal"], threshold["grace"]), ())
        exact = [value for value in possible if _is_value(value, threshold)]
        chosen = exact or possible
        found.append(f"{threshold['signal']}<{chosen[0].text if chosen else '?'}")
    return found


def _is_value(value: ThresholdValue, threshold: Json) -> bool:
    if value.amount is not None:
        return bool(threshold.get("quantity")) and amount(threshold["quantity"]) == value.amount
    percent = threshold.get("percent")
    return (
        percent is not None and value.percent is not None and abs(float(value.percent) / 100 - percent) < 1e-6
    )


def _outcome(line: Json, made: Json, critical: frozenset[str]) -> list[tuple[str, str]]:
    """Return what differs from each of the outcomes that upstream may have."""
    problems = [_fits(outcome, line, critical) for outcome in made["outcomes"]]
    if None in problems:
        return _messages(line, made, problems)
    mine = [
        problem
        for problem, outcome in zip(problems, made["outcomes"], strict=True)
        if not line["evicted"] or outcome["signal"] == line["evicted"][0]["signal"]
    ]
    theirs = [
        {key: outcome[key] for key in ("signal", "reclaimed", "ranking", "evicted")}
        for outcome in made["outcomes"]
    ]
    here = {key: line[key] for key in ("reclaimed", "ranking", "evicted")}
    return [(f"outcome:{(mine or problems)[0]}", f"{here} here, one of {theirs} upstream")]


def _fits(outcome: Json, line: Json, critical: frozenset[str]) -> str | None:
    """Return what differs first from this outcome, None where only ties do."""
    if outcome["reclaimed"] != line["reclaimed"]:
        return "reclaimed"
    has_limits = any(eviction["signal"].endswith(".limit") for eviction in line["evicted"])
    if has_limits != bool(outcome["evicted"] and not outcome["signal"]):
        return "limits"
    if has_limits:
        return _limits(outcome, line)
    return _ranking(outcome, line, critical)


def _ranking(outcome: Json, line: Json, critical: frozenset[str]) -> str | None:
    """Return what differs about the order of eviction, and about who is evicted."""
    groups = [kept for group in outcome["ranking"] if (kept := [pod for pod in group if pod not in critical])]
    ranking = [pod for pod in line["ranking"] if pod not in critical]
    if not _is_ordered(ranking, groups):
        return f"ranking:{outcome['signal']}"
    if len(line["evicted"]) != len(outcome["evicted"]) or len(line["evicted"]) > 1:
        return "evicted"
    for mine, theirs in zip(line["evicted"], outcome["evicted"], strict=True):
        return _victim(outcome["signal"], groups[0], mine, theirs)
    return None


def _victim(signal: str, first: Sequence[str], mine: Json, theirs: Json) -> str | None:
    if mine["pod"] not in first or mine["signal"] != signal:
        return "evicted"
    if mine["pod"] == theirs["pod"] and mine["gracePeriodSeconds"] != theirs["grace"]:
        return "grace"
    return None


def _is_ordered(ranking: Sequence[str], groups: Sequence[Sequence[str]]) -> bool:
    """Return whether a ranking has these groups one after the other, each in any order."""
    at = 0
    for group in groups:
        if sorted(ranking[at : at + len(group)]) != sorted(group):
            return False
        at += len(group)
    return at == len(ranking)


def _limits(outcome: Json, line: Json) -> str | None:
    if len(line["evicted"]) != len(outcome["evicted"]):
        return "limits"
    for mine, theirs in zip(line["evicted"], outcome["evicted"], strict=True):
        if (mine["uid"], mine["gracePeriodSeconds"], mine["reason"]) != (
            theirs["uid"],
            theirs["grace"],
            theirs["reason"],
        ):
            return "limits"
        if mine["signal"] != limit_signal(theirs["message"]):
            return "limit-signal"
    return None


def _messages(line: Json, made: Json, problems: Sequence[str | None]) -> list[tuple[str, str]]:
    """Return what differs from the messages of every outcome that fits."""
    said = [
        message_difference(mine, theirs, outcome["signal"], made["met"])
        for problem, outcome in zip(problems, made["outcomes"], strict=True)
        if problem is None
        for mine, theirs in zip(line["evicted"], outcome["evicted"], strict=True)
    ]
    kinds = [kind for kind in said if kind is not None]
    if not kinds or (None in said and "message-limit" not in kinds):
        return []
    here = [(eviction["message"], eviction["annotations"]) for eviction in line["evicted"]]
    theirs = [(e["message"], e["annotations"]) for outcome in made["outcomes"] for e in outcome["evicted"]]
    return [(worst_kind(kinds), f"{here} here, {theirs} upstream, {made['met']}")]


def _admission(line: Json, made: Json) -> list[tuple[str, str]]:
    found = []
    for pod, theirs in made["admit"].items():
        mine = line["admit"].get(pod) or {"admitted": None, "reason": None, "message": None}
        told, heard = (_unordered(answer["message"] or "") for answer in (mine, theirs))
        if (mine["admitted"], mine["reason"] or "", told) != (theirs["admitted"], theirs["reason"], heard):
            found.append(("admit", f"{pod}: {mine} here, {theirs} upstream"))
    return found


def _unordered(message: str) -> tuple[str, list[str]]:
    """Return a message without its conditions, and these sorted: upstream has them in no order."""
    named = re.compile(r"\w+Pressure ?")
    return named.sub("", message), sorted(one.strip() for one in named.findall(message))


def _memcg(line: Json, made: Json, values: _Values) -> list[tuple[str, str]]:
    """Compare the levels armed in the kernel; the oracle has one name for a signal's hard thresholds."""
    levels: dict[str, int] = {}
    shared: set[str] = set()
    for name, level in made["memcg"].items():
        signal, grace = name.split("@")
        possible = [f"{signal}<{value.text}" for value in values.get((signal, float(grace)), ())]
        if len(possible) > 1:
            shared |= set(possible)
        else:
            levels.update(dict.fromkeys(possible, level))
    mine = {name: level for name, level in line["memcgThresholdsBytes"].items() if name not in shared}
    return [] if mine == levels else [("memcg", f"{mine} here, {levels} upstream")]


def coverage(document: Json, lines: Sequence[Json], result: Json) -> Counter[str]:
    """Return what of a scenario there was to compare, by name."""
    found: Counter[str] = Counter({"scenarios": 1, "steps": len(lines)})
    for step, line, made in zip(document["steps"], lines, result.get("steps") or (), strict=False):
        found["passes of upstream"] += made["runs"]
        found["steps with a condition"] += bool(line["conditions"])
        found["steps without statistics"] += bool(step.get("statsError"))
        found["thresholds met"] += len(line["thresholdsMet"])
        found["reclaims"] += len(line["reclaimed"])
        found["pods spared by a reclaim"] += bool(line["reclaimed"]) and not line["ranking"]
        found["pods ranked"] += len(line["ranking"])
        found["steps with ties"] += any(
            len(group) > 1 for each in made["outcomes"] for group in each["ranking"]
        )
        found["steps with a choice of thresholds"] += len(made["outcomes"]) > 1
        found["pods asked to be admitted"] += len(made["admit"])
        found["pods refused"] += sum(not answer["admitted"] for answer in made["admit"].values())
        found["levels armed"] += len(made["memcg"])
        for eviction in line["evicted"]:
            found[f"evicted for {eviction['signal']}"] += 1
            found["evicted softly"] += eviction["gracePeriodSeconds"] > 0
    return found
