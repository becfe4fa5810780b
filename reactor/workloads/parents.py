"""The parents of pods: which there are, their children, and what below them can never be a pod."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from reactor.errors import ReactorError, RefusedError
from reactor.kernel.cgroup import CgroupTree, own_cgroup, stewards_beside
from reactor.kernel.cgroup_directory import cgroup_components
from reactor.kernel.directories import CachedListing
from reactor.kernel.procfs import PROC
from reactor.model.name_patterns import PodParent
from reactor.model.pods import Pod
from reactor.workloads.attributes import names_are_trusted

# The most that is taken from a part of the tree that was delegated (search.py).
MOST_OF_A_PART: Final = 256
MOST_ENTRIES: Final = 2_048
UNREAD: Final = "its cgroup can't be read"
_BLIND: Final = "reactor has no descriptors left to see which pods there are"
Matches = Callable[[str], bool] | None
Names = Sequence[tuple[str, int]]
_Read = TypeVar("_Read")


class Children(NamedTuple):
    """The cgroups in a directory that may be pods: their parent, their names and their inodes."""

    cgroup: str
    directory: str
    names: Names
    is_trusted: bool


class Parents(NamedTuple):
    """The children of each parent, by its cgroup; None if they can't be listed.

    `matches` are the parents that were found by each pattern.
    """

    children: Mapping[str, Children | None]
    matches: Mapping[str, Sequence[str]]


def all_spared(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """Return pods of which none is evicted: the hog may be one that lacks the descriptors to be seen."""
    return tuple(replace(pod, critical_because=_BLIND) for pod in pods)


class Listing(NamedTuple):
    """Cgroups in a directory, how many of its entries were read, and whether those are not all."""

    names: Names
    entries: int
    is_cut: bool


@dataclass(eq=False)
class NamedParents:
    """Lists the children of parents that are named by their paths. Never raises: what fails is in `problems`.

    With a listing it reads only directories that changed.
    """

    tree: CgroupTree
    problems: dict[str, str]
    listing: CachedListing[Parents] | None = None
    _: KW_ONLY
    again: bool = False
    failed: list[str] = field(default_factory=list)

    def run(self, parents: Sequence[PodParent]) -> Parents:
        return Parents({parent.text: self._named(parent.text) for parent in parents}, {})

    def _named(self, cgroup: str) -> Children | None:
        """Return the children of a parent that is named by its path, None if they can't be listed."""
        try:
            path = os.fspath(self.tree.path(cgroup))
            status = os.stat(path)  # which shows, without an event, that it is another or holds more or fewer
            found = self._read(path, (status.st_ino, status.st_nlink), lambda: listed(path))
            return Children(cgroup, path, found.names, names_are_trusted(cgroup, path))
        except FileNotFoundError:
            return Children(cgroup, "", (), is_trusted=False)  # holds no pod (yet)
        except (OSError, ReactorError) as error:
            self._fail(cgroup, error)
            return None

    def _read(self, directory: str, what: object, find: Callable[[], _Read], *, again: bool = False) -> _Read:
        """Return what `find` reads in a directory; with a listing, as it was before if nothing changed."""
        if self.listing is None:
            return find()
        return self.listing.section(directory, what, find, again=again)

    def _fail(self, cgroup: str, error: Exception) -> None:
        """Record what can't be listed: out of descriptors, say, just when a pod may have to be evicted."""
        self.problems[cgroup] = str(error)
        self.failed.append(cgroup)
        if self.listing is not None:
            self.listing.invalidate()


def listed(path: str, *, is_trusted: bool = True, matches: Matches = None) -> Listing:
    """Return the cgroups in a directory by name; of one that is not root's the first, if it holds too many.

    Raises OSError.
    """
    names: list[tuple[str, int]] = []
    count, is_cut = 0, False
    with os.scandir(path) as entries:
        for entry in entries:
            count += 1
            if not is_trusted and (count > MOST_ENTRIES or (matches is None and len(names) > MOST_OF_A_PART)):
                is_cut = True
                break
            if entry.is_dir(follow_symlinks=False) and (matches is None or matches(entry.name)):
                names.append((entry.name, entry.inode()))
    return Listing(sorted(names), count, is_cut)


class PodBoundaries:
    """The parents of pods, and the cgroups below them that can never be pods: `spared`, cgroup to reason.

    `daemon` is the daemon's cgroup if this is another process; None: this process is the daemon.
    """

    def __init__(
        self,
        tree: CgroupTree,
        parents: Sequence[str],
        node_cgroup: str | None,
        proc: Path = PROC,
        *,
        daemon: str | None = None,
    ) -> None:
        self.parents = tuple(map(PodParent, dict.fromkeys(parents)))
        own = daemon or own_cgroup(tree, proc / "self/cgroup")
        init = own_cgroup(tree, proc / "1/cgroup")
        spared: dict[str, str] = {}
        for cgroup, what in (
            *((parent.fence, "a configured parent of pods") for parent in self.parents),
            (node_cgroup, "the node's own cgroup"),
            (init, "init's cgroup"),
            (None if own is None else stewards_beside(own), "reactor's steward"),
            (own, "reactor's own cgroup"),
        ):
            if cgroup is not None:
                spared |= dict.fromkeys(_upwards(cgroup), what)
        self.spared: Mapping[str, str] = spared

    def refusal(self, cgroup: str) -> str | None:
        """Return why the cgroup can't be a pod, None if it can."""
        try:
            parts = cgroup_components(cgroup)
        except RefusedError as error:
            return str(error)
        if not parts or not any(parent.is_parent(os.path.dirname(cgroup)) for parent in self.parents):
            parents = ", ".join(parent.text for parent in self.parents) or "none is configured"
            return f"cgroup {cgroup!r}: not a child of a parent of pods ({parents})"
        what = self.spared.get(cgroup)
        return None if what is None else f"cgroup {cgroup!r}: is or holds {what}"


def _upwards(cgroup: str) -> tuple[str, ...]:
    """Return the cgroup and everything above it but the root."""
    parts = cgroup.strip("/").split("/")
    return tuple("/" + "/".join(parts[:count]) for count in range(len(parts), 0, -1))
