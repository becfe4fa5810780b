"""What was found, as text, as JSON values and as one HTML page: the sums, the pools, each disagreement."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Final

from reactor.errors import ReactorError
from reactor.link.documents import instant
from reactor.model.quantity import duration_text
from reactor.plain import write_whole
from reactor.report.incident import Cell, html_table, whole_page
from reactor.shadow import DISAGREEMENTS, Done, Pair, Verdict
from reactor.shadow.fleet import Fleet, Found, Options, Pool, fleet_of
from reactor.shadow.replay import Changed
from reactor.svg import HUES, Picture, draw, short
from reactor.tables import Screen, Table, table
from reactor.text import counted, printable

_SHOWN: Final = 20  # on a terminal
_ON_PAGE: Final = 500
_MOST_POOLS: Final = 40
_MOST_NODES: Final = 200
_POINTS: Final = 200
_MORE_HUES: Final = ("#6a3d9a", "#333333")
_MEANS: Final[Mapping[Verdict, str]] = {
    Verdict.SAME: "the kubelet evicted the same pod",
    Verdict.OTHER_POD: "the kubelet evicted another pod",
    Verdict.LATER: "the same pod, but the kubelet was sooner",
    Verdict.OOM: "no other eviction; the kernel's OOM killer came",
    Verdict.NOT_READY: "no other eviction; the node was not ready then",
    Verdict.EVICTED: "reactor evicted, and nobody else had to",
    Verdict.ALONE: "nobody else evicted or killed",
    Verdict.MISSED: "the kubelet evicted, reactor decided nothing",
    Verdict.OOM_MISSED: "an OOM kill, and reactor had decided nothing",
    Verdict.NOT_READY_MISSED: "not ready, and reactor had decided nothing",
}
_STYLE: Final = """
.bars { display: grid; grid-template-columns: minmax(4rem, max-content) 1fr; gap: .25rem .8rem; }
.bars div { display: flex; height: 1.3rem; background: var(--box); }
.bars i { display: block; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.bars span { overflow-wrap: anywhere; }
@media (min-width: 40.01rem) {
 td[data-of="TIME"], td[data-of="NODE"], td[data-of="POOL"] { min-width: 5.6rem; }
}
"""


def headline(pool: Pool, days: float | None) -> str:
    """Return it in one line: "14 days: the kubelet evicted 31 times; the same pod in 30, 4.1 s sooner; …"."""
    if days is None:
        return f"{counted(pool.nodes, 'node')} with recordings alone: there is no journal to compare."
    time = f"{days:.0f} days" if days >= 1.95 else duration_text(days * 86400)
    where = "" if pool.nodes == 1 else f" of {pool.nodes} nodes"
    same = pool.verdicts[Verdict.SAME]
    parts = [f"the kubelet evicted {_times(pool.kubelet)}"]
    if pool.kubelet:
        parts.append(f"reactor chose the same pod in {same + pool.verdicts[Verdict.LATER]}{_sooner(pool)}")
    if pool.prevented:
        parts.append(f"{counted(pool.prevented, 'OOM kill')} would have been prevented")
    if pool.verdicts[Verdict.OOM_MISSED]:
        parts.append(f"{counted(pool.verdicts[Verdict.OOM_MISSED], 'OOM kill')} came without a decision")
    alone = pool.verdicts[Verdict.ALONE]
    if alone:
        parts.append(f"{counted(alone, 'eviction')} that nobody else made")
    other = pool.verdicts[Verdict.OTHER_POD]
    if other:
        parts.append(f"{other} with another pod than the kubelet's")
    return f"{time}{where}: {'; '.join(parts)}."


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _sooner(pool: Pool) -> str:
    if not pool.sooner_seconds:
        return ""
    median = statistics.median(pool.sooner_seconds)
    return f", {abs(median):.1f} s {'sooner' if median >= 0 else 'later'} (median)"


def days_of(fleet: Fleet) -> float | None:
    """Return from the first line of all journals to the last."""
    if fleet.first is None or fleet.last is None:
        return None
    return (fleet.last - fleet.first) / 86400


def run(
    found: Found,
    options: Options,
    *,
    title: str,
    output: str = "table",
    report: Path | None = None,
    jobs: int = 1,
) -> Fleet:
    """Read the nodes, print what they come to, write the page; what could not be read goes to stderr.

    Raises ReactorError if nothing can be read, OSError if the page can't be written.
    """
    if not found.sources:
        _name(found.problems if options.key is None else ())
        raise ReactorError(f"{found.where}: no journal (NAME.jsonl) and no recording (NAME.json) is there")
    is_shown = sys.stderr.isatty()
    count = len(found.sources)

    def progress(number: int) -> None:
        if is_shown:
            print(f"\r{number} of {count} nodes", end="", file=sys.stderr, flush=True)

    fleet = fleet_of(found.sources, options, jobs, progress)
    if is_shown:
        print("\r\x1b[K", end="", file=sys.stderr)
    if options.key is None:
        fleet.add_problems(found.problems)
    _name(fleet.problems)
    are_recorded = fleet.recordings and options.policy is None
    if fleet.first is None and not (fleet.steps or are_recorded):
        raise ReactorError(f"{found.where}: no line of a journal, and no step of a recording, can be read")
    if output == "json":
        print(json.dumps(document_of(fleet)))
    else:
        print_fleet(fleet)
    if report is not None:
        write_page(fleet, title, report)
    return fleet


def _name(problems: Sequence[str]) -> None:
    for one in problems[:_MOST_NODES]:
        print(f"reactor: {printable(one)}", file=sys.stderr)


# JSON.


def document_of(fleet: Fleet) -> dict[str, Any]:
    """Return it as plain JSON values: `total`, `pools`, `disagreements`, `changes`, `nodes`, `problems`."""
    found = sum(pool.disagreements for pool in fleet.pools.values())
    return {
        "text": headline(fleet.total, days_of(fleet)),
        "from": None if fleet.first is None else instant(fleet.first),
        "to": None if fleet.last is None else instant(fleet.last),
        "total": _sums(fleet.total),
        "pools": [_sums(fleet.pools[name]) for name in sorted(fleet.pools)],
        "disagreements": [
            {"node": node, "pool": pool, **pair_document(pair)} for node, pool, pair in fleet.disagreements
        ],
        "disagreements_left_out": found - len(fleet.disagreements),
        "changes": [_changed(node, pool, one) for node, pool, one in fleet.changes]
        if fleet.has_policy
        else None,
        "nodes": [
            dict(zip(("node", "pool", "decided", "kubelet", "disagreements"), row, strict=True))
            for row in fleet.nodes
        ],
        "replayed": {"steps": fleet.steps, "passes": fleet.passes},
        "problems": fleet.problems,
        "problems_left_out": fleet.problems_left_out,
    }


def _sums(pool: Pool) -> dict[str, Any]:
    seconds = sorted(pool.sooner_seconds)
    return {
        "pool": pool.name,
        "nodes": pool.nodes,
        "node_days": round(pool.node_days, 2),
        "kubelet_evictions": pool.kubelet,
        "decided": pool.decided,
        "verdicts": {verdict.value: pool.verdicts[verdict] for verdict in Verdict},
        "sooner_seconds": None
        if not seconds
        else {
            "p10": round(_quantile(seconds, 0.1), 3),
            "p50": round(_quantile(seconds, 0.5), 3),
            "p90": round(_quantile(seconds, 0.9), 3),
        },
        "oom_kills_prevented": pool.prevented,
        "more": pool.more,
        "fewer": pool.fewer,
    }


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def pair_document(pair: Pair) -> dict[str, Any]:
    """Return a pair as plain JSON values."""
    decided = pair.decided
    return {
        "verdict": pair.verdict.value,
        "time": instant(pair.at),
        "pod": pair.pod,
        "why": pair.why,
        "decided": None
        if decided is None
        else {
            "time": instant(decided.at),
            "pod": decided.pod,
            "uid": decided.uid,
            "signal": decided.signal,
            "threshold": decided.threshold,
            "available": decided.available,
            "dry_run": decided.is_dry,
            "because": decided.why,
        },
        "kubelet": None if pair.kubelet is None else _done(pair.kubelet),
        "oom_kills": [_done(one) for one in pair.oom_kills],
        "not_ready": None if pair.not_ready is None else _done(pair.not_ready),
        "sooner_seconds": None if pair.sooner_seconds is None else round(pair.sooner_seconds, 3),
        "oom_kills_prevented": pair.prevented,
    }


def _done(one: Done) -> dict[str, Any]:
    return {
        "time": instant(one.at),
        "pod": one.pod,
        "uid": one.uid,
        "resource": one.resource,
        "message": one.text,
        "count": one.count,
        "until": None if one.until is None else instant(one.until),
    }


def _changed(node: str, pool: str, one: Changed) -> dict[str, Any]:
    return {
        "node": node,
        "pool": pool,
        "change": "more" if one.is_more else "fewer",
        "time": instant(one.at) if one.has_date else None,
        "at_seconds": None if one.has_date else round(one.at, 3),
        "pod": one.pod,
        "uid": one.uid,
        "by": one.by,
        "source": one.source,
    }


# Text.


def print_fleet(fleet: Fleet, screen: Screen | None = None) -> None:
    """Print the sums, the pools, the first disagreements and changes."""
    screen = screen or Screen()
    screen.say(headline(fleet.total, days_of(fleet)))
    screen.print()
    rows = [[_MEANS[one], fleet.total.verdicts[one]] for one in Verdict if fleet.total.verdicts[one]]
    if rows:
        screen.print(table(("WHAT", "TIMES"), rows, right="TIMES"))
    if len(fleet.pools) > 1:
        screen.print("", _pools_table(fleet))
    if fleet.disagreements:
        screen.print("")
        shown = fleet.disagreements[:_SHOWN]
        title = "Disagreements"
        if len(shown) < fleet.total.disagreements:
            title += f" (the first {len(shown)} of {fleet.total.disagreements})"
        rows = [
            [_moment(pair.at), node, _MEANS[pair.verdict], _pods(pair), pair.why] for node, _, pair in shown
        ]
        screen.print(table(("TIME", "NODE", "WHAT", "POD", "WHY"), rows, whole="TIME", title=title))
    if fleet.has_policy:
        screen.print("", *_changes_lines(fleet))
        shown_changes = fleet.changes[:_SHOWN]
        if shown_changes:
            rows = [
                [_moment_of(one), node, "more" if one.is_more else "fewer", one.pod, one.by]
                for node, _, one in shown_changes
            ]
            screen.print(table(("TIME", "NODE", "CHANGE", "POD", "BY"), rows, whole="TIME,CHANGE"))


def _changes_lines(fleet: Fleet) -> Iterator[str]:
    yield _change_text(fleet.total).capitalize()
    for name in sorted(fleet.pools):
        pool = fleet.pools[name]
        if len(fleet.pools) > 1 and pool.more + pool.fewer:
            yield f"pool {printable(name)}: {pool.more} more, {pool.fewer} fewer"


def _change_text(pool: Pool) -> str:
    if not pool.more + pool.fewer:
        return "the policy changes no eviction."
    return f"the policy makes {counted(pool.more, 'eviction')} more and {pool.fewer} fewer."


def _pools_table(fleet: Fleet) -> Table:
    rows = [
        [
            name,
            pool.nodes,
            pool.kubelet,
            pool.verdicts[Verdict.SAME] + pool.verdicts[Verdict.LATER],
            _seconds_text(pool),
            pool.prevented,
            pool.disagreements,
        ]
        for name, pool in _pools(fleet)
    ]
    columns = ("POOL", "NODES", "KUBELET EVICTED", "SAME POD", "SOONER", "OOM PREVENTED", "DISAGREED")
    return table(columns, rows, right=",".join(columns[1:]))


def _pools(fleet: Fleet) -> list[tuple[str, Pool]]:
    """Return the pools, those with most disagreements first; of very many the others as one."""
    ordered = sorted(fleet.pools.items(), key=lambda item: (-item[1].disagreements, item[0]))
    return ordered[:_MOST_POOLS]


def _seconds_text(pool: Pool) -> str:
    return f"{statistics.median(pool.sooner_seconds):.1f} s" if pool.sooner_seconds else "-"


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _moment_of(one: Changed) -> str:
    return _moment(one.at) if one.has_date else f"{one.at:.0f} s"


def _pods(pair: Pair) -> str:
    if pair.verdict is Verdict.OTHER_POD and pair.decided is not None and pair.kubelet is not None:
        return f"{pair.decided.pod}, the kubelet {pair.kubelet.pod}"
    return pair.pod or "-"


# HTML.


def write_page(fleet: Fleet, title: str, path: Path) -> None:
    """Write the page whole or not at all. Raises OSError."""
    write_whole(path, page_of(fleet, title))


def page_of(fleet: Fleet, title: str) -> str:
    """Return one page, without a script; all names are escaped."""
    parts = [f'<div class="story"><p>{escape(printable(headline(fleet.total, days_of(fleet))))}</p>']
    if fleet.has_policy:
        parts.append(f"<p>{escape(_change_text(fleet.total).capitalize())}</p>")
    if fleet.first is not None and fleet.last is not None:
        when = f"{_moment(fleet.first)} to {_moment(fleet.last)}"
        parts.append(f'<p class="soft">{when}, {fleet.total.node_days:.1f} node-days; {_mode(fleet)}.</p>')
    parts.append("</div>")
    parts.extend(_verdict_parts(fleet))
    if fleet.total.sooner_seconds:
        parts.append(f"<h2>How much sooner than the kubelet</h2><figure>{_sooner_picture(fleet)}</figure>")
    if len(fleet.pools) > 1:
        parts.append(f"<h2>By pool</h2>{_pool_table(fleet)}")
    parts.append(f"<h2>Disagreements, and why</h2>{_disagreements_table(fleet)}")
    if fleet.has_policy:
        parts.append(f"<h2>What the policy changes</h2>{_changes_table(fleet)}")
    if len(fleet.nodes) > 1:
        parts.append(f"<h2>Nodes</h2>{_nodes_table(fleet)}")
    if fleet.problems:
        items = "".join(f"<li>{escape(printable(one))}</li>" for one in fleet.problems[:_MOST_NODES])
        more = len(fleet.problems) + fleet.problems_left_out - _MOST_NODES
        rest = f"<p>and {more} more</p>" if more > 0 else ""
        parts.append(f"<h2>What could not be read</h2><ul>{items}</ul>{rest}")
    return whole_page(title, parts, made_from="journals and recordings", style=_STYLE)


def _mode(fleet: Fleet) -> str:
    if fleet.dry == {True}:
        return "a dry run"
    return "in force" if fleet.dry == {False} else "dry runs and in force" if fleet.dry else "no decision"


def _verdict_parts(fleet: Fleet) -> Iterator[str]:
    used = [one for one in Verdict if fleet.total.verdicts[one]]
    if not used:
        yield "<p>No eviction and no OOM kill for want of memory on the node is in the journals.</p>"
        return
    rows = [[Cell(_MEANS[one]), Cell(str(fleet.total.verdicts[one]), is_number=True)] for one in used]
    yield "<h2>What reactor decided, and what others did</h2>"
    yield html_table(("WHAT", "TIMES"), rows, [one in DISAGREEMENTS for one in used])
    if len(fleet.pools) > 1:
        yield _bars(fleet, used)


def _bars(fleet: Fleet, used: Sequence[Verdict]) -> str:
    """Return a bar for each pool, as long as it has decisions and others' acts, with its verdicts."""
    colours = dict(zip(Verdict, (*HUES, *_MORE_HUES), strict=True))
    longest = max(sum(pool.verdicts.values()) for pool in fleet.pools.values()) or 1
    bars = []
    for name, pool in _pools(fleet):
        pieces = "".join(
            f'<i style="width:{100 * pool.verdicts[one] / longest:.2f}%;background:{colours[one]}" '
            f'title="{escape(_MEANS[one])}: {pool.verdicts[one]}"></i>'
            for one in used
        )
        bars.append(f"<span>{short(name)}</span><div>{pieces}</div>")
    items = "".join(
        f'<li><i style="background:{colours[one]};opacity:1"></i>{escape(_MEANS[one])}</li>' for one in used
    )
    return f'<figure><div class="bars">{"".join(bars)}</div><ul class="legend">{items}</ul></figure>'


def _sooner_picture(fleet: Fleet) -> str:
    ordered = sorted(fleet.total.sooner_seconds)
    places = sorted({int(number * (len(ordered) - 1) / _POINTS) for number in range(_POINTS + 1)})
    first, last = min(0.0, _quantile(ordered, 0.01)), max(1.0, _quantile(ordered, 0.99))
    curve = [
        (first, 0.0),
        *((ordered[place], 100 * (place + 1) / len(ordered)) for place in places),
    ]
    return draw(
        Picture(
            title="Share of evictions of the same pod, by how much sooner reactor decided",
            first=first,
            last=last,
            highest=100.0,
            x_text=lambda value: f"{value:g} s",
            y_text=lambda value: f"{value:.0f} %",
            lines={"sooner": curve},
            binary_y=False,
        )
    )


def _pool_table(fleet: Fleet) -> str:
    columns = ["POOL", "NODES", "KUBELET EVICTED", "SAME POD", "SOONER", "OOM PREVENTED", "DISAGREED"]
    columns += ["MORE", "FEWER"] if fleet.has_policy else []
    rows = []
    for name, pool in _pools(fleet):
        numbers = [pool.nodes, pool.kubelet, pool.verdicts[Verdict.SAME] + pool.verdicts[Verdict.LATER]]
        texts = [*map(str, numbers), _seconds_text(pool), str(pool.prevented), str(pool.disagreements)]
        texts += [str(pool.more), str(pool.fewer)] if fleet.has_policy else []
        rows.append([Cell(name), *(Cell(text, is_number=True) for text in texts)])
    left = len(fleet.pools) - len(rows)
    rest = f'<p class="soft">{left} more pools are left out.</p>' if left else ""
    return html_table(columns, rows) + rest


def _changes_table(fleet: Fleet) -> str:
    if not fleet.changes:
        return "<p>No eviction is another one.</p>"
    rows = [
        [
            *(Cell(text) for text in (_moment_of(one), node, pool)),
            *(Cell(text) for text in ("more" if one.is_more else "fewer", one.pod, one.by, one.source)),
        ]
        for node, pool, one in fleet.changes[:_ON_PAGE]
    ]
    left = fleet.total.more + fleet.total.fewer - len(rows)
    return html_table(("TIME", "NODE", "POOL", "CHANGE", "POD", "BY", "FROM"), rows) + _left_out(left)


def _disagreements_table(fleet: Fleet) -> str:
    if not fleet.disagreements:
        return "<p>None.</p>"
    rows = [
        [Cell(text) for text in (_moment(pair.at), node, pool, _MEANS[pair.verdict], _pods(pair), pair.why)]
        for node, pool, pair in fleet.disagreements[:_ON_PAGE]
    ]
    left = fleet.total.disagreements - len(rows)
    return html_table(("TIME", "NODE", "POOL", "WHAT", "POD", "WHY"), rows) + _left_out(left)


def _nodes_table(fleet: Fleet) -> str:
    ordered = sorted(fleet.nodes, key=lambda row: (-row[4], -row[2] - row[3], row[0]))[:_MOST_NODES]
    rows = [
        [Cell(name), Cell(pool), *(Cell(str(number), is_number=True) for number in numbers)]
        for name, pool, *numbers in ordered
    ]
    made = html_table(("NODE", "POOL", "REACTOR", "KUBELET", "DISAGREED"), rows)
    return made + _left_out(len(fleet.nodes) - len(rows))


def _left_out(count: int) -> str:
    return f'<p class="soft">{count} more are left out; the JSON has 5,000 of each kind.</p>' if count else ""
