"""Decisions are paired as a plain search pairs them, in steps that grow with the number of events."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from reactor import shadow
from reactor.link.documents import instant
from reactor.shadow import Decided, Done, node_of
from tests.support.executed_lines import executed_lines

_T = 1_790_000_000.0
_SIGNALS = {
    "memory": "memory.available",
    "ephemeral-storage": "nodefs.available",
    "inodes": "nodefs.inodesFree",
    "pids": "pid.available",
    "": "x",
}
_THRESHOLDS = ("memory.available<200Mi", "nodefs.available<10%", "a<1", "")
_MESSAGES = (
    *(f"The node was low on resource: {name}. x" for name in ("memory", "ephemeral-storage", "inodes")),
    *("Usage exceeds the limit", "x"),
)


class Plain(shadow._Pairing):
    """Searches all events each time, whatever is asked."""

    def _match(self, keys_of: Callable[[Decided], set[str]], key_of: Callable[[Done], str]) -> None:
        for place, mine in enumerate(self._decided):
            near = [
                (abs(other.at - mine.at), number)
                for number, other in enumerate(self._kubelet)
                if number not in self._taken and key_of(other) in keys_of(mine)
                if mine.at - self._within <= other.at <= mine.at + self._within
            ]
            if place not in self._partner and near:
                self._partner[place] = min(near)[1]
                self._taken.add(min(near)[1])

    def _before(self, other: Done) -> int | None:
        for place, mine in reversed(list(enumerate(self._decided))):
            is_kind = not other.resource or shadow._kind(mine.resource) == other.resource
            if is_kind and 0 <= other.at - mine.at <= self._within:
                return place
        return None

    def _ended(self, mine: Decided) -> float | None:
        for one in self._seen:
            if one.at > mine.at and mine.threshold not in one.met:
                return one.at - mine.at
        return None

    def _first_near(self, lines: Sequence[tuple[float, str]], others: Sequence[Done]) -> dict[float, str]:
        return {
            other.at: text
            for other in others
            for at, text in reversed(lines)
            if abs(at - other.at) <= self._within
        }

    def _forced_after(self, mine: Decided) -> Decided | None:
        for one in self._decided:
            if one.at > mine.at and not one.is_dry and one.resource == mine.resource:
                return one
        return None


def _journal(chance: random.Random, count: int, span_seconds: float) -> list[bytes]:
    """Return a journal of so many lines that may be anything of which pairs are made."""
    uids = [f"u{number}" for number in range(chance.choice((2, 5, 40)))]
    lines = [_line(chance, uids, span_seconds) for _ in range(count)]
    if chance.random() < 0.7:
        lines.sort(key=lambda line: line["time"])
    return [json.dumps(line).encode() + b"\n" for line in lines]


def _line(chance: random.Random, uids: Sequence[str], span_seconds: float) -> dict[str, Any]:
    time = instant(_T + round(chance.uniform(0, span_seconds), chance.choice((0, 1, 3, 6))))
    uid = chance.choice(uids)
    match chance.choice(("decision", "decision", "ordered", "kubelet", "kubelet", "oom", "none", "ready")):
        case "kubelet":
            uid = chance.choice((uid, f"k{chance.getrandbits(30)}"))
            pod = chance.choice((f"ns/{chance.choice(uids)}", ""))
            found = {"evicted_at": None, "pod": pod, "uid": uid, "message": chance.choice(_MESSAGES)}
            return {"time": time, "kind": "pod-evicted", **found}
        case "oom":
            return {"time": time, "kind": "oom-kill", "scope": "node", "kills": 1, "message": "m"}
        case "none":
            return {"time": time, "kind": "no-victim", "message": f"n{chance.getrandbits(7)}"}
        case "ready":
            status = {"condition": "Ready", "status": chance.choice(("True", "Unknown")), "reason": "r"}
            return {"time": time, "kind": "node-condition", "since": None, **status}
        case kind:
            resource, is_dry = chance.choice(list(_SIGNALS)), chance.random() < 0.7
            evicted = {
                "uid": uid,
                "pod": chance.choice((f"ns/{uid}", "")),
                "signal": _SIGNALS[resource],
                "resource": resource,
                "outcome": "dry-run" if is_dry else "killed",
            }
            threshold = {"threshold": chance.choice(_THRESHOLDS), "available": 5, "value": 7}
            return {
                "time": time,
                "kind": kind,
                "dry_run": is_dry,
                "threshold": chance.choice((None, threshold)),
                "observations": {"memory.available": {"available": chance.getrandbits(30)}},
                "thresholds_met": chance.sample(_THRESHOLDS, chance.randrange(3)),
                "ranking": [{"uid": uid, "pod": f"ns/{uid}", "because": "b"} for uid in uids[:2]],
                **dict.fromkeys(("evictions", "ordered"), [evicted][: chance.randrange(4)]),
            }


@given(
    st.integers(0, 2**32),
    st.sampled_from((3, 20, 80)),
    st.sampled_from((5.0, 100.0, 1000.0, 5000.0)),
    st.sampled_from((600.0, 60.0, 3.3, 1.0, 0.1, 0.0)),
)
def test_random_journals_are_paired_as_by_a_plain_search(
    seed: int, count: int, span_seconds: float, within_seconds: float
) -> None:
    lines = _journal(random.Random(seed), count, span_seconds)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shadow, "_Pairing", Plain)
        expected = node_of(lines, "a", within_seconds=within_seconds)
    assert expected == node_of(lines, "a", within_seconds=within_seconds)


def _decision(time: str, number: int) -> dict[str, Any]:
    evicted = {"uid": f"u{number}", "pod": f"p{number}", "outcome": "dry-run"}
    return {
        "time": time,
        "kind": "decision",
        "dry_run": True,
        "threshold": {"threshold": "a<1", "available": 5, "value": 7},
        "observations": {},
        "thresholds_met": ["a<1"],
        "ranking": [],
        "evictions": [{**evicted, "signal": "nodefs.available", "resource": "ephemeral-storage"}],
    }


def _evicted(time: str, number: int) -> dict[str, Any]:
    message = "The node was low on resource: memory. x"
    about = {"pod": f"q{number}", "uid": f"k{number}", "evicted_at": None, "message": message}
    return {"time": time, "kind": "pod-evicted", **about}


def _oom_kill(time: str, number: int) -> dict[str, Any]:
    del number
    return {"time": time, "kind": "oom-kill", "scope": "node", "kills": 1}


def _no_victim(time: str, number: int) -> dict[str, Any]:
    return {"time": time, "kind": "no-victim", "message": str(number)}


@pytest.mark.parametrize(
    ("makers", "within_seconds"),
    [
        ((_decision,), 600.0),
        ((_decision, _evicted), 600.0),
        ((_decision, _oom_kill), 600.0),
        ((_no_victim, _oom_kill, _evicted), 0.1),
    ],
    ids=["alone", "evicted", "oom-kills", "no-victims"],
)
def test_twice_the_events_of_ten_minutes_take_twice_the_steps(
    makers: Sequence[Callable[[str, int], dict[str, Any]]], within_seconds: float
) -> None:
    def steps_of(count: int) -> int:
        made = (
            makers[number * len(makers) // count](_time(number, count), number) for number in range(count)
        )
        lines = [json.dumps(line).encode() + b"\n" for line in made]
        return executed_lines(lambda: node_of(lines, "a", within_seconds=within_seconds), shadow.__file__)

    assert steps_of(800) < 2.5 * steps_of(400)


def _time(number: int, count: int) -> str:
    return instant(_T + 600.0 * number / count)
