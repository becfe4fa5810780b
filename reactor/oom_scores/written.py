"""Which scores were written for the OOM killer's order, and how processes get their own again.

The file outlives the guard. It is valid for one boot, and names a process by its id and start time. What a
process was born with it has from its parent, wherever it has moved to since: it is found in /proc, by a score
that was written, its start since then, and its kinship or cgroup.

Imports little: a process beside the guard restores by this if the guard is gone (restorer.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from reactor.errors import ReactorError
from reactor.kernel.cgroup import parse_own_cgroup
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.files import GONE, close_descriptor, read_own
from reactor.kernel.oom import Birth, open_process, read_birth, read_score, write_score

NAME: Final = "oom-order.json"
AT_ONCE: Final = 8  # processes between two turns of the loop: 0.3 ms
_VERSION: Final = 2
_MAX_BYTES: Final = 4 << 20
_ROUNDS: Final = 8  # what is restored may fork meanwhile
_REMEDY: Final = "grant CAP_SYS_RESOURCE, and CAP_DAC_OVERRIDE for processes of others than root"


class ScoreWriter:
    """Writes scores of processes below `proc`; `refused` is why one could not be written."""

    def __init__(self, proc: str) -> None:
        self.proc = proc
        self.refused: str | None = None

    def write(self, pid: int, start_ticks: int, score: int, only_if: set[int] | None = None) -> bool:
        """Set the score of a process that was started then, if its score is one of `only_if`."""
        process = -1
        try:
            process = open_process(pid, self.proc)
            if read_birth(process).start_ticks != start_ticks:
                return False
            if only_if is not None and read_score(process) not in only_if:
                return False
            write_score(process, score)
        except OSError as error:
            if error.errno not in GONE and not isinstance(error, ProcessLookupError):
                self.refused = f"an oom_score_adj was refused: {error.strerror}; {_REMEDY}"
            return False
        except (ReactorError, ValueError):  # no process that could be read
            return False
        finally:
            if process >= 0:
                close_descriptor(process)
        return True


@dataclass(slots=True, kw_only=True)
class Held:
    """A pod in which scores were written: which, from when on (in clock ticks since boot), and what was.

    `own` is by process id: start time and score.
    """

    uid: str
    key: str
    cgroup: str
    since_ticks: int
    written: set[int] = field(default_factory=set)
    own: dict[int, tuple[int, int]] = field(default_factory=dict)

    def known(self, pid: int, born: Birth) -> int | None:
        """Return what a process had that was written to, None for others."""
        start_ticks, own = self.own.get(pid, (None, None))
        return own if start_ticks == born.start_ticks else None

    def own_score(self, pid: int, born: Birth, score: int) -> int:
        """Return what a process of the pod has of its own: before it was written to, or set by itself."""
        if score not in self.written:
            return score
        known = self.known(pid, born)
        if known is not None or born.start_ticks < self.since_ticks:
            return score if known is None else known
        return self.inherited(born, score)

    def inherited(self, born: Birth, score: int) -> int:
        """Return the own score of what was born with a score that was written here."""
        for relative in (born.parent, born.session):
            if relative in self.own:
                return self.own[relative][1]
        return min((own for _, own in self.own.values()), default=score)


class Written(ScoreWriter):
    """What was written and is to be restored, by the pods' uids. To restore twice changes nothing.

    `restored` counts the processes that were.
    """

    def __init__(self, proc: str) -> None:
        super().__init__(proc)
        self.held: dict[str, Held] = {}
        self.restored = 0

    @property
    def count(self) -> int:
        return sum(len(held.own) for held in self.held.values())

    def document(self) -> dict[str, Any]:
        """Return the content of the file but for the id of the boot, for JSON: a copy, 0.1 ms at most."""
        pods = [
            {
                "uid": one.uid,
                "key": one.key,
                "cgroup": one.cgroup,
                "since_ticks": one.since_ticks,
                "written": sorted(one.written),
                "own": one.own.copy(),
            }
            for one in self.held.values()
        ]
        return {"version": _VERSION, "pods": pods}

    def load(self, path: str, boot_id: str) -> None:
        """Take what was written during this boot by the file; nothing if there is no file.

        Raises OSError, and ValueError for a file of another kind.
        """
        try:
            document = json.loads(read_own(path, _MAX_BYTES))
            if document["version"] != _VERSION:
                raise ValueError(f"not of version {_VERSION}")
            if document["boot_id"] == boot_id:
                self.held = {one.uid: one for one in map(_held, document["pods"])}
        except FileNotFoundError:
            return
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None

    def restore(self) -> None:
        """Restore all of it here and now."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """Restore processes that are known, then go through all until none is found, a few at a time.

        What was written is forgotten then, unless some was refused.
        """
        held, self.refused = tuple(self.held.values()), None
        for one in held:
            for number, (pid, (start_ticks, own)) in enumerate(list(one.own.items())):
                self.restored += self.write(pid, start_ticks, own, one.written - {own})
                if number % AT_ONCE == 0:
                    yield
        written = frozenset(score for one in held for score in one.written)
        for _ in range(_ROUNDS if held else 0):
            before = self.restored
            with os.scandir(self.proc) as entries:  # a list of them all would hold up the loop
                for number, entry in enumerate(entries):
                    if entry.name.isdecimal():
                        self._restore_stray(int(entry.name), written)
                    if number % AT_ONCE == 0:
                        yield
            if self.restored == before:
                if self.refused is None:
                    self.held.clear()
                return

    def _restore_stray(self, pid: int, written: frozenset[int]) -> None:
        try:
            with open(f"{self.proc}/{pid}/oom_score_adj", "rb") as file:
                score = int(file.read(16))
            if score not in written:
                return
            process = open_process(pid, self.proc)
            try:
                born = read_birth(process)
            finally:
                close_descriptor(process)
        except (OSError, ReactorError, ValueError):  # gone
            return
        own = self._own_score(pid, born, score)
        if own is not None and own != score:
            self.restored += self.write(pid, born.start_ticks, own, {score})

    def _own_score(self, pid: int, born: Birth, score: int) -> int | None:
        """Return the own score of a process that has one that was written; None if it is another's."""
        held = [one for one in self.held.values() if score in one.written]
        for one in held:
            known = one.known(pid, born)
            if known is not None:
                return known
        held = [one for one in held if one.since_ticks <= born.start_ticks]
        kin = {born.parent, born.session}  # it is a child of one that is known, or of its session
        of = next((one for one in held if not kin.isdisjoint(one.own)), None)
        if of is None and held:
            cgroup = self._cgroup(pid)
            of = next((one for one in held if _is_in(cgroup, one.cgroup)), None)
            # A pod beside it may have such a score from a kubelet. Elsewhere no program writes one.
            beside = (one for one in held if not _is_in(cgroup, os.path.dirname(one.cgroup)))
            of = of or next(beside, None)
        return None if of is None else of.inherited(born, score)

    def _cgroup(self, pid: int) -> str:
        """Return a process's cgroup by the memory controller, or by the only hierarchy."""
        try:
            with open(f"{self.proc}/{pid}/cgroup", "rb") as file:
                raw = file.read()
        except OSError:
            return ""
        return parse_own_cgroup(raw, CgroupVersion.V1) or parse_own_cgroup(raw, CgroupVersion.V2) or ""


def _held(document: Mapping[str, Any]) -> Held:
    return Held(
        uid=str(document["uid"]),
        key=str(document["key"]),
        cgroup=str(document["cgroup"]),
        since_ticks=int(document["since_ticks"]),
        written={int(score) for score in document["written"]},
        own={int(pid): (int(start), int(score)) for pid, (start, score) in document["own"].items()},
    )


def _is_in(cgroup: str, above: str) -> bool:
    return cgroup == above or cgroup.startswith(f"{above.rstrip('/')}/")
