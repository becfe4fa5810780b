"""Names and amounts as they stand in a cell."""

from __future__ import annotations

import unicodedata
from typing import Final

from reactor.model.amounts import amount_text
from reactor.model.signals import Resource
from reactor.text import printable

ELLIPSIS: Final = "…"


def amount(value: float | None, resource: Resource) -> str:
    """Return an amount as a person reads it, `-` where it is not known."""
    return "-" if value is None else amount_text(round(value), resource)


def rate(per_second: float | None, resource: Resource) -> str:
    """Return a change per second with its sign; what rounds to nothing is `0/s`."""
    if per_second is None:
        return "-"
    rounded = round(per_second)
    return f"{'+' if rounded > 0 else ''}{amount_text(rounded, resource)}/s"


def clean(text: str) -> str:
    """Return the text printable, with a question mark for whatever is not one cell wide."""
    shown = printable(text)
    if shown.isascii():
        return shown
    return "".join(character if _is_one_cell(character) else "?" for character in shown)


def _is_one_cell(character: str) -> bool:
    return unicodedata.east_asian_width(character) not in {"W", "F"} and not unicodedata.combining(character)


def cut_middle(text: str, width: int) -> str:
    """Return the text in at most so many cells; a pod is recognised by both ends of its name."""
    if len(text) <= width:
        return text
    if width < 2:
        return ELLIPSIS[:width]
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}{ELLIPSIS}{text[len(text) - tail :]}"


def cut_end(text: str, width: int) -> str:
    """Return the text in at most so many cells, its end left out."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}{ELLIPSIS}"[:width]
