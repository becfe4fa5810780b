"""`reactor report`: one HTML page for an eviction or a span of time, from the journal and its black box.

The page has the node's memory with its thresholds, the pods stacked, what was foreseen, woken, killed and
killed by the kernel, the ranking with its reasons and the story in words. Several incidents have one picture
of their whole span, put together from what each record has of the time before it. Its figures are those of
the records and nothing else. It is one file, without a script, legible on a phone, in the dark and in print.
All that others have written, names of pods and commands among it, is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

import reactor
from reactor.link.documents import (
    ODD_LINE,
    OOM_KILL,
    after,
    evictions_of,
    odd_line_text,
    process_text,
    woken_by,
)
from reactor.model.quantity import UNKNOWN, bytes_text, duration_text
from reactor.model.signals import MEMORY_SIGNALS
from reactor.policy.forecast import ahead_bytes
from reactor.svg import LEGEND_STYLE, STYLE, Area, Level, Mark, Picture, draw, legend
from reactor.text import printable

Document = Mapping[str, Any]

_KINDS: Final = ("anonymous", "file", "shared", "swap")
_MOST_AREAS: Final = 7
_MOST_RANKED: Final = 20
_MOST_INCIDENTS: Final = 200
_MOST_AHEAD_SECONDS: Final = 20.0  # of a forecast
_MOST_LABELS: Final = 10
_JOINED_SECONDS: Final = 2.0
_MOST_TIMES: Final = 4
_DAY: Final = 86_400
_TIME_STEPS: Final = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    10_800,
    21_600,
    43_200,
    _DAY,
)
_STYLE: Final = """
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
 margin: 1.2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; line-height: 1.25; margin: 0 0 .4rem; }
h2 { font-size: 1.1rem; margin: 1.6rem 0 .3rem; }
p { margin: .35rem 0; } figure { margin: .6rem 0; }
.story { background: var(--box); border-left: 4px solid var(--now); padding: .4rem 1rem; }
.soft { color: var(--soft); }
section { border-top: 2px solid var(--rule); margin-top: 2rem; padding-top: .6rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0;
 border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 600; } .victim td { font-weight: 600; }
td.number, th.number { text-align: right; white-space: nowrap; }
@media (max-width: 40rem) {
 thead { position: absolute; left: -999rem; }
 tr { display: block; padding: .3rem 0; border-bottom: 1px solid var(--rule); }
 td, td.number { display: grid; grid-template-columns: 6.5rem 1fr; border: 0; text-align: left;
  white-space: normal; padding: 0; }
 td::before { content: attr(data-of); color: var(--soft); font-weight: 400; }
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """From when to when, as instants with a time zone; None: without a bound."""

    since: datetime | None = None
    until: datetime | None = None

    def has(self, document: Document) -> bool:
        """Return whether a line of the journal lies in it; a line without a time and its zone does not."""
        try:
            at = datetime.fromisoformat(str(document.get("time")))
        except ValueError:
            return False
        if at.tzinfo is None:
            return False
        return (self.since is None or at >= self.since) and (self.until is None or at <= self.until)


def incidents(documents: Iterable[Document], span: Span) -> list[Document]:
    """Return the decisions that evict and the OOM kills of a span of time, in the order of their times."""
    found = [
        one
        for one in documents
        if span.has(one)
        and (one.get("kind") == OOM_KILL or (one.get("kind") == "decision" and one.get("evictions")))
    ]
    return sorted(found, key=lambda one: str(one.get("time")))


def page(shown: Sequence[Document], node: str, *, among: Sequence[Document] = ()) -> str:
    """Return the page of these decisions and OOM kills; `among` are all that are marked in their pictures.

    Of more than 200 the last ones are shown, and the page says so.
    """
    kept = shown[-_MOST_INCIDENTS:]
    title = f"{node}: {_title(kept)}"
    parts, readable = [], []
    for one in kept:
        try:
            part = _section(one, among or kept)
            [*_pictures_of_span([one])]
        except ODD_LINE as error:
            part = _odd_section(one, error)
        else:
            readable.append(one)
        parts.append(part)
    left_out = len(shown) - len(kept)
    notes = [f"<p>The first {left_out} of {len(shown)} are left out.</p>"] if left_out else []
    if len(kept) > 1:
        notes.extend(_pictures_of_span(readable))
        notes.append(_overview(kept))
    return whole_page(title, [*notes, *parts])


def _title(shown: Sequence[Document]) -> str:
    if not shown:
        return "nothing was evicted or killed in this time"
    if len(shown) == 1:
        return _headline(shown[0])
    return f"{len(shown)} evictions and OOM kills from {_moment(shown[0])} to {_moment(shown[-1])}"


def whole_page(title: str, parts: Sequence[str], *, made_from: str = "the journal", style: str = "") -> str:
    """Return a page of these elements, in which texts are escaped; `style` is added to the common one."""
    shown = escape(printable(title))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{shown}</title>\n<style>{STYLE}{LEGEND_STYLE}{_STYLE}{style}</style>\n</head>\n<body>\n"
        f"<h1>{shown}</h1>\n"
        + "\n".join(parts)
        + f'\n<p class="soft">reactor {escape(reactor.__version__)}, from {escape(made_from)}. '
        "Times are UTC.</p>\n"
        "</body>\n</html>\n"
    )


def _overview(shown: Sequence[Document]) -> str:
    rows = [
        [Cell(_moment(one)), Cell(_headline(one)), Cell(str(_box(one).get("text") or "-"))] for one in shown
    ]
    return html_table(("TIME", "WHAT HAPPENED", "WHO TOOK THE MEMORY"), rows)


def _section(one: Document, among: Sequence[Document]) -> str:
    story = "".join(f"<p>{escape(printable(line))}</p>" for line in _story(one))
    parts = [f"<section><h2>{escape(printable(_headline(one)))}</h2>", f'<div class="story">{story}</div>']
    parts.extend(_pictures(one, among))
    if one.get("ranking"):
        parts.append(f"<h2>The ranking, and why</h2>{_ranking(one)}")
    if _box(one).get("processes"):
        parts.append(f"<h2>The largest processes</h2>{_processes(_box(one))}")
    return "\n".join([*parts, "</section>"])


def _odd_section(one: Document, error: Exception) -> str:
    """Return what stands in place of a line that a disk, or another's hand, has made odd."""
    why = f"{_moment(one)}: {odd_line_text(error)}"
    return f"<section><h2>{escape(printable(_headline(one)))}</h2><p>{escape(printable(why))}</p></section>"


# --- in words ---


def _headline(one: Document) -> str:
    if one.get("kind") == OOM_KILL:
        where = one.get("pod") or one.get("victim_cgroup") or "a cgroup that is not known"
        return f"the kernel's OOM killer killed in {where}"
    evictions = evictions_of(one)
    names = ", ".join(str(each.get("pod")) for each in evictions)
    what = "would have been evicted (dry run)" if one.get("dry_run") else "was evicted"
    if all(each.get("pod_lives") for each in evictions):
        what = "lost one process"
    return f"{names} {what}{'' if (cause := _cause(one)) is None else f' for {cause}'}"


def _cause(one: Document) -> str | None:
    threshold, rule = one.get("threshold"), one.get("rule")
    if isinstance(rule, Mapping):
        return f"rule {rule.get('name')}"
    return str(threshold.get("threshold")) if isinstance(threshold, Mapping) else None


def _story(one: Document) -> Iterator[str]:
    """Yield what happened, sentence by sentence, each of what the record has."""
    box = _box(one)
    yield f"{_moment(one)} UTC."
    if one.get("kind") == OOM_KILL:
        yield str(one.get("message"))
    threshold = one.get("threshold")
    if isinstance(threshold, Mapping) and threshold.get("signal") in MEMORY_SIGNALS:
        yield (
            f"{_bytes(threshold.get('available'))} of {_bytes(threshold.get('capacity'))} were available; "
            f"the threshold {threshold['threshold']} is at {_bytes(threshold.get('value'))}."
        )
    if box.get("text"):
        yield f"{_sentence(box['text'])}."
    yield from _time_left(one)
    for each in evictions_of(one):
        yield from _story_of(each, one)
    if box.get("missing_because"):
        yield f"Not observed: {box['missing_because']}."
    elif not box:
        yield "What happened before is not recorded: reactor.blackBox is off."


def _story_of(each: Document, one: Document) -> Iterator[str]:
    woke_ns = (one.get("timing") or {}).get("woke_ns")
    if woke_ns is not None:
        what = [
            after(word, woke_ns, each.get(f"{key}_ns"))
            for word, key in (("killed", "killed"), ("memory back", "freed"))
        ]
        wakes = woken_by(one.get("wakes") or ())
        done = "; ".join(filter(None, what)) or str(each.get("outcome"))
        yield f"{each.get('pod')}: woken by {wakes}; {done} ({each.get('outcome')})."
    if each.get("process") is not None:
        yield f"One process alone: {process_text(each['process'])}; the pod lives on."
    if each.get("returned_bytes") is not None and each.get("credited_bytes") is not None:
        yield (
            f"It held {_bytes(each['credited_bytes'])}; "
            f"{_bytes(each['returned_bytes'])} more were available afterwards."
        )
    for problem in each.get("problems") or ():
        yield f"Problem: {problem}."


def _time_left(one: Document) -> Iterator[str]:
    """Yield what was foreseen of the time until a threshold, if the record has that."""
    for signal, left in (one.get("time_left") or {}).items():
        if isinstance(left, Mapping) and left.get("seconds"):
            left_text = duration_text(left["seconds"])
            yield f"The hard threshold for {signal} would have been crossed in {left_text}."


def _sentence(text: object) -> str:
    return str(text)[:1].upper() + str(text)[1:]


# --- pictures ---


def _pictures(one: Document, among: Sequence[Document]) -> Iterator[str]:
    """Yield the node's memory, and the pods stacked, over the minute before."""
    box = _box(one)
    node = box.get("node")
    if not isinstance(node, Mapping):
        return
    available = _curve(node["available_bytes"])
    capacity = float(node["capacity_bytes"])
    last = max(available[-1][0], 1.0)
    first = _begin(available, last)
    marks = [*_marks(one), *_neighbours(one, among, first, last)]
    forecast = _forecast(one)
    if forecast is not None:
        last = max(last, min(forecast[1][0], _MOST_AHEAD_SECONDS))
    highest = min(
        capacity, 1.15 * max([value for _, value in available] + [level.value for level in _levels(one)])
    )
    yield _figure(
        Picture(
            title=f"available memory: {_bytes(available[0][1])} to {_bytes(available[-1][1])}",
            first=first,
            last=last,
            highest=highest,
            x_text=_seconds,
            y_text=_bytes,
            lines={"available": available},
            forecasts=[] if forecast is None else [_until(forecast, last)],
            levels=_levels(one),
            marks=marks,
        ),
        "What was available on the node, with its thresholds",
    )
    areas = [
        Area(
            name=str(pod["pod"]), curve=[(float(at), float(value)) for at, value in pod["working_set_bytes"]]
        )
        for pod in box.get("pods") or ()
        if pod["working_set_bytes"]
    ][:_MOST_AREAS]
    if areas:
        most = sum(max(value for _, value in area.curve) for area in areas)
        yield _figure(
            Picture(
                title="working sets of pods",
                first=first,
                last=last,
                highest=max(1.0, min(capacity, 1.05 * most)),
                x_text=_seconds,
                y_text=_bytes,
                areas=areas,
                marks=marks,
            ),
            "What the pods that mattered held, one upon the other",
            areas,
        )


def _forecast(one: Document) -> list[tuple[float, float]] | None:
    """Return a line from what was available at the record's instant to the expected crossing."""
    node = _box(one).get("node") or {}
    hard = [float(each["bytes"]) for each in node.get("thresholds") or () if each["is_hard"]]
    lefts = [left for left in (one.get("time_left") or {}).values() if isinstance(left, Mapping)]
    seconds = [float(left["seconds"]) for left in lefts if left.get("seconds") is not None]
    available = [value for at, value in _curve(node.get("available_bytes") or ()) if at <= 0]
    if not (hard and seconds and available) or not min(seconds) > 0:
        return None
    return [(0.0, available[-1]), (min(seconds), max(hard))]


def _until(curve: Sequence[tuple[float, float]], last: float) -> list[tuple[float, float]]:
    """Return a straight line up to a time at the most."""
    (at, value), (to, wanted) = curve
    if to <= last:
        return [(at, value), (to, wanted)]
    return [(at, value), (last, value + (wanted - value) * (last - at) / (to - at))]


def _begin(available: Sequence[tuple[float, float]], last: float) -> float:
    """Return from when on the picture shows something: a little before the curve first moves."""
    values = [value for _, value in available]
    moves = (max(values) - min(values)) / 50
    still = available[0][0]
    for at, value in available:
        if abs(value - values[0]) > moves:
            break
        still = at
    return max(available[0][0], min(-1.0, still - max(1.0, 0.2 * (last - still))))


def _figure(picture: Picture, caption: str, areas: Sequence[Area] = ()) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{draw(picture)}{legend(areas)}</figure>"


def _levels(one: Document) -> list[Level]:
    """Return the thresholds that the record has in bytes, and the level ahead of each hard one.

    At that level the loop is woken before the crossing.
    """
    node = _box(one).get("node") or {}
    found = []
    for threshold in node.get("thresholds") or ():
        value, is_hard = float(threshold["bytes"]), bool(threshold["is_hard"])
        found.append(Level(value=value, text=f"{threshold['threshold']} ({_bytes(value)})", is_bad=is_hard))
        if is_hard:
            ahead = ahead_bytes(node["capacity_bytes"])[0]
            found.append(Level(value=value + ahead, text=f"early level, {_bytes(ahead)} ahead", is_bad=False))
    return found or _level_acted_on(one)


def _level_acted_on(one: Document) -> list[Level]:
    threshold = one.get("threshold")
    if not isinstance(threshold, Mapping) or threshold.get("signal") not in MEMORY_SIGNALS:
        return []
    if threshold.get("value") is None:
        return []
    text = f"{threshold['threshold']} ({_bytes(threshold['value'])})"
    return [Level(value=float(threshold["value"]), text=text)]


def _marks(one: Document) -> Iterator[Mark]:
    timing = one.get("timing") or {}
    woke_ns = timing.get("woke_ns")
    if one.get("kind") == OOM_KILL or woke_ns is None:
        yield Mark(at=0.0, text="OOM kill", is_bad=True)
        return
    is_soft = any(each.get("grace_period_seconds") for each in evictions_of(one))
    yield Mark(at=0.0, text="asked to end" if is_soft else "crossing", is_bad=False)
    for each in evictions_of(one):
        if each.get("killed_ns") is not None:
            yield Mark(at=(each["killed_ns"] - woke_ns) / 1e9, text=f"killed {each.get('pod')}", is_bad=True)


def _neighbours(one: Document, among: Sequence[Document], first: float, last: float) -> Iterator[Mark]:
    """Yield what else happened within the picture: evictions and OOM kills, by their times of day."""
    at = _unix_seconds(one)
    for other in among:
        other_at = _unix_seconds(other)
        if other is one or at is None or other_at is None or not first <= other_at - at <= last:
            continue
        is_oom = other.get("kind") == OOM_KILL
        text = "OOM kill" if is_oom else f"evicted {next(iter(evictions_of(other)), {}).get('pod')}"
        yield Mark(at=other_at - at, text=text, is_bad=True)


# --- pictures of a span ---


def _pictures_of_span(shown: Sequence[Document]) -> Iterator[str]:
    """Yield the node's memory and the pods stacked over all of these, as far as their records reach.

    Between two records that do not meet nothing is known, and nothing is drawn.
    """
    seen = [(at, one) for one in shown if (at := _unix_seconds(one)) is not None]
    known = [(at, one) for at, one in seen if isinstance(_box(one).get("node"), Mapping)]
    if not known:
        return
    begin = min(at + _box(one)["node"]["available_bytes"][0][0] for at, one in known)
    pieces = _pieces([(at - begin, _box(one)) for at, one in known])
    last = max(*(piece[-1][0] for piece in pieces), max(at for at, _ in seen) - begin, 1.0)
    capacity = float(_box(known[-1][1])["node"]["capacity_bytes"])
    levels = _levels(known[-1][1])
    most = max([value for piece in pieces for _, value in piece] + [level.value for level in levels])
    marks = _marks_of_span(seen, begin)
    forecasts = [
        [(at - begin + ahead, value) for ahead, value in _until(found, _MOST_AHEAD_SECONDS)]
        for at, one in known
        if (found := _forecast(one)) is not None
    ]
    x_text, x_ticks = _time_of_day(begin, last)
    yield _figure(
        Picture(
            title=f"available memory from {_moment(shown[0])} to {_moment(shown[-1])} UTC",
            first=0.0,
            last=last,
            highest=min(capacity, 1.15 * most),
            x_text=x_text,
            x_ticks=x_ticks,
            y_text=_bytes,
            lines={f"available {place}": piece for place, piece in enumerate(pieces)},
            forecasts=forecasts,
            levels=levels,
            marks=marks,
            height=270,
        ),
        "What was available on the node in the whole time, as far as it is recorded; dotted: as foreseen",
    )
    areas = _areas_of_span([(at - begin, _box(one)) for at, one in known], pieces)
    if areas:
        ends = sorted({at for area in areas for at, _ in area.curve})
        stacked = [sum(_at(area.curve, end) for area in areas) for end in ends]
        yield _figure(
            Picture(
                title="working sets of pods in the whole time",
                first=0.0,
                last=last,
                highest=max(1.0, min(capacity, 1.05 * max(stacked))),
                x_text=x_text,
                x_ticks=x_ticks,
                y_text=_bytes,
                areas=areas,
                marks=marks,
                height=270,
            ),
            "What the pods that mattered held in the whole time, one upon the other",
            areas,
        )


def _pieces(boxes: Sequence[tuple[float, Document]]) -> list[list[tuple[float, float]]]:
    """Return what was available, in pieces between which nothing is known; times are from the first on."""
    pieces: list[list[tuple[float, float]]] = []
    for at, box in sorted(boxes, key=lambda one: one[0] + one[1]["node"]["available_bytes"][0][0]):
        curve = [(at + ahead, value) for ahead, value in _curve(box["node"]["available_bytes"])]
        if pieces and curve[0][0] <= pieces[-1][-1][0] + _JOINED_SECONDS:
            end = pieces[-1][-1][0]  # of two records of the same time the first is the nearer one
            pieces[-1].extend(point for point in curve if point[0] > end)
        else:
            pieces.append(curve)
    return pieces


def _areas_of_span(
    boxes: Sequence[tuple[float, Document]], pieces: Sequence[Sequence[tuple[float, float]]]
) -> list[Area]:
    """Return what the largest pods held, nothing between the pieces."""
    curves: dict[str, list[tuple[float, float]]] = {}
    names: dict[str, str] = {}
    for at, box in sorted(boxes, key=lambda one: one[0]):
        for pod in box.get("pods") or ():
            curve = curves.setdefault(pod["uid"], [])
            names[pod["uid"]] = str(pod["pod"])
            end = curve[-1][0] if curve else -1.0
            points = [(at + ahead, value) for ahead, value in _curve(pod["working_set_bytes"])]
            curve.extend(point for point in points if point[0] > end)
    largest = sorted(curves, key=lambda uid: -max((value for _, value in curves[uid]), default=0.0))
    ends = [piece[-1][0] for piece in pieces[:-1]]
    return [
        Area(name=names[uid], curve=sorted([*curves[uid], *((end + 0.001, 0.0) for end in ends)]))
        for uid in largest[:_MOST_AREAS]
        if curves[uid]
    ]


def _at(curve: Sequence[tuple[float, float]], at_seconds: float) -> float:
    return next((value for at, value in reversed(curve) if at <= at_seconds), 0.0)


def _marks_of_span(seen: Sequence[tuple[float, Document]], begin: float) -> list[Mark]:
    """Return what happened; the first have a name each, the table below the picture has all."""
    marks = []
    for place, (at, one) in enumerate(seen):
        is_oom = one.get("kind") == OOM_KILL
        evictions = evictions_of(one) or [{}]
        is_soft = any(each.get("grace_period_seconds") for each in evictions)
        name = str(one.get("pod") if is_oom else evictions[0].get("pod")).rpartition("/")[2]
        what = "OOM kill" if is_oom else "asked to end" if is_soft else "crossing, killed"
        text = f"{what} {name}" if place < _MOST_LABELS else ""
        marks.append(Mark(at=at - begin, text=text, is_bad=not is_soft))
    return marks


def _time_of_day(begin: float, last: float) -> tuple[Callable[[float], str], list[float]]:
    """Return how the x axis of so many seconds from `begin` on is labelled, and where: four times at most."""
    step = next((one for one in _TIME_STEPS if last / one <= _MOST_TIMES), _TIME_STEPS[-1])
    step *= math.ceil(last / step / _MOST_TIMES)
    form = "%H:%M:%S" if step < 60 else "%H:%M" if last < _DAY else "%d %b" if step >= _DAY else "%d %b %H:%M"
    first = math.ceil(begin / step) * step - begin
    places = [first + number * step for number in range(math.floor((last - first) / step) + 1)]
    return lambda at: f"{datetime.fromtimestamp(round(begin + at), UTC):{form}}", places


# --- tables ---


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table; a number is set to the right."""

    text: str
    is_number: bool = False


def html_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], marked: Sequence[bool] = ()) -> str:
    """Return a table whose rows are cards on a narrow screen."""
    numbers = [any(row[place].is_number for row in rows) for place in range(len(columns))]
    head = "".join(
        f"<th{_number(is_number)}>{escape(title)}</th>"
        for title, is_number in zip(columns, numbers, strict=True)
    )
    body = []
    for place, row in enumerate(rows):
        cells = "".join(
            f'<td{_number(cell.is_number)} data-of="{escape(title)}">{escape(printable(cell.text))}</td>'
            for title, cell in zip(columns, row, strict=True)
        )
        victim = ' class="victim"' if place < len(marked) and marked[place] else ""
        body.append(f"<tr{victim}>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _number(is_number: bool) -> str:  # noqa: FBT001 - its one argument
    return ' class="number"' if is_number else ""


def _ranking(one: Document) -> str:
    ranking = list(one.get("ranking") or ())
    victims = {each.get("uid") for each in evictions_of(one)}
    shown = ranking[:_MOST_RANKED]
    rows = [
        [Cell(str(place), is_number=True), Cell(str(each.get("pod"))), Cell(str(each.get("because")))]
        for place, each in enumerate(shown, 1)
    ]
    more = len(ranking) - len(shown)
    note = f'<p class="soft">and {more} more</p>' if more else ""
    return (
        html_table(("PLACE", "POD", "BECAUSE"), rows, [each.get("uid") in victims for each in shown]) + note
    )


def _processes(box: Document) -> str:
    rows = [
        [
            Cell(str(seen["pod"])),
            Cell(str(each["pid"]), is_number=True),
            *(
                Cell(_bytes(each[f"{kind}_bytes"]), is_number=True)
                for kind in ("anonymous", "file", "shared", "swap")
            ),
            Cell(duration_text(each["age_seconds"]), is_number=True),
            Cell(str(each["command"])),
        ]
        for seen in box["processes"]
        for each in seen["largest"]
    ]
    return html_table(("POD", "PID", "ANON", "FILE", "SHARED", "SWAP", "AGE", "COMMAND"), rows)


# --- what a record has ---


def _box(one: Document) -> Document:
    box = one.get("black_box")
    return box if isinstance(box, Mapping) else {}


def _moment(one: Document) -> str:
    at = _unix_seconds(one)
    return str(one.get("time")) if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


def _unix_seconds(one: Document) -> float | None:
    try:
        return datetime.fromisoformat(str(one.get("time"))).timestamp()
    except ValueError:
        return None


def _curve(points: Iterable[Sequence[float]]) -> list[tuple[float, float]]:
    return [(float(at), float(value)) for at, value in points]


def _bytes(amount: float | None) -> str:
    return UNKNOWN if amount is None else bytes_text(round(amount))


def _seconds(at: float) -> str:
    return f"{at:+g} s" if at else "0"
