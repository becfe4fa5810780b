"""What is known of passes, in words: amounts, instants, why a pod stands where it does, what was done."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from reactor.model.amounts import amount_text
from reactor.model.decisions import RankedPod
from reactor.model.pod_lists import Preference
from reactor.model.rules import RankedBy
from reactor.model.settings import Settings
from reactor.model.signals import RESOURCE_IN, Resource
from reactor.policy.process_victims import takes_one_process
from reactor.text import printable

_PREFERRED: Final = {
    Preference.PREFER: "preferred as a victim; ",
    Preference.NONE: "",
    Preference.AVOID: "avoided, so after the others; ",
}


def instant(unix_seconds: float) -> str:
    """Return an instant in UTC as RFC 3339 writes it, with microseconds."""
    return datetime.fromtimestamp(unix_seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def in_dry_run(settings: Settings, how_to_end: str) -> str:
    """Return what a dry run would do and how it is ended, for `systemctl status`."""
    parents = ", ".join(map(printable, settings.pod_parents))
    thresholds = ", ".join(map(str, settings.eviction.thresholds))
    would = f"would evict from {parents or 'nowhere (pods.parents is empty)'}"
    return f"no pod is evicted; {would} at {thresholds or 'no threshold'}. To evict: {how_to_end}"


def standing(place: RankedPod, resource: Resource | None, by: RankedBy = RankedBy.MEMORY) -> str:
    """Return why a pod stands where it does in the ranking, as one clause; `by` is what a rule ranks by."""
    if place.pod.critical_because is not None:
        return f"never evicted: {printable(place.pod.critical_because)}"
    tail = f"{_PREFERRED[place.pod.preference]}priority {place.pod.priority}, {place.pod.qos_class}"
    if place.unreadable:
        return f"its usage can't be read, so last; {tail}"
    if place.is_passed_over:
        tail += "; passed over, since it holds less than minimumVictimBytes"
    if place.holds_nothing:
        tail += "; stays, since no file there is known to be removed with it"
    if resource is not None and takes_one_process(place.pod, resource):
        tail += "; one process of it is killed, not the pod"
    if place.usage is None:
        return f"without statistics, so first; {tail}"
    if by is not RankedBy.MEMORY:
        return f"{_ranked_amount(place.usage, by)}; {tail}"
    if place.swap_bytes and resource is not Resource.SWAP:
        tail += f"; {amount_text(place.swap_bytes, Resource.SWAP)} in swap"
    used = amount_text(place.usage, resource)
    if place.exceeds_request is None:
        return f"uses {used}; {tail}"
    relation = "above" if place.exceeds_request else "within"
    return f"uses {used}, {relation} its request of {amount_text(place.request, resource)}; {tail}"


def _ranked_amount(amount: int, by: RankedBy) -> str:
    if by is RankedBy.PGSCAN:
        return f"{amount} of its pages were scanned"
    if by is RankedBy.GROWTH:
        return f"grew by {amount_text(amount, Resource.MEMORY)}"
    return f"has {amount_text(amount, Resource.SWAP)} in swap"


def what_was_done(decision: Mapping[str, Any]) -> str:
    """Return what a decision, as `reactor status` is told of it, came to; `-` where that is nothing."""
    woke_ns = decision["timing"]["woke_ns"]
    done = [
        f"{one['outcome']} {_of_whom(one)}{after(' killed', woke_ns, one['killed_ns'])}"
        f"{after(' freed', woke_ns, one['freed_ns'])}"
        for one in decision["evictions"]
    ]
    if decision["reclaim"]:
        done.insert(0, f"reclaim of {', '.join(decision['reclaim'])}")
    done += [
        f"braked {one['cgroup']}{after(' released', woke_ns, one['released_ns'])}"
        for one in decision.get("brake") or ()
        if one["engaged_ns"] is not None
    ]
    rule = decision.get("rule")  # none of an earlier version
    if rule and rule["action"] == "report":
        done.append(f"reported {rule['cgroup']}")
    if rule and rule["action"] == "reclaim" and decision.get("dry_run") and not decision["deferred_because"]:
        done.append(f"dry-run reclaim of {rule['amount']} from {rule['cgroup']}")
    done += [
        f"reclaimed {amount_text(one['freed'], RESOURCE_IN[one['unit']])} from {rule['cgroup']}"
        for one in decision.get("reclaimed") or ()
        if rule
    ]
    if decision["deferred_because"]:
        done.append(f"waiting: {decision['deferred_because']}")
    return "; ".join(done) or "-"


def _of_whom(eviction: Mapping[str, Any]) -> str:
    """Return what was evicted: a pod, or one process of it."""
    process = eviction.get("process")  # none of an earlier version
    return str(eviction["pod"]) if process is None else f"{process_text(process)} of {eviction['pod']}"


def process_text(process: object) -> str:
    """Return which process it was, as a record has it."""
    if not isinstance(process, Mapping):
        return "a process"
    size = amount_text(process.get("bytes"), Resource.MEMORY)
    return f"{printable(str(process.get('name')))} (process {process.get('pid')}, {size})"


def after(what: str, from_ns: int, to_ns: int | None) -> str:
    """Return what happened and how long after, an empty text where it has not."""
    return "" if to_ns is None else f"{what} after {(to_ns - from_ns) / 1e6:.1f} ms"
