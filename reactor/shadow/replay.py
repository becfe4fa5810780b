"""Another policy over a node's recordings, or over its journal where it has none: what it would change.

A month of a node is thousands of steps, and few of them matter. A step in which nothing is below any
threshold of a policy, minimum reclaim included, decides nothing. Its figures alone show that, and its pods
are not read. A shortage of memory may last for hours: of its steps, those are skipped in which the pod that
would go has been evicted already (`repeats`). All others are read in full, and so is the first one after a
shortage. What is skipped changes no later decision but the node conditions, by which no pod is evicted.
"""

from __future__ import annotations

import bisect
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol, Self

from reactor.config.settings import load_configuration
from reactor.errors import ConfigError, ReactorError
from reactor.model.decisions import Snapshot
from reactor.model.pods import Pod, PodUsage
from reactor.model.rules import Rule
from reactor.model.settings import EvictionSettings
from reactor.model.signals import MEMORY_SIGNALS, Layout, Signal
from reactor.model.thresholds import Threshold
from reactor.policy.bounds import standings
from reactor.shadow import Node, read_line, shown, unix_seconds
from reactor.simulate.recording import JournalSteps, header_of
from reactor.simulate.replay import Pass, SnapshotOf, passes_over
from reactor.simulate.scenario import (
    RecordedNode,
    Scenario,
    Step,
    eviction_settings,
    scenario_of,
    step_of,
    without_cycle_collection,
)
from reactor.simulate.summary import Summary, working_sets, written_working_sets

WITHIN_SECONDS: Final = 600.0
_LARGEST_WHOLE: Final = 16 << 20  # of a scenario that is no recording: it is read as a whole
_MOST_EVICTIONS: Final = 10_000
_MOST_STEPS: Final = 2_000_000
_MOST_READ: Final = 100_000  # steps of one node that are read in full, some 250 a second
_STEPS: Final = b'"steps":['
_OF_PODS: Final = ("pods", "preferences", "podCgroups")
_MAY_BE_FAR: Final = frozenset({"at", "summary", "statsError", "oomKills", "cgroups", "admit", *_OF_PODS})
_PLAIN: Final = re.compile(r'\{"at":"([0-9.]+s)","summary":\{"node":(?=\{)')
_PLAIN_ENDS: Final = ("]}}", "]}},")
_LONGEST_NODE: Final = 4096
_DECODER: Final = json.JSONDecoder()

Lines = Callable[[Path], Iterator[bytes]]
Numbers = Mapping[str, Any] | None
_Figures = Sequence[tuple[Signal, int, int]]  # each with what is available of how much


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
    """What a node's files come to. `passes` were made in full, of `steps` in all, for both policies.

    `recordings` are those of which at least the beginning could be read.
    """

    changes: tuple[Changed, ...] = ()
    recordings: int = 0
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
    made.recordings += 1
    made.name, made.labels = shown(scenario.node.name) or made.name, _labels(scenario.node) or made.labels
    if policy is None:
        return
    other = policy.scenario()
    with_policy = eviction_settings(other.configuration, scenario.layout)
    replay = _Replay([(scenario.settings, scenario.rules), (with_policy, other.rules)], scenario)
    try:
        with without_cycle_collection():
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
            document = read_line(line, b'"time"')
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
        for one in sorted(others, key=lambda one: one.at):
            times.setdefault(one.uid, []).append(one.at)
        for one in mine:
            near = times.get(one.uid, [])
            first = bisect.bisect_left(near, -WITHIN_SECONDS, key=one.at.__rsub__)
            if first < len(near) and near[first] - one.at <= WITHIN_SECONDS:
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
        self._policies = [
            _Policy(settings, rules, scenario, self._snapshot_of) for settings, rules in policies
        ]
        self._reads_all = bool(scenario.images) or any(rules for _, rules in policies)
        self._isolates = any(settings.local_storage_capacity_isolation for settings, _ in policies)
        self._unread: dict[str, Any] = {}  # `pods` of a later step than `_pods`, and what stands beside them
        self._pods = _Pods(scenario.pods)  # of the last step that had some and mattered
        self._summary: _Written | None = None  # of the last step that had one
        self._read: tuple[Summary, Snapshot] | None = None  # the same, once it was read
        self._limits: Mapping[str, int] = _limits(scenario.pods)
        self._steps_read = 0
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
        written = None if self._limits or self._reads_all else _Written.in_line(line)
        if written is not None:
            self._count()
            self._summary, self._read = written, None
            self._ask({"at": written.at}, written.figures)
        elif (raw := _step(line)) is not None:
            self.take(raw)

    def take(self, raw: Mapping[str, Any]) -> None:
        """Take a step. Raises ConfigError for one that matters and can't be read."""
        self._count()
        if "pods" in raw:
            self._unread, self._limits = {key: raw[key] for key in _OF_PODS if key in raw}, {}
            if self._isolates and _may_limit(raw["pods"]):
                self._limits = _limits(self._read_pods().listed)
        if raw.get("summary") is not None:
            self._summary, self._read = _Written(raw["summary"]), None
        reads_all = self._reads_all or not _MAY_BE_FAR.issuperset(raw) or _may_exceed(raw, self._limits)
        self._ask(raw, None if reads_all else _figures_of(raw))

    def _count(self) -> None:
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise ReactorError(f"more than {_MOST_STEPS} steps; accepted: so many of one node")

    def _ask(self, raw: Mapping[str, Any], figures: _Figures | None) -> None:
        """Have the policies decide on a step of these figures for which they may matter."""
        is_unread = "statsError" in raw
        asked = [one for one in self._policies if one.is_asked(figures, is_unread=is_unread)]
        if asked:
            near = self._near_step(raw, is_of_memory=all(one.is_of_memory for one in asked))
            self._take(near, [one for one in asked if not one.repeats(near)])

    def _take(self, near: _NearStep, asked: Sequence[_Policy]) -> None:
        """Have policies decide on a step, and before it on the last one that each has skipped."""
        if not asked:
            return
        if self._steps_read >= _MOST_READ:
            raise ReactorError(f"more than {_MOST_READ} steps near a threshold; the rest is left out")
        self._steps_read += 1
        skipped = {one.skipped: None for one in asked if one.skipped is not None}
        for due in (*skipped, near):
            step, numbers = self._step(due)
            for one in asked:
                if due is near or one.skipped is due:
                    self.passes += 1
                    one.take(step, numbers)

    def _near_step(self, raw: Mapping[str, Any], *, is_of_memory: bool) -> _NearStep:
        pods = self._read_pods()
        if "statsError" in raw or self._summary is None:
            return _NearStep(raw=raw, pods=pods)
        found = self._summary.working_sets() if is_of_memory else None
        summary = self._summary.whole() if found is None else {"node": self._summary.node}
        return _NearStep(raw={**raw, "summary": summary}, pods=pods, working_sets=found)

    def _step(self, near: _NearStep) -> tuple[Step, Numbers]:
        """Return a step with all that a policy goes by which was not asked in those before."""
        step, numbers = step_of({key: value for key, value in near.raw.items() if key not in _OF_PODS})
        if step.summary is not None and near.working_sets is not None:
            used = {uid: PodUsage(amount) for uid, amount in near.working_sets.items()}
            self._read = step.summary, step.summary.snapshot()._replace(pods=used)
        return replace(step, pods=near.pods.listed), numbers

    def _read_pods(self) -> _Pods:
        if self._unread:
            self._pods = _Pods(step_of({"at": "0s", **self._unread})[0].pods or ())
            self._unread = {}
        return self._pods

    def _snapshot_of(self, summary: Summary) -> Snapshot:
        if self._read is None or self._read[0] is not summary:
            self._read = summary, summary.snapshot()
        return self._read[1]


class _Written:
    """A Summary as written; of one in a line of `record` no more is decoded than is asked for."""

    def __init__(self, summary: Any, *, at: str = "", line: str = "", figures: _Figures = ()) -> None:
        self._summary = summary
        self._line = line
        self.at = at
        self.figures = figures

    @classmethod
    def in_line(cls, line: bytes) -> Self | None:
        """Return that of a step which has `at` and `summary` alone; None of one that may have more.

        Of it only `node` is decoded, which comes first, and has the form that `_figures` reads.
        """
        try:
            text = line.decode("ascii")
            match = _PLAIN.match(text)
            if match is None or text.count('"pods":') != 1 or not text.rstrip().endswith(_PLAIN_ENDS):
                return None
            node, _ = _DECODER.raw_decode(text[match.end() : match.end() + _LONGEST_NODE])
            return cls({"node": node}, at=match[1], line=text, figures=tuple(_figures(node)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    @property
    def node(self) -> Any:
        return self._summary["node"]

    def whole(self) -> Any:
        """Return all of it. Raises ReactorError for a line that is no step."""
        if self._line:
            self._summary, self._line = (_step(self._line.encode()) or {}).get("summary"), ""
        return self._summary

    def working_sets(self) -> dict[str, int] | None:
        """Return what each pod uses, in bytes by uid; None where it has another form than expected."""
        found = written_working_sets(self._line) if self._line else None
        return working_sets(self.whole()) if found is None else found


class _Pods:
    """The pods of a step, and how each that may be evicted stands in a ranking for memory."""

    def __init__(self, listed: tuple[Pod, ...]) -> None:
        self.listed = listed
        self._standings = standings(listed)

    def first(self, working_sets: Mapping[str, int]) -> str | None:
        """Return the pod that would be evicted for memory; None for none, or where one has no statistics."""
        try:
            largest = [max(uids, key=working_sets.__getitem__) for _, uids in self._standings.alike]
            evictable = self._standings.evictable
            return min(largest, key=lambda uid: evictable[uid].place(working_sets[uid], 0), default=None)
        except KeyError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _NearStep:
    """A step that may decide something, as written.

    `working_sets` are the pods', in bytes by uid, where nothing else of them counts; else None.
    """

    raw: Mapping[str, Any]
    pods: _Pods
    working_sets: Mapping[str, int] | None = None


class _Policy:
    """One policy's replay, and each pod that it evicts once for one shortage.

    `was_near`: in the last step a threshold was met, or may have been; `is_of_memory`: none but for memory.
    `skipped` is the last step that was skipped since one was taken.
    """

    def __init__(
        self,
        settings: EvictionSettings,
        rules: Sequence[Rule],
        scenario: Scenario,
        snapshot_of: SnapshotOf,
    ) -> None:
        self._thresholds = settings.thresholds
        self._levels: dict[tuple[Signal, int], Sequence[tuple[int, Threshold]]] = {}
        self._below: frozenset[Threshold] | None = frozenset()
        self._settled: Sequence[Threshold] = ()
        self.skipped: _NearStep | None = None
        self.was_near = False
        self.is_of_memory = False
        self._next: list[tuple[Step, Numbers]] = []
        self._passes: Iterator[Pass] = passes_over(
            iter(self._next.pop, None),
            settings,
            snapshot_of,
            rules,
            pods=scenario.pods,
            images=scenario.images,
        )
        self._open: dict[tuple[str, object], None] = {}
        self.evicted: list[Evicted] = []

    def below(self, figures: _Figures) -> frozenset[Threshold]:
        """Return the thresholds that may be met, minimum reclaim included."""
        return frozenset(
            threshold
            for signal, available, capacity in figures
            for level, threshold in self._levels_of(signal, capacity)
            if available < level
        )

    def is_asked(self, figures: _Figures | None, *, is_unread: bool) -> bool:
        """Return whether a step of such figures may decide anything; None are of another form than expected.

        The first one after a shortage may, and statistics that can't be read (`is_unread`) end none.
        """
        try:
            below = self._below = None if figures is None else self.below(figures)
        except TypeError:
            below = self._below = None
        before = self.was_near
        self.is_of_memory = below is not None and {one.signal for one in below} <= MEMORY_SIGNALS
        self.was_near = below is None or bool(below) or (before and is_unread)
        return before or self.was_near

    def repeats(self, near: _NearStep) -> bool:
        """Return whether a step decides what the one before it did, by proof; it is `skipped` then.

        So it is if the same thresholds for one memory signal are below their targets as in a step in which
        their grace periods were over, no other is, and the pod that would go has been evicted in this
        shortage for the first of them. What the state has of thresholds stays then, but the time of the
        statistics: for that the last one skipped is taken before the next that matters. No replay slows
        evictions down or awaits one, so nothing else of the state counts.
        """
        if near.working_sets is None or not self._settled or self._below != frozenset(self._settled):
            return False
        if (near.pods.first(near.working_sets), self._settled[0]) not in self._open:
            return False
        self.skipped = near
        return True

    def _levels_of(self, signal: Signal, capacity: int) -> Sequence[tuple[int, Threshold]]:
        levels = self._levels.get((signal, capacity))
        if levels is None:
            thresholds = (one for one in self._thresholds if one.signal is signal)
            levels = [(math.ceil(one.target(capacity)), one) for one in thresholds]
            if len(self._levels) < 10_000:
                self._levels[signal, capacity] = levels
        return levels

    def take(self, step: Step, numbers: Numbers) -> None:
        self._next.append((step, numbers))
        made = next(self._passes)
        decision = made.decision
        met = set(decision.thresholds_met)
        if made.snapshot is not None:  # else nothing is known of any threshold
            still = (key for key in self._open if not isinstance(key[1], Threshold) or key[1] in met)
            self._open = dict.fromkeys(still)
        signals = {one.signal for one in met}
        is_settled = self.is_of_memory and self._below == frozenset(met) and len(signals) == 1
        self._settled = decision.thresholds_met if is_settled else ()
        self.skipped = None
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


def _figures_of(raw: Mapping[str, Any]) -> _Figures | None:
    """Return a step's figures, none of one without statistics; None where they have another form."""
    if raw.get("summary") is None:
        return () if "statsError" in raw else None
    try:
        return tuple(_figures(raw["summary"]["node"]))
    except (KeyError, TypeError, AttributeError, ValueError):
        return None


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
