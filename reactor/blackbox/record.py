"""What a line of the journal gets of the black box: `black_box`, plain JSON values of 16 KiB at most.

Times are seconds before (negative) and after the instant that the line is about: the wake of a pass, or, of
an OOM kill, when the pod held most. Whatever does not fit is left out in this order: points of curves, pods
but for the victims and those that grew most, processes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from reactor.blackbox import KnownPod
from reactor.blackbox.processes import Seen
from reactor.blackbox.sampler import Held, Sampler
from reactor.blackbox.series import growth_per_second, thinned
from reactor.link.documents import NO_VICTIM, OOM_KILL, attributes
from reactor.model.quantity import bytes_text
from reactor.model.signals import Resource, Signal
from reactor.text import printable

MOST_BYTES: Final = 16 << 10
WINDOW_SECONDS: Final = 60.0
_MIB: Final = 1 << 20
_NAME_CHARACTERS: Final = 120
# Points of a curve, pods, and pods with processes, from the first try to the last.
_SIZES: Final = ((40, 8, 3), (30, 8, 3), (20, 8, 2), (16, 6, 2), (12, 4, 1), (8, 3, 1), (6, 2, 1), (4, 1, 0))
_FOR: Final = frozenset({Resource.MEMORY, Resource.SWAP})
_FRESH_SECONDS: Final = 120.0

Document = Mapping[str, Any]


def added(sampler: Sampler, line: Document, *, now_seconds: float) -> dict[str, Any] | None:
    """Return the `black_box` of a line of the journal, None for one that gets none."""
    about = _about(line)
    if about is None:
        return None
    at_seconds, victims = about
    at_seconds = now_seconds if at_seconds is None else min(at_seconds, now_seconds)
    if line.get("kind") == OOM_KILL and victims:
        at_seconds = _highest(sampler, victims[0], at_seconds)
    document: dict[str, Any] = {}
    for points, pods, listed in _SIZES:
        document = _document(sampler, at_seconds, victims, points=points, pods=pods, listed=listed)
        if len(json.dumps(document).encode()) <= MOST_BYTES:
            return document
    return {"text": document["text"][:1000], "missing_because": "what was observed is larger than a record"}


def _about(line: Document) -> tuple[float | None, list[str]] | None:
    """Return when it happened, if the line has that, and to whom by uid; None where memory has no part."""
    kind = line.get("kind")
    if kind == "decision":
        evictions = [one for one in line.get("evictions") or () if one.get("resource") in _FOR]
        woke_ns = line["timing"]["woke_ns"]
        return (woke_ns / 1e9, [str(one["uid"]) for one in evictions]) if evictions else None
    if kind == OOM_KILL:
        return None, [] if line.get("uid") is None else [str(line["uid"])]
    if kind == NO_VICTIM and line.get("resource") in _FOR:
        return None, []
    return None


def _highest(sampler: Sampler, uid: str, now_seconds: float) -> float:
    """Return when a pod held most within the last minute: a kill that is only counted is reported late."""
    curve = sampler.fine.curves(now_seconds - WINDOW_SECONDS, now_seconds).get(uid, ())
    return max(curve, key=lambda one: one[1])[0] if curve else now_seconds


def _document(
    sampler: Sampler, at_seconds: float, victims: Sequence[str], *, points: int, pods: int, listed: int
) -> dict[str, Any]:
    since_seconds = at_seconds - WINDOW_SECONDS
    samples = [one for one in sampler.fine if one.at_seconds >= since_seconds]
    before = [one for one in sampler.fine if one.at_seconds < since_seconds]
    samples = before[-1:] + samples
    if not samples or samples[0].at_seconds > at_seconds:
        return {"text": None, "missing_because": _why_missing(sampler, at_seconds)}
    curves = sampler.fine.curves(since_seconds, max(one.at_seconds for one in samples))
    grew = {
        uid: _at(curve, at_seconds) - min(value for at, value in curve if at <= at_seconds)
        for uid, curve in curves.items()
        if curve[0][0] <= at_seconds
    }
    taker = _Taker(sampler, curves, grew, at_seconds)
    order = sorted(
        curves, key=lambda uid: (uid not in victims, -grew.get(uid, 0), -_at(curves[uid], at_seconds))
    )
    available = thinned([(one.at_seconds, one.available_bytes) for one in samples], points)
    swap = [(one.at_seconds, one.swap_free_bytes) for one in samples if one.swap_free_bytes is not None]
    shown = order[:pods]
    return {
        "window_seconds": WINDOW_SECONDS,
        "text": taker.text,
        "took_memory": taker.document(),
        "node": {
            "capacity_bytes": samples[-1].capacity_bytes,
            "available_bytes": _relative(available, at_seconds),
            "swap_free_bytes": _relative(thinned(swap, points // 2 or 1), at_seconds) if swap else None,
            "thresholds": _thresholds(sampler, samples[-1].capacity_bytes),
        },
        "pods": [
            {
                **_who(sampler.pods.get(uid), uid),
                "working_set_bytes": _relative(thinned(curves[uid], points // 2 or 1), at_seconds),
                "grew_bytes": grew.get(uid, 0),
                "bytes_per_second": growth_per_second(curves[uid], at_seconds),
                "kinds": _kinds(sampler.held.get(uid), at_seconds),
            }
            for uid in shown
        ],
        "processes": [
            {**_who(sampler.pods.get(uid), uid), **_processes(sampler.seen[uid], at_seconds)}
            for uid in shown
            if uid in sampler.seen and abs(at_seconds - sampler.seen[uid].at_seconds) < _FRESH_SECONDS
        ][:listed],
        "missing_because": _why_no_processes(sampler, victims),
    }


def _thresholds(sampler: Sampler, capacity_bytes: int) -> list[dict[str, Any]]:
    return [
        {"threshold": str(one), "bytes": int(one.value.of(capacity_bytes)), "is_hard": one.is_hard}
        for one in sampler.settings.eviction.thresholds
        if one.signal is Signal.MEMORY_AVAILABLE and not one.is_absurd_at(capacity_bytes)
    ]


def _why_missing(sampler: Sampler, at_seconds: float) -> str:
    since_seconds = at_seconds - sampler.began_seconds
    if since_seconds < WINDOW_SECONDS:
        when = f"{since_seconds:.1f} s before" if since_seconds >= 0 else f"{-since_seconds:.1f} s after"
        return f"the steward was started {when} it, and had observed nothing yet"
    return "the steward observed nothing in the minute before it"


def _why_no_processes(sampler: Sampler, victims: Collection[str]) -> str | None:
    if not victims or any(uid in sampler.seen for uid in victims):
        return None
    return sampler.problem or "processes: it came too fast for them to be looked at"


class _Taker:
    """Whose growth took most of the memory: a pod's, or that of what belongs to no pod."""

    def __init__(
        self,
        sampler: Sampler,
        curves: Mapping[str, Sequence[tuple[float, int]]],
        grew: Mapping[str, int],
        at_seconds: float,
    ) -> None:
        self._uid = max(grew, key=lambda uid: grew[uid], default=None)
        self._grew = 0 if self._uid is None else grew[self._uid]
        self._pod = None if self._uid is None else sampler.pods.get(self._uid)
        self._used = 0 if self._uid is None else _at(curves[self._uid], at_seconds)
        self._per_second = 0 if self._uid is None else growth_per_second(curves[self._uid], at_seconds)
        available = [
            one.available_bytes
            for one in sampler.fine
            if at_seconds - WINDOW_SECONDS <= one.at_seconds <= at_seconds
        ]
        lost = max(available, default=0) - (available[-1] if available else 0)
        self._outside = max(0, lost - sum(one for one in grew.values() if one > 0))

    @property
    def text(self) -> str:
        """Return it as one sentence."""
        if self._outside > max(self._grew, _MIB):
            return f"memory was taken outside of all pods ({bytes_text(self._outside)} within a minute)"
        if self._grew < _MIB or self._uid is None:
            return "no pod grew by as much as 1Mi within the minute before"
        name = self._uid if self._pod is None else self._pod.pod
        rate = f"+{bytes_text(_rounded(self._per_second))}/s, " if self._per_second else ""
        never = ", which is never evicted" if self._pod is not None and self._pod.is_never_evicted else ""
        return f"memory was taken by {_name(name)} ({rate}{bytes_text(_rounded(self._used))}){never}"

    def document(self) -> dict[str, Any] | None:
        if self._grew < _MIB or self._uid is None or self._outside > self._grew:
            return None
        return {
            **_who(self._pod, self._uid),
            "grew_bytes": self._grew,
            "bytes_per_second": self._per_second,
            "working_set_bytes": self._used,
        }


def _rounded(amount_bytes: int) -> int:
    """Return the amount without what nobody reads: whole MiB from 10 MiB on."""
    return amount_bytes if amount_bytes < 10 * _MIB else round(amount_bytes / _MIB) * _MIB


def _who(pod: KnownPod | None, uid: str) -> dict[str, Any]:
    never = pod is not None and pod.is_never_evicted
    return {"pod": _name(uid if pod is None else pod.pod), "uid": _name(uid), "never_evicted": never}


def _name(text: str) -> str:
    shown = printable(text)
    return shown if len(shown) <= _NAME_CHARACTERS else f"{shown[: _NAME_CHARACTERS - 1]}…"


def _kinds(held: Held | None, at_seconds: float) -> dict[str, float] | None:
    if held is None:
        return None
    kinds = attributes(held.kinds, "anonymous_bytes", "shared_bytes", "active_file_bytes", "kernel_bytes")
    return {"at_seconds": round(held.at_seconds - at_seconds, 2), **kinds}


def _processes(seen: Seen, at_seconds: float) -> dict[str, Any]:
    return {
        "at_seconds": round(seen.at_seconds - at_seconds, 3),
        **attributes(seen, "count", "is_partial"),
        "largest": [one.document() for one in seen.processes],
    }


def _at(curve: Sequence[tuple[float, int]], at_seconds: float) -> int:
    """Return the value that held then; what holds before the first is the first."""
    held = curve[0][1]
    for at, value in curve:
        if at > at_seconds:
            break
        held = value
    return held


def _relative(curve: Sequence[tuple[float, int]], at_seconds: float) -> list[list[float]]:
    return [[round(at - at_seconds, 2), value] for at, value in curve]
