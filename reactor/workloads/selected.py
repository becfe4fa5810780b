"""The cgroups that a rule is for: those that it names, and those that its patterns match now.

The names that a pattern is compared with may be a tenant's, who can make thousands. So of each part of the
tree that was given away so many are taken, in the order in which the kernel lists them, and so many entries
of its directories are read; and so many are taken of all. Where a part has more, the part as a whole is taken
as well: who hides a cgroup among thousands is seen by what all of them do.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from typing import Final, NamedTuple

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.files import GONE
from reactor.model.pod_parents import PodParent
from reactor.workloads.trusted_names import names_are_trusted

MOST_OF_A_PART: Final = 256
MOST_ENTRIES: Final = 2_048
MOST_OF_ALL: Final = 4_096


class Selected(NamedTuple):
    """A cgroup, its directory, and the inode that tells it from another one of its name."""

    cgroup: str
    directory: str
    inode: int


class _Directory(NamedTuple):
    found: Selected
    depth: int
    part: _Part | None


class _Part:
    """How much may still be taken from a part of the tree that was given away; `top` is where it begins."""

    __slots__ = ("cgroups", "entries", "is_cut", "top")

    def __init__(self, top: Selected) -> None:
        self.top = top
        self.cgroups = MOST_OF_A_PART
        self.entries = MOST_ENTRIES
        self.is_cut = False


def find_selected(
    tree: CgroupTree, selectors: Sequence[PodParent], problems: dict[str, str]
) -> Generator[None, None, Mapping[str, Selected]]:
    """Return the cgroups that are selected, by their paths; yield after each that was looked at.

    Never raises: what can't be read, or is left out, is in `problems`.
    """
    taken: dict[str, Selected] = {}
    for selector in selectors:
        try:
            directory = os.fspath(tree.path(selector.fence))
            top = Selected(selector.fence, directory, os.stat(directory).st_ino)
        except FileNotFoundError:
            continue  # there is none (yet)
        except (OSError, ReactorError) as error:
            problems[selector.text] = str(error)
            continue
        waiting = [_Directory(top, 0, None)]
        while waiting:
            one = waiting.pop()
            if len(taken) >= MOST_OF_ALL:
                problems[selector.text] = (
                    f"matches more than {MOST_OF_ALL} cgroups: the others are not observed"
                )
                break
            if one.depth == len(selector.searched):
                taken[one.found.cgroup] = one.found
                yield
                continue
            try:
                matches = _matches(one, selector, problems)
                waiting += matches
                part = matches[0].part if matches else one.part
                if part is not None and part.is_cut:
                    taken[part.top.cgroup] = part.top
            except OSError as error:
                if error.errno not in GONE:
                    problems[one.found.cgroup] = str(error)
            yield
    return taken


def _matches(above: _Directory, selector: PodParent, problems: dict[str, str]) -> list[_Directory]:
    """Return the cgroups in a directory that the selector's component for it matches. Raises OSError."""
    cgroup, path, _ = above.found
    part = above.part
    if part is None and not names_are_trusted(cgroup, path):
        part = _Part(above.found)
    name, matches = selector.searched[above.depth]
    is_last = above.depth + 1 == len(selector.searched)
    found = []
    with os.scandir(path) as entries:
        for entry in entries:
            if part is not None:
                part.entries -= 1
                if part.entries < 0 or part.cgroups <= 0:
                    part.is_cut = True
                    problems[part.top.cgroup] = (
                        f"so many cgroups that a rule is not for each of them: {MOST_OF_A_PART}, of "
                        f"{MOST_ENTRIES} entries, are taken below {part.top.cgroup}, which is not root's "
                        "alone, and that as a whole"
                    )
                    break
            is_one = entry.name == name if matches is None else matches(entry.name)
            if not is_one or not entry.is_dir(follow_symlinks=False):
                continue
            if part is not None and is_last:
                part.cgroups -= 1
            child = Selected(f"{cgroup.rstrip('/')}/{entry.name}", f"{path}/{entry.name}", entry.inode())
            found.append(_Directory(child, above.depth + 1, part))
    return found
