"""The kernel's OOM killer does not take a pod before the one that the policy would evict first.

While memory is near a hard threshold, and evictions are not slowed down, processes of pods that would go
before the ranking's first, and by the policy should not, have a lower oom_score_adj (policy/oom_order.py).
The passes say who is first, and that is all they do for it: what is read and written here is done beside the
loop, a few processes at a time.

All is restored as soon as memory is not near any more, at the end, and by the next guard after a crash. What
a process had is saved before anything is written, by its id and start time, valid for one boot. A process
beside the guard restores by that file where the guard is dead or does not move (restorer.py): without it
nothing is written.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from reactor.errors import ReactorError
from reactor.guard.own_scores import AT_ONCE, Held, Restoration, ScoreWriter, document_of, read_own_scores
from reactor.guard.process_survey import Seen, Survey
from reactor.guard.restorer import Restorer
from reactor.guard.state import BOOT_ID
from reactor.guard.wording import instant
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupDirectory
from reactor.kernel.files import read_file
from reactor.kernel.procfs import PROC, parse_meminfo, parse_swap, read_oom_score_adj
from reactor.kernel.small_file import KeptFile
from reactor.model.pods import Pod, PodUsage
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation
from reactor.policy.oom_order import highest_score, overtakes_at_bytes, points_bytes, score_to_write

_LOG: Final = logging.getLogger("reactor.oom")
KIND: Final = "oom-order"
MOST_PROCESSES: Final = 4_096  # of all pods together; of more none is written to
_FEW: Final = 512  # so many are saved without a thread
_MOST_KNOWN: Final = 4 * MOST_PROCESSES  # a pod may fork without end
_AGAIN_SECONDS: Final = 2.0  # until what has come to a pod, or set its own score again, is seen
_AGAIN_SHARE: Final = 50  # of the time that it takes
_BEAT_SECONDS: Final = 10.0  # a third of what the restorer waits for
_REFUSED_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.1  # a ranking that changes with each pass is followed ten times a second
_TICKS: Final = os.sysconf("SC_CLK_TCK")

Document = Mapping[str, Any]


class _Wanted(NamedTuple):
    first: Pod
    pods: Sequence[Pod]
    used: Mapping[str, PodUsage]
    memory: Mapping[Signal, Observation]

    @property
    def limit_bytes(self) -> int:
        """Return the limit at which the kernel will kill, 0 where it is not known."""
        return min((seen.capacity for seen in self.memory.values()), default=0)

    @property
    def room_bytes(self) -> int:
        """Return what is left until that limit is met."""
        return max((seen.available for seen in self.memory.values()), default=0)

    def used_bytes(self, pod: Pod) -> int:
        """Return what a pod was seen to use."""
        used = self.used.get(pod.uid)
        return 0 if used is None else used.memory_working_set_bytes or 0


class _Change(NamedTuple):
    pod: Pod
    seen: Seen
    own: int
    score: int


class _Plan(NamedTuple):
    """What is shown of the first, what is to be written, and the uids of the pods that were looked at."""

    first: Document
    changes: Sequence[_Change]
    found: frozenset[str]


class OwnScoresFile(KeptFile[Sequence[Held]]):
    """Keeps what processes had. Small: it is written by the loop where it lies in memory."""

    def __init__(self, path: Path, boot_id: Path) -> None:
        failure = "order of the OOM killer: not taken, since what was can't be saved"
        super().__init__(path, lambda held: document_of(held, boot_id.read_text().strip()), failure, _LOG)

    def _is_small(self) -> bool:
        return sum(len(held.own) for held in self._shown[0]) <= _FEW


class OomOrder:
    """Keeps the order while it is wanted. Everything but `want` runs beside the loop; nothing raises.

    `problem` is why the order can't be had, or what was can't be restored, in part. `write` journals when the
    order was taken and restored. `path` is the file that outlives the guard.
    """

    def __init__(
        self,
        tree: CgroupTree,
        path: Path,
        *,
        write: Callable[[Callable[[], Document]], object] = lambda _: None,
        restorer: Restorer | None = None,
        proc: Path = PROC,
        boot_id: Path = BOOT_ID,
    ) -> None:
        self.problem: str | None = None
        self._tree = tree
        self._path = path
        self._journal = write
        self._restorer = Restorer(path) if restorer is None else restorer
        self._proc = proc
        self._boot_id = boot_id
        self._file = OwnScoresFile(path, boot_id)
        self._held: dict[str, Held] = {}
        self._wanted: _Wanted | None = None
        self._changed = trio.Event()
        self._again_seconds = _AGAIN_SECONDS
        self._refused: str | None = None
        self._first: dict[str, Any] | None = None
        self._since = ""

    def want(
        self,
        first: Pod | None,
        pods: Sequence[Pod] = (),
        used: Mapping[str, PodUsage] | None = None,
        memory: Mapping[Signal, Observation] | None = None,
    ) -> None:
        """Have no other of `pods` go before this one that would not by the policy; None: as they were.

        For the loop: costs a comparison.
        """
        before = self._wanted
        self._wanted = None if first is None else _Wanted(first, pods, used or {}, memory or {})
        if (None if before is None else before.first.uid) != (None if first is None else first.uid):
            self._changed.set()

    def is_ordered(self, uid: str) -> bool:
        """Return whether scores of a pod have been written."""
        return uid in self._held

    def own_score(self, pid: int, cgroup: str) -> int:
        """Return what a process of a cgroup has as its own score, whatever was written. Raises OSError."""
        score = read_oom_score_adj(pid, self._proc)
        for held in self._held.values():
            is_in = held.cgroup == cgroup or self._tree.contains(held.cgroup, cgroup)
            if is_in and score in held.written:
                known = held.own.get(pid)
                return known[1] if known else min((own for _, own in held.own.values()), default=score)
        return score

    def document(self) -> dict[str, Any]:
        """Return how it stands as plain JSON values."""
        return {"first": self._first, "others": sum(len(held.own) for held in self._held.values())}

    def counts(self) -> Mapping[str, int]:
        """Return how many processes of the first pod, and of others, have a score that was written."""
        return {"first": 0, "others": self.document()["others"]}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the order as it is wanted, until cancelled."""
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._file.run)
                while True:
                    with trio.move_on_after(self._pause_seconds()):
                        await self._changed.wait()
                    self._changed = trio.Event()
                    await self._follow()
                    await trio.sleep(_PAUSE_SECONDS)
        finally:
            self.restore_now()
            with trio.CancelScope(shield=True):
                await self._restorer.end()

    def _pause_seconds(self) -> float:
        if self._wanted is not None:
            return min(self._again_seconds, _BEAT_SECONDS) if self._held else self._again_seconds
        return _BEAT_SECONDS if self._held else float("inf")

    async def _follow(self) -> None:
        self._refused = None
        started_at = trio.current_time()
        plan = None if self._wanted is None else await self._plan(self._wanted)
        if plan is None or sum(len(held.own) for held in self._held.values()) > _MOST_KNOWN:
            await self._restore()
        elif self._held or plan.changes:
            await self._carry_out(plan)
        took_seconds = trio.current_time() - started_at
        again_seconds = max(_AGAIN_SECONDS, took_seconds * _AGAIN_SHARE)
        self._again_seconds = _REFUSED_SECONDS if self._refused else min(_BEAT_SECONDS, again_seconds)
        self._show_refusal()

    def _show_refusal(self) -> None:
        if self._refused is not None and self.problem is None:
            _LOG.warning("order of the OOM killer: %s", self._refused)
        self.problem = self._refused

    async def _plan(self, wanted: _Wanted) -> _Plan | None:
        """Return what is to be written, None where the pods can't be put behind the first."""
        try:
            memory = read_file(self._proc / "meminfo")
            machine_bytes = parse_meminfo(memory).total_bytes + parse_swap(memory)[0]
        except (OSError, ReactorError) as error:
            self._refused = f"the machine's memory is not known: {error}"
            return None
        survey = Survey(MOST_PROCESSES, self._proc)
        processes: dict[str, list[tuple[Seen, int]]] = {}
        pods = [wanted.first, *(pod for pod in wanted.pods if pod.uid != wanted.first.uid)]
        for pod in pods:
            if pod.critical_because is None and pod.cgroup is not None:
                found = await self._survey(pod, survey)
                held = self._held.get(pod.uid)
                processes[pod.uid] = [
                    (one, one.score if held is None else held.own_score(one.pid, one.born, one.score))
                    for one in found
                ]
        if survey.is_cut:
            self._refused = f"not taken: the pods have more than {MOST_PROCESSES} processes"
            return None
        limit_bytes = wanted.limit_bytes
        points = [
            points_bytes(own, one.resident_bytes, limit_bytes)
            for one, own in processes.get(wanted.first.uid, ())
            if own > -1000  # which the kernel never kills
        ]
        if not points:
            return None
        first_used_bytes = wanted.used_bytes(wanted.first)
        changes: list[_Change] = []
        for pod in pods:
            present = processes.get(pod.uid, [])
            largest_bytes = max((one.resident_bytes for one, _ in present), default=0)
            used_bytes = max(wanted.used_bytes(pod), largest_bytes)
            at_bytes = overtakes_at_bytes(
                pod,
                used_bytes,
                wanted.first,
                first_used_bytes,
                room_bytes=wanted.room_bytes,
                limit_bytes=limit_bytes,
            )
            highest = highest_score(max(points), at_bytes, used_bytes - largest_bytes, limit_bytes)
            for one, own in present:
                score = (
                    own if pod is wanted.first else score_to_write(own, highest, limit_bytes, machine_bytes)
                )
                if score is None:
                    return None
                if score != one.score:
                    changes.append(_Change(pod, one, own, score))
        first = {
            "pod": wanted.first.key,
            "uid": wanted.first.uid,
            "processes": len(points),
            "oom_score_adj": max(own for _, own in processes[wanted.first.uid]),
            "oom_group": False,
        }
        return _Plan(first, changes, frozenset(uid for uid, found in processes.items() if found))

    def _hold(self, changes: Sequence[_Change]) -> None:
        """Keep what processes have of their own that is about to be written over."""
        for pod, seen, own, score in changes:
            if score == own:
                continue
            held = self._held.get(pod.uid)
            if held is None:
                held = self._held[pod.uid] = Held(
                    uid=pod.uid, key=pod.key, cgroup=pod.cgroup or "", since_ticks=_now_ticks()
                )
            held.own[seen.pid] = (seen.born.start_ticks, own)
            held.written.add(score)

    async def _carry_out(self, plan: _Plan) -> None:
        """Write the scores that are to change; where one is refused, all are restored."""
        self._hold(plan.changes)
        writer = ScoreWriter(str(self._proc))
        if await self._is_safe(has_changed=bool(plan.changes)):
            for number, (_, seen, _, score) in enumerate(plan.changes):
                if number % AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                writer.write(seen.pid, seen.born.start_ticks, score)
                if writer.refused is not None:
                    self._refused = writer.refused
                    break
        if self._refused is not None:
            await self._restore()
            return
        for uid in self._held.keys() - plan.found:  # they may not be evicted any more
            for pid, (start_ticks, own) in self._held[uid].own.items():
                writer.write(pid, start_ticks, own, self._held[uid].written)
        is_taken, self._first = self._first is not None, {**plan.first, "since": self._since}
        if not is_taken:
            self._first["since"] = self._since = instant(time.time())
            self._tell("taken")

    async def _is_safe(self, *, has_changed: bool) -> bool:
        """Save what was before anything is written, and have the restorer stand by; return if both are so."""
        if has_changed:
            self._file.show(tuple(self._held.values()))
            await self._file.wait_saved()
        if self._file.problem is not None:
            self._refused = f"not taken, since what was can't be saved: {self._file.problem}"
            return False
        try:
            await self._restorer.stand_by()
        except (OSError, ReactorError) as error:
            self._refused = f"not taken: {error}"
            return False
        return True

    async def _restore(self) -> None:
        """Give all processes their own scores again."""
        if not self._held:
            return
        restoration = Restoration(tuple(self._held.values()), str(self._proc))
        for _ in restoration.steps():
            await trio.lowlevel.checkpoint()
        self._restored(restoration)
        self._file.show(tuple(self._held.values()))
        if self._held:
            with suppress(OSError, ReactorError):  # it is tried again, and the next guard does it
                await self._restorer.stand_by()
        else:
            await self._restorer.relax()

    def _restored(self, restoration: Restoration) -> None:
        self._refused = self._refused or restoration.refused
        if restoration.is_complete:
            self._held.clear()
        if self._first is not None:
            self._tell("given back")
            self._first = None

    def restore_now(self) -> None:
        """Give everything back and save that, here and now: the guard ends, or begins after a crash."""
        self._wanted = None
        if self._held:
            restoration = Restoration(tuple(self._held.values()), str(self._proc))
            restoration.run()
            self._restored(restoration)
            self._file.save(tuple(self._held.values()))

    def resume(self) -> None:
        """Restore what an earlier guard has left. Blocks on the disk; for the start."""
        try:
            left = read_own_scores(str(self._path), self._boot_id.read_text().strip())
        except (OSError, ValueError) as error:
            self.problem = f"{self._path}: started without it: {error}"
            return
        if left:
            _LOG.warning("order of the OOM killer: left by a guard that did not end in order")
            self._held = {held.uid: held for held in left}
            self.restore_now()
            self.problem = self._refused

    def _tell(self, action: str) -> None:
        document = {"kind": KIND, "time": instant(time.time()), "action": action, **self.document()}
        first = document["first"]
        of_whom = "" if first is None else f": {first['pod']} first, {document['others']} processes behind it"
        _LOG.info("order of the OOM killer: %s%s", action, of_whom)
        self._journal(lambda: document)

    def _opened(self, pod: Pod) -> CgroupDirectory:
        """Return the pod's cgroup. Raises OSError, FileNotFoundError where it is another's by now."""
        directory = self._tree.open(pod.cgroup or "")
        if pod.cgroup_inode is not None and directory.inode != pod.cgroup_inode:
            directory.close()
            raise FileNotFoundError(errno.ENOENT, "another cgroup of that name", pod.cgroup)
        return directory

    async def _survey(self, pod: Pod, survey: Survey) -> Iterable[Seen]:
        """Return the processes of a pod; none where it is gone."""
        before = len(survey.processes)
        with suppress(OSError, ReactorError), self._opened(pod) as top:
            for _ in survey.steps(top, pod.spared_cgroups):
                await trio.lowlevel.checkpoint()
        return survey.processes[before:]


def _now_ticks() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)
