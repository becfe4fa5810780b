"""What clients are answered: what the guard tells, with what the steward knows itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from reactor.errors import ReactorError
from reactor.link.requests import MOST_PLACES
from reactor.steward.recent import RecentRecords, evictions_of
from reactor.text import printable

_DECISIONS: Final = 10
_UNIT_SUFFIXES: Final = (".service", ".scope", ".slice")
_SHORT_EVICTION: Final = (
    *("pod", "uid", "signal", "outcome", "killed_ns", "freed_ns"),
    *("credited_bytes", "returned_bytes", "process", "whole_because"),
)

Document = Mapping[str, Any]


class QuestionError(ReactorError):
    """A question that can't be answered as it is put."""


def places_asked(places: object) -> int:
    """Return how many places of the order of eviction a client wants. Raises QuestionError."""
    if not isinstance(places, int) or isinstance(places, bool) or places < 0:
        raise QuestionError(f"pods: got {places!r}; accepted: a number of pods, 0 or more")
    return min(places, MOST_PLACES)


def name_asked(name: object) -> str | None:
    """Return the pod that a client asks about, by a name, namespace/name or uid; None: all of them."""
    if name is not None and not isinstance(name, str):
        raise QuestionError(
            f"pod: got a {type(name).__name__}; accepted: a pod's name, namespace/name or uid"
        )
    return name


def status(guard: Document, recent: RecentRecords, problems: Mapping[str, str]) -> dict[str, Any]:
    """Return how the node stands (also for top): `problems` are the steward's own."""
    counted = guard["oom_kills"]["counted"]
    return {
        **guard,
        "decisions": [_short(document) for document in recent.decisions()[-_DECISIONS:]],
        "oom_kills": {"counted": counted, "recent": recent.oom_kills()[-_DECISIONS:]},
        "problems": {
            **guard["problems"],
            **{printable(what): printable(why) for what, why in problems.items()},
        },
    }


def explanation(guard: Document, recent: RecentRecords, name: str | None) -> dict[str, Any]:
    """Return why a pod was evicted and where it stands in the ranking now; without a name, for all pods.

    A unit also goes by its name without the suffix, where no pod has just that name. Of a rule by its name:
    when it acted last, with its inputs, and why it does not now.
    """
    rules = [one for one in guard.get("rules") or () if name in {None, one["name"]}]
    acted = [
        _short(document)
        for document in reversed(recent.decisions())
        if isinstance(rule := document.get("rule"), Mapping) and name in {None, rule.get("name")}
    ]
    evictions = [one for document in reversed(recent.decisions()) for one in _eviction(document)]
    names = [name] if name is None else [name, *(f"{name}{suffix}" for suffix in _UNIT_SUFFIXES)]
    for called in names:
        found = {
            "ranking": [one for one in guard["ranking"] if _is_called(one, called)],
            "evictions": [one for one in evictions if _is_called(one, called)],
            "oom_kills": recent.oom_kills(called),
            "rules": rules,
            "rules_acted": acted,
        }
        if any(found.values()):
            break
    return {**guard, "pod": name, **found}


def _short(document: Mapping[str, Any]) -> dict[str, Any]:
    wanted = (
        "id",
        "time",
        "dry_run",
        "conditions",
        "thresholds_met",
        "deferred_because",
        "reclaim",
        "timing",
        "brake",
        "rule",
    )
    threshold = document.get("threshold")
    return {
        **{key: document.get(key) for key in wanted},
        "threshold": threshold["threshold"] if isinstance(threshold, Mapping) else None,
        "reclaimed": document.get("reclaimed") or [],
        "evictions": [{key: one.get(key) for key in _SHORT_EVICTION} for one in evictions_of(document)],
    }


def _eviction(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the evictions of a decision, each with what it was decided on."""
    context = {
        key: document.get(key)
        for key in ("id", "time", "dry_run", "threshold", "rule", "wakes", "ranking", "timing")
    }
    context["reclaimed"] = document.get("reclaimed") or []
    return [{**one, **context} for one in evictions_of(document)]


def _is_called(one: Mapping[str, Any], name: str | None) -> bool:
    """Return whether a pod goes by that name, as it is or as it is printed."""
    pod = str(one.get("pod"))
    return name is None or name in {
        shown
        for text in (pod, pod.rpartition("/")[2], str(one.get("uid")))
        for shown in (text, printable(text))
    }
