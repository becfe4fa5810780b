"""`reactor status` and `reactor explain` in the terminal: the command's side, never the daemon's."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from reactor.link.documents import ODD_LINE, after, odd_line_text, process_text, what_was_done, woken_by
from reactor.model.quantity import UNKNOWN, amount_text, bytes_text, duration_text
from reactor.model.signals import RESOURCE_IN, Resource
from reactor.tables import Screen, Table, moment, table
from reactor.terminal.journal import asked, black_box_lines, processes_table
from reactor.text import counted, printable

_FIRST_PODS: Final = 8
_COLUMNS_WITH_SOURCES: Final = 96


def show_status(socket_path: Path, output: str) -> int:
    """Print how the node stands. Raises NoDaemonError."""
    document = asked(socket_path, {"command": "status"})
    if printed_plainly(document, output):
        return 1 if "error" in document else 0
    screen = Screen()
    node = document["node_cgroup"] or "this machine"
    dry = ", dry run" if document["dry_run"] else ""
    screen.say(
        f"reactor {document['version']}, pid {document['pid']}{dry}: {node}, "
        f"{counted(document['pods'], 'pod')}, {counted(document['passes'], 'pass', 'passes')} "
        f"since {moment(document['started'])}"
    )
    screen.say(_processes(document["processes"]))
    if document["kubernetes"] is not None:
        screen.say(_kubernetes(document["kubernetes"]))
    if document["runtime"] is not None:
        screen.say(f"container runtime: {document['runtime']}")
    screen.print(signals_table(document["signals"], screen.width))
    for line in _memory_lines(document):
        screen.say(line)
    first = asked(socket_path, {"command": "top", "pods": _FIRST_PODS})
    if (next_one := next_text(first.get("order"))) is not None:
        screen.say(next_one)
    screen.print(filesystems_table(document, whole="PATH"))
    if document["reclaimed"]:
        screen.print(reclaimed_table(document["reclaimed"]))
    screen.print(_conditions(document["conditions"]))
    screen.print(_sources(document["sources"]))
    one_process = process_victims_text(document["process_victims"])
    if one_process is not None:
        screen.say(one_process)
    _say_by_the_kernel(screen, document)
    _say_shutdown(screen, document["shutdown"])
    if document["in_flight"]:
        screen.print(_in_flight(document["in_flight"]))
    _print_what_was_done(screen, document)
    for line in _closing_lines(document):
        screen.say(line)
    return 0


def next_text(order: Mapping[str, Any] | None) -> str | None:
    """Return which pod would be evicted next, None where that is not known; `order` is as `top` has it."""
    place = next((one for one in order["first"] if not one["being_evicted"]), None) if order else None
    if order is None or place is None:
        return None
    pod = f"{place['pod']} ({place['because']})"
    if place["critical_because"] is not None:
        pod = f"no pod can be evicted, such as {pod}"
    return f"next for {order['signal']}: {pod}"


def _print_what_was_done(screen: Screen, document: Mapping[str, Any]) -> None:
    if document["rules"]:
        screen.print(rules_table(document["rules"]))
    _say_systemd_oomd(screen, document["systemd_oomd"])
    if document["decisions"]:
        screen.print(_decisions(document["decisions"]))
    if document["oom_kills"]["recent"]:
        screen.print(_oom_kills(document["oom_kills"]["recent"]))


def _say_systemd_oomd(screen: Screen, systemd_oomd: Mapping[str, Any]) -> None:
    """Say how many of systemd's units count, where they do, and which don't."""
    if "units" not in systemd_oomd:
        return
    left, such_as = systemd_oomd["not_honoured"], systemd_oomd["such_as"]
    first = next((f": {cgroup}: {why}" for cgroup, why in such_as.items()), "")
    screen.say(
        f"in the place of systemd-oomd: {systemd_oomd['units']} settings of units, {left} do not count{first}"
    )


def show_explanation(socket_path: Path, pod: str | None, output: str) -> int:
    """Print why a pod was evicted and where it stands now, or how a rule does. Raises NoDaemonError.

    The exit status is 1 for a name that the daemon does not know.
    """
    document = asked(socket_path, {"command": "explain", "pod": pod})
    known = "error" not in document and bool(
        document["ranking"] or document["evictions"] or document["oom_kills"] or document["rules"]
    )
    if printed_plainly(document, output):
        return 0 if known or pod is None else 1
    print_explanation(document, pod)
    if not known and pod is not None:
        near = document.get("near_name")
        meant = "" if near is None else f" (did you mean {near}?)"
        where = f"neither among the {counted(document['pods'], 'pod')} now nor among the last decisions"
        Screen().say(f"{pod}: {where}{meant}; the journal may have more: reactor explain {pod} --journal")
        return 1
    return 0


def print_explanation(document: Mapping[str, Any], pod: str | None) -> None:
    """Print an explanation, of the daemon's or of the journal's."""
    screen = Screen()
    for eviction in document["evictions"]:
        with _passed_over_if_odd(screen, eviction):
            _explain_eviction(screen, eviction)
    for kill in document["oom_kills"]:
        with _passed_over_if_odd(screen, kill):
            screen.say(f"{kill['time']}: {kill['message']}")
            _say_black_box(screen, kill.get("black_box"), None)
    for slowdown in document["slowdowns"]:
        screen.say(
            f"Evictions for {slowdown['signal']} are slowed down ({slowdown['reason']}, "
            f"{slowdown['left_seconds']:.0f} s left): {slowdown['message']}"
        )
    for one in document["rules_acted"]:
        if pod is not None or not one["evictions"]:
            with _passed_over_if_odd(screen, one):
                _explain_rule_acted(screen, one)
    for rule in document["rules"]:
        _explain_rule(screen, rule)
    if document["ranking"]:
        screen.print(_ranking(f"Order of eviction now, for {document['signal']}", document["ranking"]))


@contextmanager
def _passed_over_if_odd(screen: Screen, one: Mapping[str, Any]) -> Iterator[None]:
    """Say that what is in a journal can't be shown, where that is of no form that reactor writes."""
    try:
        yield
    except ODD_LINE as error:
        screen.say(f"{one.get('time')}: {odd_line_text(error)}")


def printed_plainly(document: Mapping[str, Any], output: str) -> bool:
    """Return whether a document was printed as it is: as JSON, or because it is an error."""
    if "error" in document:
        print(f"reactor: {printable(document['error'])}", file=sys.stderr)
    elif output == "json":
        print(json.dumps(document))
    else:
        return False
    return True


def _kubernetes(document: Mapping[str, Any]) -> str:
    heard = ", ".join(
        f"{name} {'watched' if is_well else 'NOT watched'}" for name, is_well in document["watches"].items()
    )
    down = "; OUT OF SERVICE by an operator's taint" if document.get("out_of_service") else ""
    return (
        f"kubernetes: node {document['node']}, {document['role']}; {heard}; "
        f"{counted(document['untold_evictions'], 'eviction')} not reported yet{down}"
    )


def _processes(processes: Mapping[str, Any]) -> str:
    steward = processes["steward"]
    return (
        f"processes: guard {processes['guard']['pid']}; steward {steward['pid']}, "
        f"{steward['restarts']} restarts, {steward['lost_records']} journal lines lost"
    )


def _memory_lines(document: Mapping[str, Any]) -> Iterator[str]:
    if document["memory_available"] != "workingSet":
        yield f"memory.available is counted as {document['memory_available']}"
    if document.get("memory") is not None:
        yield f"memory: {document['memory']['message']}"
    traffic = swap_traffic_text(document["swap_traffic"])
    if traffic is not None:
        yield traffic
    yield from time_left_texts(document.get("time_left"))


def time_left_texts(time_left: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield how long until hard memory thresholds are crossed, while memory is short."""
    for one in () if time_left is None else time_left["signals"]:
        if one["seconds"] is None:
            yield f"time left until {one['threshold']}: not foreseeable: {one['because']}"
        else:
            likely, earliest, latest = (one[key] for key in ("seconds", "earliest_seconds", "latest_seconds"))
            yield (
                f"time left until {one['threshold']}: {likely:.1f} s ({earliest:.1f} to {latest:.1f} s); "
                f"it falls by {bytes_text(one['falls_by_bytes_per_second'])}/s"
            )


def swap_traffic_text(swap: Mapping[str, Any] | None) -> str | None:
    """Return how much goes to swap and comes back a second, None where that is not known."""
    if swap is None or swap["in_bytes_per_second"] is None or swap["out_bytes_per_second"] is None:
        return None
    in_text, out_text = (bytes_text(swap[key]) for key in ("in_bytes_per_second", "out_bytes_per_second"))
    return f"swap traffic: {in_text}/s in, {out_text}/s out in the last {swap['window_seconds']:g} s"


def _closing_lines(document: Mapping[str, Any]) -> Iterator[str]:
    notified = notifications_text(document["notifications"])
    if notified is not None:
        yield notified
    yield from (f"problem: {what}: {why}" for what, why in document["problems"].items())


_NOTIFIED: Final = ("sent", "failed", "dropped", "skipped", "waiting")


def notifications_text(notifications: Iterable[Mapping[str, Any]]) -> str | None:
    """Return what has become of notifications, by channel; None where there was none."""
    channels = []
    for one in notifications:
        counts = [f"{one[what]} {what}" for what in _NOTIFIED if one.get(what)]
        if counts:
            channels.append(f"{one['channel']} {', '.join(counts)}")
    return f"notifications: {'; '.join(channels)}" if channels else None


def _conditions(conditions: Iterable[Mapping[str, Any]]) -> Table:
    rows = [(one["condition"], one["in_force"], moment(one["since"])) for one in conditions]
    return table(("CONDITION", "IN FORCE", "SINCE"), rows)


def _sources(sources: Iterable[Mapping[str, Any]]) -> Table:
    rows = [(one["name"], one["health"], one["wakes"], one["lost"], one["detail"]) for one in sources]
    return table(("SOURCE", "STATE", "WAKES", "LOST", "DETAIL"), rows, right="WAKES,LOST")


def _say_oom_order(screen: Screen, order: Mapping[str, Any]) -> None:
    first = order.get("first")
    if first is None:
        return
    count = counted(first["processes"], "process", "processes")
    behind = f"{counted(order['others'], 'process', 'processes')} of others behind it"
    screen.say(
        f"OOM killer's order: {first['pod']} first ({count} at oom_score_adj "
        f"{first['oom_score_adj']}), {behind}, since {moment(first['since'])}"
    )


def _say_by_the_kernel(screen: Screen, document: Mapping[str, Any]) -> None:
    """Print what the kernel does at a crossing: it kills, it runs out of memory."""
    kernel_kill = kernel_kill_text(document["kernel_kill"])
    if kernel_kill is not None:
        screen.say(kernel_kill)
    _say_oom_order(screen, document["oom_order"])


def process_victims_text(document: Mapping[str, Any]) -> str | None:
    """Return in how many pods one process is killed in the place of the pod; None where in none."""
    if not document["pods"]:
        return None
    where = counted(document["pods"], "pod")
    return f"process victims: in {where} one process is killed for memory, not the pod"


def kernel_kill_text(document: Mapping[str, Any]) -> str | None:
    """Return how the kernel's own kills stand; None where they are not asked for."""
    if document["mode"] == "off":
        return None
    counted = ", ".join(f"{count} {outcome}" for outcome, count in sorted(document["counted"].items()))
    standing = f"{document['state']}: {printable(document['detail'])}"
    if document["armed_for"] is not None:
        standing = f"armed for {document['armed_for']}"
    elif document["state"] == "armed" and document["why_none"] is not None:
        standing = f"no warrant now: {printable(document['why_none'])}"
    return f"kernel kill: {standing}; warrants so far: {counted or 'none'}"


def _say_shutdown(screen: Screen, shutdown: Mapping[str, Any]) -> None:
    """Print how the graceful shutdown stands where it is configured, and that the last one was cut off."""
    if shutdown["state"] == "off":
        return
    seconds = sum(group["seconds"] for group in shutdown["groups"])
    text = {
        "waiting": f"held up for {seconds} s at the most",
        "not held up": "NOT held up: logind does not wait for reactor",
        "ending pods": f"under way, ending pods of priority {shutdown['ending_priority']} and above",
        "pods ended": "under way, pods have had their time",
    }[shutdown["state"]]
    if shutdown["last_was_cut_off"]:
        text += f"; the last one, of {moment(shutdown['last']['startTime'])}, was cut off"
    screen.say(f"node shutdown: {text}")


def _in_flight(flights: Iterable[Mapping[str, Any]]) -> Table:
    rows = [
        (
            one["pod"],
            one["resource"],
            f"{one['killed_in_seconds']:.1f} s",
            f"{one['given_up_in_seconds']:.1f} s",
        )
        for one in flights
    ]
    return table(("BEING EVICTED", "FOR", "KILLED IN", "GIVEN UP IN"), rows)


def _decisions(decisions: Iterable[Mapping[str, Any]]) -> Table:
    rows = [
        (
            one["id"],
            moment(one["time"]),
            _cause(one),
            ", ".join(one["conditions"]) or "-",
            what_was_done(one),
        )
        for one in decisions
    ]
    return table(("DECISION", "TIME", "THRESHOLD", "CONDITIONS", "DONE"), rows)


def _cause(decision: Mapping[str, Any]) -> str:
    if decision["rule"]:
        return f"rule {decision['rule']['name']}"
    return str(decision["threshold"] or ", ".join(decision["thresholds_met"]) or "-")


def rules_table(rules: Iterable[Mapping[str, Any]]) -> Table:
    """Return a row for each rule: what it is for, the highest values seen, and where it holds."""
    rows = []
    for one in rules:
        conditions = "; ".join(_condition_text(condition) for condition in one["conditions"])
        holds = "; ".join(
            f"{held['cgroup']} for {held['for_seconds']:.0f} of {one['for_seconds']:g} s"
            for held in one["holds"]
        )
        more = one["held_in"] - len(one["holds"])
        state = f"{holds} and {more} more" if more > 0 else holds
        if one["cooldown_left_seconds"]:
            state = "; ".join(filter(None, (state, f"acts again in {one['cooldown_left_seconds']:.0f} s")))
        rows.append((one["name"], one["action"], one["matched"], conditions, state or "-"))
    return table(("RULE", "ACTION", "CGROUPS", "CONDITIONS", "HOLDS IN"), rows, right="CGROUPS")


def _condition_text(condition: Mapping[str, Any]) -> str:
    highest = condition["highest"]
    return f"{condition['condition']}{'' if highest is None else f' (highest {highest:g})'}"


def _oom_kills(kills: Iterable[Mapping[str, Any]]) -> Table:
    rows = [
        (moment(one["time"]), one["scope"], one["pod"] or one["victim_cgroup"] or "-", one["message"])
        for one in kills
    ]
    return table(("OOM KILL", "SCOPE", "POD", "WHAT HAPPENED"), rows)


def _explain_eviction(screen: Screen, eviction: Mapping[str, Any]) -> None:
    threshold = eviction["threshold"] or {}
    what = "was evicted" if eviction.get("process") is None else "lost one process"
    what = "would have been evicted (dry run)" if eviction["dry_run"] else what
    when = f"{eviction['time']}, decision {eviction['id']}"
    screen.say(f"{eviction['pod']} {what} at {when}: {eviction['message']}")
    if threshold:
        unit = Resource(eviction["resource"])
        screen.say(
            f"  threshold {threshold['threshold']} ({amount_text(threshold['value'], unit)}): available "
            f"{amount_text(threshold['available'], unit)} of {amount_text(threshold['capacity'], unit)}"
            + (f", counted as {threshold['counted_as']}" if "counted_as" in threshold else "")
        )
    for one in eviction["reclaimed"]:
        screen.say(f"  before it, {reclaimed_text(one)}")
    for text in rule_lines(eviction["rule"]):
        screen.say(f"  {text}")
    woke_ns = eviction["timing"]["woke_ns"]
    killed = after("killed", woke_ns, eviction["killed_ns"])
    freed = after("memory back", woke_ns, eviction["freed_ns"])
    outcome = "" if killed.startswith(eviction["outcome"]) else eviction["outcome"]
    done = ", ".join(filter(None, (outcome, killed, freed)))
    screen.say(f"  woken by {woken_by(eviction['wakes'])}; {done}")
    if eviction.get("credited_bytes") is not None and eviction.get("returned_bytes") is not None:
        credited, returned = (
            amount_text(eviction[key], Resource.MEMORY) for key in ("credited_bytes", "returned_bytes")
        )
        whose = "pod" if eviction.get("process") is None else "process"
        screen.say(f"  the {whose} held {credited}; the node had {returned} more afterwards")
    if eviction.get("process") is not None:
        alone = "a part of it" if eviction["process"].get("processes") else "one process of it"
        screen.say(f"  {alone} alone: {process_text(eviction['process'])}; the pod lives on")
    if eviction.get("whole_because") is not None:
        screen.say(f"  not one process of it, but the whole pod: {eviction['whole_because']}")
    for line in _of_warrant(eviction):
        screen.say(f"  {line}")
    for problem in eviction["problems"]:
        screen.say(f"  problem: {problem}")
    _say_black_box(screen, eviction.get("black_box"), threshold.get("value"))
    if eviction["ranking"]:
        places = [{"place": number, **place} for number, place in enumerate(eviction["ranking"], 1)]
        screen.print(_ranking("  Ranking then", places))


def _say_black_box(screen: Screen, box: Mapping[str, Any] | None, threshold_bytes: int | None) -> None:
    """Print what was observed in the minute before, if anything was."""
    for line in black_box_lines(box, threshold_bytes, sys.stdout.encoding):
        screen.say(f"  {line}")
    if box is not None and box.get("processes"):
        screen.print(processes_table(box))


def _explain_rule_acted(screen: Screen, decision: Mapping[str, Any]) -> None:
    """Say when a rule acted, on what, and what came of it."""
    screen.say(f"{decision['time']}, decision {decision['id']}: {what_was_done(decision)}")
    for text in rule_lines(decision["rule"]):
        screen.say(f"  {text}")


def _explain_rule(screen: Screen, rule: Mapping[str, Any]) -> None:
    """Say how a rule stands now, and why it does not act."""
    matched = counted(rule["matched"], "cgroup")
    screen.say(f"rule {rule['name']} ({rule['action']}) observes {matched}: {rule['why_not']}")
    for condition in rule["conditions"]:
        screen.say(f"  {_condition_text(condition)}")
    for held in rule["holds"]:
        values = "; ".join(
            f"{what}: {value:g}" for what, value in held["values"].items() if value is not None
        )
        screen.say(f"  holds in {held['cgroup']} for {held['for_seconds']:.0f} s: {values}")


def reclaimed_text(one: Mapping[str, Any]) -> str:
    """Return what the node has reclaimed of one kind, in words."""
    freed, wanted = (amount_text(one[key], RESOURCE_IN[one["unit"]]) for key in ("freed", "wanted"))
    by = "; ".join([*one["did"], *(f"problem: {problem}" for problem in one["problems"])])
    return (
        f"a reclaim ({one['kind']}) freed {freed} of {wanted} wanted in {one['took_seconds']:.1f} s: "
        f"{by or 'nothing was to be had'}"
    )


def rule_lines(rule: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield which rule acted, and each of its inputs over the time that it held."""
    if rule is None:
        return
    how = f" by {rule['by']}" if rule["action"] == "evictWorst" else ""
    yield (
        f"rule {rule['name']} ({rule['action']}{how}): held in {rule['cgroup']} for "
        f"{rule['held_seconds']:.1f} s of {rule['for_seconds']:g} s"
    )
    for one in rule["inputs"]:
        yield (
            f"  {one['condition']}: {one['value']:g}, from {one['lowest']:g} to {one['highest']:g} meanwhile"
        )


def _of_warrant(eviction: Mapping[str, Any]) -> Iterator[str]:
    if eviction.get("warrant") is not None:
        yield warrant_text(eviction["warrant"])
    if eviction.get("no_warrant_because") is not None:
        yield f"not killed by the kernel under a warrant: {eviction['no_warrant_because']}"


def warrant_text(warrant: Mapping[str, Any]) -> str:
    """Return how the kernel killed a pod under a warrant."""
    armed_ns, crossed_ns, signalled_ns = (warrant[key] for key in ("armed_ns", "crossed_ns", "signalled_ns"))
    crossed = "" if crossed_ns is None else f", crossed {(crossed_ns - armed_ns) / 1e6:.1f} ms later"
    name = f"warrant {warrant['generation']}, armed in advance{crossed}"
    if warrant["refused"] is not None:
        return f"the kernel refused to kill under {name}: {warrant['refused']}; reactor killed the pod itself"
    signalled = ""
    if crossed_ns is not None and signalled_ns is not None:
        signalled = f", signalled after {(signalled_ns - crossed_ns) / 1000:.0f} us"
    who = (
        "" if warrant["pid"] is None else f" (process {warrant['pid']}, {printable(warrant['comm'] or '?')})"
    )
    return (
        f"killed by the kernel under {name}{signalled}{who}; the ranking below is the one it was armed with"
    )


def _ranking(title: str, ranking: Iterable[Mapping[str, Any]]) -> Table:
    rows = [(one["place"], one["pod"], one["because"]) for one in ranking]
    return table(("PLACE", "POD", "BECAUSE"), rows, right="PLACE", title=title)


def signals_table(signals: Iterable[Mapping[str, Any]], columns: int) -> Table:
    """Return a row for each threshold of each signal; what another name says of the same disk is left out.

    A screen of few columns has no room for the sources, which have a table of their own.
    """
    rows: list[Sequence[object]] = []
    for one in _each_once(signals):
        resource = RESOURCE_IN[one["unit"]]
        amounts = [amount_text(one["available"], resource), amount_text(one["capacity"], resource)]
        for threshold in one["thresholds"] or [None]:
            cells = ["-", "-", "-"]
            if threshold is not None:
                met = "met" if threshold["met"] else _since_below(threshold)
                level = f"{threshold['kind']} {amount_text(threshold['amount'], resource)}"
                cells = [level, amount_text(threshold["margin"], resource), met]
            rows.append([one["signal"], *amounts, *cells, _source(one["source"])])
    names = ("SIGNAL", "AVAILABLE", "CAPACITY", "THRESHOLD", "MARGIN", "STATE", "SOURCE")
    shown = len(names) if columns >= _COLUMNS_WITH_SOURCES else len(names) - 1
    return table(
        names[:shown],
        (row[:shown] for row in rows),
        right="AVAILABLE,CAPACITY,THRESHOLD,MARGIN",
        whole="SIGNAL",
    )


def filesystems_table(document: Mapping[str, Any], *, whole: str = "") -> Table:
    """Return a row for each path, by all the names that it goes by; columns in `whole` are never broken."""
    by_place: dict[tuple[object, ...], list[Mapping[str, Any]]] = {}
    for one in document["filesystems"]:
        by_place.setdefault((one["path"], one["device"]), []).append(one)
    rows = [
        (
            ", ".join(one["filesystem"] for one in same),
            same[0]["path"],
            _place(same[0]),
            _filling(same[0]),
            duration_text(_soonest(same)),
        )
        for same in by_place.values()
    ]
    columns = (f"FILESYSTEM ({document['layout']})", "PATH", "LIES ON", "FILLS BY", "THRESHOLD IN")
    found = table(columns, rows, right="FILLS BY,THRESHOLD IN", whole=whole)
    found.columns[0].least = len(columns[0])  # the layout stays beside its word
    return found


def reclaimed_table(reclaimed: Iterable[Mapping[str, Any]]) -> Table:
    """Return what the node reclaimed last, kind by kind."""
    rows = []
    for one in reclaimed:
        unit = RESOURCE_IN[one["unit"]]
        done = "; ".join([*one["did"], *(f"problem: {problem}" for problem in one["problems"])])
        amounts = [amount_text(one["freed"], unit), amount_text(one["wanted"], unit)]
        took = f"{one['took_seconds']:.1f} s"
        rows.append((one["kind"], moment(one["time"]), one["signal"], *amounts, took, done))
    columns = ("RECLAIMED LAST", "TIME", "FOR", "FREED", "WANTED", "TOOK", "BY")
    return table(columns, rows, right="FREED,WANTED,TOOK")


def _each_once(signals: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """Yield the signals but for those of a filesystem that add nothing to one before."""
    shown: set[tuple[object, ...]] = set()
    for one in signals:
        levels = frozenset((threshold["kind"], threshold["amount"]) for threshold in one["thresholds"])
        amounts = (one["unit"], one["available"], one["capacity"])
        is_filesystem = "fs." in one["signal"]
        if is_filesystem and ((amounts, levels) in shown or (not levels and amounts in shown)):
            continue
        shown |= {amounts, (amounts, levels)} if is_filesystem else set()
        yield one


def _source(source: Mapping[str, Any] | None) -> str:
    if source is None:
        return "none"
    return source["name"] if source["health"] == "armed" else f"{source['name']} ({source['health']})"


def _place(one: Mapping[str, Any]) -> str:
    if not one["device"]:
        return UNKNOWN
    where = "" if one["mount_point"] == one["path"] else f" on {one['mount_point']}"
    return f"{one['kind']} {one['device']}{where}"


def _soonest(same: Iterable[Mapping[str, Any]]) -> float | None:
    return min((left for one in same if (left := one["seconds_to_threshold"]) is not None), default=None)


def _filling(one: Mapping[str, Any]) -> str:
    if one["read_only"]:
        return "read-only"
    rate, inodes = one["fills_by_bytes_per_second"], one["fills_by_inodes_per_second"]
    parts = [f"{bytes_text(rate)}/s"] if rate else []
    return ", ".join([*parts, *([f"{inodes} inodes/s"] if inodes else [])]) or "-"


def _since_below(threshold: Mapping[str, Any]) -> str:
    if threshold.get("absurd"):
        return "ignored"
    below = threshold["below_for_seconds"]
    if threshold["margin"] is None:
        return UNKNOWN
    return "ok" if below is None else f"below for {below:.0f} of {threshold['grace_period_seconds']:.0f} s"
