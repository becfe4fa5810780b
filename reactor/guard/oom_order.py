"""The kernel's OOM killer takes the pod that the policy would, also where the guard is too late or dead.

From the far early level of a hard memory threshold on, and under MemoryPressure, the processes of the
ranking's first pod have the highest oom_score_adj. Pods that may still overtake it have one by which they do
so as in the ranking, all others stay clearly behind (policy/oom_order.py). On a plain node's cgroup v2 the
kernel kills the first pod as a whole (memory.oom.group). The passes say who is first, and that is all they do
for it: what is read and written here is done beside the loop, a few processes at a time.

Everything is given back at recovery, at the end, and by the next guard after a crash. What a process had is
saved before anything is written: by its id and start time, valid for one boot. A process that was started
since has inherited what was written, so the pod is listed anew until nothing of it is found any more.

What keeps its score: a process that the kernel may not kill or that is protected like a pause container, what
a kill spares, and every pod that may not be evicted. Where one process of the first pod is killed, not all of
them, that process alone is raised, and the kernel is left to kill one.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from reactor.errors import ReactorError
from reactor.guard.own_scores import MOST_PROCESSES, Held, OwnScoresFile
from reactor.guard.process_survey import AT_ONCE, Seen, survey
from reactor.guard.state import BOOT_ID
from reactor.guard.wording import instant
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupDirectory
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.kernel.files import GONE, close_descriptor
from reactor.kernel.oom_score import open_process, read_birth, read_score, write_score
from reactor.kernel.procfs import PROC, read_oom_score_adj
from reactor.model.pods import Pod, PodUsage
from reactor.model.signals import Resource, Signal
from reactor.model.thresholds import Observation
from reactor.policy.oom_order import (
    FIRST,
    is_contender,
    may_be_raised,
    most_of_others,
    score_by_request,
)

_LOG: Final = logging.getLogger("reactor.oom")
KIND: Final = "oom-order"
_GROUP: Final = "memory.oom.group"
_MOST_GIVEN_BACK: Final = 8_192  # of a pod, in one round: what was raised may have forked
_ROUNDS: Final = 4
_AGAIN_SECONDS: Final = 2.0  # until what has come to a pod, or set its own score again, is seen
_OTHERS_AGAIN_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 60.0
_REMEDY: Final = "grant CAP_SYS_RESOURCE, and CAP_DAC_OVERRIDE for processes of others than root"
_SPLIT_BYTES: Final = 4 << 20
_PAUSE_SECONDS: Final = 0.1  # a ranking that changes with each pass is followed ten times a second

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

    def score_of(self, pod: Pod, more_bytes: int = 0) -> int:
        """Return the score by which a pod is ranked for its usage above its request and `more_bytes`."""
        return score_by_request(pod.requests.get(Resource.MEMORY, 0) + more_bytes, self.limit_bytes)


class OomOrder:
    """Keeps the order while it is wanted. Everything but `want` runs beside the loop; nothing raises.

    `problem` is why the order can't be had, or given back, in part. `write` journals when the order was taken
    and given back. `path` is the file that outlives the guard.
    """

    def __init__(
        self,
        tree: CgroupTree,
        path: Path,
        *,
        write: Callable[[Callable[[], Document]], object] = lambda _: None,
        proc: Path = PROC,
        boot_id: Path = BOOT_ID,
    ) -> None:
        self.problem: str | None = None
        self.kills_groups = False
        self._tree = tree
        self._journal = write
        self._proc = proc
        self._file = OwnScoresFile(path, boot_id)
        self._held: dict[str, Held] = {}
        self._wanted: _Wanted | None = None
        self._changed = trio.Event()
        self._others_at_seconds = -1.0
        self._refused: str | None = None
        self._score = FIRST
        self._largest_bytes = 0
        self._raised = 0
        self._first: str | None = None
        self._since_unix_seconds = 0.0

    def want(
        self,
        first: Pod | None,
        pods: Sequence[Pod] = (),
        used: Mapping[str, PodUsage] | None = None,
        memory: Mapping[Signal, Observation] | None = None,
    ) -> None:
        """Have this pod go first from now on, before all others in `pods`; None: give the order back.

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
                return known[1] if known is not None else min(held.least.values(), default=score)
        return score

    def document(self) -> dict[str, Any]:
        """Return how it stands as plain JSON values."""
        first = None if self._first is None else self._held.get(self._first)
        shown = None
        if first is not None:
            shown = {
                "pod": first.key,
                "uid": first.uid,
                "processes": self._raised,
                "oom_score_adj": self._score,
                "oom_group": first.is_grouped,
                "since": instant(self._since_unix_seconds),
            }
        others = [held for held in self._held.values() if held is not first]
        return {"first": shown, "others": sum(len(held.own) for held in others)}

    def counts(self) -> Mapping[str, int]:
        """Return how many processes of the first pod, and of others, have a score that was written."""
        document = self.document()
        first = document["first"]
        return {"first": 0 if first is None else first["processes"], "others": document["others"]}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the order as it is wanted, until cancelled."""
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._file.run)
            while True:
                with trio.move_on_after(self._again_seconds()):
                    await self._changed.wait()
                self._changed = trio.Event()
                await self._follow()
                await trio.sleep(_PAUSE_SECONDS)

    def _again_seconds(self) -> float:
        if self._wanted is not None:
            return _AGAIN_SECONDS
        return _RETRY_SECONDS if self._held else float("inf")

    async def _follow(self) -> None:
        self._refused = None
        wanted = self._wanted
        if wanted is None:
            if self._held:
                await self._give_back_all()
        else:
            await self._take(wanted)
        self._show_refusal()

    def _show_refusal(self) -> None:
        if self._refused is not None and self.problem is None:
            _LOG.warning("order of the OOM killer: %s", self._refused)
        self.problem = self._refused

    async def _take(self, wanted: _Wanted) -> None:
        """Raise the first pod, give back what the one before had, and put the others behind."""
        if not await self._raise(wanted):
            return
        before, self._first = self._first, wanted.first.uid
        if before is None:
            self._since_unix_seconds = time.time()
            self._tell("taken")
        if before != wanted.first.uid:
            self._others_at_seconds = -1.0
            left = None if before is None else self._held.get(before)
            if left is not None:
                await self._give_back(left)
        if self._refused is not None:  # raised above a first that is not, others would go in its place
            for held in [held for uid, held in self._held.items() if uid != wanted.first.uid]:
                await self._give_back(held)
            return
        if trio.current_time() >= self._others_at_seconds:
            self._others_at_seconds = trio.current_time() + _OTHERS_AGAIN_SECONDS
            await self._order_others(wanted)

    async def _raise(self, wanted: _Wanted) -> bool:
        """Give the processes of the first pod the highest score; return whether there were any."""
        pod = wanted.first
        held = self._held.get(pod.uid) or Held.of(pod)
        held.rule = pod.process_victim
        if held.rule is not None and held.is_grouped:  # the rule came with a reload
            self._write_group(held, b"0")
            held.is_grouped = False
        seen = await self._survey(held, MOST_PROCESSES)
        if not seen:
            return False
        alone = held.first_process(seen)
        own = [(one, held.note(one)) for one in seen]
        held.forget_but({one.pid for one in seen})
        self._largest_bytes = max(one.resident_bytes for one in seen if alone in {None, one.pid})
        self._score = wanted.score_of(pod)
        wished = [
            (one, max(score, self._score) if alone in {None, one.pid} else score)
            for one, score in own
            if may_be_raised(score)
        ]
        changes = [(one, score) for one, score in wished if one.score != score]
        self._raised = sum(1 for _, score in own if may_be_raised(score)) if alone is None else 1
        is_grouped = self._is_to_be_grouped(held)
        held.written.add(self._score)
        held.is_grouped |= is_grouped
        self._held[pod.uid] = held
        if (changes or is_grouped) and not await self._is_saved():
            return False
        await self._write_all(changes)
        if is_grouped:
            self._write_group(held, b"1")
        return True

    async def _order_others(self, wanted: _Wanted) -> None:
        """Put the processes of other pods behind the first; contenders as far as they are by the policy.

        The kernel counts by processes: what the first pod holds in others than its largest is added to what
        its contenders request.
        """
        first_used_bytes = wanted.used_bytes(wanted.first)
        split_bytes = max(0, first_used_bytes - self._largest_bytes) // _SPLIT_BYTES * _SPLIT_BYTES
        request_bytes = wanted.first.requests.get(Resource.MEMORY, 0)
        room_bytes = wanted.room_bytes + max(0, request_bytes - self._largest_bytes)

        def is_contending(pod: Pod) -> bool:
            used_bytes = wanted.used_bytes(pod)
            return is_contender(pod, used_bytes, wanted.first, first_used_bytes, wanted.room_bytes)

        others = [pod for pod in wanted.pods if pod.uid != wanted.first.uid and pod.cgroup is not None]
        left = MOST_PROCESSES
        changes: list[tuple[Seen, int]] = []
        for pod in sorted(others, key=lambda pod: (not is_contending(pod), -wanted.used_bytes(pod))):
            if left <= 0 or self._changed.is_set():
                break
            held = self._held.get(pod.uid) or Held.of(pod)
            seen = await self._survey(held, left)
            left -= len(seen)
            if is_contending(pod):
                score = wanted.score_of(pod, split_bytes)
                changed = [one for one in seen if one.score != score and held.own_score(one) >= 0]
            else:
                score = most_of_others(wanted.used_bytes(pod), room_bytes, wanted.limit_bytes)
                changed = [one for one in seen if one.score > score]
            if changed:
                for one in changed:
                    held.note(one)
                held.written.add(score)
                self._held[pod.uid] = held
                changes += [(one, score) for one in changed]
        if changes and await self._is_saved():
            await self._write_all(changes)

    async def _is_saved(self) -> bool:
        """Save what was before anything is written; return whether that went well."""
        self._file.show(tuple(self._held.values()))
        await self._file.wait_saved()
        if self._file.problem is not None:
            self._refused = f"not taken, since what was can't be saved: {self._file.problem}"
            return False
        return True

    async def _write_all(self, changes: Sequence[tuple[Seen, int]]) -> None:
        for _ in self._writing(changes):
            await trio.lowlevel.checkpoint()

    def _writing(self, changes: Sequence[tuple[Seen, int]]) -> Iterator[None]:
        """Write scores; yield after every few."""
        for start in range(0, len(changes), AT_ONCE):
            for seen, score in changes[start : start + AT_ONCE]:
                self._write_one(seen.pid, seen.start_ticks, score)
            yield

    def _write_one(self, pid: int, start_ticks: int, score: int, only_if: Iterable[int] = ()) -> None:
        """Set the score of a process if it still is the one that it was; `only_if` it has one of these."""
        process = -1
        try:
            process = open_process(pid, self._proc)
            if read_birth(process).start_ticks != start_ticks:
                return
            if only_if and read_score(process) not in only_if:
                return
            write_score(process, score)
        except OSError as error:
            if error.errno not in GONE and not isinstance(error, ProcessLookupError):
                self._refused = f"an oom_score_adj was refused: {error.strerror}; {_REMEDY}"
        except (ReactorError, ValueError):
            pass  # no process that could be read
        finally:
            if process >= 0:
                close_descriptor(process)

    async def _give_back_all(self) -> None:
        for held in tuple(self._held.values()):
            await self._give_back(held)
        self._tell_given_back()
        self._file.show(tuple(self._held.values()))

    async def _give_back(self, held: Held) -> None:
        for _ in self._giving_back(held):
            await trio.lowlevel.checkpoint()

    def give_back_now(self) -> None:
        """Give everything back and save that, here and now: the guard ends, or begins after a crash."""
        self._wanted = None
        if self._held:
            for held in tuple(self._held.values()):
                for _ in self._giving_back(held):
                    pass
            self._tell_given_back()
            self._file.save(tuple(self._held.values()))

    def resume(self) -> None:
        """Give back what an earlier guard has left. Blocks on the disk; for the start."""
        for held in self._file.load():
            self._held[held.uid] = held
        if self._held:
            _LOG.warning("order of the OOM killer: left by a guard that did not end in order")
            self.give_back_now()
            self.problem = self._refused

    def _giving_back(self, held: Held) -> Iterator[None]:
        """Give a pod's processes what is their own, a few at a time; then forget the pod."""
        refused_before, self._refused = self._refused, None
        if held.is_grouped:
            self._write_group(held, b"0")
        known = list(held.own.items())
        for start in range(0, len(known), AT_ONCE):
            for pid, (start_ticks, score) in known[start : start + AT_ONCE]:
                self._write_one(pid, start_ticks, score, only_if=held.written - {score})
            yield
        for _ in range(_ROUNDS):
            found: list[Seen] = []
            yield from self._surveying(held, _MOST_GIVEN_BACK, found)
            changes = [(one, own) for one in found if (own := held.own_score(one)) != one.score]
            if not changes or self._refused is not None:
                break
            yield from self._writing(changes)
        if self._refused is None:
            self._held.pop(held.uid, None)
        self._refused = self._refused or refused_before

    def _tell_given_back(self) -> None:
        if self._first is not None:
            self._tell("given back")
            self._first = None

    def _tell(self, action: str) -> None:
        document = {
            "kind": KIND,
            "time": instant(time.time()),
            "action": action,
            **self.document(),
        }
        first = document["first"]
        of_whom = "" if first is None else f": {first['pod']} first, {first['processes']} processes"
        _LOG.info("order of the OOM killer: %s%s", action, of_whom)
        self._journal(lambda: document)

    def _is_to_be_grouped(self, held: Held) -> bool:
        """Return whether the kernel is to kill this pod as a whole, and would not yet."""
        if not self.kills_groups or self._tree.version is not CgroupVersion.V2 or held.is_grouped:
            return False
        if held.rule is not None:
            return False
        with suppress(OSError, ReactorError), self._opened(held) as directory:
            return directory.read(_GROUP).strip() == b"0"
        return False

    def _write_group(self, held: Held, content: bytes) -> None:
        with suppress(ReactorError, FileNotFoundError):
            try:
                with self._opened(held) as directory:
                    directory.write(_GROUP, content)
            except OSError as error:
                if error.errno not in GONE:
                    self._refused = f"{held.cgroup}/{_GROUP} was refused: {error.strerror}"

    def _opened(self, held: Held) -> CgroupDirectory:
        """Return the pod's cgroup. Raises OSError, FileNotFoundError where it is another's by now."""
        directory = self._tree.open(held.cgroup)
        if held.inode is not None and directory.inode != held.inode:
            directory.close()
            raise FileNotFoundError(errno.ENOENT, "another cgroup of that name", held.cgroup)
        return directory

    async def _survey(self, held: Held, most: int) -> list[Seen]:
        found: list[Seen] = []
        for _ in self._surveying(held, most, found):
            await trio.lowlevel.checkpoint()
        return found

    def _surveying(self, held: Held, most: int, found: list[Seen]) -> Iterator[None]:
        """Add the processes of a pod to `found`, as `survey` does; none where the pod is gone."""
        with suppress(OSError, ReactorError), self._opened(held) as top:
            with_memory = held.rule is not None
            yield from survey(top, held.spared, most, found, self._proc, with_memory=with_memory)
