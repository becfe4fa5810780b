"""The last decisions and OOM kills, as the journal's lines and the guard's notes tell them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from reactor.link.documents import OOM_KILL, ORDERED, RESUMED, as_decision

_KEPT: Final = 50
_KEPT_RANKING: Final = 20
_KEPT_OOM_KILLS: Final = 20

Document = Mapping[str, Any]


class RecentRecords:
    """Takes documents over in their order, oldest first; of many pods' rankings only the head is held."""

    def __init__(self) -> None:
        self._decisions: dict[tuple[object, object], Document] = {}  # by id and time: ids begin at 1 again
        self._oom_kills: deque[Document] = deque(maxlen=_KEPT_OOM_KILLS)

    def take(self, document: Document) -> None:
        """Take over a line or a note; what is of no known kind is left."""
        kind = document.get("kind")
        if kind == "decision":
            self._decisions[document.get("id"), document.get("time")] = _cut(document)
        elif kind in {ORDERED, RESUMED}:  # stands for its decision until that is written itself
            key = (document.get("decision"), document.get("time"))
            self._decisions.setdefault(key, _cut(as_decision(document)))
        elif kind == "outcome":
            self._complete(document)
        elif kind == OOM_KILL:
            self._oom_kills.append(document)
        while len(self._decisions) > _KEPT:
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


def evictions_of(decision: Document) -> list[Document]:
    """Return a decision's evictions, those that can be read."""
    found = decision.get("evictions")
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _cut(document: Document) -> Document:
    ranking = document.get("ranking")
    return {**document, "ranking": ranking[:_KEPT_RANKING] if isinstance(ranking, list) else []}


def _is_of(document: Document, name: str) -> bool:
    pod = document.get("pod")
    if pod is None:
        return bool(name) and name in str(document.get("victim_cgroup")).split("/")
    return name in {pod, str(pod).rpartition("/")[2], document.get("uid")}
