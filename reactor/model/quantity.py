"""Amounts as Kubernetes' resource.Quantity writes them (`100Mi`, `1.5G`, `1e3`), and as people read them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from reactor.model.signals import IN_BYTES, Resource

_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL: Final = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_SYNTAX: Final = re.compile(
    r"(?P<number>[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400}))"
    r"(?:(?P<exponent>[eE][+-]?[0-9]{1,3})|(?P<suffix>[KMGTPE]i|[numkMGTPE]))?",
    re.ASCII,
)

_BINARY_SUFFIXES: Final = ("", *_BINARY)
_WHOLE_SUFFIXES: Final = ("", "k", "M", "G", "T", "P", "E")
_PART_SUFFIXES: Final = ("m", "u", "n")
_LARGEST: Final = 2**63 - 1
ACCEPTED: Final = "a quantity such as 100Mi, 1.5Gi, 2G or 500"

UNKNOWN: Final = "unknown"
_LENGTHS: Final = ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An amount and the way it was written; equality and order are the amount's.

    `amount` is exact (bytes, inodes, processes). `text` is what its author wrote, for messages.
    Source: k8s.io/apimachinery/pkg/api/resource.
    """

    amount: Fraction
    text: str = field(compare=False)

    @property
    def value(self) -> int:
        """Return the amount rounded up to a whole number, as Quantity.Value does."""
        return -((-self.amount.numerator) // self.amount.denominator)

    def __add__(self, other: Quantity) -> Quantity:
        """Return the sum, printed in the first one's kind of suffix, or the other's where the first is 0."""
        amount = self.amount + other.amount
        is_binary = _suffix((self if self.amount else other).text) in _BINARY and amount.denominator == 1
        return Quantity(amount, format_bytes(int(amount)) if is_binary else format_count(amount))

    def __str__(self) -> str:
        """Return the canonical form: no fraction, the largest suffix that loses nothing."""
        if _suffix(self.text) in _BINARY:
            return format_bytes(self.value) if self.amount.denominator == 1 else self.text
        return format_count(self.amount)


def parse_quantity(text: str) -> Quantity:
    """Return the quantity that `text` stands for.

    Raises ValueError, without a message of its own beyond the accepted form, for anything else.
    """
    found = _SYNTAX.fullmatch(text)
    if found is None:
        raise ValueError(ACCEPTED)
    amount = Fraction(found["number"])
    if found["exponent"]:
        amount *= Fraction(10) ** int(found["exponent"][1:])
    elif found["suffix"] in _BINARY:
        amount *= 1024 ** _BINARY[found["suffix"]]
    else:
        amount *= Fraction(1000) ** _DECIMAL[found["suffix"] or ""]
    # Upstream's bounds: 64 bits, and nothing finer than a billionth, which is rounded away from zero.
    billionths = -(-abs(amount) * 10**9 // 1)
    largest = min(Fraction(billionths, 10**9), Fraction(_LARGEST))
    return Quantity(-largest if amount < 0 else largest, text)


def _suffix(text: str) -> str:
    return text[len(text.rstrip("".join(_BINARY) + "".join(_DECIMAL))) :]


def format_bytes(amount: int) -> str:
    """Return a whole amount with the largest binary suffix that divides it (`512Mi`, `1500`).

    Below 1024 suffixes are decimal (`1k`). Source: Quantity.CanonicalizeBytes.
    """
    if abs(amount) < 1024:
        return format_count(amount)
    power = min(((amount & -amount).bit_length() - 1) // 10, len(_BINARY_SUFFIXES) - 1)
    return f"{amount >> 10 * power}{_BINARY_SUFFIXES[power]}"


def format_count(amount: Fraction | int) -> str:
    """Return an amount with the largest decimal suffix that divides it (`5M`, `1500`, `500m`)."""
    whole, parts = amount.numerator, amount.denominator
    power = 0
    if parts == 1:  # in integers: this lies on the way to a kill
        while whole and power < len(_WHOLE_SUFFIXES) - 1 and whole % 1000 == 0:
            whole, power = whole // 1000, power + 1
        return f"{whole}{_WHOLE_SUFFIXES[power]}"
    for suffix in _PART_SUFFIXES:
        scaled = amount * 1000 ** (power := power + 1)
        if scaled.denominator == 1:
            return f"{scaled.numerator}{suffix}"
    return str(float(amount))


def amount_text(amount: int | None, resource: Resource | None) -> str:
    """Return an amount: bytes with one decimal and a binary suffix, counts as they are."""
    if amount is None:
        return UNKNOWN
    return bytes_text(amount) if resource in IN_BYTES else str(amount)


def bytes_text(amount_bytes: int) -> str:
    """Return bytes with a binary suffix, and one decimal where the largest suffix leaves a remainder."""
    for suffix, power in (("Gi", 3), ("Mi", 2), ("Ki", 1)):
        if abs(amount_bytes) >= 1024**power:
            whole = format_bytes(amount_bytes)
            return whole if whole.endswith(suffix) else f"{amount_bytes / 1024**power:.1f}{suffix}"
    return str(amount_bytes)


def duration_text(seconds: float | None) -> str:
    """Return a time in its two largest units (`4s`, `1m20s`, `3h05m`), `-` where there is none."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    for size, unit, smaller_size, smaller in _LENGTHS:
        if whole >= size:
            left = whole % size // smaller_size
            return f"{whole // size}{unit}{left:02d}{smaller}" if left else f"{whole // size}{unit}"
    return f"{whole}s"
