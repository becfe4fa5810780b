"""Which cgroups are parents of pods now: those that the configuration names, and those its patterns match.

The names that a pattern is compared with are whose the directory is: root's, or those of who was given a part
of the tree. Root's are taken as they are, like the children of a parent that is named. What lies in a part
that was given away is its owner's to fill, so each such part has bounds: of its cgroups so many are pods of
their own, in the order of names, and further parents are one pod each, as a whole; and so many entries of its
directories are read. Its owner can have fewer pods by making more cgroups, and exempts none.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.files import GONE
from reactor.model.pod_parents import PodParent
from reactor.workloads.trusted_names import names_are_trusted
from reactor.workloads.unchanged import Unchanged

MOST_PODS: Final = 256
MOST_ENTRIES: Final = 2_048
_Matches = Callable[[str], bool] | None


class Children(NamedTuple):
    """The cgroups in a directory that may be pods: their parent, their names and their inodes."""

    cgroup: str
    directory: str
    names: Sequence[tuple[str, int]]
    is_trusted: bool


class Parents(NamedTuple):
    """The children of each parent, by its cgroup; None where they can't be listed.

    `matches` are the parents that were found by each pattern.
    """

    children: Mapping[str, Children | None]
    matches: Mapping[str, Sequence[str]]


class _Listing(NamedTuple):
    names: Sequence[tuple[str, int]]
    entries: int
    is_cut: bool


class _Directory(NamedTuple):
    cgroup: str
    path: str
    inode: int
    is_trusted: bool


@dataclass(slots=True)
class _Left:
    """How much may still be taken from a part of the tree that was given away; `top` is where it begins."""

    top: str
    pods: int = MOST_PODS
    entries: int = MOST_ENTRIES


def find_parents(
    tree: CgroupTree,
    parents: Sequence[PodParent],
    problems: dict[str, str],
    listing: Unchanged[Parents] | None = None,
    *,
    again: bool = False,
) -> Parents:
    """Return the parents that there are, and their children.

    Never raises: what can't be read is in `problems`. With a `listing` that is asked only where something has
    changed; with `again` parents that are named are listed in any case.
    """
    if listing is None:
        return _Search(tree, problems, None).run(parents)
    return listing.get(lambda: _Search(tree, problems, listing, again=again).run(parents), again=again)


def matches_of(tree: CgroupTree, parents: Sequence[str]) -> tuple[str, ...]:
    """Return the parents that there may be: those that are named, and those that a pattern matches now."""
    every = [PodParent(one) for one in parents]
    patterns = [one for one in every if one.is_pattern]
    found = find_parents(tree, patterns, {}).matches if patterns else {}
    return tuple(cgroup for one in every for cgroup in (found[one.text] if one.is_pattern else (one.text,)))


class _Search:
    def __init__(
        self,
        tree: CgroupTree,
        problems: dict[str, str],
        listing: Unchanged[Parents] | None,
        *,
        again: bool = False,
    ) -> None:
        self._tree = tree
        self._problems = problems
        self._listing = listing
        self._again = again
        self._children: dict[str, Children | None] = {}

    def run(self, parents: Sequence[PodParent]) -> Parents:
        """Return what there is of all parents."""
        found: dict[str, list[tuple[str, Children]]] = {}
        for parent in parents:
            if parent.is_pattern:
                found[parent.text] = list(self._matched(parent))
            else:
                self._named(parent.text)
        by_pattern = self._without_overlaps(found) if len(found) > 1 else found
        for matches in by_pattern.values():
            self._children.update(matches)
        return Parents(
            self._children, {text: [cgroup for cgroup, _ in matches] for text, matches in by_pattern.items()}
        )

    def _named(self, cgroup: str) -> None:
        """Note the children of a parent that is named by its path."""
        try:
            path = os.fspath(self._tree.path(cgroup))
            if self._listing is None:
                names = _listed(path).names
            else:
                names = self._listing.part(path, None, lambda: _listed(path), again=self._again).names
            self._children[cgroup] = Children(cgroup, path, names, names_are_trusted(cgroup, path))
        except FileNotFoundError:
            self._children[cgroup] = Children(cgroup, "", (), is_trusted=False)  # holds no pod (yet)
        except (OSError, ReactorError) as error:
            self._failed(cgroup, error)

    def _matched(self, parent: PodParent) -> Iterator[tuple[str, Children]]:
        """Yield what a pattern matches, and the children of each."""
        try:
            path = os.fspath(self._tree.path(parent.fence))
            if self._listing is not None:
                self._listing.watch(path)
            fence = self._directory(parent.fence, path, os.stat(path).st_ino)
            yield from self._below(fence, parent.searched, None)
        except FileNotFoundError:
            return  # holds no pod (yet)
        except (OSError, ReactorError) as error:
            self._failed(parent.fence, error)

    def _below(
        self, above: _Directory, searched: Sequence[tuple[str, _Matches]], left: _Left | None
    ) -> Iterator[tuple[str, Children]]:
        """Yield what matches the components that are left, below a cgroup that matches those before."""
        if left is None and not above.is_trusted:
            left = _Left(above.cgroup)
        (name, matches), *others = searched
        for child, inode in self._named_in(above, name, matches, left):
            cgroup, path = f"{above.cgroup.rstrip('/')}/{child}", f"{above.path}/{child}"
            try:
                if others:
                    yield from self._below(self._directory(cgroup, path, inode), others, left)
                elif left is not None and left.entries <= 0:
                    yield cgroup, self._as_a_whole(cgroup, above, (child, inode), left)
                else:
                    found = self._directory(cgroup, path, inode)
                    yield cgroup, self._children_of(found, above, child, left)
            except OSError as error:
                if error.errno not in GONE:
                    self._failed(cgroup, error)

    def _named_in(
        self, above: _Directory, name: str, matches: _Matches, left: _Left | None
    ) -> Sequence[tuple[str, int]]:
        """Return the cgroups in a directory that a component matches, and their inodes. Raises OSError."""
        if matches is None:
            found = self._part(above, name, lambda: _only(above.path, name))
        elif left is not None and left.entries <= 0:
            found = _Listing((), 0, is_cut=True)
        else:
            found = self._part(
                above, (name,), lambda: _listed(above.path, is_trusted=above.is_trusted, matches=matches)
            )
        if left is not None:
            left.entries -= found.entries
        if found.is_cut:
            self._problems[above.cgroup] = (
                f"so many cgroups that a pattern finds not all in it: {MOST_ENTRIES} entries are read below "
                f"{above.cgroup if left is None else left.top}, which is not root's alone"
            )
        return found.names

    def _children_of(self, found: _Directory, above: _Directory, name: str, left: _Left | None) -> Children:
        """Return a match's children; where they are too many it is one pod itself. Raises OSError."""
        if left is None and not found.is_trusted:
            left = _Left(found.cgroup)
        listed = self._part(found, None, lambda: _listed(found.path, is_trusted=found.is_trusted))
        if left is not None:
            left.entries -= listed.entries
            if listed.is_cut or len(listed.names) > left.pods:
                return self._as_a_whole(found.cgroup, above, (name, found.inode), left)
            left.pods -= len(listed.names)
        return Children(found.cgroup, found.path, listed.names, found.is_trusted)

    def _as_a_whole(self, cgroup: str, above: _Directory, named: tuple[str, int], left: _Left) -> Children:
        """Return a match as the one pod that it is, since there would be too many in it."""
        left.pods -= 1
        why = (
            f"more than {MOST_PODS} pods below it, which is not root's alone: {cgroup} is one pod as a whole"
        )
        self._problems.setdefault(left.top, why)
        return Children(above.cgroup, above.path, (named,), above.is_trusted)

    def _part(self, directory: _Directory, what: object, find: Callable[[], _Listing]) -> _Listing:
        """Return what is found in a directory; of another one of its name it is not what was found before."""
        if self._listing is None:
            return find()
        return self._listing.part(directory.path, (what, directory.inode), find)

    def _directory(self, cgroup: str, path: str, inode: int) -> _Directory:
        """Return a directory, and whose it is: that is asked again with the housekeeping. Raises OSError."""
        if self._listing is None:
            return _Directory(cgroup, path, inode, names_are_trusted(cgroup, path))
        find = partial(names_are_trusted, cgroup, path)
        is_trusted = self._listing.part(path, inode, find, again=self._again)
        return _Directory(cgroup, path, inode, is_trusted)

    def _failed(self, cgroup: str, error: Exception) -> None:
        """Note what can't be listed: out of descriptors, say, just when a pod may have to be evicted."""
        self._problems[cgroup] = str(error)
        self._children[cgroup] = None
        if self._listing is not None:
            self._listing.spoil()

    def _without_overlaps(
        self, found: Mapping[str, Sequence[tuple[str, Children]]]
    ) -> dict[str, list[tuple[str, Children]]]:
        """Return the matches without those that another pattern matched first, or that lie in another match.

        The outer one is taken whichever is written first: its owner may make what lies in it, and must not
        get anything out of it that way.
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
                    self._problems[text] = f"{cgroup}: its pods are those of {other}, which matches there too"
        return kept


def _above(cgroup: str) -> Iterator[str]:
    """Yield the cgroups that hold one, but for the root, the outermost first."""
    at = cgroup.find("/", 1)
    while at > 0:
        yield cgroup[:at]
        at = cgroup.find("/", at + 1)


def _listed(path: str, *, is_trusted: bool = True, matches: _Matches = None) -> _Listing:
    """Return the cgroups in a directory by name; the first of them where it is not root's and holds too many.

    Raises OSError.
    """
    names: list[tuple[str, int]] = []
    count, is_cut = 0, False
    with os.scandir(path) as entries:
        for entry in entries:
            count += 1
            if not is_trusted and (count > MOST_ENTRIES or (matches is None and len(names) > MOST_PODS)):
                is_cut = True
                break
            if entry.is_dir(follow_symlinks=False) and (matches is None or matches(entry.name)):
                names.append((entry.name, entry.inode()))
    return _Listing(sorted(names), count, is_cut)


def _only(path: str, name: str) -> _Listing:
    """Return the cgroup of that name in a directory, if there is one. Raises OSError."""
    try:
        found = os.stat(f"{path}/{name}", follow_symlinks=False)
    except FileNotFoundError:
        return _Listing((), 1, is_cut=False)
    return _Listing(((name, found.st_ino),) if stat.S_ISDIR(found.st_mode) else (), 1, is_cut=False)
