"""Commands that free space on a node: run without a shell, with a deadline, and not too often."""

from __future__ import annotations

import math
import os
import resource
import signal
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from reactor.model.settings import Command, ReclaimSettings
from reactor.model.signals import Filesystem
from reactor.reclaim.reclaims import ReclaimReport
from reactor.threads import in_thread

_ENVIRONMENT: Final = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_KEPT_BYTES: Final = 4096
_DYING_SECONDS: Final = 5.0
_LISTENING_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEnd:
    """How a command ended: its exit status (negative: the signal; None: not at all), its last words."""

    status: int | None
    timed_out: bool
    last_words: str


class CommandReclaim:
    """Runs the commands of a filesystem, one after the other."""

    def __init__(
        self, settings: ReclaimSettings, *, clock_seconds: Callable[[], float] = trio.current_time
    ) -> None:
        self._settings = settings
        self._clock_seconds = clock_seconds
        self._ran_at_seconds: dict[Filesystem, float] = {}

    async def run(self, filesystems: Collection[Filesystem]) -> ReclaimReport | None:
        """Run the commands configured for these filesystems; None where there are none, or not again yet."""
        did: list[str] = []
        problems: list[str] = []
        for filesystem, commands in self._settings.commands.items():
            since_seconds = self._clock_seconds() - self._ran_at_seconds.get(filesystem, -math.inf)
            if filesystem not in filesystems or since_seconds < self._settings.pause_seconds:
                continue
            for command in commands:
                problem = await self._run(command)
                did.append(" ".join(command))
                problems += [] if problem is None else [f"{command[0]}: {problem}"]
            self._ran_at_seconds[filesystem] = self._clock_seconds()
        return ReclaimReport(did=tuple(did), problems=tuple(problems)) if did else None

    async def _run(self, command: Command) -> str | None:
        """Return what went wrong with a command, None where nothing did."""
        try:
            end = await run_command(command, self._settings.timeout_seconds)
        except OSError as error:
            return str(error.strerror)
        if end.timed_out:
            gone = "killed" if end.status is not None else "killed, but still there"
            return f"not done within {self._settings.timeout_seconds:g} s: {gone}"
        if end.status:
            how = f"exit status {end.status}" if end.status > 0 else f"killed by signal {-end.status}"
            return f"{how}: {end.last_words}" if end.last_words else how
        return None


async def run_command(command: Command, timeout_seconds: float) -> CommandEnd:
    """Run a program without a shell and return how it ended. Raises OSError where it can't be started.

    It runs in a session of its own, all of which is killed at the deadline or when the caller is
    cancelled; at normal priority, with an empty environment, no signal blocked, its standard input empty
    and its output discarded but for the last lines of its errors.
    """
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    try:
        # It returns once the program is being executed, which a slow disk may delay.
        pid = await in_thread(_spawn, command, write_fd)
    except BaseException:
        os.close(read_fd)
        raise
    finally:
        os.close(write_fd)
    last_words = bytearray()
    async with trio.lowlevel.FdStream(read_fd) as errors, trio.open_nursery() as nursery:
        all_said = trio.Event()
        nursery.start_soon(_keep_last, errors, last_words, all_said)
        status, timed_out = await _ended(pid, timeout_seconds)
        with trio.move_on_after(_LISTENING_SECONDS):  # what it left running may hold the pipe open
            await all_said.wait()
        nursery.cancel_scope.cancel()
    text = last_words.decode(errors="replace").strip()
    return CommandEnd(status=status, timed_out=timed_out, last_words=text.rpartition("\n")[2])


def _spawn(command: Command, errors_fd: int) -> int:
    """Start a program and return its process id. Raises OSError with the program's path."""
    pid = os.posix_spawn(
        command[0],
        command,
        _ENVIRONMENT,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, errors_fd, 2),
        ],
        setsid=True,
        setsigmask=(),  # the daemon blocks the signals that it waits for
        setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # and Python ignores these
    )
    with suppress(OSError):  # it has ended already
        Path(f"/proc/{pid}/oom_score_adj").write_text("0")  # the daemon's own score is not for others
    with suppress(OSError):
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.prlimit(pid, resource.RLIMIT_DATA, (most, most))  # nor is the steward's bound
    return pid


async def _ended(pid: int, timeout_seconds: float) -> tuple[int | None, bool]:
    """Wait for a process; return its exit status (None: still there, though killed) and whether it was late.

    At the deadline, and where the caller is cancelled, the whole session is killed.
    """
    pidfd = os.pidfd_open(pid)
    in_time = False
    try:
        with trio.move_on_after(timeout_seconds):
            await trio.lowlevel.wait_readable(pidfd)
            in_time = True
    finally:
        if not in_time:
            # The process has not been waited for, so no other can have its id.
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            with trio.move_on_after(_DYING_SECONDS, shield=True):
                await trio.lowlevel.wait_readable(pidfd)
        os.close(pidfd)
        status = _reaped(pid)
    return status, not in_time


def _reaped(pid: int) -> int | None:
    """Return a child's exit status, None where it has not ended yet; never waits."""
    ended_pid, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended_pid else None


async def _keep_last(stream: trio.lowlevel.FdStream, kept: bytearray, all_said: trio.Event) -> None:
    async for chunk in stream:
        kept += chunk
        del kept[:-_KEPT_BYTES]
    all_said.set()
