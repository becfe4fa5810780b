"""The page of the last hour: who holds the node's memory, how far the thresholds are, what was evicted.

The steward makes it when somebody asks, every two seconds at most, from samples that it has anyway.
It is read-only, has no script, reloads itself, and stays below 50 kB whatever pods are called.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from reactor.blackbox.sampler import HOUR_SECONDS, Sampler
from reactor.blackbox.series import thinned
from reactor.link.documents import OOM_KILL
from reactor.model.quantity import bytes_text
from reactor.model.settings import Settings
from reactor.model.signals import Signal
from reactor.svg import LEGEND_STYLE, STYLE, Area, Level, Mark, Picture, draw, legend, short

MOST_BYTES: Final = 50_000
_GOOD_SECONDS: Final = 2.0
_RELOAD_SECONDS: Final = 10
_AREAS: Final = 6
_ROWS: Final = 15
_MARKS: Final = 12
_POINTS: Final = 150
_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 46rem;
 margin: 1rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.2rem; margin: 0; } p { margin: .3rem 0; } .soft { color: var(--soft); }
figure { margin: .6rem 0; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td { padding: .1rem 1rem .1rem 0; border-bottom: 1px solid var(--rule); }
td:first-child { text-align: right; }
"""

Document = Mapping[str, Any]


class LivePage:
    """`happened` yields the decisions and OOM kills that are remembered, as the journal has them."""

    def __init__(
        self, sampler: Sampler, settings: Callable[[], Settings], happened: Callable[[], Iterable[Document]]
    ) -> None:
        self._sampler = sampler
        self._settings = settings
        self._happened = happened
        self._made_seconds = float("-inf")
        self._made = b""

    def content(self) -> bytes:
        """Return the page in UTF-8."""
        now_seconds = time.monotonic()
        if now_seconds - self._made_seconds >= _GOOD_SECONDS:
            self._made_seconds = now_seconds
            self._made = self._make(_POINTS)
            for points in (_POINTS // 2, _POINTS // 4, 4):
                if len(self._made) <= MOST_BYTES:
                    break
                self._made = self._make(points)
        return self._made

    def _make(self, points: int) -> bytes:
        sampler = self._sampler
        last = sampler.hour.last
        if last is None:
            return _whole("<p>Nothing has been observed yet.</p>")
        now_seconds = last.at_seconds
        first = max(now_seconds - HOUR_SECONDS, next(iter(sampler.hour)).at_seconds)
        curves = sampler.hour.curves(first, now_seconds)
        most = {uid: max(value for _, value in curve) for uid, curve in curves.items() if curve}
        order = sorted(most, key=lambda uid: most[uid], reverse=True)
        areas = [
            Area(name=self._name(uid), curve=_to_now(thinned(curves[uid], points), now_seconds))
            for uid in order[:_AREAS]
        ]
        used = [
            (one.at_seconds - now_seconds, float(one.capacity_bytes - one.available_bytes))
            for one in sampler.hour
            if one.at_seconds >= first
        ]
        picture = Picture(
            title=f"memory of the last hour; {bytes_text(last.available_bytes)} are available",
            first=min(first - now_seconds, -60.0),
            last=0.0,
            highest=float(last.capacity_bytes),
            x_text=_minutes,
            y_text=lambda value: bytes_text(round(value)),
            areas=areas,
            lines={"used": thinned([(at, round(value)) for at, value in used], 2 * points)},
            levels=self._levels(last.capacity_bytes),
            marks=list(self._marks(min(first - now_seconds, -60.0))),
            height=280,
        )
        held = sorted(curves, key=lambda uid: curves[uid][-1][1], reverse=True)
        rows = "".join(
            f"<tr><td>{_amount(curves[uid][-1][1])}</td><td>{short(self._name(uid), 100)}</td></tr>"
            for uid in held[:_ROWS]
            if curves[uid][-1][1]
        )
        text = (
            f"<p>{_amount(last.available_bytes)} of {_amount(last.capacity_bytes)} are available.</p>"
            f"<figure>{draw(picture)}{legend(areas)}</figure>"
            '<p class="soft">Line: what the node uses. Areas: what the largest pods hold of it. '
            f"Dashed: what it may use until a threshold is crossed.</p><table>{rows}</table>"
        )
        return _whole(text)

    def _name(self, uid: str) -> str:
        pod = self._sampler.pods.get(uid)
        return uid if pod is None else pod.pod

    def _levels(self, capacity_bytes: int) -> list[Level]:
        memory = [
            one
            for one in self._settings().eviction.thresholds
            if one.signal is Signal.MEMORY_AVAILABLE and not one.is_absurd_at(capacity_bytes)
        ]
        return [
            Level(
                value=float(capacity_bytes - one.value.of(capacity_bytes)), text=str(one), is_bad=one.is_hard
            )
            for one in memory
        ]

    def _marks(self, first: float) -> Iterable[Mark]:
        """Yield what was evicted and killed within the picture, the last of them if there are many."""
        marks = []
        for one in self._happened():
            try:
                at = datetime.fromisoformat(str(one.get("time"))).timestamp() - time.time()
            except ValueError:
                continue
            if not first <= at <= 0:
                continue
            if one.get("kind") == OOM_KILL:
                marks.append(Mark(at=at, text=f"OOM kill {one.get('pod') or ''}", is_bad=True))
            elif one.get("evictions"):
                of = one["evictions"][0]
                marks.append(Mark(at=at, text=f"{of.get('outcome')} {of.get('pod')}", is_bad=True))
        return sorted(marks, key=lambda mark: mark.at)[-_MARKS:]


def _whole(body: str) -> bytes:
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta http-equiv="refresh" content="{_RELOAD_SECONDS}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>reactor: the last hour</title>\n<style>{STYLE}{LEGEND_STYLE}{_STYLE}</style>\n"
        "</head>\n<body>\n"
        f"<h1>reactor: the last hour</h1>\n{body}\n"
        f'<p class="soft">{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, reloaded every {_RELOAD_SECONDS} s. '
        "Metrics: /metrics.</p>\n</body>\n</html>\n"
    ).encode("utf-8", "backslashreplace")


def _to_now(curve: Iterable[tuple[float, int]], now_seconds: float) -> list[tuple[float, float]]:
    return [(at - now_seconds, float(value)) for at, value in curve]


def _amount(amount_bytes: int) -> str:
    """Return an amount for people, in whole MiB from 10 MiB on."""
    return escape(bytes_text(amount_bytes >> 20 << 20 if amount_bytes >= 10 << 20 else amount_bytes))


def _minutes(at: float) -> str:
    return (f"{at:g} s" if at % 30 else f"{at / 60:g} min") if at else "now"
