"""Passes of real daemons, as they were recorded: what went into each decision, and what was decided.

A file has a line for each of these, in the order in which a daemon came to them:

    daemon     another daemon begins, of which nothing before is known
    settings   what is decided by from here on
    state      the state, where the lines before do not lead to it: after a restart
    pod        a pod; later lines name it by how many came before it
    pass       what was observed of the node and of which pods, and the decision
    reclaimed  what was observed after a reclaim that the pass of this number asked for, and the decision
    event      what changed the state between two passes

A pass that `is_tried` was made once more, and left the state as it was. recording.py makes the files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, get_type_hints

from cattrs import Converter
from cattrs.preconf.json import make_converter

from reactor.model.decisions import Decision, Ineligible, PolicyState, Snapshot
from reactor.model.kills import HardMemoryKill, ProcessMemory
from reactor.model.pods import Pod
from reactor.model.rules import Firing
from reactor.model.settings import EvictionSettings
from reactor.model.thresholds import Threshold
from reactor.policy import events
from reactor.policy.decide import after_reclaim, decide
from reactor.policy.events import Event, EvictionOrdered, ProcessEvictionOrdered, apply
from tests.golden.decisions import decision_document
from tests.golden.files import line

RECORDS: Final = ("passes-soak.jsonl.gz", "passes-hostile.jsonl.gz", "passes-race.jsonl.gz")
_BY_NAME: Final = frozenset({PolicyState, Ineligible, HardMemoryKill, Snapshot})
Line = dict[str, Any]
Made = tuple[PolicyState, Decision]


class UnknownError(Exception):
    """Something happened in a daemon that these files have no line for, or that does not follow any more."""


def _converter() -> Converter:
    converter = make_converter(omit_if_default=True)
    converter.register_unstructure_hook(Fraction, str)
    converter.register_structure_hook(Fraction, lambda text, _: Fraction(text))
    # JSON's keys are strings, and a threshold is more than one.
    by_threshold = Mapping[Threshold, float]
    converter.register_unstructure_hook_func(
        lambda kind: kind == by_threshold,
        lambda times: [[converter.unstructure(key), at] for key, at in times.items()],
    )
    converter.register_structure_hook_func(
        lambda kind: kind == by_threshold,
        lambda pairs, _: {converter.structure(key, Threshold): float(at) for key, at in pairs},
    )
    # It resolves no hints that are texts.
    converter.register_unstructure_hook_func(_is_named_tuple, lambda value: _as_plain(converter, value))
    converter.register_structure_hook_func(
        _is_named_tuple, lambda plain, kind: _of_plain(converter, plain, kind)
    )
    return converter


def _as_plain(converter: Converter, value: Any) -> Any:
    """Return a named tuple as a list, one of _BY_NAME as an object of what is not the default."""
    kind: Any = type(value)
    if kind not in _BY_NAME:
        return [converter.unstructure(one) for one in value]
    hints, defaults = get_type_hints(kind), kind._field_defaults
    return {
        name: converter.unstructure(one, unstructure_as=hints[name])
        for name, one in value._asdict().items()
        if name not in defaults or one != defaults[name]
    }


def _of_plain(converter: Converter, plain: Any, kind: Any) -> Any:
    hints = get_type_hints(kind)
    named = plain.items() if isinstance(plain, dict) else zip(hints, plain, strict=False)
    return kind(**{name: converter.structure(one, hints[name]) for name, one in named})


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


_CONVERTER: Final = _converter()


@dataclass(slots=True)
class _Decided:
    """The last decision: what it was made on, and the decisions before that asked for a reclaim."""

    decision: Decision | None = None
    snapshot: Snapshot = field(default_factory=Snapshot)
    pods: Sequence[Pod] = ()
    passes: int = 0
    asked: dict[int, Decision] = field(default_factory=dict)

    def take(self, decision: Decision, snapshot: Snapshot, pods: Sequence[Pod]) -> None:
        self.decision, self.snapshot, self.pods = decision, snapshot, pods
        self.passes += 1
        if decision.reclaim:
            self.asked[self.passes] = decision


class Recorder:
    """Writes what a daemon decides, by `put`, which is called with each line."""

    def __init__(self, put: Callable[[Line], object]) -> None:
        self._put = put
        self._settings: EvictionSettings | None = None
        self._pods: dict[str, tuple[int, Pod]] = {}
        self._many = 0
        self._last = _Decided()
        self._held: tuple[Line, PolicyState] | None = None
        self._state = PolicyState()

    def decided(
        self,
        settings: EvictionSettings,
        state: PolicyState,
        snapshot: Snapshot,
        pods: Sequence[Pod],
        now_seconds: float,
        firing: Firing | None,
        made: Made,
    ) -> None:
        """Write a pass: what `decide` was given, and what it made of that."""
        self._begin(settings, state)
        after, decision = made
        document = {"pass": now_seconds, "seen": _plain(snapshot), "pods": self._numbers(pods)}
        if firing is not None:
            document["firing"] = _plain(firing)
        self._last.take(decision, snapshot, pods)
        self._hold({**document, "decision": decision_document(decision)}, after)

    def reclaimed(
        self,
        settings: EvictionSettings,
        state: PolicyState,
        asked: Decision,
        snapshots: tuple[Snapshot, Snapshot],
        pods: Sequence[Pod],
        now_seconds: float,
        made: Made,
    ) -> None:
        """Write what was decided after a reclaim of the node's, by the snapshots before and after it."""
        self._begin(settings, state)
        (before, seen), (after, decision) = snapshots, made
        number = next((number for number, one in self._last.asked.items() if one is asked), None)
        if number is None:
            raise UnknownError("a reclaim that no pass asked for")
        document = {"reclaimed": number, "at": now_seconds, "before": _plain(before), "seen": _plain(seen)}
        document["pods"] = self._numbers(pods)
        self._last.take(decision, seen._replace(pods=before.pods), pods)
        self._hold({**document, "decision": decision_document(decision)}, after)

    def applied(
        self,
        settings: EvictionSettings,
        state: PolicyState,
        event: Event,
        now_seconds: float,
        after: PolicyState,
    ) -> None:
        """Write an event."""
        self._begin(settings, state)
        document: Line = {"event": type(event).__name__, "at": now_seconds}
        if isinstance(event, EvictionOrdered | ProcessEvictionOrdered):
            last = self._last
            if last.decision is None or (event.snapshot, event.pods) != (last.snapshot, last.pods):
                raise UnknownError("an eviction by what the last pass did not observe")
            document["eviction"] = last.decision.evictions.index(event.eviction)
            if isinstance(event, ProcessEvictionOrdered):
                document["process"] = _plain(event.process)
            elif event.held_bytes is not None:
                document["held_bytes"] = event.held_bytes
        else:
            document |= _plain(event)
        self._hold(document, after)

    def _begin(self, settings: EvictionSettings, state: PolicyState) -> None:
        """Write the line before, now that it shows whether its state was kept, and what has changed since."""
        before = self._state
        if self._held is not None:
            document, after = self._held
            is_tried = state != after and state == before
            self._put({**document, "is_tried": True} if is_tried else document)
            self._held, before = None, before if is_tried else after
        if settings != self._settings:
            self._put({"settings": _plain(settings)})
            self._settings = settings
        if state != before:
            self._put({"state": _plain(state)})
        self._state = state

    def _hold(self, document: Line, after: PolicyState) -> None:
        self._held = (document, after)

    def _numbers(self, pods: Sequence[Pod]) -> list[int]:
        """Return the pods' numbers; of those that are new, or have changed, a line comes first."""
        for pod in pods:
            known = self._pods.get(pod.uid)
            if known is None or known[1] != pod:
                self._put({"pod": _plain(pod)})
                self._pods[pod.uid] = (self._many, pod)
                self._many += 1
        return [self._pods[pod.uid][0] for pod in pods]


def _plain(value: object) -> Any:
    return _CONVERTER.unstructure(value)


class _Replay:
    """Takes a daemon's lines, and decides again."""

    def __init__(self) -> None:
        self._settings = EvictionSettings()
        self._state = PolicyState()
        self._pods: list[Pod] = []
        self._last = _Decided()

    def take(self, document: Line) -> Line:
        """Return a line with what is decided now."""
        match document:
            case {"settings": settings}:
                self._settings = _CONVERTER.structure(settings, EvictionSettings)
            case {"state": state}:
                self._state = _CONVERTER.structure(state, PolicyState)
            case {"pod": pod}:
                self._pods.append(_CONVERTER.structure(pod, Pod))
            case {"pass": _} | {"reclaimed": _}:
                return self._decided(document)
            case {"event": name, "at": at_seconds, **fields}:
                self._state = apply(self._settings, self._state, self._event(name, fields), at_seconds)
        return document

    def _decided(self, document: Line) -> Line:
        pods = tuple(self._pods[number] for number in document["pods"])
        seen = _CONVERTER.structure(document["seen"], Snapshot)
        if "pass" in document:
            firing = document.get("firing")
            state, decision = decide(
                self._settings,
                self._state,
                seen,
                pods,
                document["pass"],
                None if firing is None else _CONVERTER.structure(firing, Firing),
            )
        else:
            before = _CONVERTER.structure(document["before"], Snapshot)
            asked = self._last.asked[document["reclaimed"]]
            at_seconds = document["at"]
            state, decision = after_reclaim(
                self._settings, self._state, asked, before, seen, pods, at_seconds
            )
            seen = seen._replace(pods=before.pods)
        self._last.take(decision, seen, pods)
        if "is_tried" not in document:
            self._state = state
        return {**document, "decision": decision_document(decision)}

    def _event(self, name: str, fields: Line) -> Event:
        if name == "PodFoundEmpty":  # as it was called when these were recorded
            name, fields = "PodEmptied", {**fields, "was_found": True}
        kind: type[Any] = getattr(events, name)
        if not issubclass(kind, EvictionOrdered | ProcessEvictionOrdered):
            event: Event = _CONVERTER.structure(fields, kind)
            return event
        number, decided = fields.pop("eviction"), self._last.decision
        if decided is None or number >= len(decided.evictions):
            raise UnknownError("an eviction that is not decided any more")
        eviction = decided.evictions[number]
        if "process" in fields:
            fields["process"] = _CONVERTER.structure(fields["process"], ProcessMemory)
        ordered: Event = kind(eviction=eviction, snapshot=self._last.snapshot, pods=self._last.pods, **fields)
        return ordered


def replayed(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a file, each with what is decided now; after another decision not all of them."""
    replay = _Replay()
    with suppress(UnknownError):
        for one in map(json.loads, lines):
            if "daemon" in one:
                replay = _Replay()
            yield line(replay.take(one))
