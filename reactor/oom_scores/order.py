"""The kernel's OOM killer does not take a pod before the one that the policy would evict first.

While memory is near a hard threshold, and evictions are not slowed down, processes of pods that would go
before the ranking's first, and by the policy should not, have a lower oom_score_adj (policy.py). The passes
report which pod is first, and that is all they do for it: what is read and written here is done beside the
loop, a few processes at a time.

All is restored as soon as memory is not near any more, at the end, and by the next guard after a crash. What
a process had is saved before anything is written, by its id and start time, valid for one boot. A process
beside the guard restores by that file if the guard is dead or does not move (restorer.py): without it
nothing is written.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from reactor.child_process import ChildProcess
from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.files import read_file
from reactor.kernel.procfs import BOOT_ID, PROC, parse_meminfo, parse_swap, read_oom_score_adj
from reactor.kernel.small_file import KeptFile
from reactor.link.documents import instant
from reactor.model.decisions import Inputs
from reactor.model.pods import Pod, working_set_bytes
from reactor.oom_scores.pods import Found, find_processes
from reactor.oom_scores.policy import NEVER_KILLED, Processes, scores_behind
from reactor.oom_scores.restorer import HELD, NONE, READY
from reactor.oom_scores.written import AT_ONCE, Held, Written
from reactor.policy.forecast import Ahead, Forecast
from reactor.policy.storm import memory_slowdowns

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
_START_SECONDS: Final = 10.0  # of the restorer
_SEND_SECONDS: Final = 1.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")
# Not by -m: runpy takes another MiB.
_RESTORER: Final = "import sys; from reactor.oom_scores.restorer import main; main(sys.argv[1])"
_COMMAND: Final = (sys.executable, "-S", "-P", "-c", _RESTORER)

Document = Mapping[str, Any]


class OrderError(ReactorError):
    """The order can't be taken, or what was can't be restored."""


class Restorer:
    """Has a process stand by that restores scores by this file.

    It is started when scores are to be written for the first time, and ends with the guard.
    """

    def __init__(self, path: Path, command: Sequence[str] = _COMMAND) -> None:
        self._command = (*command, str(path))
        self._process: ChildProcess | None = None

    async def stand_by(self) -> None:
        """Report that the guard is there and may have written scores. Raises OrderError, OSError.

        A process that has ended is replaced.
        """
        if not await self._is_sent(HELD):
            await self.end()
            await self._start()
            await self._is_sent(HELD)

    async def relax(self) -> None:
        await self._is_sent(NONE)

    async def end(self) -> None:
        """End it. It restores by the file then."""
        process, self._process = self._process, None
        if process is not None:
            await process.end(_START_SECONDS)

    async def _start(self) -> None:
        self._process = process = await ChildProcess.start(self._command)
        answer = b""
        with trio.move_on_after(_START_SECONDS), suppress(OSError):  # it has ended
            answer = await process.connection.recv(len(READY))
        if answer != READY:
            self._process = None
            ended = await process.end()
            raise OrderError(f"not taken: no process stands by to restore scores: {ended}")

    async def _is_sent(self, message: bytes) -> bool:
        if self._process is None:
            return False
        with trio.move_on_after(_SEND_SECONDS), suppress(OSError):
            await self._process.connection.send(message)
            return True
        return False


class _Wanted(NamedTuple):
    first: Pod
    inputs: Inputs

    def of(self, pod: Pod, found: Sequence[tuple[Found, int]]) -> Processes:
        """Return a pod as it was seen, with what its processes have of their own."""
        used_bytes = working_set_bytes(self.inputs.snapshot.pods, pod.uid) or 0
        return Processes(pod, used_bytes, [(own, one.resident_bytes) for one, own in found])


class _Change(NamedTuple):
    pod: Pod
    process: Found
    own: int
    score: int


class _Plan(NamedTuple):
    """What is shown of the first pod, what is to be written, and the uids of pods that have processes."""

    first: Document
    changes: Sequence[_Change]
    found: frozenset[str]


@dataclass(eq=False)
class OomOrder(Ahead):
    """Keeps the order while it is wanted. All but `near` and `far` runs beside the loop; nothing raises.

    `problem` is why the order can't be had, or what was can't be restored, in part. `write` journals when the
    order was taken and restored. `path` is the file that outlives the guard.
    """

    reads_all = True
    tree: CgroupTree
    path: Path
    _: KW_ONLY
    write: Callable[[Callable[[], Document]], object] = lambda _: None
    restorer: Restorer | None = None
    proc: Path = PROC
    boot_id: Path = BOOT_ID

    def __post_init__(self) -> None:
        self.problem: str | None = None
        self._restorer = self.restorer or Restorer(self.path)
        self._written = Written(str(self.proc))
        self._file = KeptFile[Document](
            self.path,
            lambda document: document,
            dict,
            "order of the OOM killer: not taken, since what was can't be saved",
            _LOG,
            boot_id=self.boot_id,
            is_small=lambda document: sum(len(pod["own"]) for pod in document["pods"]) <= _FEW,
        )
        self._wanted: _Wanted | None = None
        self._changed = trio.Event()
        self._again_seconds = _AGAIN_SECONDS
        self._first: dict[str, Any] | None = None

    def near(self, forecast: Forecast, *_: object) -> None:
        """Have no pod go before that which the next crossing would evict, unless it would by the policy.

        None while evictions are slowed down: what fills the node is no pod. While an eviction is waited for
        the order stays as it is.
        """
        if memory_slowdowns(forecast.inputs.state):
            self._want(None)
        elif forecast.first:
            self._want(_Wanted(forecast.first[0], forecast.inputs))

    def far(self) -> None:
        self._want(None)

    def _want(self, wanted: _Wanted | None) -> None:
        before, self._wanted = self._wanted, wanted
        if (before and before.first.uid) != (wanted and wanted.first.uid):
            self._changed.set()

    def is_ordered(self, uid: str) -> bool:
        return uid in self._written.held

    def own_score(self, pid: int, cgroup: str) -> int:
        """Return what a process of a cgroup has as its own score, whatever was written. Raises OSError."""
        score = read_oom_score_adj(pid, self.proc)
        for held in self._written.held.values():
            is_in = self.tree.holds(held.cgroup, cgroup)
            if is_in and score in held.written:
                known = held.own.get(pid)
                return known[1] if known else min((own for _, own in held.own.values()), default=score)
        return score

    def document(self) -> dict[str, Any]:
        return {"first": self._first, "others": self._written.count}

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
        beat_seconds = _BEAT_SECONDS if self._written.held else float("inf")
        return beat_seconds if self._wanted is None else min(self._again_seconds, beat_seconds)

    async def _follow(self) -> None:
        refused = self._written.refused = None
        started_at = trio.current_time()
        try:
            plan = None if self._wanted is None else await self._plan(self._wanted)
            if plan is None or self._written.count > _MOST_KNOWN:
                await self._restore()
            elif self._written.held or plan.changes:
                await self._carry_out(plan)
        except (OSError, ReactorError) as error:
            refused = str(error)
            await self._restore()
        refused = refused or self._written.refused
        took_seconds = trio.current_time() - started_at
        again_seconds = max(_AGAIN_SECONDS, took_seconds * _AGAIN_SHARE)
        self._again_seconds = _REFUSED_SECONDS if refused else min(_BEAT_SECONDS, again_seconds)
        if refused is not None and self.problem is None:
            _LOG.warning("order of the OOM killer: %s", refused)
        self.problem = refused

    async def _plan(self, wanted: _Wanted) -> _Plan | None:
        """Return what is to be written, None if the pods can't be put behind the first.

        Raises OSError, ReactorError.
        """
        meminfo = read_file(self.proc / "meminfo")
        machine_bytes = parse_meminfo(meminfo).total_bytes + parse_swap(meminfo)[0]
        found: dict[str, list[tuple[Found, int]]] = {}
        left = MOST_PROCESSES
        memory = wanted.inputs.snapshot.signals.values()
        others = [pod for pod in wanted.inputs.pods if pod.uid != wanted.first.uid]
        for pod in (wanted.first, *others):
            if pod.critical_because is not None:
                continue
            present, is_cut = await find_processes(self.tree, pod, left, self.proc)
            if is_cut:
                raise OrderError(f"not taken: the pods have more than {MOST_PROCESSES} processes")
            left -= len(present)
            held = self._written.held.get(pod.uid)
            found[pod.uid] = [
                (one, one.score if held is None else held.own_score(one.pid, one.born, one.score))
                for one in present
            ]
        first = wanted.of(wanted.first, found.get(wanted.first.uid, ()))
        scores = scores_behind(
            first,
            [wanted.of(pod, found.get(pod.uid, ())) for pod in others],
            room_bytes=max((seen.available for seen in memory), default=0),
            limit_bytes=min((seen.capacity for seen in memory), default=0),
            machine_bytes=machine_bytes,
        )
        if scores is None:
            return None
        of_first = [own for own, _ in first.found]
        changes = [
            _Change(pod, process, own, score)
            for pod, wanted_scores in zip((wanted.first, *others), (of_first, *scores), strict=True)
            for (process, own), score in zip(found.get(pod.uid, ()), wanted_scores, strict=True)
            if score != process.score
        ]
        shown = {
            "pod": wanted.first.key,
            "uid": wanted.first.uid,
            "processes": sum(own > NEVER_KILLED for own in of_first),
            "oom_score_adj": max(of_first),
            "oom_group": False,
        }
        return _Plan(shown, changes, frozenset(uid for uid, present in found.items() if present))

    async def _carry_out(self, plan: _Plan) -> None:
        """Write the scores that are to change. Raises OSError, ReactorError: all are to be restored then."""
        for pod, process, own, score in plan.changes:
            if score != own:
                since_ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)
                held = Held(uid=pod.uid, key=pod.key, cgroup=pod.cgroup or "", since_ticks=since_ticks)
                held = self._written.held.setdefault(pod.uid, held)
                held.own[process.pid] = (process.born.start_ticks, own)
                held.written.add(score)
        await self._be_safe(has_changed=bool(plan.changes))
        for number, (_, process, _, score) in enumerate(plan.changes):
            if number % AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            self._written.write(process.pid, process.born.start_ticks, score)
            if self._written.refused is not None:
                raise OrderError(self._written.refused)
        for uid in self._written.held.keys() - plan.found:  # they may not be evicted any more
            held = self._written.held[uid]
            for pid, (start_ticks, own) in held.own.items():
                self._written.write(pid, start_ticks, own, held.written)
        before, self._first = self._first, {**plan.first, "since": instant(time.time())}
        if before is None:
            self._report("taken")
        else:
            self._first["since"] = before["since"]

    async def _be_safe(self, *, has_changed: bool) -> None:
        """Save what was before anything is written, and have the restorer stand by. Raises OrderError."""
        if has_changed:
            self._file.show(self._written.document())
            await self._file.wait_saved()
        if self._file.problem is not None:
            raise OrderError(f"not taken, since what was can't be saved: {self._file.problem}")
        try:
            await self._restorer.stand_by()
        except OSError as error:
            raise OrderError(f"not taken: {error}") from error

    async def _restore(self) -> None:
        if not self._written.held:
            return
        for _ in self._written.steps():
            await trio.lowlevel.checkpoint()
        self._restored()
        self._file.show(self._written.document())
        if self._written.held:
            with suppress(OSError, ReactorError):  # it is tried again, and the next guard does it
                await self._restorer.stand_by()
        else:
            await self._restorer.relax()

    def restore_now(self) -> None:
        """Restore everything and save that, here and now: the guard ends, or begins after a crash."""
        self._wanted = None
        if self._written.held:
            self._written.restore()
            self._restored()
            self._file.save(self._written.document())

    def _restored(self) -> None:
        if self._first is not None:
            self._report("given back")
            self._first = None

    def resume(self) -> None:
        """Restore what an earlier guard has left. Blocks on the disk; for the start."""
        try:
            self._written.load(str(self.path), self.boot_id.read_text().strip())
        except (OSError, ValueError) as error:
            self.problem = f"{self.path}: started without it: {error}"
            return
        if self._written.held:
            _LOG.warning("order of the OOM killer: left by a guard that did not end in order")
            self.restore_now()
            self.problem = self._written.refused

    def _report(self, action: str) -> None:
        document = {"kind": KIND, "time": instant(time.time()), "action": action, **self.document()}
        first = document["first"]
        of_whom = "" if first is None else f": {first['pod']} first, {document['others']} processes behind it"
        _LOG.info("order of the OOM killer: %s%s", action, of_whom)
        self.write(lambda: document)
