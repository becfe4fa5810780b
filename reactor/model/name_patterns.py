"""Patterns for names, and for paths of pods' parents: globs, and regular expressions after a `~`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import translate
from typing import Final

from reactor.model.expressions import expression

REGEX: Final = "~"
_SPECIAL: Final = frozenset("*?[")
_NO_NAMES: Final = frozenset(("", ".", ".."))
_ROOT: Final = "/"


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return a predicate, whether a whole name matches. Raises ValueError with the accepted form."""
    if not pattern.startswith(REGEX):
        # Its expressions never go back over what an earlier star has taken.
        glob = re.compile(translate(pattern))
        return lambda name: glob.fullmatch(name) is not None
    return expression(pattern.removeprefix(REGEX))


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
        """Return whether it may match more than one cgroup."""
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
        return len(names) >= least and _is_normal(cgroup, names) and self._begins(names)

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


def _is_normal(cgroup: str, names: list[str]) -> bool:
    return cgroup.startswith(_ROOT) and "\0" not in cgroup and _NO_NAMES.isdisjoint(names)
