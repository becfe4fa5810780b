"""What is known of passes, in words: instants, why a pod stands where it does, what a dry run would do."""

from __future__ import annotations

from typing import Final

from reactor.model.amounts import amount_text
from reactor.model.decisions import RankedPod
from reactor.model.pod_lists import Preference
from reactor.model.rules import RankedBy
from reactor.model.settings import Settings
from reactor.model.signals import Resource
from reactor.policy.process_victims import takes_one_process
from reactor.text import printable

_PREFERRED: Final = {
    Preference.PREFER: "preferred as a victim; ",
    Preference.NONE: "",
    Preference.AVOID: "avoided, so after the others; ",
}


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
