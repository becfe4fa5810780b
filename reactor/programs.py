"""Programs that the operator has configured, run without a shell and with a deadline."""

from __future__ import annotations

import os
import resource
import signal
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import trio

from reactor.model.settings import Command
from reactor.threads import in_thread

_ENVIRONMENT: Final = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_KEPT_BYTES: Final = 4096
_READ_BYTES: Final = 64 << 10
_BETWEEN_READS_SECONDS: Final = 0.01  # a program that floods its errors waits; the loop does not
_DYING_SECONDS: Final = 5.0
_LISTENING_SECONDS: Final = 0.1
_LONGEST_FIRST_LINE: Final = 256  # BINPRM_BUF_SIZE, of which the kernel reads a script's first line


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEnd:
    """How a command ended: its exit status (negative: the signal; None: not at all), its last words."""

    status: int | None
    timed_out: bool
    last_words: str


class RunProgram(Protocol):
    """Runs a program and returns what went wrong, see `run_to_problem`."""

    async def __call__(
        self, command: Command, timeout_seconds: float, *, given: bytes = b"", leaves_nothing: bool = False
    ) -> str | None:
        """Run it."""


async def run_to_problem(
    command: Command, timeout_seconds: float, *, given: bytes = b"", leaves_nothing: bool = False
) -> str | None:
    """Run a program as `run_command` does; return what went wrong, None where nothing did."""
    try:
        end = await run_command(command, timeout_seconds, given=given, leaves_nothing=leaves_nothing)
    except OSError as error:
        return str(error.strerror)
    if end.timed_out:
        gone = "killed" if end.status is not None else "killed, but still there"
        return f"not done within {timeout_seconds:g} s: {gone}"
    if end.status:
        how = f"exit status {end.status}" if end.status > 0 else f"killed by signal {-end.status}"
        return f"{how}: {end.last_words}" if end.last_words else how
    return None


async def run_command(
    command: Command, timeout_seconds: float, *, given: bytes = b"", leaves_nothing: bool = False
) -> CommandEnd:
    """Run a program without a shell and return how it ended. Raises OSError where it can't be started.

    It runs in a session of its own, all of which is killed at the deadline or when the caller is
    cancelled; at normal priority, with an empty environment, no signal blocked, its standard input `given`
    and its output discarded but for the last lines of its errors. Where it `leaves_nothing`, what it has
    left running in its process group is killed too when it ends in time.
    """
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    try:
        # It returns once the program is being executed, which a slow disk may delay.
        pid = await in_thread(_spawn_given, command, write_fd, given)
    except BaseException:
        os.close(read_fd)
        raise
    finally:
        os.close(write_fd)
    last_words = bytearray()
    async with trio.lowlevel.FdStream(read_fd) as errors, trio.open_nursery() as nursery:
        all_said = trio.Event()
        nursery.start_soon(_keep_last, errors, last_words, all_said)
        status, timed_out = await _ended(pid, timeout_seconds, leaves_nothing=leaves_nothing)
        with trio.move_on_after(_LISTENING_SECONDS):  # what it left running may hold the pipe open
            await all_said.wait()
        nursery.cancel_scope.cancel()
    text = last_words.decode(errors="replace").strip()
    return CommandEnd(status=status, timed_out=timed_out, last_words=text.rpartition("\n")[2])


def _spawn_given(command: Command, errors_fd: int, given: bytes) -> int:
    """Start a program with `given` as its standard input; return its process id. Raises OSError.

    A file in memory: one that does not read it, or holds it open, keeps no task of ours waiting.
    """
    if not given:
        return _spawn(command, errors_fd, None)
    input_fd = os.memfd_create("event", os.MFD_CLOEXEC)
    with os.fdopen(input_fd, "wb", buffering=0) as file:
        file.write(given)
        os.lseek(input_fd, 0, os.SEEK_SET)
        return _spawn(command, errors_fd, input_fd)


def _spawn(command: Command, errors_fd: int, input_fd: int | None) -> int:
    """Start a program and return its process id. Raises OSError with the program's path."""
    empty = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    pid = os.posix_spawn(
        command[0],
        command,
        _ENVIRONMENT,
        file_actions=[
            empty if input_fd is None else (os.POSIX_SPAWN_DUP2, input_fd, 0),
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


async def _ended(pid: int, timeout_seconds: float, *, leaves_nothing: bool) -> tuple[int | None, bool]:
    """Wait for a process; return its exit status (None: still there, though killed) and whether it was late.

    At the deadline, and where the caller is cancelled, the whole session is killed; where it
    `leaves_nothing`, in any case.
    """
    pidfd = os.pidfd_open(pid)
    in_time = False
    try:
        with trio.move_on_after(timeout_seconds):
            await trio.lowlevel.wait_readable(pidfd)
            in_time = True
    finally:
        if leaves_nothing or not in_time:
            # The process has not been waited for, so no other can have its id.
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        if not in_time:
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
    while chunk := await stream.receive_some(_READ_BYTES):
        kept += chunk
        del kept[:-_KEPT_BYTES]
        if len(chunk) >= _KEPT_BYTES:
            await trio.sleep(_BETWEEN_READS_SECONDS)
    all_said.set()


def unrunnable_because(command: Command) -> str | None:
    """Return why a command can't be run here as it is configured, None where it can."""
    interpreter = _interpreter(command[0])
    for program in (command[0], *([] if interpreter is None else [interpreter])):
        why = _not_executable_because(program)
        if why is not None:
            return why if program == command[0] else f"{command[0]}: its interpreter {why}"
    return None


def _not_executable_because(program: str) -> str | None:
    try:
        found = os.stat(program)
    except OSError as error:
        return f"{program}: {error.strerror}"
    if not stat.S_ISREG(found.st_mode):
        return f"{program} is not a regular file"
    if not os.access(program, os.X_OK):
        return f"{program} has mode {stat.S_IMODE(found.st_mode):04o}: it can't be executed"
    return None


def _interpreter(program: str) -> str | None:
    """Return what runs a script; None for what is none, or can't be read."""
    try:
        # A FIFO of that name does not hold the caller.
        with open(os.open(program, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            first = file.readline(_LONGEST_FIRST_LINE)
    except OSError:
        return None
    words = first[2:].split(maxsplit=1) if first.startswith(b"#!") else []
    return os.fsdecode(words[0]) if words else None
