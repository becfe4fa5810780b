"""The word that was probably meant, for a message: what is wrong stays wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# Words that are compared are keys and names: a longer one is no typing error, and difflib is quadratic.
_LONGEST: Final = 64
_LIKENESS: Final = 0.75


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
