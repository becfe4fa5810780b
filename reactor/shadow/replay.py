"""Another policy over a node's recordings, or over its journal where it has none: what it would change.

A month of a node is thousands of steps, and few of them matter. A step in which nothing is below any
threshold of either policy, minimum reclaim included, decides nothing. Its figures alone show that, and its
pods are not read. One that may decide something is read in full, and so is the first one after it. What is
skipped changes no later decision but the node conditions, by which no pod is evicted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from reactor.config.settings import load_configuration
from reactor.errors import ConfigError, ReactorError
from reactor.model.pods import Pod
from reactor.model.rules import Rule
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Layout, Signal
from reactor.model.thresholds import Threshold
from reactor.shadow import Node, read_line, shown, unix_seconds
from reactor.simulate.recording import JournalSteps, header_of
from reactor.simulate.replay import Pass, passes_over
from reactor.simulate.scenario import RecordedNode, Scenario, Step, eviction_settings, scenario_of, step_of
from reactor.simulate.summary import Summary

WITHIN_SECONDS: Final = 600.0
_LARGEST_WHOLE: Final = 16 << 20  # of a scenario that is no recording: it is read as a whole
_MOST_EVICTIONS: Final = 10_000
_MOST_STEPS: Final = 2_000_000
_MOST_READ: Final = 100_000  # steps of one node that are read in full, some 250 a second
_STEPS: Final = b'"steps":['
_FULL: Final = frozenset({"afterReclaim", "reclaimError"})
_QUIET: Final = re.compile(rb'\{"at":"[0-9.]+s","summary":\{"node":(?=\{)')
_QUIET_ENDS: Final = (b"]}}", b"]}},")
_LONGEST_NODE: Final = 4096
_DECODER: Final = json.JSONDecoder()

Lines = Callable[[Path], Iterator[bytes]]
Numbers = Mapping[str, Any] | None


class Files(Protocol):
    """A node's files, the oldest first."""

    name: str
    journals: list[Path]
    recordings: list[Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A configuration whose thresholds and rules are tried; `layout` is for journals, which have none."""

    header: Mapping[str, Any]
    layout: Layout

    @classmethod
    def in_file(cls, path: Path) -> Policy:
        """Return the policy of a configuration. Raises ConfigError with every problem in it."""
        configuration = load_configuration(path)
        return cls(header=header_of(configuration, path), layout=configuration.settings.eviction.layout)

    def scenario(self) -> Scenario:
        """Return it as a scenario without a step: its settings, and its rules."""
        return scenario_of({"apiVersion": "reactor/v1alpha1", "kind": "Scenario", **self.header, "steps": []})


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted:
    """An eviction in a replay, or one that a journal has; `by` is its threshold, rule or limit."""

    at: float
    pod: str
    uid: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """An eviction that another policy makes and the one in force does not (`is_more`), or the reverse.

    `at` is since 1970; without a time in the recording since its start (`has_date` false). `source` is
    `recording` or `journal`.
    """

    at: float
    has_date: bool
    pod: str
    uid: str
    by: str
    is_more: bool
    source: str


@dataclass(slots=True, kw_only=True)
class Changes:
    """What a node's files come to. `passes` were made in full, of `steps` in all, for both policies."""

    changes: tuple[Changed, ...] = ()
    passes: int = 0
    steps: int = 0
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def changes_of(
    source: Files, node: Node, policy: Policy | None, lines_of: Lines, problems: list[str]
) -> Changes:
    """Return what a policy changes on one node; without a policy whose recordings they are.

    What is wrong with a file goes to `problems`.
    """
    made = Changes()
    found: list[Changed] = []
    for path in source.recordings:
        try:
            found += _of_recording(path, policy, lines_of, made, problems)
        except (ReactorError, OSError, ValueError, RecursionError) as error:
            problems.append(f"{path}: {_first(error)}")
    if policy is not None and not source.recordings and source.journals:
        found += _of_journals(source.journals, node, policy, lines_of, made, problems)
    made.changes = tuple(sorted(found, key=lambda one: one.at))
    return made


def _first(error: Exception) -> str:
    if isinstance(error, ConfigError):
        rest = len(error.problems) - 1
        return f"{error.problems[0]}{f', and {rest} more problems' if rest > 0 else ''}"
    return str(error)[:400]


def _of_recording(
    path: Path, policy: Policy | None, lines_of: Lines, made: Changes, problems: list[str]
) -> Iterator[Changed]:
    lines = lines_of(path)
    head = next(lines, b"")
    try:
        steps: Iterator[Any] | None = None
        if head.rstrip().endswith(_STEPS):
            scenario = scenario_of(json.loads(head.rstrip() + b"]}"))
        else:
            scenario, steps = _whole(head, lines)
    except (ValueError, RecursionError) as error:
        if isinstance(error, ReactorError):
            raise
        raise ReactorError("no recording: its beginning is not JSON") from error
    made.name, made.labels = shown(scenario.node.name) or made.name, _labels(scenario.node) or made.labels
    if policy is None:
        return
    other = policy.scenario()
    with_policy = eviction_settings(other.configuration, scenario.layout)
    replay = _Replay([(scenario.settings, scenario.rules), (with_policy, other.rules)], scenario)
    try:
        for raw in steps or ():
            replay.take(raw)
        for line in lines:  # none are left of a scenario that was read as a whole
            replay.take_line(line)
    except ReactorError as error:
        problems.append(f"{path}: step {replay.steps}, where its replay ends: {_first(error)}")
    made.steps += replay.steps
    made.passes += replay.passes
    before, after = replay.evicted
    yield from _differences(before, after, unix_seconds(scenario.node.began), "recording")


def _whole(head: bytes, lines: Iterable[bytes]) -> tuple[Scenario, Iterator[Any]]:
    """Return a scenario that is not written step by step, and its steps."""
    text = bytearray(head)
    for line in lines:
        text += line
        if len(text) > _LARGEST_WHOLE:
            raise ReactorError(
                f"more than {_LARGEST_WHOLE >> 20} MiB, and no step a line as record writes it"
            )
    document = read_line(bytes(text))
    steps = None if document is None else document.get("steps")
    if document is None or not isinstance(steps, list):
        raise ReactorError("neither a recording nor a scenario in JSON")
    return scenario_of({**document, "steps": []}), iter(steps)


def _step(line: bytes) -> Any:
    """Return the step in a line of a recording, None for its end. Raises ReactorError."""
    text = line.strip()
    if text in {b"]}", b""}:
        return None
    step = read_line(text.removesuffix(b","))
    if step is None:
        raise ReactorError(
            f"got {text[:40]!r} for a step; accepted: a JSON object a line, as record writes it"
        )
    return step


def _labels(node: RecordedNode) -> dict[str, str]:
    return {shown(key): shown(value) for key, value in list(node.labels.items())[:64]}


def _of_journals(
    paths: Sequence[Path],
    node: Node,
    policy: Policy,
    lines_of: Lines,
    made: Changes,
    problems: list[str],
) -> Iterator[Changed]:
    """Yield what changes against the evictions that the journal has: it has no configuration."""
    other = policy.scenario()
    replay = _Replay([(eviction_settings(other.configuration, policy.layout), other.rules)], other)
    steps = JournalSteps()
    bad = 0
    for path in paths:
        for line in lines_of(path):
            document = read_line(line)
            if document is None:
                continue  # counted where decisions are paired
            try:
                raw = steps.step(document)
                if raw is not None:
                    replay.take(raw)
            except (ConfigError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
                bad += 1
    if bad:
        problems.append(f"{paths[-1]}: {bad} decisions can't be replayed")
    made.steps += replay.steps
    made.passes += replay.passes
    before = [
        Evicted(at=one.at, pod=one.pod, uid=one.uid, by=one.threshold or one.signal)
        for one in (pair.decided for pair in node.pairs)
        if one is not None
    ]
    (after,) = replay.evicted
    began = steps.began or 0.0
    after = [Evicted(at=began + one.at, pod=one.pod, uid=one.uid, by=one.by) for one in after]
    yield from _differences(before, after, 0.0, "journal")


def _differences(
    before: Sequence[Evicted], after: Sequence[Evicted], began: float | None, source: str
) -> Iterator[Changed]:
    """Yield the evictions of one list that the other does not have within ten minutes."""
    for mine, others, is_more in ((before, after, False), (after, before, True)):
        times: dict[str, list[float]] = {}
        for one in others:
            times.setdefault(one.uid, []).append(one.at)
        for one in mine:
            near = times.get(one.uid, [])
            if any(abs(at - one.at) <= WITHIN_SECONDS for at in near):
                continue
            yield Changed(
                at=one.at if began is None else began + one.at,
                has_date=began is not None,
                pod=one.pod,
                uid=one.uid,
                by=one.by,
                is_more=is_more,
                source=source,
            )


class _Replay:
    """Takes raw steps for several policies at once: each that matters is read once for all of them."""

    def __init__(
        self, policies: Sequence[tuple[EvictionSettings, Sequence[Rule]]], scenario: Scenario
    ) -> None:
        self._policies = [_Policy(settings, rules, scenario) for settings, rules in policies]
        self._near = _Near([one for settings, _ in policies for one in settings.thresholds])
        self._reads_all = bool(scenario.images) or any(rules for _, rules in policies)
        self._isolates = any(settings.local_storage_capacity_isolation for settings, _ in policies)
        self._pods: dict[str, Any] = {}  # `pods` of the last step that had some, and what stands beside them
        self._is_read = True
        self._summary: Any = None  # of a step that was not read: one without statistics repeats it
        self._limits: Mapping[str, int] = _limits(scenario.pods)
        self._was_near = False
        self.steps = 0
        self.passes = 0

    @property
    def evicted(self) -> tuple[list[Evicted], ...]:
        """Return what each policy has evicted."""
        return tuple(one.evicted for one in self._policies)

    def take_line(self, line: bytes) -> None:
        """Take a step as `record` writes it, a line each; most are told by the node's figures alone.

        Raises as `take`, ReactorError for what is no step.
        """
        if not (self._was_near or self._limits or self._reads_all) and self._near.is_far(line):
            self.steps += 1
            self._summary = line
            return
        raw = _step(line)
        if raw is not None:
            self.take(raw)

    def take(self, raw: Mapping[str, Any]) -> None:
        """Take a step. Raises ConfigError for one that matters and can't be read."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise ReactorError(f"more than {_MOST_STEPS} steps; accepted: so many of one node")
        if "pods" in raw:
            self._pods = {key: raw[key] for key in ("pods", "preferences", "podCgroups") if key in raw}
            self._is_read = False
            if self._isolates and _may_limit(raw["pods"]):
                # Only the limits: all else is read with the first step that matters.
                self._limits = _limits(step_of({"at": "0s", "pods": raw["pods"]})[0].pods or ())
            else:
                self._limits = {}
        is_near = self._reads_all or self._near.is_near(raw) or _may_exceed(raw, self._limits)
        if not is_near and not self._was_near:
            self._summary = raw.get("summary", self._summary)
            return
        self._was_near = is_near or (self._was_near and "statsError" in raw)  # which ends no shortage
        if self._summary is not None and "summary" not in raw and "statsError" not in raw:
            if isinstance(self._summary, bytes):
                self._summary = (_step(self._summary) or {}).get("summary")
            raw = {**raw, "summary": self._summary}
        self._summary = None if "summary" in raw else self._summary
        if not self._is_read:
            raw, self._is_read = {**raw, **self._pods}, True
        if self.passes >= _MOST_READ * len(self._policies):
            raise ReactorError(f"more than {_MOST_READ} steps near a threshold; the rest is left out")
        step, numbers = step_of(raw)
        self.passes += len(self._policies)
        for one in self._policies:
            one.take(step, numbers)


class _Policy:
    """One policy's replay, and each pod that it evicts once for one shortage."""

    def __init__(self, settings: EvictionSettings, rules: Sequence[Rule], scenario: Scenario) -> None:
        self._next: list[tuple[Step, Numbers]] = []
        self._passes: Iterator[Pass] = passes_over(
            iter(self._next.pop, None),
            settings,
            Summary.snapshot,
            rules,
            pods=scenario.pods,
            images=scenario.images,
        )
        self._open: dict[tuple[str, object], None] = {}
        self.evicted: list[Evicted] = []

    def take(self, step: Step, numbers: Numbers) -> None:
        self._next.append((step, numbers))
        made = next(self._passes)
        decision = made.decision
        met = set(decision.thresholds_met)
        if made.snapshot is not None:  # else nothing is known of any threshold
            still = (key for key in self._open if not isinstance(key[1], Threshold) or key[1] in met)
            self._open = dict.fromkeys(still)
        for eviction in decision.evictions:
            by = eviction.threshold or eviction.signal
            key = (eviction.pod.uid, by)
            if key not in self._open:
                self._open[key] = None
                self._add(step, eviction.pod, str(by))
        for by_rule in made.by_rules:
            for eviction in by_rule.evictions:
                name = "rule" if by_rule.rule is None else f"rule {by_rule.rule.rule.name}"
                self._add(step, eviction.pod, name)

    def _add(self, step: Step, pod: Pod, by: str) -> None:
        if len(self.evicted) < _MOST_EVICTIONS:
            self.evicted.append(Evicted(at=step.at, pod=shown(pod.key), uid=pod.uid, by=shown(by)))


class _Near:
    """Tells by a step's figures whether any of the thresholds may be met, minimum reclaim included."""

    def __init__(self, thresholds: Iterable[Threshold]) -> None:
        self._by_signal: dict[Signal, list[Threshold]] = {}
        for one in thresholds:
            self._by_signal.setdefault(one.signal, []).append(one)
        self._levels: dict[tuple[Signal, int], int] = {}

    def is_far(self, line: bytes) -> bool:
        """Return whether a line is a step whose figures are above all thresholds, and nothing else of note.

        That is one of `at` and `summary` alone. Of its summary only `node` is decoded, which comes first.
        """
        match = _QUIET.match(line)
        if match is None or line.count(b'"pods":') != 1 or not line.rstrip().endswith(_QUIET_ENDS):
            return False
        try:
            node, _ = _DECODER.raw_decode(line[match.end() : match.end() + _LONGEST_NODE].decode())
            return not self._is_below(node)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return False

    def is_near(self, raw: Mapping[str, Any]) -> bool:
        """Return whether the step has to be read in full; what has another form than expected has to be."""
        if not raw.keys().isdisjoint(_FULL):
            return True
        summary = raw.get("summary")
        if summary is None:
            return "statsError" not in raw
        try:
            return self._is_below(summary["node"])
        except (KeyError, TypeError, AttributeError, ValueError):
            return True

    def _is_below(self, node: Mapping[str, Any]) -> bool:
        return any(
            available < self._level(signal, capacity) for signal, available, capacity in _figures(node)
        )

    def _level(self, signal: Signal, capacity: int) -> int:
        level = self._levels.get((signal, capacity))
        if level is None:
            targets = [one.target(capacity) for one in self._by_signal.get(signal, ())]
            level = int(max(targets, default=-1)) + 1
            if len(self._levels) < 10_000:
                self._levels[signal, capacity] = level
        return level


def _figures(node: Mapping[str, Any]) -> Iterator[tuple[Signal, int, int]]:
    """Yield signal, available and capacity of what a Summary shows of a node; see summary.py."""
    memory = node.get("memory")
    if memory:
        yield from _memory(Signal.MEMORY_AVAILABLE, memory)
    for one in node.get("systemContainers") or ():
        if one.get("name") == "pods" and one.get("memory"):
            yield from _memory(Signal.ALLOCATABLE_MEMORY_AVAILABLE, one["memory"])
    runtime = node.get("runtime") or {}
    for filesystem, space, inodes in (
        (node.get("fs"), Signal.NODEFS_AVAILABLE, Signal.NODEFS_INODES_FREE),
        (runtime.get("imageFs"), Signal.IMAGEFS_AVAILABLE, Signal.IMAGEFS_INODES_FREE),
        (runtime.get("containerFs"), Signal.CONTAINERFS_AVAILABLE, Signal.CONTAINERFS_INODES_FREE),
    ):
        if filesystem:
            if filesystem.get("availableBytes") is not None and filesystem.get("capacityBytes") is not None:
                yield space, filesystem["availableBytes"], filesystem["capacityBytes"]
            if filesystem.get("inodesFree") is not None and filesystem.get("inodes") is not None:
                yield inodes, filesystem["inodesFree"], filesystem["inodes"]
    swap = node.get("swap")
    if swap and swap.get("swapAvailableBytes") is not None and swap.get("swapUsageBytes") is not None:
        available = swap["swapAvailableBytes"]
        yield Signal.SWAP_AVAILABLE, available, available + swap["swapUsageBytes"]
    rlimit = node.get("rlimit")
    if rlimit and rlimit.get("maxpid") is not None and rlimit.get("curproc") is not None:
        yield Signal.PID_AVAILABLE, rlimit["maxpid"] - rlimit["curproc"], rlimit["maxpid"]


def _memory(signal: Signal, memory: Mapping[str, Any]) -> Iterator[tuple[Signal, int, int]]:
    available, used = memory.get("availableBytes"), memory.get("workingSetBytes")
    if available is not None and used is not None:
        yield signal, available, available + used


def _may_limit(pods: Any) -> bool:
    """Return whether any of the pods as written may have a limit for storage of its own."""
    text = json.dumps(pods)
    return "ephemeral-storage" in text or "sizeLimit" in text


def _limits(pods: Iterable[Pod]) -> dict[str, int]:
    """Return the least of each pod's own limits for storage, by uid, or by its name without one."""
    found: dict[str, int] = {}
    for pod in pods:
        limits = (
            pod.ephemeral_storage_limit,
            *(volume.size_limit for volume in pod.volumes),
            *(container.ephemeral_storage_limit for container in pod.containers),
        )
        amounts = [int(limit.amount) for limit in limits if limit is not None and limit.amount > 0]
        if amounts:
            found[pod.uid] = found[pod.key] = min(amounts)
    return found


def _may_exceed(raw: Mapping[str, Any], limits: Mapping[str, int]) -> bool:
    """Return whether all that a pod uses together is more than the least of its limits."""
    if not limits or raw.get("summary") is None:
        return False
    try:
        for pod in raw["summary"].get("pods") or ():
            reference = pod["podRef"]
            key = (
                reference.get("uid") or f"{reference.get('namespace', 'default')}/{reference.get('name', '')}"
            )
            limit = limits.get(key)
            if limit is not None and _used(pod) > limit:
                return True
    except (KeyError, TypeError, AttributeError):
        return True
    return False


def _used(pod: Mapping[str, Any]) -> int:
    places = [
        *(one.get(place) for one in pod.get("containers") or () for place in ("rootfs", "logs")),
        *(pod.get("volume") or ()),
        pod.get("ephemeral-storage"),
    ]
    return sum(int((place or {}).get("usedBytes") or 0) for place in places)
