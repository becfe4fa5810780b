"""One search for cgroups by path and by pattern: the parents of pods, and the cgroups that rules are for.

Root chose the names in a directory that is root's; all of them are taken. The names in a part of the tree
that was delegated are its owner's, who can make thousands. So each such part has a budget: 2,048 entries of
its directories are read, and 256 cgroups are taken. Beyond that

    pods   further parents are one pod each, as a whole: more cgroups give their owner fewer pods, and exempt
           none; of pods the first by name count
    rules  the part as a whole is taken as well: a cgroup that hides among thousands shows in their sum
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.files import GONE
from reactor.model.name_patterns import PodParent
from reactor.workloads.attributes import names_are_trusted
from reactor.workloads.parents import (
    MOST_ENTRIES,
    MOST_OF_A_PART,
    Children,
    Listing,
    Matches,
    NamedParents,
    Names,
    Parents,
    listed,
)

MOST_SELECTED: Final = 4_096


class Selected(NamedTuple):
    """A cgroup, its directory, and the inode by which it differs from another one of its name."""

    cgroup: str
    directory: str
    inode: int


def matches_of(tree: CgroupTree, parents: Sequence[str]) -> tuple[str, ...]:
    """Return the parents that there may be: those that are named, and those that a pattern matches now."""
    every = [PodParent(one) for one in parents]
    patterns = [one for one in every if one.is_pattern]
    found = Search(tree, {}).run(patterns).matches
    return tuple(cgroup for one in every for cgroup in (found[one.text] if one.is_pattern else (one.text,)))


def find_selected(
    tree: CgroupTree, selectors: Sequence[PodParent], problems: dict[str, str]
) -> Generator[None, None, Mapping[str, Selected]]:
    """Return the cgroups that are selected, by their paths; yield after each directory and each cgroup.

    Never raises: what can't be read, or is left out, is in `problems`.
    """
    taken: dict[str, Selected] = {}
    search = Search(tree, problems)
    for selector in selectors:
        for match in search.matches(selector):
            if match is not None and (match.above.part is None or match.above.part.takes_one()):
                if len(taken) >= MOST_SELECTED:
                    problems[selector.text] = (
                        f"matches more than {MOST_SELECTED} cgroups: the others are not observed"
                    )
                    break
                taken[match.found.cgroup] = match.found
            yield
    for part in search.parts:
        if part.is_cut:
            taken[part.top.cgroup] = part.top
            problems[part.top.cgroup] = (
                f"so many cgroups that a rule is not for each of them: {MOST_OF_A_PART}, of {MOST_ENTRIES} "
                f"entries, are taken below {part.top.cgroup}, which is not root's alone, and that as a whole"
            )
    return taken


@dataclass(slots=True)
class _Part:
    """How much may still be taken from a part of the tree that was delegated; `top` is where it begins."""

    top: Selected
    cgroups: int = MOST_OF_A_PART
    entries: int = MOST_ENTRIES
    is_cut: bool = False  # not all of its entries were read, or not all matches taken

    def takes_one(self) -> bool:
        """Take one of its cgroups; return False if it has given as many as it may."""
        self.cgroups -= 1
        self.is_cut |= self.cgroups < 0
        return self.cgroups >= 0


class _Directory(NamedTuple):
    found: Selected
    is_trusted: bool  # root chose the names in it
    part: _Part | None


class _Match(NamedTuple):
    found: Selected
    above: _Directory


@dataclass(eq=False)
class Search(NamedParents):
    """Finds what patterns match, level by level, beside the parents that are named."""

    parts: list[_Part] = field(default_factory=list)  # the delegated ones that were found

    def run(self, parents: Sequence[PodParent]) -> Parents:
        """Return what there is of all parents."""
        children = dict(super().run([parent for parent in parents if not parent.is_pattern]).children)
        found = {parent.text: list(self._matched(parent)) for parent in parents if parent.is_pattern}
        by_pattern = _without_overlaps(found, self.problems) if len(found) > 1 else found
        children.update(dict.fromkeys(self.failed))
        for matches in by_pattern.values():
            children.update(matches)
        return Parents(
            children, {text: [cgroup for cgroup, _ in matches] for text, matches in by_pattern.items()}
        )

    def matches(self, pattern: PodParent) -> Iterator[_Match | None]:
        """Yield what matches, and None after each directory that was read."""
        try:
            path = os.fspath(self.tree.path(pattern.fence))
            if self.listing is not None:
                self.listing.watch(path)
            fence = Selected(pattern.fence, path, os.stat(path).st_ino)
            if pattern.is_pattern:
                yield from self._below(self._directory(fence, None), pattern.searched)
            else:
                yield _Match(fence, _Directory(fence, is_trusted=True, part=None))
        except FileNotFoundError:
            return  # there is none (yet)
        except (OSError, ReactorError) as error:
            self._fail(pattern.fence, error)

    def _below(self, above: _Directory, searched: Sequence[tuple[str, Matches]]) -> Iterator[_Match | None]:
        """Yield what matches the components that are left, below a cgroup that matches those before."""
        (name, matches), *others = searched
        names = self._names(above, name, matches)
        yield None
        for child, inode in names:
            found = Selected(
                f"{above.found.cgroup.rstrip('/')}/{child}", f"{above.found.directory}/{child}", inode
            )
            if not others:
                yield _Match(found, above)
                continue
            try:
                yield from self._below(self._directory(found, above.part), others)
            except OSError as error:
                if error.errno not in GONE:
                    self._fail(found.cgroup, error)

    def _names(self, above: _Directory, name: str, matches: Matches) -> Names:
        """Return the cgroups in a directory that a component matches, and their inodes. Raises OSError."""
        (_, path, inode), _, part = above
        if matches is None:
            found = self._read(path, (name, inode), lambda: _only(path, name))
        elif part is not None and part.entries <= 0:
            found = Listing((), 0, is_cut=True)
        else:
            read = partial(listed, path, is_trusted=above.is_trusted, matches=matches)
            found = self._read(path, ((name,), inode), read)
        if part is not None:
            part.entries -= found.entries
            part.is_cut |= found.is_cut
            if found.is_cut:
                self.problems[above.found.cgroup] = (
                    f"so many cgroups that a pattern finds not all in it: {MOST_ENTRIES} entries are read "
                    f"below {part.top.cgroup}, which is not root's alone"
                )
        return found.names

    def _matched(self, parent: PodParent) -> Iterator[tuple[str, Children]]:
        """Yield what a pattern matches, and the children of each."""
        for match in self.matches(parent):
            if match is None:
                continue
            try:
                yield match.found.cgroup, self._children_of(match)
            except OSError as error:
                if error.errno not in GONE:
                    self._fail(match.found.cgroup, error)

    def _children_of(self, match: _Match) -> Children:
        """Return a match's children; if they are too many it is one pod itself. Raises OSError."""
        part = match.above.part
        if part is not None and part.entries <= 0:
            return self._as_a_whole(match, part)
        found, is_trusted, part = self._directory(match.found, part)
        children = self._read(
            found.directory, (None, found.inode), lambda: listed(found.directory, is_trusted=is_trusted)
        )
        if part is not None:
            part.entries -= children.entries
            if children.is_cut or len(children.names) > part.cgroups:
                return self._as_a_whole(match, part)
            part.cgroups -= len(children.names)
        return Children(found.cgroup, found.directory, children.names, is_trusted)

    def _as_a_whole(self, match: _Match, part: _Part) -> Children:
        """Return a match as the one pod that it is, since there would be too many in it."""
        part.cgroups -= 1
        found, (above, is_trusted, _) = match
        self.problems.setdefault(
            part.top.cgroup,
            f"more than {MOST_OF_A_PART} pods below it, which is not root's alone: {found.cgroup} is one pod "
            "as a whole",
        )
        named = ((os.path.basename(found.cgroup), found.inode),)
        return Children(above.cgroup, above.directory, named, is_trusted)

    def _directory(self, found: Selected, part: _Part | None) -> _Directory:
        """Return a directory, and whose it is, which is asked again with `again`. Raises OSError."""
        is_trusted = self._read(
            found.directory,
            found.inode,
            lambda: names_are_trusted(found.cgroup, found.directory),
            again=self.again,
        )
        if part is None and not is_trusted:
            part = _Part(found)
            self.parts.append(part)
        return _Directory(found, is_trusted, part)


def _without_overlaps(
    found: Mapping[str, Sequence[tuple[str, Children]]], problems: dict[str, str]
) -> dict[str, list[tuple[str, Children]]]:
    """Return the matches without those that another pattern matched first, or that lie in another match.

    The outer one is taken whichever is written first: its owner may make what lies in it, and must not get
    anything out of it that way.
    """
    first: dict[str, str] = {}
    for text, matches in found.items():
        for cgroup, _ in matches:
            first.setdefault(cgroup, text)
    kept: dict[str, list[tuple[str, Children]]] = {}
    for text, matches in found.items():
        kept[text] = []
        for cgroup, children in matches:
            other = next((first[one] for one in _above(cgroup) if one in first), first[cgroup])
            if other == text:
                kept[text].append((cgroup, children))
            else:
                problems[text] = f"{cgroup}: its pods are those of {other}, which matches there too"
    return kept


def _above(cgroup: str) -> Iterator[str]:
    """Yield the cgroups that hold one, but for the root, the outermost first."""
    at = cgroup.find("/", 1)
    while at > 0:
        yield cgroup[:at]
        at = cgroup.find("/", at + 1)


def _only(path: str, name: str) -> Listing:
    """Return the cgroup of that name in a directory, if there is one. Raises OSError."""
    try:
        found = os.stat(f"{path}/{name}", follow_symlinks=False)
    except FileNotFoundError:
        return Listing((), 1, is_cut=False)
    return Listing(((name, found.st_ino),) if stat.S_ISDIR(found.st_mode) else (), 1, is_cut=False)
