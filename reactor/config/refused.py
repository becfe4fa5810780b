"""What is wrong with a value, and where: the path of a key, the value cut short, the accepted form."""

from __future__ import annotations

import re
import reprlib

_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxdict, _REPR.maxlist, _REPR.maxstring, _REPR.maxother = 3, 8, 8, 200, 200


class Refused(ValueError):  # noqa: N818 - it reads as what it is
    """A value is not of the accepted form. `at` is where, relative to the value being read.

    `hint` follows what was got, such as a question after what was meant.
    """

    def __init__(self, got: object, accepted: str, *, at: str = "", hint: str = "") -> None:
        super().__init__(accepted)
        self.got = shorten(got) + hint
        self.accepted = accepted
        self.at = at


def join(path: str, key: object) -> str:
    """Return the path of a key or an index below `path`; keys with dots go in brackets and quotes."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    text = str(key)
    if re.fullmatch(r"[\w/-]+", text):
        return f"{path}.{text}" if path else text
    return f'{path}["{text}"]'


def shorten(value: object) -> str:
    """Return a value's repr, cut where it would flood an error line."""
    try:
        text = _REPR.repr(value)
    except ValueError:  # Python prints no number of more than 4300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."
