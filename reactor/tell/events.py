"""Events that operators are notified of, made of the journal's lines: each once, clean, of a bounded size.

An eviction is an event when its outcome is known. One of a dry run is marked as such: `dry_run` is true.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from reactor.link.documents import NO_VICTIM, OOM_KILL, ORDERED, RESUMED, SOURCE_LOST, Outcome, process_text
from reactor.model.kills import OomScope
from reactor.model.quantity import amount_text, bytes_text
from reactor.model.settings import EventKind
from reactor.model.signals import RESOURCE, Signal
from reactor.text import printable

LONGEST_BYTES: Final = 64 << 10
_LONGEST_TEXT: Final = 1024
_MOST_ITEMS: Final = 64
_DEEPEST: Final = 8
_MOST_AWAITED: Final = 256
_RANKING: Final = 10
_OF_PROCESSES: Final = frozenset({Outcome.PROCESS_KILLED, Outcome.PROCESS_TERMINATED})
_REPORTED: Final = frozenset(
    {Outcome.KILLED, Outcome.TERMINATED, Outcome.FAILED, Outcome.DRY_RUN, *_OF_PROCESSES}
)
WHO_GREW: Final = "who_grew"  # one sentence of the black box
_CONTEXT: Final = ("threshold", "rule", "thresholds_met", "conditions", "wakes", "timing", "dry_run")

_IN_WORDS: Final = {
    OOM_KILL: EventKind.OOM_KILL,
    SOURCE_LOST: EventKind.SOURCE_LOST,
    NO_VICTIM: EventKind.NO_VICTIM,
}

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What has happened: in one line, as a document of plain JSON values, and as JSON in UTF-8.

    A minor one is an OOM kill that is not for the node's sake: a tenant can have as many as it likes.
    """

    kind: EventKind
    text: str
    document: Document
    content: bytes
    is_minor: bool = False


class Events:
    """Makes events of lines, in the order of the journal. `node` is the node's name in them.

    An eviction whose outcome its decision does not show yet is awaited; at most 256 are.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._awaited: dict[tuple[object, object, object], Document] = {}

    def remember(self, documents: Iterable[Document]) -> None:
        """Take over what an earlier steward has made events of; skip what can't be read."""
        for document in documents:
            with suppress(KeyError, TypeError, ValueError, AttributeError):
                self._made_of(document)

    def take(self, document: Document) -> list[Event]:
        """Return the events that a line reports. Raises what a document of another form makes it raise."""
        return [self._event(kind, text, of) for kind, text, of in self._made_of(document)]

    def trial(self, at: str) -> Event:
        """Return an event by which an operator tries the notifications."""
        text = "test: reactor notifies by this; no pod was evicted"
        return self._event(EventKind.TEST, text, {"test": True, "time": at})

    def _made_of(self, document: Document) -> list[tuple[EventKind, str, Document]]:
        kind = document.get("kind")
        if kind == "decision":
            return self._of_decision(document)
        if kind in {ORDERED, RESUMED}:
            if not document.get("dry_run"):
                self._await(document, document["ordered"], document.get("decision"))
            return []
        if kind == "outcome":
            context = self._awaited.pop(_key(document, document.get("decision"), document.get("uid")), None)
            return [] if context is None else self._of_eviction(document, context, document.get("decision"))
        if kind in _IN_WORDS:
            dry = "dry run: " if document.get("dry_run") else ""
            return [(_IN_WORDS[kind], f"{dry}{document['message']}", document)]
        return []

    def _of_decision(self, document: Document) -> list[tuple[EventKind, str, Document]]:
        found: list[tuple[EventKind, str, Document]] = []
        number = document.get("id")
        for eviction in document["evictions"]:
            self._awaited.pop(_key(document, number, eviction.get("uid")), None)
            if eviction.get("outcome") == Outcome.ORDERED:
                self._await(document, [eviction], number)
            else:
                found += self._of_eviction(eviction, document, number)
        return found

    def _of_eviction(
        self, eviction: Document, context: Document, number: object
    ) -> list[tuple[EventKind, str, Document]]:
        is_dry = bool(context.get("dry_run"))
        if eviction.get("outcome") not in _REPORTED or is_dry != (eviction["outcome"] == Outcome.DRY_RUN):
            return []
        kept = {key: value for key, value in eviction.items() if key not in {"kind", "start", "seq"}}
        document = {
            **kept,
            **{key: context.get(key) for key in _CONTEXT},
            **({WHO_GREW: context[WHO_GREW]} if WHO_GREW in context else {}),
            "decision": number,
            "time": context.get("time"),
            "ranking": list(context.get("ranking") or ())[:_RANKING],
        }
        return [(EventKind.EVICTION, _eviction_text(eviction, context), document)]

    def _await(self, context: Document, evictions: Iterable[Document], number: object) -> None:
        kept = {**{key: context.get(key) for key in (*_CONTEXT, "time")}, "ranking": _head(context)}
        for eviction in evictions:
            self._awaited[_key(context, number, eviction.get("uid"))] = kept
        while len(self._awaited) > _MOST_AWAITED:
            del self._awaited[next(iter(self._awaited))]

    def _event(self, kind: EventKind, text: str, of: Document) -> Event:
        line = _clean(f"{self._node}: {text}")
        head = {"event": kind, "node": _clean(self._node), "text": line}
        document = {**head, **{key: value for key, value in _clean(of).items() if key != "kind"}}
        content = _encoded(document)
        for left_out in ("ranking", "wakes", "annotations", "problems"):
            if len(content) <= LONGEST_BYTES:
                break
            document = {key: value for key, value in document.items() if key != left_out}
            content = _encoded(document)
        if len(content) > LONGEST_BYTES:
            document, content = head, _encoded(head)
        is_minor = kind is EventKind.OOM_KILL and of.get("scope") != OomScope.NODE
        return Event(kind=kind, text=line, document=document, content=content, is_minor=is_minor)


def _head(context: Document) -> list[Document]:
    return list(context.get("ranking") or ())[:_RANKING]


def _key(document: Document, number: object, uid: object) -> tuple[object, object, object]:
    """Return what an eviction goes by: numbers of decisions begin at 1 again with each run of the guard."""
    return document.get("start"), number, uid


def _eviction_text(eviction: Document, context: Document) -> str:
    pod, signal = eviction.get("pod"), eviction.get("signal")
    if eviction.get("outcome") == Outcome.FAILED:
        problems = "; ".join(map(str, eviction.get("problems") or ())) or "see the log"
        return f"the eviction of {pod} for {signal} failed: {problems}"
    if eviction.get("outcome") in _OF_PROCESSES or eviction.get("pod_lives"):
        pod = f"one process of {pod}: {process_text(eviction.get('process'))}"
    if eviction.get("outcome") == Outcome.DRY_RUN:
        return f"dry run: would have evicted {pod} for {_because(signal, context)}"
    return f"evicted {pod} ({eviction.get('outcome')}) for {_because(signal, context)}{_freed(eviction)}"


def _because(signal: object, context: Document) -> str:
    threshold, rule = context.get("threshold"), context.get("rule")
    if isinstance(rule, Mapping):
        inputs = [one for one in rule.get("inputs") or () if isinstance(one, Mapping)]
        held = "; ".join(f"{one.get('condition')} is {one.get('value')}" for one in inputs)
        return f"rule {rule.get('name')} in {rule.get('cgroup')}: {held}"
    if not isinstance(threshold, Mapping) or signal not in set(Signal):
        return str(signal)
    available = amount_text(threshold.get("available"), RESOURCE[Signal(str(signal))])
    return f"{threshold.get('threshold')}: {available} was available"


def _freed(eviction: Document) -> str:
    returned = eviction.get("returned_bytes")
    return f"; {bytes_text(returned)} came back" if isinstance(returned, int) and returned > 0 else ""


def _clean(value: Any, depth: int = 0) -> Any:
    """Return a JSON value with every text in it printable and cut, and no list longer than 64."""
    if isinstance(value, str):
        text = printable(value)
        return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"
    if depth >= _DEEPEST:
        return None
    if isinstance(value, Mapping):
        items = list(value.items())[:_MOST_ITEMS]
        return {_clean(str(key)): _clean(one, depth + 1) for key, one in items}
    if isinstance(value, (list, tuple)):
        return [_clean(one, depth + 1) for one in value[:_MOST_ITEMS]]
    return value


def _encoded(document: Document) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
