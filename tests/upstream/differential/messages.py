"""Whether an eviction is told as upstream tells it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from tests.upstream.differential.words import Json, amount

_CONTAINER: Final = re.compile(
    r"Container (\S+) was using (\S+), (?:which exceeds its request of|request is) ([^,]+?)(?:\. |\.$|, has)"
)
_QUANTITIES: Final = re.compile(r"Threshold quantity: (\S+), available: (\S+)\.(?= )")
LIMIT_MESSAGES: Final = {
    "emptydirfs.limit": "Usage of EmptyDir",
    "ephemeralpodfs.limit": "Pod ephemeral local",
    "ephemeralcontainerfs.limit": "Container ",
}
_SEVERITY: Final = (None, "message-format", "message-rounding", "message-amount")


def limit_signal(message: str) -> str:
    """Return the signal of the local-storage limit that upstream's message is about."""
    return next(signal for signal, begins in LIMIT_MESSAGES.items() if message.startswith(begins))


def message_difference(mine: Json, theirs: Json, signal: str, met: Iterable[Json]) -> str | None:
    """Return what is different about an eviction's message and annotations, None where nothing is.

    `signal` is that of the threshold, empty for a limit of local storage. Upstream of 1.20 tells neither the
    threshold nor what was available; newer versions do, and here that is put together from upstream's own
    numbers for the thresholds `met`: hard or soft of one signal, either may be the one named.
    """
    if not signal:
        return None if mine["message"] == theirs["message"] else "message-limit"
    if mine["pod"] != theirs["pod"]:
        return None  # a tie
    if mine["message"].split(".")[0] != theirs["message"].split(".")[0]:
        return "message-resource"
    said = _QUANTITIES.search(mine["message"])
    if said is None:
        return "message-quantity"
    thresholds = [
        _worst([(said.group(1), each["wanted"]), (said.group(2), each["available"])])
        for each in met
        if each["signal"] == signal
    ]
    here, there = _CONTAINER.findall(mine["message"]), _CONTAINER.findall(theirs["message"])
    if [name for name, *_ in here] != [name for name, *_ in there]:
        return "message-containers"
    worst = _worst(
        pair for one, other in zip(here, there, strict=True) for pair in zip(one[1:], other[1:], strict=True)
    )
    return worst or min(thresholds, key=_SEVERITY.index) or _annotations(mine, theirs)


def _annotations(mine: Json, theirs: Json) -> str | None:
    """Return whether the annotations differ; newer versions have more of them for pod-level requests."""
    there = theirs["annotations"] or {}
    here = {key: value for key, value in mine["annotations"].items() if key in there}
    return None if here == there else "annotations"


def worst_kind(kinds: Sequence[str]) -> str:
    """Return the gravest of several differences of messages."""
    return max(kinds, key=lambda kind: _SEVERITY.index(kind) if kind in _SEVERITY else len(_SEVERITY))


def _worst(pairs: Iterable[tuple[str, str]]) -> str | None:
    """Return how amounts differ: in what they are, in what single precision loses, or in their writing."""
    worst: str | None = None
    for mine, theirs in pairs:
        if mine == theirs:
            continue
        here, there = amount(mine), amount(theirs)
        if here == there:
            worst = worst or "message-format"
        elif abs(here - there) <= 1 + there / 10**6:
            worst = "message-rounding"
        else:
            return "message-amount"
    return worst
