"""`reactor record`: a node's statistics and pods, polled into a scenario that `reactor simulate` replays.

On a Kubernetes node the kubelet is asked for its Summary API and pods; a plain node is observed as the daemon
observes it (plain_node.py).

The file has the fields of pods and statistics that decoding reads (config/lenient.py), and nothing else: no
environment, no image, no label of a pod.
"""

from __future__ import annotations

import dataclasses
import glob
import gzip
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import trio

from reactor.config.documents import load_document
from reactor.config.lenient import decode_leniently, reduced
from reactor.config.pod import SOURCE_ANNOTATION, PodDocument
from reactor.config.settings import Configuration, load_configuration
from reactor.errors import ConfigError, Problem, ReactorError, first_failure
from reactor.kernel.cgroup import CgroupTree
from reactor.kube.client import ApiClient
from reactor.kube.credentials import Credentials, credentials_of
from reactor.kube.documents import node_path
from reactor.kube.errors import ApiError
from reactor.kube.kubelet import PODS_PATH, SUMMARY_PATH, kubelet_access
from reactor.kube.node import node_name
from reactor.kube.watch import read_list
from reactor.link.documents import instant
from reactor.model.kills import OomScope
from reactor.model.pods import is_critical_by_mark
from reactor.model.settings import KubernetesSettings, Settings
from reactor.model.signals import RESOURCE, Layout, Resource, Signal
from reactor.model.thresholds import Threshold
from reactor.plain import open_regular
from reactor.simulate.plain_node import (
    PlainNode,
    RuleRecording,
    Worth,
    pod_document,
    preferences_of,
    summary_of,
)
from reactor.simulate.scenario import API_VERSION, KIND, numbers_document
from reactor.simulate.summary import Summary
from reactor.text import counted, printable

_END: Final = b"\n]}\n"
_OF_PODS: Final = ("pods", "preferences", "podCgroups")
_PIECE_BYTES: Final = 1 << 20
_LABELS_SECONDS: Final = 5.0
_MOST_LABELS: Final = 64

_NONE: Final = "none"
_OOM_KILL: Final = "oom-kill"
_FILESYSTEMS: Final = {
    Signal.NODEFS_AVAILABLE: ("fs", "availableBytes", "capacityBytes"),
    Signal.NODEFS_INODES_FREE: ("fs", "inodesFree", "inodes"),
    Signal.IMAGEFS_AVAILABLE: ("imageFs", "availableBytes", "capacityBytes"),
    Signal.IMAGEFS_INODES_FREE: ("imageFs", "inodesFree", "inodes"),
    Signal.CONTAINERFS_AVAILABLE: ("containerFs", "availableBytes", "capacityBytes"),
    Signal.CONTAINERFS_INODES_FREE: ("containerFs", "inodesFree", "inodes"),
}

_TERMINAL: Final = frozenset({"Failed", "Succeeded"})
# Thresholds that follow from others, and are not written.
_DERIVED: Final = frozenset(
    {Signal.ALLOCATABLE_MEMORY_AVAILABLE, Signal.CONTAINERFS_AVAILABLE, Signal.CONTAINERFS_INODES_FREE}
)


class ScenarioFile:
    """Appends steps to `file`; where that can be sought in, it ends well after each, else after `close`."""

    def __init__(self, file: BinaryIO, name: str, header: Mapping[str, Any]) -> None:
        self._file = file
        self._seekable = file.seekable()
        self.steps = 0
        document = {"apiVersion": API_VERSION, "kind": KIND, "name": name, **header}
        self._put(json.dumps(document, separators=(",", ":")).encode()[:-1] + b',"steps":[\n')

    def add(self, step: Mapping[str, Any]) -> None:
        """Append a step."""
        if self.steps and self._seekable:
            self._file.seek(-len(_END), 1)
        line = json.dumps(step, separators=(",", ":")).encode()
        self._put((b",\n" if self.steps else b"") + line + (_END if self._seekable else b""))
        self.steps += 1

    def close(self) -> None:
        """End the document."""
        if not self._seekable or not self.steps:
            self._put(_END)

    def _put(self, content: bytes) -> None:
        self._file.write(content)
        self._file.flush()


class Recording(Protocol):
    """Takes steps; `steps` counts them."""

    steps: int

    def add(self, step: Mapping[str, Any]) -> None: ...


def at(seconds: float) -> str:
    """Return an instant since the start as a scenario has it."""
    return f"{max(0.0, seconds):.3f}s"


class JournalSteps:
    """Makes steps of a journal's lines, oldest first; `began` is the time of the first, since 1970."""

    def __init__(self) -> None:
        self.began: float | None = None
        self._latest = 0.0
        self._pods: dict[str, dict[str, Any]] = {}
        self._preferences: dict[str, str] = {}

    def step(self, document: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the step of a decision or an OOM kill, None for another line.

        Raises KeyError, TypeError, ValueError or AttributeError for what is none that can be replayed.
        """
        if not _is_wanted(document):
            return None
        seconds = datetime.fromisoformat(document["time"]).timestamp()
        self.began = seconds if self.began is None else self.began
        self._latest = max(self._latest, seconds - self.began)  # the clock may have been set back
        if document["kind"] == _OOM_KILL:
            return {"at": at(self._latest), "oomKills": int(document["kills"])}
        ranked, preferred = _ranked(document), _preferences(document)
        news = {uid: pod for uid, pod in ranked.items() if self._pods.get(uid) != pod}
        step: dict[str, Any] = {"at": at(self._latest), "summary": _summary(document)}
        self._pods |= news
        before = self._preferences
        self._preferences = {uid: one for uid, one in before.items() if uid not in ranked} | preferred
        if news or self._preferences != before:
            step["pods"] = list(self._pods.values())
            if self._preferences:
                step["preferences"] = self._preferences
        return step


def steps_of_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a step for each decision and OOM kill, oldest first.

    Raises OSError, ConfigError where a line is no journal's.

    A line that a crash cut off at the end is passed over.
    """
    steps = JournalSteps()
    for number, document in _documents(path):
        try:
            step = steps.step(document)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            got = f"{type(error).__name__}: {error}"
            raise ConfigError([Problem(path=f"{path}:{number}", got=got, accepted="a decision")]) from error
        if step is not None:
            yield step


def _documents(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with open_regular(path) as file:
        for number, line in enumerate(file, 1):
            try:
                document = json.loads(line)
            except (ValueError, RecursionError) as error:
                if not line.endswith(b"\n"):
                    return
                raise ConfigError(
                    [Problem(path=f"{path}:{number}", got=repr(line[:60]), accepted="a line of JSON")]
                ) from error
            if isinstance(document, Mapping) and _is_wanted(document):
                yield number, document


def _is_wanted(document: Mapping[str, Any]) -> bool:
    """Return whether it is a decision over thresholds, or an OOM kill at the node's own limit."""
    if document.get("kind") == _OOM_KILL:
        return bool(document.get("scope") == OomScope.NODE)
    return document.get("kind") == "decision" and document.get("rule") is None


def _summary(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statistics that the decision went by."""
    node: dict[str, Any] = {}
    for name, seen in document["observations"].items():
        signal = Signal(name)
        if signal is Signal.MEMORY_AVAILABLE:
            node["memory"] = _memory(seen)
        elif signal is Signal.ALLOCATABLE_MEMORY_AVAILABLE:
            node["systemContainers"] = [{"name": "pods", "memory": _memory(seen)}]
        elif signal is Signal.PID_AVAILABLE:
            node["rlimit"] = {"maxpid": seen["capacity"], "curproc": seen["capacity"] - seen["available"]}
        elif signal is Signal.SWAP_AVAILABLE:
            node["swap"] = _swap(seen["available"], seen["capacity"])
        else:
            place, available, capacity = _FILESYSTEMS[signal]
            holder = node if place == "fs" else node.setdefault("runtime", {})
            holder.setdefault(place, {}).update({available: seen["available"], capacity: seen["capacity"]})
    resource = _resource(document)
    return {
        "node": node,
        "pods": [
            _usage(place, resource) for place in document.get("ranking") or () if place["usage"] is not None
        ],
    }


def _swap(available: int, capacity: int) -> dict[str, int]:
    return {"swapAvailableBytes": available, "swapUsageBytes": capacity - available}


def _memory(seen: Mapping[str, Any]) -> dict[str, int]:
    working_set = seen["capacity"] - seen["available"]
    memory = {"availableBytes": seen["available"], "workingSetBytes": working_set}
    if seen.get("inactive_file_bytes") is not None:
        memory["usageBytes"] = working_set + seen["inactive_file_bytes"]
    return memory


def _resource(document: Mapping[str, Any]) -> Resource:
    threshold = document.get("threshold")
    return Resource.MEMORY if threshold is None else RESOURCE[Signal(threshold["signal"])]


def _ranked(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the pods that were ranked, by uid, as v1.Pods."""
    resource = _resource(document)
    return {place["uid"]: _pod(place, resource) for place in document.get("ranking") or ()}


def _preferences(document: Mapping[str, Any]) -> dict[str, str]:
    """Return which of the pods that were ranked go first or last by the operator's lists, by uid."""
    places = document.get("ranking") or ()
    return {place["uid"]: place["preference"] for place in places if place.get("preference", _NONE) != _NONE}


def _pod(place: Mapping[str, Any], resource: Resource) -> dict[str, Any]:
    namespace, _, name = place["pod"].partition("/")
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "uid": place["uid"]}
    if is_critical_by_mark(place.get("critical_because"), place["priority"]):
        metadata["annotations"] = {SOURCE_ANNOTATION: "file"}  # whatever it was: never evicted
    container: dict[str, Any] = {"name": "all"}
    if place.get("request") and resource in {Resource.MEMORY, Resource.EPHEMERAL_STORAGE}:
        container["resources"] = {"requests": {resource.value: str(place["request"])}}
    return {
        "metadata": metadata,
        "spec": {"priority": place["priority"], "containers": [container]},
        "status": {"qosClass": place["qos_class"]},
    }


def _usage(place: Mapping[str, Any], resource: Resource) -> dict[str, Any]:
    namespace, _, name = place["pod"].partition("/")
    reference = {"podRef": {"name": name, "namespace": namespace, "uid": place["uid"]}}
    used = place["usage"]
    if resource is Resource.MEMORY:
        return {**reference, "memory": {"workingSetBytes": used}}
    if resource is Resource.PIDS:
        return {**reference, "process_stats": {"process_count": used}}
    if resource is Resource.SWAP:
        return {**reference, "swap": {"swapUsageBytes": used}}
    key = "usedBytes" if resource is Resource.EPHEMERAL_STORAGE else "inodesUsed"
    return {**reference, "containers": [{"name": "all", "rootfs": {key: used}, "logs": {key: 0}}]}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """What to record and for how long; `seconds` None is until SIGINT or SIGTERM. `output` `-` is stdout.

    With `rotate_seconds` a file is begun anew as often, and `keep` older ones stay. `labels` are added to the
    Node's own.
    """

    config: Path
    config_dir: Path | None = None
    output: str = "-"
    interval_seconds: float = 10.0
    seconds: float | None = None
    journal: Path | None = None
    rotate_seconds: float | None = None
    keep: int = 30
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


def record(options: RecordOptions) -> int:
    """Record and return the exit status. Raises ConfigError, ApiError where nothing can be had, OSError."""
    configuration = load_configuration(options.config, options.config_dir)
    settings, header = configuration.settings, header_of(configuration, options.config)
    with _opened(options, {**header, "node": _node(settings, options)}, _name(settings, options)) as scenario:
        if options.journal is not None:
            for step in steps_of_journal(options.journal):
                scenario.add(step)
        elif settings.kubernetes is None:
            _run(_plain, CgroupTree.discover(), settings, scenario, options)
        else:
            _run(_poll, settings.kubernetes, scenario, options, settings.eviction.thresholds)
    of = "" if scenario.steps or options.journal is None else f"{options.journal}: no decision is in it; "
    print(f"reactor: {printable(of)}{counted(scenario.steps, 'step')} recorded", file=sys.stderr)
    return 0 if scenario.steps else 1


def _name(settings: Settings, options: RecordOptions) -> str:
    if options.journal is not None:
        return f"recorded from {options.journal.name}"
    return "recorded on a plain node" if settings.kubernetes is None else "recorded from the kubelet"


def _node(settings: Settings, options: RecordOptions) -> dict[str, Any]:
    """Return whose recording it is. A Node's labels are asked for once; without an answer there are none."""
    labels: dict[str, str] = {}
    if settings.kubernetes is None:
        name = socket.gethostname()
    else:
        name = node_name(settings.kubernetes)
        if options.journal is None:
            labels = trio.run(_labels, settings.kubernetes, name)
    document: dict[str, Any] = {"name": name, "labels": {**labels, **options.labels}}
    if options.journal is not None:
        return document | _of_journal(options.journal)
    return document | {"began": instant(time.time())}


def _of_journal(path: Path) -> dict[str, Any]:
    """Return when a journal's first decision was: its steps count from there."""
    first = next((document for _, document in _documents(path)), None)
    return {} if first is None else {"began": str(first.get("time"))}


async def _labels(settings: KubernetesSettings, name: str) -> dict[str, str]:
    with trio.move_on_after(_LABELS_SECONDS), suppress(ReactorError, OSError):
        with closing(ApiClient(credentials_of(settings.kubeconfig_path))) as client:
            node = await client.get(node_path(name))
        labels = node["metadata"].get("labels") if isinstance(node, Mapping) else None
        return {str(key): str(value) for key, value in list((labels or {}).items())[:_MOST_LABELS]}
    return {}


def _run(record: Callable[..., Awaitable[None]], *arguments: object) -> None:
    """Run it; what it raises is raised by itself, and not in the group that a nursery makes of it."""
    try:
        trio.run(record, *arguments)
    except BaseExceptionGroup as group:
        raise first_failure(group) from None


def step_of(
    seconds: float, summary: Any, pods: list[Any] | None, pods_before: list[Any] | None
) -> dict[str, Any]:
    """Return a step; `summary` None could not be read, pods that are as before are left out."""
    step: dict[str, Any] = {"at": at(seconds)}
    if pods is not None and pods != pods_before:
        step["pods"] = pods
    if summary is None:
        return {**step, "statsError": True}
    return {**step, "summary": reduced_summary(summary)}


async def _poll(
    settings: KubernetesSettings,
    scenario: Recording,
    options: RecordOptions,
    thresholds: Sequence[Threshold] = (),
) -> None:
    worth = Worth(thresholds)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_at_signal, nursery.cancel_scope)
        client = ApiClient(Credentials(lambda: kubelet_access(settings), watched=settings.kubeconfig_path))
        pods_before: list[Any] | None = None
        due_steps = _Steps(options)
        with closing(client):
            while await due_steps.is_due():
                summary, pods = await _ask(client, first=scenario.steps == 0)
                if summary is None:
                    worth = Worth(thresholds)  # what comes next is one
                elif not _is_worth(worth, due_steps.seconds, summary, pods or ()):
                    continue
                scenario.add(step_of(due_steps.seconds, summary, pods, pods_before))
                pods_before = pods if pods is not None else pods_before
        nursery.cancel_scope.cancel()


def _is_worth(worth: Worth, at_seconds: float, summary: Any, pods: Sequence[Any]) -> bool:
    """Return whether a kubelet's answers are worth a step, as what a plain node shows is."""
    snapshot = decode_leniently(summary, Summary).snapshot()
    return worth.is_step(at_seconds, snapshot.signals, snapshot.pods, pods)


async def _plain(tree: CgroupTree, settings: Settings, scenario: Recording, options: RecordOptions) -> None:
    """Record a plain node, as the daemon would observe it."""
    worth, rules = Worth(settings.eviction.thresholds), RuleRecording(tree, settings.rules)
    for condition in rules.too_short(options.interval_seconds):
        shown = printable(condition)
        print(f"reactor: {shown}: not seen at this pace; take a shorter --interval-seconds", file=sys.stderr)
    pods_before: list[Any] | None = None
    preferences_before: dict[str, str] = {}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_at_signal, nursery.cancel_scope)
        due_steps = _Steps(options)
        with closing(PlainNode(tree, settings)) as node:
            while await due_steps.is_due():
                seen, pods, usages = await node.observe()
                numbers = rules.observe(pods)
                if not rules.is_step(numbers) | worth.is_step(due_steps.seconds, seen, usages, pods):
                    continue
                rules.written(numbers)
                listed = [pod_document(pod) for pod in pods]
                summary = summary_of(seen, pods, usages)
                preferences = preferences_of(pods)
                if preferences != preferences_before:
                    pods_before = None
                step = step_of(due_steps.seconds, summary, listed, pods_before)
                if preferences and "pods" in step:
                    step["preferences"] = preferences
                if settings.rules and "pods" in step:
                    step["podCgroups"] = {pod.uid: pod.cgroup for pod in pods if pod.cgroup}
                if numbers:
                    step["cgroups"] = {cgroup: numbers_document(values) for cgroup, values in numbers.items()}
                scenario.add(step)
                pods_before, preferences_before = listed, preferences
        nursery.cancel_scope.cancel()


class _Steps:
    """When steps are due: at once, then once an interval until the time is over. One that began may end."""

    def __init__(self, options: RecordOptions) -> None:
        self._options = options
        self._began: float | None = None
        self.seconds = 0.0  # when the present step began, after the first one

    async def is_due(self) -> bool:
        """Wait for the next step; return False once the time is over."""
        if self._began is None:
            self._began = trio.current_time()
            return True
        due = self.seconds + self._options.interval_seconds
        limit = float("inf") if self._options.seconds is None else self._options.seconds
        await trio.sleep_until(self._began + min(due, limit))
        self.seconds = trio.current_time() - self._began
        return due <= limit


class _ActivePods:
    """Keeps what a recording has of each pod of a list that arrives; others take part in no decision."""

    def __init__(self) -> None:
        self.reduced: list[Any] = []

    def listing(self) -> None:
        self.reduced.clear()

    def take(self, document: Any) -> None:
        if is_active(document):
            self.reduced.append(reduced_pod(document))

    def drop(self, document: Any) -> None:
        raise AssertionError(f"a list drops nothing: {document!r:.80}")

    def listed(self) -> None:
        pass


async def _ask(client: ApiClient, *, first: bool) -> tuple[Any, list[Any] | None]:
    """Return statistics and pods, each None where it can't be had; raises ApiError if that is so at first."""
    pods = _ActivePods()
    try:
        summary = await client.get(SUMMARY_PATH)
        # As the daemon reads it: the list of a full node is larger than any one answer may be.
        await read_list(client, PODS_PATH, {}, pods)
    except ApiError as error:
        if first:
            raise
        print(f"reactor: {error}", file=sys.stderr)
        return None, None
    return summary, pods.reduced


async def _stop_at_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        async for _ in received:
            scope.cancel()


def header_of(configuration: Configuration, path: Path) -> dict[str, Any]:
    """Return what stands before the steps: the thresholds in force, and how the filesystems lie."""
    raw = load_document(configuration.text, str(path)) or {}
    layout = configuration.settings.eviction.layout
    section = raw.get("reactor")
    rules = section.get("rules") if isinstance(section, Mapping) else None
    written = {key: value for key, value in raw.items() if key != "reactor" and value is not None}
    if configuration.settings.kubernetes is None:
        # What is not written means in a scenario what it means to a kubelet; here there is none.
        unwritten = _unwritten(configuration.settings)
        if written.pop("mergeDefaultEvictionSettings", False):
            written["evictionHard"] = unwritten["evictionHard"]
        written = {**unwritten, **written}
    return {
        "kubeletConfiguration": written,
        "filesystems": {
            "dedicatedImageFs": layout is not Layout.SINGLE,
            "splitImageFs": layout is Layout.SPLIT,
        },
        "pods": [],
        **({"rules": rules} if rules else {}),
    }


def _unwritten(settings: Settings) -> dict[str, Any]:
    """Return the defaults of a plain node that are not a kubelet's."""
    hard = {
        str(threshold.signal): threshold.value.text
        for threshold in settings.eviction.thresholds
        if threshold.is_hard and threshold.signal not in _DERIVED
    }
    return {"enforceNodeAllocatable": [], "evictionHard": hard}


@contextmanager
def _opened(
    options: RecordOptions, header: Mapping[str, Any], name: str
) -> Iterator[ScenarioFile | RotatingRecording]:
    if options.rotate_seconds is not None and options.output != "-":
        rotating = RotatingRecording(
            Path(options.output), name, header, rotate_seconds=options.rotate_seconds, keep=options.keep
        )
        with closing(rotating):
            yield rotating
        return
    with ExitStack() as opened:
        file = (
            sys.stdout.buffer if options.output == "-" else opened.enter_context(open(options.output, "wb"))
        )
        scenario = ScenarioFile(file, name, header)
        yield scenario
        scenario.close()


class RotatingRecording:
    """Appends steps to a recording that is begun anew every `rotate_seconds`; each file is a valid scenario.

    The one before is compressed to `NAME-YYYYMMDDTHHMMSSZ.json.gz`, by when it began, and of those the
    `keep` last ones stay. So is a file that an earlier run has left. Raises OSError.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        header: Mapping[str, Any],
        *,
        rotate_seconds: float,
        keep: int,
        clock_unix_seconds: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._name = name
        self._header = header
        self._rotate_seconds = rotate_seconds
        self._keep = keep
        self._clock_unix_seconds = clock_unix_seconds
        self._began_unix_seconds = 0.0
        self._began_seconds = 0.0  # of its first step
        self._repeated: dict[str, Any] = {}  # what a step leaves out if it is as before
        self._file: BinaryIO | None = None
        self._scenario: ScenarioFile | None = None
        self.steps = 0
        if path.exists():
            self._put_away(path.stat().st_mtime)

    def add(self, step: Mapping[str, Any]) -> None:
        """Append a step, to a new file if it is time for one."""
        seconds = float(str(step["at"]).removesuffix("s"))
        if "pods" in step:
            self._repeated = {key: step[key] for key in _OF_PODS if key in step}
        if "cgroups" in step:
            self._repeated["cgroups"] = step["cgroups"]
        now = self._clock_unix_seconds()
        if self._scenario is not None and now - self._began_unix_seconds >= self._rotate_seconds:
            self.close()
            self._put_away(self._began_unix_seconds)
        if self._scenario is None:
            self._began_unix_seconds, self._began_seconds = now, seconds
            self._file = self._path.open("wb")
            node = {**self._header.get("node", {}), "began": instant(now)}
            self._scenario = ScenarioFile(self._file, self._name, {**self._header, "node": node})
            step = {**self._repeated, **step}
        self._scenario.add({**step, "at": at(seconds - self._began_seconds)})
        self.steps += 1

    def close(self) -> None:
        """End the present file."""
        if self._scenario is not None:
            self._scenario.close()
        if self._file is not None:
            self._file.close()
        self._scenario = self._file = None

    def _put_away(self, began_unix_seconds: float) -> None:
        began = datetime.fromtimestamp(began_unix_seconds, UTC).strftime("%Y%m%dT%H%M%SZ")
        packed = self._path.with_name(f"{self._path.stem}-{began}.json.gz")
        unfinished = packed.with_name(f"{packed.name}.{os.getpid()}")
        try:
            with self._path.open("rb") as plain, gzip.open(unfinished, "wb", compresslevel=6) as to:
                shutil.copyfileobj(plain, to, _PIECE_BYTES)
            unfinished.replace(packed)
        finally:
            unfinished.unlink(missing_ok=True)
        self._path.unlink()
        older = sorted(self._path.parent.glob(f"{glob.escape(self._path.stem)}-????????T??????Z.json.gz"))
        for one in older[: max(0, len(older) - self._keep)]:
            one.unlink(missing_ok=True)


def reduced_summary(summary: Any) -> Any:
    """Return a stats/v1alpha1 Summary with what a scenario reads of it."""
    return reduced(summary, Summary)


def reduced_pod(pod: Any) -> Any:
    """Return a v1.Pod with what a scenario reads of it: no environment, no image, no label."""
    return reduced(pod, PodDocument)


def is_active(pod: Any) -> bool:
    """Return whether anything of the pod may run; others take part in no decision."""
    status = pod.get("status") if isinstance(pod, Mapping) else None
    return not (isinstance(status, Mapping) and status.get("phase") in _TERMINAL)
