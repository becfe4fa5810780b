"""What is kept where daemon and oracle disagree: a scenario that replays, and the evidence."""

from __future__ import annotations

import json
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tests.soak.episode import Outcome
from tests.soak.oracle import WRONG_POD, Episode, Judged, Rules, Sample

_AROUND: Final = 12
_OF_ALL: Final = 60
_LINES: Final = 80
_MOST_KEPT: Final = 20  # of one kind
_SLOW_MS: Final = 20.0
_NAMES: Final = re.compile(r"\b(cgroup|soak)/[^, ]+(, (cgroup|soak)/[^, ]+)*")
_THRESHOLD: Final = re.compile(r"[a-zA-Z]+\.available<\S+")
_JOURNAL_SECONDS: Final = 0.3  # a line waits until its pods are gone


class Evidence:
    """Keeps what is to be said against the daemon, and the slowest kills, in a directory.

    As the journal has it: `served_ns`, of each kill under a warrant, from the crossing to the signal;
    `not_served`, why the daemon killed at a crossing.
    """

    def __init__(self, directory: Path, journal: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        self._directory = directory
        self._journal = journal
        self._lines: deque[Mapping[str, Any]] = deque(maxlen=_LINES)
        self._slowest_ms = _SLOW_MS
        self._kept: Counter[str] = Counter()
        self.served_ns: list[int] = []
        self.not_served: Counter[str] = Counter()

    def take(self, outcome: Outcome) -> str | None:
        """Return what is to be said of an outcome and where that is kept; None of one that is right."""
        said = against(outcome)
        to_kill_ms = max(outcome.to_kill_ms, default=0.0)
        if not said and to_kill_ms > self._slowest_ms:
            self._slowest_ms = to_kill_ms
            said = f"slow: {to_kill_ms:.0f} ms"
        self._take_lines()
        kind = said.partition(":")[0]
        if not said or self._kept[kind] >= _MOST_KEPT:
            return said or None
        time.sleep(_JOURNAL_SECONDS)
        self._take_lines()
        self._kept[kind] += 1
        said = "; ".join((said, *daemon_read(outcome, self._lines)))
        return f"{said}; {keep(self._directory, self._kept.total(), outcome, list(self._lines))}"

    def _take_lines(self) -> None:
        for line in self._journal():
            self._lines.append(line)
            for eviction in line.get("evictions", ()):
                warrant = eviction.get("warrant")
                if warrant is not None and warrant["refused"] is None:
                    self.served_ns.append(warrant["signalled_ns"] - warrant["crossed_ns"])
                elif (why := eviction.get("no_warrant_because")) is not None:
                    self.not_served[_NAMES.sub("a pod", _THRESHOLD.sub("a threshold", why))] += 1


def against(outcome: Outcome) -> str:
    """Return what is to be said against the daemon in one line, nothing where it was right."""
    lives = outcome.episode.lives
    said = []
    for judged in outcome.verdict.kills:
        if judged.wrong is not None:
            right = " or ".join(lives[one].name for one in judged.acceptable)
            instead = f", not {right}" if judged.wrong == WRONG_POD else ""
            said.append(f"{judged.wrong}: {lives[judged.kill.instance].name}{instead}")
    said += [*outcome.verdict.missed, *(f"{name} was killed in part" for name in outcome.partly_killed)]
    said += [f"the kernel killed in {name}" for name in outcome.oom_killed]
    return "; ".join((*said, *map(str, outcome.disturbed))) if said else ""


def daemon_read(outcome: Outcome, journal: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield on which reading of its own the daemon decided each kill that is called wrong.

    No verdict goes by it: it says whether the counters of both differ, or the kill came early.
    """
    lives = outcome.episode.lives
    names = {lives[one.kill.instance].name for one in outcome.verdict.kills if one.wrong is not None}
    for line in journal:
        threshold = line.get("threshold")
        if threshold is None:
            continue
        cached_bytes = line["observations"][threshold["signal"]]["inactive_file_bytes"]
        for eviction in line.get("evictions", ()):
            name = eviction["pod"].rpartition("/")[2]
            if name in names and eviction["killed_ns"] is not None:
                took_ms = (eviction["killed_ns"] - line["timing"]["observed_ns"]) / 1e6
                yield (
                    f"{name}: the daemon read {threshold['available']} available of {threshold['value']} "
                    f"wanted, {cached_bytes} of them page cache, {took_ms:.2f} ms before the kill"
                )


def keep(directory: Path, number: int, outcome: Outcome, journal: Sequence[Mapping[str, Any]]) -> Path:
    """Write NUMBER.scenario.json, for `reactor simulate`, and NUMBER.evidence.json; return the first path."""
    directory.mkdir(parents=True, exist_ok=True)
    episode, verdict = outcome.episode, outcome.verdict
    wrong = next((one for one in verdict.kills if one.wrong is not None), None)
    at_ns = wrong.kill.at_ns if wrong is not None else _last_ns(episode)
    scenario = scenario_of(episode, at_ns, f"disagreement {number}")
    path = directory / f"{number}.scenario.json"
    path.write_text(json.dumps(scenario, indent=1))
    evidence = {
        "expected": [_expected(episode, judged) for judged in verdict.kills],
        "missed": verdict.missed,
        "partly_killed": outcome.partly_killed,
        "disturbed": outcome.disturbed,
        "rules": [asdict(rules) for rules in episode.rules],
        "crossed_ns": episode.crossed_ns,
        "away": episode.away,
        "lives": [asdict(life) for life in episode.lives.values()],
        "samples": [_sample(sample) for sample in _around(episode.samples, at_ns)],
        "journal": list(journal),
    }
    (directory / f"{number}.evidence.json").write_text(json.dumps(evidence, indent=1))
    return path


def scenario_of(episode: Episode, at_ns: int, name: str) -> Mapping[str, Any]:
    """Return the node and its pods as last sampled before an instant, as a scenario of one step."""
    before = [sample for sample in episode.samples if sample.ended_ns <= at_ns] or list(episode.samples)[:1]
    sample = before[-1]
    rules = episode.rules[0]
    gone = {kill.instance for kill in episode.kills if kill.at_ns < at_ns}
    present = {instance: one for instance, one in sample.pods.items() if instance in episode.lives}
    shown = {instance: one for instance, one in present.items() if instance not in gone}
    working_set = sample.node.working_set_bytes - sum(
        one.working_set_bytes for instance, one in present.items() if instance in gone
    )
    return {
        "apiVersion": "reactor/v1alpha1",
        "kind": "Scenario",
        "name": name,
        "kubeletConfiguration": _configuration(rules),
        "pods": [_pod(episode, instance) for instance in shown],
        "steps": [
            {
                "at": "0s",
                "summary": {
                    "node": {
                        "memory": {
                            "availableBytes": max(0, rules.capacity_bytes - working_set),
                            "workingSetBytes": working_set,
                            "usageBytes": working_set + sample.node.inactive_file_bytes,
                        }
                    },
                    "pods": [
                        {
                            "podRef": _reference(episode, instance),
                            "memory": {"workingSetBytes": one.working_set_bytes},
                        }
                        for instance, one in shown.items()
                    ],
                },
            }
        ],
    }


def _configuration(rules: Rules) -> Mapping[str, Any]:
    return {
        "evictionHard": {"memory.available": str(rules.hard_bytes)},
        "evictionMinimumReclaim": {"memory.available": str(rules.minimum_reclaim_bytes)},
    }


def _reference(episode: Episode, instance: int) -> Mapping[str, str]:
    return {"name": episode.lives[instance].name, "namespace": "soak", "uid": str(instance)}


def _pod(episode: Episode, instance: int) -> Mapping[str, Any]:
    spec = episode.lives[instance].spec
    requests = {"memory": str(spec.request_bytes)} if spec.request_bytes else {}
    return {
        "metadata": _reference(episode, instance),
        "spec": {
            "priority": spec.priority,
            "containers": [{"name": "all", "resources": {"requests": requests}}],
        },
    }


def _expected(episode: Episode, judged: Judged) -> Mapping[str, Any]:
    return {
        "killed": episode.lives[judged.kill.instance].name,
        "instance": judged.kill.instance,
        "at_ns": judged.kill.at_ns,
        "acceptable": [f"{episode.lives[one].name}#{one}" for one in judged.acceptable],
        "wrong": judged.wrong,
        "helped": judged.helped,
        "window": judged.window,
    }


def _last_ns(episode: Episode) -> int:
    return episode.samples[-1].ended_ns if episode.samples else 0


def _around(samples: Sequence[Sample], at_ns: int) -> Sequence[Sample]:
    """Return the samples around an instant, and a few of all the others."""
    place = next((at for at, sample in enumerate(samples) if sample.ended_ns >= at_ns), len(samples))
    apart = max(1, len(samples) // _OF_ALL)
    return [sample for at, sample in enumerate(samples) if abs(at - place) <= _AROUND or at % apart == 0]


def _sample(sample: Sample) -> Mapping[str, Any]:
    return {
        "began_ns": sample.began_ns,
        "ended_ns": sample.ended_ns,
        "node": [sample.node.usage_bytes, sample.node.inactive_file_bytes],
        "peak": sample.peak_bytes,
        "cached_before": sample.cached_before_bytes,
        "pods": {
            instance: [one.usage_bytes, one.inactive_file_bytes] for instance, one in sample.pods.items()
        },
    }
