"""What clients are answered: what the guard reports, with what the steward knows itself."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from reactor.errors import ReactorError
from reactor.link.documents import OOM_KILL, ORDERED, RESUMED, Outcome, as_decision, evictions_of
from reactor.link.requests import MOST_PLACES
from reactor.model.settings import RestartLoopSettings
from reactor.text import nearest_name, printable

_KEPT: Final = 50
_KEPT_RANKING: Final = 20
_KEPT_OOM_KILLS: Final = 20
Document = Mapping[str, Any]
_DECISIONS: Final = 10
_UNIT_SUFFIXES: Final = (".service", ".scope", ".slice")
_SHORT_DECISION: Final = (
    *("id", "time", "dry_run", "conditions", "thresholds_met", "deferred_because"),
    *("reclaim", "timing", "brake", "rule"),
)
_SHORT_EVICTION: Final = (
    *("pod", "uid", "signal", "outcome", "killed_ns", "freed_ns"),
    *("credited_bytes", "returned_bytes", "process", "whole_because"),
)

# By which decisions are held. A disk, or another's hand, may have made anything of an old journal's line.
_KEYS: Final = ("kind", "id", "time", "decision")
_PLAIN: Final = (str, int, float, type(None))

_LOG: Final = logging.getLogger("reactor.evict")
_NAMES_REMEMBERED: Final = 1000
_TIMES_REMEMBERED: Final = 1000  # of one name
# That of one process leaves its pod as it is.
_NO_EVICTION: Final = frozenset(
    {Outcome.DRY_RUN, Outcome.FAILED, Outcome.GONE, Outcome.PROCESS_KILLED, Outcome.PROCESS_TERMINATED}
)


class RecentRecords:
    """Takes documents over in their order, oldest first; of many pods' rankings only the head is held.

    `kept` decisions are held, and `kept_oom_kills`.
    """

    def __init__(self, kept: int = _KEPT, kept_oom_kills: int = _KEPT_OOM_KILLS) -> None:
        self._kept = kept
        self._decisions: dict[tuple[object, object], Document] = {}  # by id and time: ids begin at 1 again
        self._oom_kills: deque[Document] = deque(maxlen=kept_oom_kills)

    def take(self, document: Document) -> None:
        """Take over a line; what is of no known kind is left, and so is a line that is odd."""
        kind = document.get("kind")
        if not all(isinstance(document.get(key), _PLAIN) for key in _KEYS):
            return
        if kind == "decision":
            self._decisions[document.get("id"), document.get("time")] = _cut(document)
        elif kind in {ORDERED, RESUMED}:  # stands for its decision until that is written itself
            key = (document.get("decision"), document.get("time"))
            self._decisions.setdefault(key, _cut(as_decision(document)))
        elif kind == "outcome":
            self._complete(document)
        elif kind == OOM_KILL:
            self._oom_kills.append(document)
        while len(self._decisions) > self._kept:
            del self._decisions[next(iter(self._decisions))]

    def decisions(self) -> list[Document]:
        """Return the last decisions that were news, oldest first, with the head of each ranking.

        A line that the guard had to send again comes after younger ones.
        """
        return sorted(self._decisions.values(), key=lambda one: str(one.get("time")))

    def oom_kills(self, name: str | None = None) -> list[Document]:
        """Return the last kills, oldest first; those of one pod by its name, namespace/name or uid.

        A pod that was gone before anybody knew it goes by the name of its cgroup.
        """
        return [one for one in self._oom_kills if name is None or _is_of(one, name)]

    def _complete(self, outcome: Document) -> None:
        """Put what became of an eviction into the decision that ordered it."""
        for key, decision in reversed(self._decisions.items()):
            evictions = evictions_of(decision)
            places = [number for number, one in enumerate(evictions) if one.get("uid") == outcome.get("uid")]
            if decision.get("id") == outcome.get("decision") and places:
                known = evictions[places[0]]
                evictions[places[0]] = {**known, **{name: outcome.get(name) for name in known}}
                self._decisions[key] = {**decision, "evictions": evictions}
                return


def _cut(document: Document) -> Document:
    ranking = document.get("ranking")
    return {**document, "ranking": ranking[:_KEPT_RANKING] if isinstance(ranking, list) else []}


def _is_of(document: Document, name: str) -> bool:
    pod = document.get("pod")
    if pod is None:
        return bool(name) and name in str(document.get("victim_cgroup")).split("/")
    return is_called(document, name)


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
    for called in [None] if name is None else names_meant(name):
        found = {
            "ranking": [one for one in guard["ranking"] if is_called(one, called)],
            "evictions": [one for one in evictions if is_called(one, called)],
            "oom_kills": recent.oom_kills(called),
            "rules": rules,
            "rules_acted": acted,
        }
        if any(found.values()):
            break
    near = None
    if name is not None and not any(found.values()):
        known = names_in([*recent.decisions(), guard])
        near = nearest_name(name.rpartition("/")[2], sorted(known))
    return {**guard, "pod": name, **found, "near_name": near}


def _short(document: Mapping[str, Any]) -> dict[str, Any]:
    threshold = document.get("threshold")
    return {
        **{key: document.get(key) for key in _SHORT_DECISION},
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
    context |= {key: document[key] for key in ("black_box", "forecast") if key in document}
    return [{**one, **context} for one in evictions_of(document)]


def is_called(one: Mapping[str, Any], name: str | None) -> bool:
    """Return whether a pod goes by that name, as it is or as it is printed.

    Its cgroup is a name, too, as `reactor config show` has it; a uid of a plain node begins with that.
    """
    pod, uid = str(one.get("pod")), str(one.get("uid"))
    cgroup = str(one.get("cgroup") or uid.rpartition("#")[0])
    return name is None or name in {
        shown
        for text in (pod, pod.rpartition("/")[2], uid, cgroup)
        for shown in (text, printable(text))
        if text
    }


def names_meant(name: str) -> list[str]:
    """Return what a name may stand for: itself first, then units of that name without its suffix."""
    return [name, *(f"{name}{suffix}" for suffix in _UNIT_SUFFIXES)]


def names_in(documents: Iterable[Document]) -> set[str]:
    """Return the names of the pods that decisions have in their evictions and rankings."""
    lists = (document.get(key) for document in documents for key in ("evictions", "ranking"))
    pods = (one for found in lists if isinstance(found, list) for one in found)
    return {str(one["pod"]).rpartition("/")[2] for one in pods if isinstance(one, Mapping) and "pod" in one}


# Restart loops: pods that are evicted again and again, because they are restarted each time.
#
# A unit with Restart=always comes back a tenth of a second after its eviction and grows again. Each eviction
# is right and does not help for long: only a limit ends the loop, or an operator who stops the unit. So the
# loop is recognised by the pod's name, reported as one problem with its count, and counted. It has no
# influence on evictions. On Kubernetes the kubelet's back-off slows such a pod down.
# An eviction counts once its pod has ended: one that can't be killed is evicted again, and restarted by none.


def _has_ended(eviction: Mapping[str, Any]) -> bool:
    """Return whether the pod of an eviction has ended by it, as far as is known by now."""
    ended_ns = eviction.get("ended_ns", eviction.get("freed_ns"))  # the latter in a line of an older version
    return ended_ns is not None and eviction["outcome"] not in _NO_EVICTION


class RestartLoops:
    """Counts evictions by pod within a window. Instants are Unix seconds, so that they outlive a restart.

    `repeated` counts the evictions that were a loop's: those from the configured number on.
    """

    def __init__(self, settings: RestartLoopSettings) -> None:
        self.settings = settings
        self.repeated = 0
        self._standing: dict[str, tuple[float, str]] = {}  # what was killed and has not ended, and why
        # The least recently evicted first. Lists: most names are there once, and any deque takes 600 bytes.
        self._evicted: dict[str, list[float]] = {}

    def remember(self, documents: Iterable[Mapping[str, Any]]) -> None:
        """Take over the evictions of an earlier run, oldest first; skip what can't be read."""
        for document in documents:
            with suppress(KeyError, TypeError, ValueError):
                at_unix_seconds = datetime.fromisoformat(document["time"]).timestamp()
                for one in filter(_has_ended, evictions_of(document)):
                    self._note(str(one["pod"]), at_unix_seconds)

    def take(self, eviction: Mapping[str, Any], at_unix_seconds: float) -> None:
        """Take over what has become of an eviction by now; warn if a loop begins."""
        name = str(eviction["pod"])
        if not _has_ended(eviction):
            if eviction["outcome"] == Outcome.KILLED and (why := "; ".join(eviction.get("problems") or ())):
                self._standing = {**self._not_ended(at_unix_seconds), name: (at_unix_seconds, why)}
            return
        self._standing.pop(name, None)
        count = self._note(name, at_unix_seconds)
        if count < self.settings.evictions:
            return
        self.repeated += 1
        if count == self.settings.evictions:
            _LOG.warning("pod %s: %s", name, self._loop_text(count))

    def present(self, now_unix_seconds: float) -> dict[str, int]:
        """Return how often each pod that is in a loop now was evicted within the window, by its name."""
        oldest = now_unix_seconds - self.settings.within_seconds
        counts = {name: sum(at > oldest for at in times) for name, times in self._evicted.items()}
        return {name: count for name, count in counts.items() if count >= self.settings.evictions}

    def problems(self, now_unix_seconds: float) -> dict[str, str]:
        """Return a problem for each pod that is in a loop now, or was killed and has not ended."""
        present, standing = self.present(now_unix_seconds), self._not_ended(now_unix_seconds)
        loops = {f"restart loop {name}": self._loop_text(count) for name, count in present.items()}
        return loops | {f"kill of {name}": f"it has not ended: {why}" for name, (_, why) in standing.items()}

    def _not_ended(self, now_unix_seconds: float) -> dict[str, tuple[float, str]]:
        oldest = now_unix_seconds - self.settings.within_seconds
        return {name: one for name, one in self._standing.items() if one[0] > oldest}

    def _note(self, name: str, at_unix_seconds: float) -> int:
        """Return how often the pod was evicted within the window that ends at this instant."""
        oldest = at_unix_seconds - self.settings.within_seconds
        times = self._evicted.pop(name, [])
        times.append(at_unix_seconds)
        del times[: max(bisect_right(times, oldest), len(times) - _TIMES_REMEMBERED)]
        self._evicted[name] = times
        while (
            len(self._evicted) > _NAMES_REMEMBERED or self._evicted[next(iter(self._evicted))][-1] <= oldest
        ):
            del self._evicted[next(iter(self._evicted))]
        return len(times)

    def _loop_text(self, count: int) -> str:
        minutes = self.settings.within_seconds / 60
        return (
            f"evicted {count} times in {minutes:g} min and restarted each time: "
            "set a memory limit for it, or stop the unit or controller that restarts it"
        )
