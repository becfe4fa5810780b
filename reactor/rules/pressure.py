"""The kernel's own triggers on the pressure that rules are for: a stall is known as it happens.

A trigger fires if tasks of one cgroup have stalled for so long within a window, once in a window at most.
It is no more than a reason to observe that cgroup now: without triggers it is observed by the clock, as all
the others are. Each holds two descriptors, and in the kernel a thread for the cgroup's resource, so there are
MOST_TRIGGERS. Arming one may wait for the kernel, and is done in a thread; so is closing.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

import trio

from reactor.kernel.psi import UNPRIVILEGED_WINDOW_US, open_trigger
from reactor.model.wakes import SourceHealth
from reactor.sources.catalogue import RULE_PRESSURE, SourceBoard
from reactor.threads import close_behind, in_thread

MOST_TRIGGERS: Final = 64
# What every kernel takes; a longer or shorter window is asked for in proportion.
_SHORTEST_US, _LONGEST_US = 500_000, 10_000_000
_AGAIN_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.1  # less than any window: what is always ready costs no CPU

Open = Callable[[Path, Literal["some", "full"], int, int], int]


class Trigger(NamedTuple):
    """What to be woken for: so much stall of a kind within a window, by a pressure file.

    `inode` is that of the cgroup's directory, which distinguishes it from another one of its name.
    """

    cgroup: str
    inode: int
    path: str
    resource: str
    kind: Literal["some", "full"]
    stall_seconds: float
    window_seconds: float


Fired = Mapping[Trigger, bool]
"""The triggers that have fired; of one that is exact the kernel has seen its own stall in its own window."""


class RulePressure:
    """Holds the triggers that are wanted, and waits for them; what a kernel refuses raises nothing."""

    def __init__(self, board: SourceBoard, *, open_one: Open = open_trigger) -> None:
        self._board = board
        self._open = open_one
        self._nursery: trio.Nursery | None = None
        self._tasks: dict[Trigger, trio.CancelScope] = {}
        self.armed: set[Trigger] = set()
        self._refused: dict[Trigger, tuple[float, str]] = {}
        self._wanted = 0
        self._fired: dict[Trigger, bool] = {}
        self._has_fired = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the triggers until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            self._tasks.clear()
            self._fired.clear()
            self._board.set(RULE_PRESSURE, SourceHealth.OFF)

    def want(self, triggers: Iterable[Trigger], left_out: int = 0) -> None:
        """Arm these and no others; a trigger that was refused is tried again after a minute.

        There are `left_out` more that could be wanted.
        """
        wanted = dict.fromkeys(triggers)
        self._wanted = len(wanted) + left_out
        for trigger in [one for one in self._tasks if one not in wanted]:
            self._tasks.pop(trigger).cancel()
        for trigger in [one for one in self._refused if one not in wanted]:
            del self._refused[trigger]
        now_seconds = trio.current_time()
        for trigger in wanted:
            refused = self._refused.get(trigger)
            is_due = refused is None or now_seconds - refused[0] >= _AGAIN_SECONDS
            if self._nursery is None or len(self._tasks) >= MOST_TRIGGERS:
                break
            if trigger not in self._tasks and is_due:
                scope = self._tasks[trigger] = trio.CancelScope()
                self._nursery.start_soon(self._hold, trigger, scope)
        self._show()

    async def wait(self, seconds: float) -> Fired:
        """Return what has fired, as soon as any has; nothing after so many seconds."""
        with trio.move_on_after(seconds):
            await self._has_fired.wait()
        self._has_fired = trio.Event()
        fired, self._fired = self._fired, {}
        return fired

    async def _hold(self, trigger: Trigger, scope: trio.CancelScope) -> None:
        """Hold one trigger until it is not wanted, or its cgroup is gone."""
        with scope:
            try:
                await self._watch(trigger)
            except OSError as error:
                self._refused[trigger] = (trio.current_time(), error.strerror or str(error))
        if self._tasks.get(trigger) is scope:
            del self._tasks[trigger]
        self._show()

    async def _watch(self, trigger: Trigger) -> None:
        # Not abandoned where it is cancelled: the descriptor would be lost.
        fd, is_exact = await in_thread(_opened, self._open, trigger)
        try:
            self._refused.pop(trigger, None)
            # Trio waits for EPOLLIN, which these files always have. Which of several triggers in one epoll
            # was signalled is lost where that is waited for in another: each has its own.
            with select.epoll() as epoll:
                epoll.register(fd, select.EPOLLPRI)
                self.armed.add(trigger)
                self._show()
                while True:
                    await trio.lowlevel.wait_readable(epoll.fileno())
                    if any(events & (select.EPOLLERR | select.EPOLLHUP) for _, events in epoll.poll(0)):
                        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), trigger.path)
                    self._board.count_wake(RULE_PRESSURE)
                    self._fired[trigger] = is_exact
                    self._has_fired.set()
                    await trio.sleep(_PAUSE_SECONDS)
        finally:
            self.armed.discard(trigger)
            # Its end waits for an RCU grace period: 12 to 30 ms.
            close_behind(fd)

    def _show(self) -> None:
        """Show how many triggers are armed, once none is being armed any more."""
        if self._nursery is None or self._tasks.keys() - self.armed:
            return
        if not self._wanted:
            self._board.set(RULE_PRESSURE, SourceHealth.OFF, "no rule is on pressure")
            return
        armed = len(self.armed)
        detail = "1 trigger" if armed == 1 else f"{armed} triggers"
        if armed < self._wanted:
            detail += f" for {self._wanted} wanted; the others are observed by the clock"
        if self._refused:
            reasons = dict.fromkeys(why for _, why in self._refused.values())
            detail += f"; {len(self._refused)} refused ({', '.join(reasons)})"
        health = SourceHealth.ARMED if armed else SourceHealth.DEGRADED
        self._board.set(RULE_PRESSURE, health, detail)


def _opened(open_one: Open, trigger: Trigger) -> tuple[int, bool]:
    """Return a trigger's descriptor, and whether it has the window that is wanted. Raises OSError."""
    window_us = round(trigger.window_seconds * 1e6)
    granted_us = min(max(window_us, _SHORTEST_US), _LONGEST_US)
    stall_us = _in_proportion(trigger, granted_us)
    path = Path(trigger.path)
    try:
        return open_one(path, trigger.kind, stall_us, granted_us), granted_us == window_us
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.EPERM}:
            raise
    # Without CAP_SYS_RESOURCE, or before that sufficed: in the next longer window that all are granted.
    longer_us = min(_LONGEST_US, -(-granted_us // UNPRIVILEGED_WINDOW_US) * UNPRIVILEGED_WINDOW_US)
    return open_one(path, trigger.kind, _in_proportion(trigger, longer_us), longer_us), longer_us == window_us


def _in_proportion(trigger: Trigger, granted_us: int) -> int:
    """Return for how long tasks stall in this window at the least, where they do so for that in the other.

    In a longer window for no less; in some part of it for no less in proportion.
    """
    stall_us, window_us = trigger.stall_seconds * 1e6, trigger.window_seconds * 1e6
    return min(granted_us, max(1, int(stall_us * min(1.0, granted_us / window_us))))
