"""Text that others wrote: made fit for people, and JSON decoded at a bounded price.

One function makes it printable for every log line, table, message and event. The memory that JSON may take is
known before it is decoded: a value takes some 60 to 250 bytes then, however few it had (`[[],[],…` grows
thirtyfold). JSON that is too deep, has too long a number, is no UTF-8 or names a key twice is one error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from reactor.errors import ReactorError

MOST_VALUES: Final = 250_000
"""More than an object of the API server can have, which is at most 1.5 MiB: some 25 MiB."""

# Words that are compared are keys and names: a longer one is no typing error, and difflib is quadratic.
_LONGEST: Final = 64
_LIKENESS: Final = 0.75


def printable(text: str) -> str:
    r"""Return the text with every character that is not printable written as its escape.

    A cgroup, a process or a volume may be called anything: what moves a cursor, clears a screen, turns the
    direction of reading, ends a line, or is not UTF-8 (`os.fsdecode` keeps such bytes as surrogates). The
    escape is Python's: `\x1b`, `\u202e`; a byte that is not UTF-8 is `\xff`. What is printable stays as it
    is, backslashes too: systemd escapes with them, and its names should be found as it writes them.
    """
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escape(character) for character in text)


def _escape(character: str) -> str:
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    if number <= 0xFF:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def counted(number: int, noun: str, several: str | None = None) -> str:
    """Return a number with its noun: `1 pod`, `2 pods`, `2 processes`."""
    return f"{number} {noun if number == 1 else several or f'{noun}s'}"


def wrapped(text: str, columns: int) -> str:
    """Return the text in lines of that many columns, broken at spaces alone: a longer word stays whole."""
    # Only what people read is wrapped, so no daemon loads it.
    import textwrap  # noqa: PLC0415

    lines = textwrap.wrap(text, columns, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


_LONGEST_SHOWN: Final = 80
_BEGIN: Final = (b"{", b"\xef")  # an object, with a byte order mark or without


class JsonError(ReactorError, ValueError):
    """What came is not JSON as it is accepted here."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise JsonError("got a key twice in one object; accepted: each key once")
    return found


DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique)
"""Refuses what says something twice: two readers could understand it differently."""


def loads(raw: bytes | bytearray, *, most_values: int = MOST_VALUES) -> Any:
    """Return the JSON value in `raw`. Raises JsonError."""
    # Every value but the first of an object or a list is behind a comma.
    values = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
    if values > most_values:
        raise JsonError(f"got {values} values; accepted: at most {most_values}")
    try:
        return DECODER.decode(raw.decode())
    except JsonError:
        raise
    except RecursionError as error:
        raise JsonError("got endless nesting; accepted: JSON of finite depth") from error
    except ValueError as error:
        shown = bytes(raw[:_LONGEST_SHOWN])
        raise JsonError(f"got {shown!r} ({error!s:.{_LONGEST_SHOWN}}); accepted: JSON") from error


def object_in_line(line: bytes, key: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a line, None where there is none, or where it has no such key.

    `key` is as it stands there, in quotes. A file of another kind has millions of lines, and an error of the
    parser takes ten times as long as to see that a line begins as no object does, or names no such key.
    """
    if key not in line or line.lstrip()[:1] not in _BEGIN:
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def nearest(word: object, known: Iterable[str], *, likeness: float = _LIKENESS) -> str | None:
    """Return the known word that `word` is probably a typing error of, None where it is like none.

    Case and separators count for nothing: `nodefs-available` is `nodefs.available`.
    """
    if not isinstance(word, str) or not 2 < len(word) <= _LONGEST:
        return None
    # Seldom needed, and no daemon needs it but for a wrong document.
    from difflib import get_close_matches  # noqa: PLC0415

    by_letters = {_letters(one): one for one in known}
    found = get_close_matches(_letters(word), by_letters, n=1, cutoff=likeness)
    return by_letters[found[0]] if found else None


def nearest_name(name: str, names: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """Return which of these names of units or cgroups was probably meant, None where none is near.

    To be of one kind of unit (`.service`) makes none alike, and one without its kind is meant as well.
    """
    by_stem = {one.rpartition(".")[0] or one: one for one in names}
    stem = name.rpartition(".")[0] or name
    return by_stem.get(nearest(stem, by_stem, likeness=likeness) or "")


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return the question to add to what was got, "" where no known word is near."""
    found = nearest(word, known)
    return "" if found is None else f" (did you mean {found}?)"


def _letters(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalnum())
