"""The recommendation as a part of a configuration, to be merged into the node's own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from reactor.config.settings import settings_from_text
from reactor.tune.measured import Measured
from reactor.tune.model import Recommendation
from reactor.tune.words import amount, duration, quantity, rate

_SIGNAL: Final = "memory.available"


def snippet(measured: Measured, found: Recommendation, existing: Mapping[str, Any]) -> str:
    """Return YAML that `reactor config check` accepts.

    `existing` are the keys of the operator's own file: what it says of other signals is kept, since a key of
    evictionHard drops the defaults of all others. Those are for disks, and only a Kubernetes node has them.
    """
    text = "".join(f"{line}\n" for line in _lines(measured, found, existing))
    settings_from_text(text, "the recommended configuration")
    return text


def headline(found: Recommendation) -> str:
    """Return the hard threshold with what it is for and its sum: what is asked for may be more."""
    if found.is_enough:
        hard = f"{quantity(found.hard_bytes)} for {found.chosen.name}"
        return f"{hard}; {reasoning(found)}, rounded up to 10Mi."
    asked = f"{quantity(found.chosen.needed_bytes)} for {found.chosen.name} ({reasoning(found)})"
    is_half = 2 * found.hard_bytes <= found.node.capacity_bytes
    share = "half of this node" if is_half else "the reserve alone"
    most = f"{quantity(found.hard_bytes)}, {share}, serves up to {rate(found.covered_rate_bytes)}"
    return f"{most}. It would take {asked}: limit what pods may use, or how fast."


def reasoning(found: Recommendation) -> str:
    """Return the hard threshold's sum in one line."""
    terms = found.terms
    return (
        f"{rate(found.chosen.rate_bytes)} x ({duration(terms.reaction_seconds)} reaction + "
        f"{duration(terms.freeing_seconds)} freeing) + {amount(terms.reserve_bytes)} reserve = "
        f"{amount(found.chosen.needed_bytes)}"
    )


def _lines(measured: Measured, found: Recommendation, existing: Mapping[str, Any]) -> Iterator[str]:
    about, soft = measured.about, found.soft
    where = f"{about['kernel']}, {about['cpus']} CPUs"
    yield f"# By reactor tune, {about['date']}, measured for {measured.seconds:.0f} s on {where}."
    yield f"# Hard: {headline(found)}"
    kept = existing.get("evictionHard")
    yield from _mapping("evictionHard", {**_of(kept), _SIGNAL: quantity(found.hard_bytes)})
    if not kept or existing.get("mergeDefaultEvictionSettings"):
        yield "mergeDefaultEvictionSettings: true  # a key given would drop the other signals' defaults"
    yield f"# Soft: {rate(soft.rate_bytes)} for {soft.grace_seconds} + {soft.pod_grace_seconds} s above it."
    yield from _mapping(
        "evictionSoft", {**_of(existing.get("evictionSoft")), _SIGNAL: quantity(soft.threshold_bytes)}
    )
    graces = {**_of(existing.get("evictionSoftGracePeriod")), _SIGNAL: f"{soft.grace_seconds}s"}
    yield from _mapping("evictionSoftGracePeriod", graces)
    yield f"evictionMaxPodGracePeriod: {soft.pod_grace_seconds}"


def _mapping(key: str, values: Mapping[str, Any]) -> Iterator[str]:
    yield f"{key}:"
    for name, value in values.items():
        yield f"  {json.dumps(name)}: {json.dumps(value, default=str)}"


def _of(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
