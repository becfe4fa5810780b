"""After the kill: wait until the memory is back, and chase what outlives it; whether a process lives."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final
from weakref import WeakValueDictionary

import trio

from reactor.act import processes
from reactor.act.processes import close_all
from reactor.act.target import AT_ONCE, Target
from reactor.errors import ReactorError
from reactor.kernel import libc
from reactor.kernel.cgroup import CgroupTree, are_inhabited, is_said_empty
from reactor.kernel.cgroup_directory import CgroupDirectory, CgroupVersion, walk
from reactor.kernel.files import close_descriptor
from reactor.kernel.scheduling import follow_main_thread
from reactor.model.pods import Pod

REAP_DEADLINE_SECONDS: Final = 10.0
_STRAGGLER_INTERVAL_SECONDS: Final = 0.25
_MOST_BEGUN: Final = 64
_GROWTH_BYTES: Final = 1 << 20
_POLL_SECONDS: Final = 0.02  # for processes that no pidfd can be had of

_END_SECONDS: Final = 2.0
Key = tuple[str, str | None]  # a pod's uid and cgroup


@dataclass(frozen=True, slots=True, kw_only=True)
class KillReport:
    """What one kill did. `killed_ns` is on CLOCK_MONOTONIC.

    `processes` counts those signalled; through v2's cgroup.kill those that were prepared or still listed
    right afterwards, which may be fewer. `is_gone`: there was no process to kill, because the cgroup is gone
    or its path is another cgroup's. `is_empty`: the cgroup exists and had no process, or none yet. `problems`
    has a line for each refusal that did not stop the kill.
    """

    killed_ns: int
    processes: int
    is_gone: bool = False
    is_empty: bool = False
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReapReport:
    """How a killed pod ended. `freed_ns` is None where it had not ended by the deadline."""

    freed_ns: int | None
    problems: tuple[str, ...] = ()


class Dying:
    """What has been killed and may not have ended yet."""

    def __init__(self) -> None:
        self._killed: dict[Key, Target] = {}
        self._turns = WeakValueDictionary[Key, trio.Lock]()  # each lasts while somebody holds it or waits

    def hold(self, key: Key, directory: CgroupDirectory, pidfds: dict[int, int]) -> None:
        """Keep what there is of a pod to wait on; what an earlier kill of it left stays as it is."""
        kept = self._killed.setdefault(key, Target(directory.cgroup, directory))
        for pid, fd in pidfds.items():
            if pid in kept.pidfds or len(kept.pidfds) >= processes.HELD:
                close_descriptor(fd)
            else:
                kept.pidfds[pid] = fd
        if kept.directory is not directory:
            directory.close()

    def directory(self, key: Key) -> CgroupDirectory | None:
        """Return a descriptor of the directory that was killed, the caller's; None where none is held.

        Raises OSError.
        """
        kept = self._killed.get(key)
        return None if kept is None or kept.directory is None else kept.directory.duplicate()

    def close(self) -> None:
        """Close every descriptor. Harmless when repeated."""
        while self._killed:
            self._killed.popitem()[1].close()

    async def wait_gone(
        self,
        key: Key,
        target: Target,
        kill_again: Callable[[], Awaitable[Sequence[str]]],
        problems: dict[str, None],
    ) -> int:
        """Return when the last of a pod's processes had ended, in ns on CLOCK_MONOTONIC.

        `kill_again` is called for what is still there after a while; what it returns, and what it raises
        (RefusedError, OSError), goes to `problems`.
        """
        # One after the other: no two tasks may wait on a descriptor, nor one close it under the other.
        async with self._turns.setdefault(key, trio.Lock()):
            try:
                await self._chase(key, target, kill_again, problems)
                return time.monotonic_ns()
            finally:
                kept = self._killed.pop(key, None)
                if kept is not None:
                    kept.close()

    async def _chase(
        self,
        key: Key,
        target: Target,
        kill_again: Callable[[], Awaitable[Sequence[str]]],
        problems: dict[str, None],
    ) -> None:
        patience_ends = trio.current_time() + _STRAGGLER_INTERVAL_SECONDS
        while True:
            try:
                with trio.move_on_at(patience_ends) as patience:
                    kept = self._killed.get(key)
                    await processes.wait_exited(list(kept.pidfds.values()) if kept else [])
                is_empty = await has_no_process(target)  # takes the time that its cgroups take
                if is_empty and not patience.cancelled_caught:
                    return
                if trio.current_time() >= patience_ends:
                    if not is_empty:
                        problems |= dict.fromkeys(await kill_again())
                    patience_ends = trio.current_time() + _STRAGGLER_INTERVAL_SECONDS
                else:
                    await trio.sleep(_POLL_SECONDS)  # v1 has no event for an empty cgroup
            except (ReactorError, OSError) as error:
                problems[str(error)] = None
                await trio.sleep(_STRAGGLER_INTERVAL_SECONDS)
                patience_ends = trio.current_time() + _STRAGGLER_INTERVAL_SECONDS


async def wait_empty(target: Target, pidfds: Collection[int]) -> None:
    """Wait until these processes have exited and no other process lives in the target.

    If it can't be listed it is tried again, for as long as the caller waits.
    """
    await processes.wait_exited(pidfds)
    while True:
        with contextlib.suppress(ReactorError, OSError):
            if await has_no_process(target):
                return
        await trio.sleep(_POLL_SECONDS)  # v1 has no event for an empty cgroup


# Whether a process lives in the target of a kill. On v2 the kernel says so of a subtree; on v1 it is listed.


class Populated:
    """Tells whether a process lives in a pod's cgroup, but for what a kill spares; None: not known (yet).

    A tenant may have left thousands of cgroups: a call lists a few, and the next one goes on there. Once more
    is charged to the pod than before all are listed, since it may rank first.
    """

    def __init__(self, tree: CgroupTree) -> None:
        self._tree = tree
        self._begun: dict[Key, tuple[Target, Iterator[bool | None] | None, int]] = {}

    def __call__(self, pod: Pod) -> bool | None:
        key, is_said = (pod.uid, pod.cgroup), self._tree.version is CgroupVersion.V2  # v1 has no file to ask
        target, looks, least_bytes = self._begun.pop(key, (None, None, sys.maxsize))
        try:
            if target is None or not target.is_of(pod):
                target, looks, least_bytes = Target.of(self._tree, pod), None, sys.maxsize
            if (directory := target.directory) is None or (is_said and _is_said_empty(target)):
                return False
            charged_bytes = 0
            with contextlib.suppress(OSError):  # the memory controller may be off there
                charged_bytes = int(directory.read("memory.current" if is_said else "memory.usage_in_bytes"))
            has_grown = charged_bytes > least_bytes + _GROWTH_BYTES
            if has_grown or looks is None:
                looks = are_inhabited(directory, target.spared, sys.maxsize if has_grown else AT_ONCE)
            found, is_long = next(looks), least_bytes < sys.maxsize
            if found is None or (is_long and not found):
                least_bytes = charged_bytes if has_grown else min(least_bytes, charged_bytes)
                kept = [begun for begun in self._begun.items() if begun[1][0].exists()]
                begun = key, (target, looks if found is None else None, least_bytes)
                self._begun = dict([*kept, begun][:_MOST_BEGUN])
        except (ReactorError, OSError):
            return None
        return found


def may_be_populated(tree: CgroupTree, pod: Pod) -> bool:
    """Return whether a process may live in a pod's cgroup, without listing it."""
    try:
        with closing(Target.of(tree, pod)) as target:
            return not _is_said_empty(target)
    except (ReactorError, OSError):
        return True


async def has_no_process(target: Target) -> bool:
    """Return whether no process lives in it; others go first after every few cgroups. Raises OSError."""
    if _is_said_empty(target):
        return True
    async with aclosing(_found(target)) as found:
        async for _ in found:
            return False
    return True


async def count_processes(target: Target) -> int:
    """Return how many processes are in it; others go first after every few cgroups. Raises OSError."""
    async with aclosing(_found(target)) as found:
        return len({pid async for pid in found})


async def _found(target: Target) -> AsyncGenerator[int]:
    """Yield the processes in the target. Raises OSError once all that can be listed has been."""
    if target.directory is None:
        return
    failed: list[OSError] = []
    rounds = walk(target.directory, lambda _, error: failed.append(error), spared=target.spared)
    with closing(rounds) as directories:
        for count, directory in enumerate(directories, 1):
            for pid in directory.processes():
                yield pid
            if count % AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
    if failed:
        raise failed[0]


def _is_said_empty(target: Target) -> bool:
    return target.directory is None or is_said_empty(target.directory, target.spared)


def let_die() -> None:
    """Leave this CPU to a victim for 0.25 ms: beside a real-time process it can't die."""
    time.sleep(0.00025)


class MemoryRelease:
    """Frees victims' memory in a thread of its own, started once and for all. Never raises.

    process_mrelease(2) works only while the victim is not exiting yet (ESRCH otherwise), and a victim that
    has a CPU starts to exit within 50 us of its SIGKILL. So a thread is waiting already: starting one takes
    longer than that, and may fail if a fork bomb has the last process id. On two busy CPUs 400 MiB are free
    after 30 to 40 ms if it comes in time, else after 75 to 180 ms. With a CPU to itself a victim takes
    0.83 of its time so (docs/latency.md). Too late it costs nothing, but the victim needs CPU: `boost_cpu`.
    """

    def __init__(self) -> None:
        self._given = SimpleQueue[list[int] | None]()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Have the thread wait; harmless when repeated, and tried again where none could be started."""
        if self._thread is None:
            thread = threading.Thread(target=self._keep_releasing, name="reactor-release", daemon=True)
            with contextlib.suppress(RuntimeError):  # a fork bomb has the last process id
                thread.start()
                self._thread = thread

    def release(self, pidfds: Iterable[int]) -> None:
        """Free the memory of these processes, which have been sent SIGKILL; returns at once."""
        self.start()
        if self._thread is None:
            return
        own: list[int] = []  # the thread may be at it for longer than the caller holds its descriptors
        with contextlib.suppress(OSError):
            own.extend(os.dup(fd) for fd in pidfds)
        self._given.put(own)

    def close(self) -> None:
        """End the thread, and wait for that while it is not busy for long. Harmless when repeated."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._given.put(None)
            thread.join(_END_SECONDS)

    def _keep_releasing(self) -> None:
        while True:
            follow_main_thread()  # which may have become real-time since
            pidfds = self._given.get()
            if pidfds is None:
                return
            for fd in pidfds:
                with contextlib.suppress(OSError):
                    libc.process_mrelease(fd)
            close_all(pidfds)
