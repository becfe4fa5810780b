"""Graceful node shutdown: pods end by their priority while logind waits, and then the shutdown goes on.

    watch     the process that holds logind's lock says that a shutdown begins, or was cancelled
    decide    policy/shutdown.py: group after group, each with the pods that are there when its turn comes
    act       SIGTERM to all pods of a group, SIGKILL when the group's time or the pod's own is over
    record    a journal line for the beginning, each group and the end; a file that outlives the boot

Nothing of it is on the way of a pass: what runs out meanwhile is defended as ever. The guard alone kills
pods, and no message of the steward begins a shutdown.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from reactor.act.kill_path import KillPath
from reactor.act.reap import REAP_DEADLINE_SECONDS
from reactor.backoff import Pace
from reactor.child_process import ChildProcess
from reactor.errors import ReactorError, RefusedError
from reactor.forms import FormError
from reactor.guard.outbox import Document, Make
from reactor.guard.termination import Termination, whole_pod
from reactor.kernel.scheduling import following
from reactor.kernel.small_file import KeptFile
from reactor.link.documents import Outcome, instant
from reactor.link.shutdown import GO_ON, LONGEST_BYTES, ShutdownNews, ShutdownNewsKind, read_news
from reactor.model.pods import Pod, is_critical_by_mark
from reactor.model.settings import Settings, ShutdownGroup
from reactor.policy.shutdown import ShutdownStep, next_step, shutdown_seconds, shutdown_steps
from reactor.supervisor import Nursery
from reactor.text import printable
from reactor.threads import in_thread

if TYPE_CHECKING:
    from reactor.guard.kubernetes import KubernetesNode

_LOG: Final = logging.getLogger("reactor.shutdown")
NAME: Final = "graceful_node_shutdown_state"
COMMAND: Final = (sys.executable, "-P", "-m", "reactor.shutdown")
_NEWS_AT_ONCE: Final = 16
_NEWS_PER_SECOND: Final = 10.0
_END_SECONDS: Final = 1.0
KIND: Final = "shutdown"
_AT_ONCE: Final = 8
_SAVED_SECONDS: Final = 2.0
_KILLED_SECONDS: Final = 1.0  # for the memory and mounts of what was killed, once its group's time is over
# What a shutdown itself goes through: systemd ends these after everything else.
_NEEDED: Final = frozenset(
    {
        "dbus.service",
        "dbus-broker.service",
        "systemd-logind.service",
        "systemd-journald.service",
        "init.scope",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownTimes:
    """When a shutdown began and ended, in seconds since 1970; `end` None: it has not, or was cut off.

    It was cut off if what held it up was lost, if its time was over before the last pods had ended, or if the
    machine went down by force. `is_cancelled`: it did not take place, and no pod is missing for it that has
    not ended by then. `is_reported`: that it was cut off is in the journal.
    """

    start_unix_seconds: float
    end_unix_seconds: float | None = None
    is_cancelled: bool = False
    is_reported: bool = False

    def document(self) -> dict[str, Any]:
        """Return it as plain JSON values, with upstream's keys."""
        end = self.end_unix_seconds
        return {
            "startTime": instant(self.start_unix_seconds),
            "endTime": None if end is None else instant(end),
            "cancelled": self.is_cancelled,
        }


def shutdown_file(journal_path: Path) -> KeptFile[ShutdownTimes]:
    """Return what keeps the times of the last shutdown beside the journal, on a disk: they outlive the boot.

    Source: pkg/kubelet/nodeshutdown, graceful_node_shutdown_state.
    """
    failure = "shutdown: its times are not saved, a later start will not know whether it was cut off"
    return KeptFile(journal_path.with_name(NAME), _document, _parsed, failure, _LOG)


def _document(times: ShutdownTimes) -> dict[str, Any]:
    return {**times.document(), "reported": times.is_reported}


def _parsed(document: Mapping[str, Any]) -> ShutdownTimes:
    start, end = document["startTime"], document["endTime"]
    return ShutdownTimes(
        start_unix_seconds=_unix_seconds(start),
        end_unix_seconds=None if end is None else _unix_seconds(end),
        is_cancelled=document["cancelled"] is True,
        is_reported=document["reported"] is True,
    )


def _unix_seconds(text: object) -> float:
    found = datetime.fromisoformat(str(text))
    if found.tzinfo is None:
        raise ValueError(f"got {text!r}; accepted: a time with its zone")
    return found.timestamp()


class ShutdownWatchError(ReactorError):
    """The process that watches logind has ended."""


class ShutdownWatch:
    """The process that watches logind (reactor/shutdown), and the guard's end of the socket pair to it.

    The guard opens no bus. What the process sends is validated as untrusted input, and given to `on_news`.
    While there is no process, no shutdown is held up, and pressure is defended all the same. `pid` is its
    process id, `inhibited_seconds` for how long logind waits for it at the most (None: it would not),
    `problem` what it reports as wrong; `refused` counts messages that were invalid.
    """

    def __init__(self, on_news: Callable[[ShutdownNews], None], *, command: Sequence[str] = COMMAND) -> None:
        self.pid: int | None = None
        self.inhibited_seconds: int | None = None
        self.problem: str | None = None
        self.refused = 0
        self._on_news = on_news
        self._command = command
        self._connection: trio.socket.SocketType | None = None

    async def run(self, wanted_seconds: int, kubelet_config_path: str | None) -> None:
        """Have a shutdown held up for so long until cancelled. Raises ShutdownWatchError, OSError."""
        of_kubelet = () if kubelet_config_path is None else (kubelet_config_path,)
        process = await ChildProcess.start((*self._command, str(wanted_seconds), *of_kubelet))
        self.pid, self._connection = process.pid, process.connection
        try:
            await self._receive(process.connection)
        finally:
            self.pid = self._connection = self.inhibited_seconds = self.problem = None
            ended = await process.end(_END_SECONDS)
        raise ShutdownWatchError(f"the process that watches logind: {ended}")

    async def go_on(self) -> None:
        """Let a shutdown go on: what was to be done before it is done."""
        if self._connection is not None:
            with suppress(OSError):  # has ended, and its lock with it
                await self._connection.send(GO_ON)

    async def _receive(self, connection: trio.socket.SocketType) -> None:
        pace = Pace(burst=_NEWS_AT_ONCE, per_second=_NEWS_PER_SECOND)
        with suppress(ConnectionResetError):  # it has ended, too
            while raw := await connection.recv(LONGEST_BYTES + 1):
                await pace.turn()
                try:
                    self._update(read_news(raw))
                except FormError as error:
                    self.refused += 1
                    if self.refused == 1:
                        _LOG.error("the process that watches logind: a message is refused: %s", error)

    def _update(self, news: ShutdownNews) -> None:
        if news.kind is ShutdownNewsKind.INHIBITED:
            self.inhibited_seconds = news.seconds
        elif news.kind is ShutdownNewsKind.NOT_INHIBITED:
            self.inhibited_seconds = None
        elif news.kind is ShutdownNewsKind.PROBLEM:
            self.problem = news.text or None
        self._on_news(news)


@dataclass(slots=True, kw_only=True)
class ShutdownTermination(Termination):
    """What becomes of a pod at a shutdown."""

    pod: Pod
    grace_seconds: int
    began_ns: int = field(default_factory=time.monotonic_ns)
    ended_ns: int | None = None

    def fail(self, error: Exception) -> None:
        """Fill in why the pod was not ended: it is reactor's own or init's, or that failed."""
        Termination.fail(self, error)  # a dataclass with slots has no super()
        if isinstance(error, RefusedError):
            self.outcome = Outcome.SPARED

    def document(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        took_seconds = None if self.ended_ns is None else round((self.ended_ns - self.began_ns) / 1e9, 3)
        return {
            "pod": self.pod.key,
            "uid": self.pod.uid,
            "priority": self.pod.priority,
            "grace_period_seconds": self.grace_seconds,
            "outcome": self.outcome.value,
            "took_seconds": took_seconds,
            "problems": [printable(problem) for problem in self.problems],
        }


@dataclass(eq=False, kw_only=True)
class NodeShutdown:
    """Holds shutdowns up and ends the pods. `run` is a part of the daemon, and so is `file.run`.

    `pods` returns those that exist now; `may_be_populated` says whether a process may be left in one, by no
    more than the kernel itself says of it: a tenant's cgroups are not walked in the loop. `write` queues a
    line of the journal, and `wait_written` returns when all are safe. `reporter` reports to the cluster.

    What it does meanwhile runs in `nursery`, which outlives every configuration.
    """

    settings: Settings
    kills: KillPath
    pods: Callable[[], Sequence[Pod]]
    may_be_populated: Callable[[Pod], bool]
    write: Callable[[Make], object]
    wait_written: Callable[[], Awaitable[None]]
    file: KeptFile[ShutdownTimes]
    reporter: KubernetesNode | None = None
    watch: ShutdownWatch | None = None

    def __post_init__(self) -> None:
        self._watch = self.watch or ShutdownWatch(self.on_news)
        self._is_reordered = False
        self._scope = trio.CancelScope()
        self._shutting_down: trio.CancelScope | None = None
        self._nursery: Nursery | None = None
        self._times: ShutdownTimes | None = None
        self._was_cut_off = False
        self._has_loaded = False
        self._priority: int | None = None

    @property
    def problems(self) -> dict[str, str]:
        """Return what is wrong at present, each in one line."""
        found = {
            "node shutdown": self._watch.problem if self._groups else None,
            "shutdown file": self.file.problem,
        }
        return {name: why for name, why in found.items() if why is not None}

    @property
    def is_under_way(self) -> bool:
        return self._shutting_down is not None

    def document(self) -> dict[str, Any]:
        return {
            "groups": [{"priority": one.priority, "seconds": one.seconds} for one in self._groups],
            "state": self._state(),
            "ending_priority": self._priority,
            "delayed_seconds": self._watch.inhibited_seconds,
            "pid": self._watch.pid,
            "last": None if self._times is None else self._times.document(),
            "last_was_cut_off": self._was_cut_off,
        }

    def times(self) -> dict[str, float]:
        """Return when the last shutdown began and ended, in seconds since 1970; 0 where that is not known."""
        times = self._times
        return {
            "start": 0.0 if times is None else times.start_unix_seconds,
            "end": 0.0 if times is None or times.end_unix_seconds is None else times.end_unix_seconds,
        }

    def order(self, settings: Settings) -> None:
        """Go by these settings from now on; a shutdown that is under way ends by those it began with."""
        before, self.settings = self.settings, settings
        if (before.shutdown_groups, before.dry_run) != (settings.shutdown_groups, settings.dry_run):
            self._is_reordered = True
            if not self.is_under_way:
                self._scope.cancel()

    async def run(self, nursery: Nursery) -> None:
        """Hold shutdowns up, until cancelled. Raises ShutdownWatchError, OSError where that fails."""
        self._nursery = nursery
        while True:
            if self._groups:
                await self._load()
            self._is_reordered = False
            with trio.CancelScope() as self._scope:
                if not self._groups:
                    await trio.sleep_forever()
                await self._watch.run(*_wanted(self.settings))

    def on_news(self, news: ShutdownNews) -> None:
        """Begin a shutdown, or cancel the one that is under way."""
        if news.kind is ShutdownNewsKind.PREPARING:
            if self.is_under_way or self._nursery is None or not self._groups:
                return
            self._shutting_down = trio.CancelScope()
            self._nursery.start_soon(self._shut_down, self._shutting_down, self._nursery)
        elif news.kind is ShutdownNewsKind.CANCELLED and self._shutting_down is not None:
            self._shutting_down.cancel()
            self._cancelled()

    @property
    def _groups(self) -> tuple[ShutdownGroup, ...]:
        return self.settings.shutdown_groups

    def _state(self) -> str:
        if not self._groups:
            return "off"
        if self._shutting_down is not None:
            return "ending pods" if self._priority is not None else "pods ended"
        return "waiting" if self._watch.inhibited_seconds is not None else "not held up"

    async def _load(self) -> None:
        if self._has_loaded:
            return
        self._has_loaded = True
        times = await in_thread(following(self.file.load))
        if times is None or self._times is not None:
            return
        self._times = times
        self._was_cut_off = times.end_unix_seconds is None
        if self._was_cut_off and not times.is_reported and self._nursery is not None:
            self._nursery.start_soon(self._report_cut_off, times)

    async def _report_cut_off(self, times: ShutdownTimes) -> None:
        """Report once that a shutdown was cut off: the file says so as soon as the journal's line is safe."""
        began = instant(times.start_unix_seconds)
        _LOG.warning("the shutdown of %s was cut off before all pods had ended", began)
        self._journal("cut off", began=began)
        await self.wait_written()
        if self._times is times:  # else another shutdown has begun
            self._set_times(dataclasses.replace(times, is_reported=True))

    async def _shut_down(self, scope: trio.CancelScope, nursery: Nursery) -> None:
        """End all pods in their order, and let the shutdown go on, whatever went wrong."""
        groups, is_dry = self._groups, self.settings.dry_run
        try:
            with scope:
                present = await self._present()
                self._begin(groups, present, is_dry=is_dry)
                place = -1
                while step := next_step(groups, present, place):
                    place = step.place
                    await self._end_group(step, nursery, scope, is_dry=is_dry)
                    present = await self._present()
            if scope.cancel_called:
                return
            self._finish()
            with trio.move_on_after(_SAVED_SECONDS):
                await self.file.wait_saved()
                await self.wait_written()
        finally:
            if not scope.cancel_called:
                await self._watch.go_on()

    async def _present(self) -> list[Pod]:
        """Return the pods in which there is a process, and that a shutdown can do without."""
        found, has_units = [], self.settings.kubernetes is None
        for number, pod in enumerate(self.pods()):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await trio.lowlevel.checkpoint()
            if not (has_units and _is_left_to_systemd(pod)) and self.may_be_populated(pod):
                found.append(pod)
        return found

    async def _end_group(
        self, step: ShutdownStep, nursery: Nursery, scope: trio.CancelScope, *, is_dry: bool
    ) -> None:
        """End the pods of a group, and return when they have ended or the group's time is over."""
        self._priority = step.group.priority
        _LOG.warning(
            "shutdown: %s pods of priority %d and above: %d, %d s at the most",
            "would end" if is_dry else "ending",
            step.group.priority,
            len(step.pods),
            step.group.seconds,
        )
        began_ns = time.monotonic_ns()
        endings = [ShutdownTermination(pod=pod, grace_seconds=step.grace_seconds(pod)) for pod in step.pods]
        try:
            for ending in endings:
                if is_dry:
                    ending.outcome = Outcome.DRY_RUN
                    ending.end()
                else:
                    nursery.start_soon(self._end, ending, scope, nursery)
            with trio.move_on_after(step.group.seconds):
                for ending in endings:
                    await ending.ended.wait()
            # Their time is over, and they are being killed: the next group has its own time from here on.
            with trio.move_on_after(_KILLED_SECONDS):
                for ending in endings:
                    await ending.ended.wait()
        finally:
            self._journal(
                "group",
                priority=step.group.priority,
                seconds=step.group.seconds,
                took_seconds=round((time.monotonic_ns() - began_ns) / 1e9, 3),
                pods=[ending.document() for ending in endings],
            )

    async def _end(self, ending: ShutdownTermination, scope: trio.CancelScope, nursery: Nursery) -> None:
        """Ask a pod to end, and kill it when its time is over, unless the shutdown was cancelled by then."""
        if self.reporter is not None:
            self.reporter.shutdown_ends(ending, nursery)
        victim = whole_pod(self.kills, ending.pod)
        try:
            has_stopped = await ending.carry_out(
                victim, ending.grace_seconds, lambda: not scope.cancel_called
            )
            if has_stopped and ending.outcome is not Outcome.TERMINATED:
                await ending.reap(victim, REAP_DEADLINE_SECONDS)
            if has_stopped or ending.outcome is Outcome.CALLED_OFF:
                ending.ended_ns = time.monotonic_ns()
        finally:
            _log_ending(ending)
            ending.end()

    def _begin(self, groups: Sequence[ShutdownGroup], pods: Sequence[Pod], *, is_dry: bool) -> None:
        self._was_cut_off = False
        _LOG.warning(
            "the node shuts down: its pods have %d s to end%s",
            shutdown_seconds(groups),
            " (dry run: none is ended)" if is_dry else "",
        )
        self._set_times(ShutdownTimes(start_unix_seconds=time.time()))
        self._journal(
            "began",
            delayed_seconds=self._watch.inhibited_seconds,
            dry_run=is_dry,
            groups=[
                {
                    "priority": step.group.priority,
                    "seconds": step.group.seconds,
                    "pods": [pod.key for pod in step.pods],
                }
                for step in shutdown_steps(groups, pods)
            ],
        )
        if self.reporter is not None and not is_dry:
            self.reporter.shuts_down(is_under_way=True)

    def _finish(self) -> None:
        self._priority = None
        start = 0.0 if self._times is None else self._times.start_unix_seconds
        self._set_times(ShutdownTimes(start_unix_seconds=start, end_unix_seconds=time.time()))
        _LOG.warning("shutdown: all priority groups terminated; shutdown continues")
        self._journal("ended", delayed_seconds=self._watch.inhibited_seconds)

    def _cancelled(self) -> None:
        start = time.time() if self._times is None else self._times.start_unix_seconds
        self._set_times(
            ShutdownTimes(start_unix_seconds=start, end_unix_seconds=time.time(), is_cancelled=True)
        )
        self._shutting_down = self._priority = None
        _LOG.warning("shutdown: cancelled; no further pod is ended for it")
        self._journal("cancelled")
        if self.reporter is not None:
            self.reporter.shuts_down(is_under_way=False)
        if self._is_reordered:
            self._scope.cancel()

    def _set_times(self, times: ShutdownTimes) -> None:
        self._times = times
        self.file.show(times)

    def _journal(self, phase: str, **about: object) -> None:
        line: Document = {"kind": KIND, "phase": phase, "time": instant(time.time()), **about}
        self.write(lambda: line)


def _wanted(settings: Settings) -> tuple[int, str | None]:
    """Return for how long a shutdown is held up, by a dry run not at all, and the kubelet's configuration."""
    seconds = 0 if settings.dry_run else shutdown_seconds(settings.shutdown_groups)
    return seconds, None if settings.kubernetes is None else settings.kubernetes.kubelet_config_path


def _is_left_to_systemd(pod: Pod) -> bool:
    """Return whether a unit ends when systemd stops it: the shutdown needs it, or it is never evicted.

    What is critical by its priority has a group. What is so because it was marked (user.oomd_omit), or can't
    be read, has no place in the order.
    """
    return pod.name in _NEEDED or is_critical_by_mark(pod.critical_because, pod.priority)


def _log_ending(ending: ShutdownTermination) -> None:
    _LOG.log(
        logging.INFO if ending.outcome is Outcome.TERMINATED else logging.WARNING,
        "shutdown: %s %s priority=%d grace_period_seconds=%d%s",
        ending.outcome,
        ending.pod.key,
        ending.pod.priority,
        ending.grace_seconds,
        "".join(f"; {problem}" for problem in ending.problems),
    )
