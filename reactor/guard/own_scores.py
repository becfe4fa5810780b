"""What the processes of pods had before the OOM killer's order was written: remembered, and saved.

The file outlives the guard. It is valid for one boot, and names a process by its id and start time.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from reactor.act.one_process import never_matcher
from reactor.guard.process_survey import Seen
from reactor.kernel.small_file import KeptFile, document_of
from reactor.model.pod_lists import ProcessVictim
from reactor.model.pods import Pod
from reactor.policy.oom_order import may_be_raised
from reactor.policy.process_victims import in_order, is_spared

_LOG: Final = logging.getLogger("reactor.oom")
NAME: Final = "oom-order.json"
MOST_PROCESSES: Final = 512  # of the first pod, and of all others together
_VERSION: Final = 1
_MAX_BYTES: Final = 4 << 20
_MOST_KNOWN: Final = 4 * MOST_PROCESSES


@dataclass(slots=True, kw_only=True)
class Held:
    """A pod in which scores were written: `written` is which, `own` what its processes had.

    `own` is by process id: start time and score. `least` is the lowest score of a cgroup's processes, by the
    cgroup's inode: for a process of which no parent is known. `is_grouped`: memory.oom.group was set.
    `rule`: one process of the pod is to go first, not all of them.
    """

    uid: str
    key: str
    cgroup: str
    inode: int | None
    spared: tuple[str, ...] = ()
    written: set[int] = field(default_factory=set)
    own: dict[int, tuple[int, int]] = field(default_factory=dict)
    least: dict[int, int] = field(default_factory=dict)
    is_grouped: bool = False
    rule: ProcessVictim | None = None

    @classmethod
    def of(cls, pod: Pod) -> Held:
        """Return a pod in which nothing was written yet."""
        return cls(
            uid=pod.uid,
            key=pod.key,
            cgroup=pod.cgroup or "",
            inode=pod.cgroup_inode,
            spared=pod.spared_cgroups,
            rule=pod.process_victim,
        )

    def first_process(self, seen: Sequence[Seen]) -> int | None:
        """Return which of these processes goes first, as the guard chooses it; None: all of them do."""
        if self.rule is None:
            return None
        is_never = never_matcher(self.rule.never)
        scores = {one.pid: self.own_score(one) for one in seen}
        for process in in_order(one.memory for one in seen if one.memory is not None):
            score = scores[process.pid]
            if may_be_raised(score) and not is_spared(process, score, is_never, ()):
                return process.pid
        return None

    def own_score(self, seen: Seen) -> int:
        """Return what a process has of its own: before it was written to, or set by itself since."""
        if seen.score not in self.written:
            return seen.score
        for pid in (seen.pid, seen.parent):
            known = self.own.get(pid)
            if known is not None and (known[0] == seen.start_ticks or pid == seen.parent):
                return known[1]
        return self.least.get(seen.directory, min(self.least.values(), default=seen.score))

    def note(self, seen: Seen) -> int:
        """Take note of a process, and return its own score."""
        own = self.own_score(seen)
        self.own[seen.pid] = (seen.start_ticks, own)
        self.least[seen.directory] = min(self.least.get(seen.directory, own), own)
        return own

    def forget_but(self, pids: Collection[int]) -> None:
        """Forget processes that are not among these where many are known: a pod may fork without end."""
        if len(self.own) > _MOST_KNOWN:
            self.own = {pid: known for pid, known in self.own.items() if pid in pids}


class OwnScoresFile(KeptFile[Sequence[Held]]):
    """Keeps what processes had. Small: it is written by the loop where it lies in memory."""

    def __init__(self, path: Path, boot_id: Path) -> None:
        failure = "order of the OOM killer: not taken, since what was can't be saved"
        super().__init__(path, self._document, failure, _LOG)
        self._boot_id = boot_id

    def load(self) -> Sequence[Held]:
        """Return what was left during this boot."""
        try:
            present = self._boot_id.read_text().strip()
        except OSError:
            return ()

        def parse(content: bytes) -> Sequence[Held]:
            document = document_of(content, version=_VERSION, max_bytes=_MAX_BYTES)
            return [_held(one) for one in document["pods"]] if document["boot_id"] == present else ()

        return self._restore(_MAX_BYTES, parse) or ()

    def _document(self, held: Sequence[Held]) -> object:
        return {
            "version": _VERSION,
            "boot_id": self._boot_id.read_text().strip(),
            "pods": [
                {**dataclasses.asdict(one), "written": sorted(one.written), "spared": list(one.spared)}
                for one in held
            ],
        }

    def _is_small(self) -> bool:
        return sum(len(held.own) for held in self._shown[0]) <= MOST_PROCESSES


def _held(document: Mapping[str, Any]) -> Held:
    """Return what one entry of the file says. Raises ValueError, KeyError, TypeError, AttributeError."""
    inode = document["inode"]
    return Held(
        uid=str(document["uid"]),
        key=str(document["key"]),
        cgroup=str(document["cgroup"]),
        inode=None if inode is None else int(inode),
        spared=tuple(str(one) for one in document["spared"]),
        written={int(score) for score in document["written"]},
        own={int(pid): (int(start), int(score)) for pid, (start, score) in document["own"].items()},
        least={int(inode): int(score) for inode, score in document["least"].items()},
        is_grouped=document["is_grouped"] is True,
    )
