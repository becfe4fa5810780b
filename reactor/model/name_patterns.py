r"""Patterns for names, and for paths of pods' parents: globs, and regular expressions after a `~`.

Names are given by tenants, and Python's `re` goes back over what it has taken: `(a+)+b` and a name of
thirty letters hold the interpreter for minutes. Here all ends that a part of the expression can have are
followed at once, and none is gone back to. RE2 would do the same, but costs the guard 2.5 MiB
(google-re2), is no package of Debian's, and refuses names that are not UTF-8. A name takes ten
microseconds here, one of 255 letters some milliseconds at the worst, when its pod is listed.

Of regular expressions there are characters, `.`, classes (`[a-z]`, `\d`, `\w`, `\s`), groups, `|`, and
the repeats `*`, `+`, `?`, `{2}`, `{2,}`, `{2,5}`; `^` may stand first and `$` last. All has to match.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from fnmatch import translate
from functools import lru_cache, partial
from typing import Final

REGEX: Final = "~"
_SPECIAL: Final = frozenset("*?[")
_NO_NAMES: Final = frozenset(("", ".", ".."))
_ROOT: Final = "/"
_Ends = frozenset[int]
_Part = Callable[[str, _Ends], _Ends]

_LONGEST: Final = 256
_MOST_TIMES: Final = 64
_DEEPEST: Final = 3
_CLASS: Final = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_BOUNDS: Final = re.compile(r"\{([0-9]{1,3})(,([0-9]{1,3})?)?\}")
_CLASSES: Final = frozenset("dDwWsS")


@lru_cache(maxsize=1024)  # the operator's lists have that many at the most, as a rule
def matcher(pattern: str) -> Callable[[str], bool]:
    """Return a predicate, whether a whole name matches. Raises ValueError with the accepted form.

    Those of the last patterns are kept: who matches names need not keep them.
    """
    if not pattern.startswith(REGEX):
        # Its expressions never go back over what an earlier star has taken.
        glob = re.compile(translate(pattern))
        return lambda name: glob.fullmatch(name) is not None
    part = _Reader(pattern.removeprefix(REGEX)).whole()
    return lambda name: len(name) in part(name, frozenset({0}))


def is_pattern(text: str) -> bool:
    return not _SPECIAL.isdisjoint(text)


class PodParent:
    """One parent as it is written: `text`. `searched` are the components after the fence, none of a path.

    Each of `searched` is a name, and a predicate whether another matches it; None where only itself does.
    """

    __slots__ = ("_components", "_names", "fence", "searched", "text")

    def __init__(self, text: str) -> None:
        names = _names(text)
        first = next((index for index, name in enumerate(names) if is_pattern(name)), len(names))
        self.text = text
        self.fence = _ROOT + "/".join(names[:first])
        self._names = names
        self._components = tuple((name, matcher(name) if is_pattern(name) else None) for name in names)
        self.searched: tuple[tuple[str, Callable[[str], bool] | None], ...] = self._components[first:]

    @property
    def is_pattern(self) -> bool:
        return bool(self.searched)

    def is_parent(self, cgroup: str) -> bool:
        """Return whether a cgroup is this parent, or one that the pattern matches."""
        names = _names(cgroup)
        return len(names) == len(self._names) and self._begins(names)

    def holds(self, cgroup: str) -> bool:
        """Return whether a cgroup may be a pod, or part of one: whether it lies below this parent.

        What a pattern matches may be one pod as a whole. A path that is not normal never may.
        """
        names = _names(cgroup)
        least = len(self._names) + (0 if self.is_pattern else 1)
        is_normal = cgroup.startswith(_ROOT) and "\0" not in cgroup and _NO_NAMES.isdisjoint(names)
        return len(names) >= least and is_normal and self._begins(names)

    def overlaps(self, other: PodParent) -> bool:
        """Return whether one of them, as far as the texts show, may be the other or lie in it."""
        if not (self.is_pattern or other.is_pattern):
            return False  # of two paths each child is a pod of its own, but for the one that holds the other
        return all(
            a == b or (is_a is not None and is_a(b)) or (is_b is not None and is_b(a))
            for (a, is_a), (b, is_b) in zip(self._components, other._components, strict=False)
        )

    def _begins(self, names: list[str]) -> bool:
        return all(
            name == own if matches is None else matches(name)
            for (own, matches), name in zip(self._components, names, strict=False)
        )


def fences(parents: Iterable[str]) -> tuple[str, ...]:
    """Return where the parents' pods lie, each cgroup once: a path itself, a pattern's fence."""
    return tuple(dict.fromkeys(PodParent(one).fence if is_pattern(one) else one for one in parents))


def _names(cgroup: str) -> list[str]:
    return [] if cgroup == _ROOT else cgroup.removeprefix(_ROOT).split("/")


class _Reader:
    """Reads an expression from left to right."""

    def __init__(self, text: str) -> None:
        if len(text) > _LONGEST:
            raise ValueError(f"a regular expression of {_LONGEST} characters at most")
        text = text.removeprefix("^")
        if text.endswith("$") and not (len(text) - 1 - len(text[:-1].rstrip("\\"))) % 2:
            text = text[:-1]
        self._text = text
        self._at = 0

    def whole(self) -> _Part:
        """Return the whole expression."""
        part, depth = self._alternatives()
        if self._at < len(self._text):
            raise ValueError("a regular expression in which each ) closes a group")
        if depth > _DEEPEST:
            raise ValueError(f"a regular expression with {_DEEPEST} repeats inside each other at most")
        return part

    def _alternatives(self) -> tuple[_Part, int]:
        """Return what stands until the group's end, and how many repeats are inside each other in it."""
        branches, depths = [], []
        while True:
            branch, depth = self._sequence()
            branches.append(branch)
            depths.append(depth)
            if not self._taken("|"):
                return (branches[0] if len(branches) == 1 else partial(_any, branches)), max(depths)

    def _sequence(self) -> tuple[_Part, int]:
        parts: list[_Part] = []
        deepest = 0
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            part, depth = self._one()
            low, high = self._times()
            if (low, high) != (1, 1):
                part, depth = partial(_repeated, part, low, high), depth + 1
            parts.append(part)
            deepest = max(deepest, depth)
        return partial(_each, parts), deepest

    def _one(self) -> tuple[_Part, int]:
        """Return a character, a class or a group."""
        if self._taken("("):
            self._taken("?:")
            part, depth = self._alternatives()
            if not self._taken(")"):
                raise ValueError("a regular expression in which each group is closed")
            return part, depth
        found = _CLASS.match(self._text, self._at)
        character = self._text[self._at]
        if found is None and character in "[*+?{}^$":
            raise ValueError(f"a regular expression with \\{character} where {character!r} itself is meant")
        text = found[0] if found else character
        if character == "\\":
            text = self._text[self._at : self._at + 2]
            if len(text) < 2 or (text[1].isalnum() and text[1] not in _CLASSES):
                raise ValueError("a regular expression with no escapes but \\d, \\w, \\s and those of signs")
        self._at += len(text)
        return _character(text), 0

    def _times(self) -> tuple[int, int | None]:
        """Return how often the last part may stand; None: as often as it likes."""
        for sign, times in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._taken(sign):
                return times
        found = _BOUNDS.match(self._text, self._at)
        if found is None:
            return 1, 1
        self._at = found.end()
        low = int(found[1])
        high = low if found[2] is None else None if found[3] is None else int(found[3])
        if max(low, high or 0) > _MOST_TIMES or (high is not None and high < low):
            raise ValueError(f"a regular expression with repeats of up to {_MOST_TIMES}, the lower one first")
        return low, high

    def _taken(self, sign: str) -> bool:
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        return True


def _character(text: str) -> _Part:
    """Return the part for one character; of one `re` can't go back over anything."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of what may become a set in sets one day
            one = re.compile(text, re.DOTALL)
    except re.error as error:
        raise ValueError(f"a regular expression: {error.msg} in {text!r}") from None
    return partial(_next, lambda character: one.fullmatch(character) is not None)


def _next(is_one: Callable[[str], bool], name: str, starts: _Ends) -> _Ends:
    return frozenset(start + 1 for start in starts if start < len(name) and is_one(name[start]))


def _each(parts: list[_Part], name: str, starts: _Ends) -> _Ends:
    for part in parts:
        starts = part(name, starts)
    return starts


def _any(branches: list[_Part], name: str, starts: _Ends) -> _Ends:
    return frozenset().union(*(branch(name, starts) for branch in branches))


def _repeated(part: _Part, low: int, high: int | None, name: str, starts: _Ends) -> _Ends:
    for _ in range(low):
        starts = part(name, starts)
    found = fresh = starts
    times = low
    while fresh and (high is None or times < high):
        fresh = part(name, fresh) - found
        found |= fresh
        times += 1
    return found
