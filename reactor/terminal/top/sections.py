"""The tables of a frame, from what the daemon answers to `top`."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

from reactor.link.documents import what_was_done
from reactor.model.quantity import duration_text
from reactor.model.signals import RESOURCE_IN, Resource
from reactor.terminal.top.table import Column, Row, Span, Style, Table, amount, rate

_WINDOW_SECONDS: Final = 10.0
# What is read only every ten seconds still has a rate.
_OLDEST_SECONDS: Final = 60.0
_DISTINCT_SECONDS: Final = 0.05

_SOON_SECONDS: Final = 60.0
_FAR_SECONDS: Final = 86_400.0
_GAUGE_CELLS: Final = 20
_SIGNALS: Final = (
    Column(title="SIGNAL", least=20, middle=True),
    Column(title="", gives_way=7),
    Column(title="AVAILABLE", gives_way=3, right=True),
    Column(title="CAPACITY", gives_way=5, right=True),
    Column(title="THRESHOLD", right=True),
    Column(title="MARGIN", right=True),
    Column(title="RATE", gives_way=2, right=True),
    Column(title="IN", right=True),
    Column(title="STATE", gives_way=1),
    Column(title="SOURCE", gives_way=6),
)
_SOURCES: Final = (
    Column(title="SOURCE"),
    Column(title="STATE"),
    Column(title="WAKES", right=True),
    Column(title="LOST", gives_way=2, right=True),
    Column(title="DETAIL", least=10),
)
_RULES: Final = (
    Column(title="RULE", middle=True),
    Column(title="ACTION", gives_way=2),
    Column(title="CGROUPS", gives_way=3, right=True),
    Column(title="HOLDS IN", right=True),
    Column(title="", least=10),
)
_EVENTS: Final = (Column(title="UTC"), Column(title="EVENT", least=10))
_PREFERRED: Final = {"prefer": "preferred, ", "avoid": "avoided, "}
_HEALTH: Final = {"armed": Style.GOOD, "degraded": Style.WARNING, "failed": Style.BAD}


class Rates:
    """Changes per second of many things at once, each over about the last ten seconds."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, deque[tuple[float, float]]] = {}

    def see(self, what: Hashable, value: float, at_seconds: float) -> None:
        """Record a value that was true then; what has been seen already is passed over."""
        seen = self._seen.setdefault(what, deque())
        if seen and at_seconds - seen[-1][0] < _DISTINCT_SECONDS:
            return
        seen.append((at_seconds, value))
        while len(seen) > 2 and at_seconds - seen[1][0] >= _WINDOW_SECONDS:
            seen.popleft()
        while at_seconds - seen[0][0] > _OLDEST_SECONDS:
            seen.popleft()

    def per_second(self, what: Hashable) -> float | None:
        """Return the change per second, None where too little was seen."""
        seen = self._seen.get(what)
        if seen is None or len(seen) < 2:
            return None
        (began, first), (ended, last) = seen[0], seen[-1]
        return (last - first) / (ended - began)

    def forget_all_but(self, kept: Collection[Hashable]) -> None:
        """Forget what is not among these."""
        for what in self._seen.keys() - set(kept):
            del self._seen[what]


def note_rates(rates: Rates, document: Mapping[str, Any], now_seconds: float) -> None:
    """Record every amount in an answer that came just now."""
    for one in document["signals"]:
        if one["available"] is not None and one["age_seconds"] is not None:
            rates.see(one["signal"], one["available"], now_seconds - one["age_seconds"])
    order = document["order"]
    for place in order["first"]:
        if place["usage"] is not None:
            rates.see((order["resource"], place["uid"]), place["usage"], now_seconds - order["age_seconds"])
    signals = [one["signal"] for one in document["signals"]]
    rates.forget_all_but([*signals, *((order["resource"], one["uid"]) for one in order["first"])])


def seconds_left(threshold: Mapping[str, Any], per_second: float | None) -> float | None:
    """Return in how many seconds a threshold is reached, None where it is crossed or not coming nearer.

    Filesystems' are the daemon's own reckoning; what is more than a day off is none.
    """
    margin, reported = threshold["margin"], threshold["reached_in_seconds"]
    if margin is None or margin < 0:
        return None
    left = reported
    if left is None and per_second is not None and round(per_second) < 0:
        left = margin / -per_second
    return left if left is not None and left < _FAR_SECONDS else None


def signals(document: Mapping[str, Any], rates: Rates) -> Table:
    """Return each signal with its thresholds: what is left to them, how fast it goes, how long it lasts."""
    rows = []
    for one in document["signals"]:
        rows += [_signal(one, threshold, rates) for threshold in one["thresholds"]]
    return Table(columns=_SIGNALS, rows=tuple(rows))


def _signal(one: Mapping[str, Any], threshold: Mapping[str, Any], rates: Rates) -> Row:
    resource = RESOURCE_IN[one["unit"]]
    per_second = rates.per_second(one["signal"])
    left = seconds_left(threshold, per_second)
    state, style = _state(one, threshold, left)
    capacity = one["capacity"] or 1
    wanted = f"{threshold['kind']} {amount(threshold['amount'], resource)}"
    return Row(
        weight=float("-inf") if threshold["margin"] is None else -threshold["margin"] / capacity,
        cells=(
            Span(one["signal"]),
            Span(_gauge(one, threshold), style),
            Span(amount(one["available"], resource)),
            Span(amount(one["capacity"], resource), Style.DIM),
            Span(wanted),
            Span(amount(threshold["margin"], resource), style),
            Span(rate(per_second, resource), Style.PLAIN if left is None else style),
            Span(duration_text(left), style),
            Span(state, style),
            Span(one["source"]["name"] if one["source"] else "none", Style.DIM),
        ),
    )


def _state(
    one: Mapping[str, Any], threshold: Mapping[str, Any], left_seconds: float | None
) -> tuple[str, Style]:
    if threshold["margin"] is None:
        return ("absurd" if one["absurd"] else "unknown"), Style.WARNING
    if threshold.get("absurd"):
        return "ignored", Style.WARNING
    if threshold["met"]:
        return "met", Style.BAD
    below = threshold["below_for_seconds"]
    if below is not None:
        return f"{duration_text(below)} of {duration_text(threshold['grace_period_seconds'])}", Style.WARNING
    if threshold["margin"] < 0:  # crossed since the last pass, and about to be acted on
        return "below", Style.BAD
    return "ok", Style.WARNING if left_seconds is not None and left_seconds < _SOON_SECONDS else Style.GOOD


def _gauge(one: Mapping[str, Any], threshold: Mapping[str, Any]) -> str:
    """Return how much is used, with a mark where the threshold lies: `[########|...]`."""
    if threshold["amount"] is None or not one["capacity"]:
        return ""
    used = 1 - one["available"] / one["capacity"]
    level = 1 - threshold["amount"] / one["capacity"]
    filled = min(_GAUGE_CELLS, max(0, round(used * _GAUGE_CELLS)))
    cells = "#" * filled + "." * (_GAUGE_CELLS - filled)
    mark = min(_GAUGE_CELLS - 1, max(0, int(level * _GAUGE_CELLS)))
    return f"[{cells[:mark]}|{cells[mark + 1 :]}]"


def pods(order: Mapping[str, Any], rates: Rates, skipped: int = 0) -> Table:
    """Return the present order of eviction from some place on, and why each pod stands where it does."""
    resource = Resource(order["resource"])
    age = f", {duration_text(order['age_seconds'])} old" if order["age_seconds"] >= 2 else ""
    columns = (
        Column(title="#", right=True),
        Column(title=f"POD of {order['pods']}, for {order['signal']}{age}", least=30, middle=True),
        Column(title="USES", right=True),
        Column(title="RATE", gives_way=3, right=True),
        Column(title="REQUEST", gives_way=4, right=True),
        Column(title="PRIORITY", gives_way=2, right=True),
        Column(title="QOS", gives_way=5),
        Column(title="WHY", least=14),
    )
    rows = [
        _pod(one, resource, rates.per_second((order["resource"], one["uid"])))
        for one in order["first"][skipped:]
    ]
    return Table(columns=columns, rows=tuple(rows), counts_rows=False)


def _pod(place: Mapping[str, Any], resource: Resource, per_second: float | None) -> Row:
    why, style = _why(place)
    requested = "-" if place["exceeds_request"] is None else amount(place["request"], resource)
    return Row(
        weight=-place["place"],
        cells=(
            Span(str(place["place"]), Style.DIM),
            Span(place["pod"], style),
            Span(amount(place["usage"], resource), style),
            Span(rate(per_second, resource), style),
            Span(requested, style),
            Span(str(place["priority"]), style),
            Span(place["qos_class"], style),
            Span(why, style),
        ),
    )


def _why(place: Mapping[str, Any]) -> tuple[str, Style]:
    if place["being_evicted"]:
        return "being evicted", Style.BAD
    if place["critical_because"] is not None:
        return f"never: {place['critical_because']}", Style.DIM
    if place["usage"] is None:
        return "no statistics", Style.WARNING
    relation = {True: "above request", False: "within request", None: "priority, usage"}
    return f"{_PREFERRED.get(place['preference'], '')}{relation[place['exceeds_request']]}", Style.PLAIN


def sources(document: Mapping[str, Any]) -> Table:
    """Return what wakes the loop; those that are off stand together in the last line."""
    used = [one for one in document["sources"] if one["health"] != "off"]
    off = ", ".join(one["name"] for one in document["sources"] if one["health"] == "off")
    rows = [
        Row(
            weight=1.0 if one["health"] == "failed" else 0.0,
            cells=(
                Span(one["name"]),
                Span(one["health"], _HEALTH.get(one["health"], Style.PLAIN)),
                Span(str(one["wakes"])),
                Span(str(one["lost"]), Style.BAD if one["lost"] else Style.PLAIN),
                Span(one["detail"], Style.DIM),
            ),
        )
        for one in used
    ]
    if off:
        cells = ("-", "off", "", "", off)
        rows.append(Row(weight=-1.0, cells=tuple(Span(cell, Style.DIM) for cell in cells)))
    return Table(columns=_SOURCES, rows=tuple(rows))


def rules(document: Mapping[str, Any]) -> Table:
    """Return how the operator's rules stand, those first whose conditions hold; none where there are none."""
    found = document["rules"]
    rows = [
        Row(
            weight=float(one["held_in"]),
            cells=(
                Span(one["name"]),
                Span(one["action"], Style.DIM),
                Span(str(one["matched"]), Style.DIM),
                Span(str(one["held_in"]), Style.WARNING if one["held_in"] else Style.PLAIN),
                Span(_not_helping(one) or one.get("why_not", ""), Style.DIM),
            ),
        )
        for one in sorted(found, key=lambda one: -one["held_in"])
    ]
    return Table(columns=_RULES, rows=tuple(rows))


def _not_helping(rule: Mapping[str, Any]) -> str:
    return f"did not help {rule['unhelpful']} times in a row; {rule['why_not']}" if rule["unhelpful"] else ""


def events(document: Mapping[str, Any]) -> Table:
    """Return the last decisions and the kernel's own OOM kills, the newest first."""
    found = [*map(_decision, document["decisions"]), *map(_oom_kill, document["oom_kills"]["recent"])]
    today = max((time for time, _ in found), default="")[:10]
    rows = [
        Row(cells=(Span(_instant(time, today), Style.DIM), text))
        for time, text in sorted(found, key=lambda one: one[0], reverse=True)
    ]
    return Table(columns=_EVENTS, rows=tuple(rows))


def _decision(decision: Mapping[str, Any]) -> tuple[str, Span]:
    dry = "dry run: " if decision["dry_run"] else ""
    done = what_was_done(decision)
    rule = decision["rule"]
    about = f"rule {rule['name']}" if rule else decision["threshold"] or ", ".join(decision["thresholds_met"])
    about = about or ", ".join(decision["conditions"]) or "no pressure"
    text = about if done == "-" else f"{about}: {done}"
    return decision["time"], Span(dry + text, Style.WARNING if decision["evictions"] else Style.PLAIN)


def _oom_kill(kill: Mapping[str, Any]) -> tuple[str, Span]:
    return kill["time"], Span(f"the kernel's OOM killer: {kill['message']}", Style.BAD)


def _instant(time: str, today: str) -> str:
    """Return the time of day of an RFC 3339 instant, and the day where it is another one."""
    return time[11:19] if time.startswith(today) else time[5:16].replace("T", " ")


def problems(document: Mapping[str, Any]) -> Sequence[Span]:
    """Return what is not as it should be, one line each."""
    return [Span(f"problem: {what}: {why}", Style.WARNING) for what, why in _sorted(document["problems"])]


def _sorted(found: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    return sorted(found.items())
