"""The real process, with commands and quotas of its own."""

from __future__ import annotations

import errno
import os
import signal
import socket
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from reactor.privileged.client import Commands, PrivilegedError
from reactor.privileged.quotas import ProjectQuotas
from tests.support.privileged import may_run
from tests.support.processes import descendants, is_running
from tests.support.this_machine import open_descriptors
from tests.support.waiting import until

SH = "/bin/sh"


@asynccontextmanager
async def commands(*allowed: tuple[str, ...]):
    with may_run(*allowed) as privileged:
        async with trio.open_nursery() as nursery:
            made = privileged.commands()
            nursery.start_soon(made.run)
            yield made
            nursery.cancel_scope.cancel()


async def test_command_gets_its_input_and_how_it_ended_is_returned(tmp_path: Path) -> None:
    cat, fails = (SH, "-c", f"cat > {tmp_path}/out"), (SH, "-c", "echo no >&2; exit 3")
    async with commands(cat, fails) as made:
        assert await made.run_to_problem(cat, 20, given=b"in\n\x00put") is None
        assert await made.run_to_problem(fails, 20) == "exit status 3: no"

    assert (tmp_path / "out").read_bytes() == b"in\n\x00put"


async def test_command_that_the_guard_did_not_name_is_not_run_and_those_that_it_did_are(
    tmp_path: Path,
) -> None:
    made_file = tmp_path / "made"
    touch = ("/bin/touch", str(made_file))
    async with commands(("/bin/true",)) as made:
        assert "not in the configuration" in (await made.run_to_problem(touch, 20) or "")
        assert await made.run_to_problem(("/bin/true",), 20) is None

    assert not made_file.exists()


async def test_run_that_is_cancelled_ends_its_whole_session(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    waits = (SH, "-c", f"sleep 600 & echo $! > {path}; wait")
    async with commands(waits) as made, trio.open_nursery() as nursery:
        nursery.start_soon(made.run_to_problem, waits, 600)
        await until(lambda: path.exists() and path.read_text(), "the command has begun")
        pid = int(path.read_text())
        nursery.cancel_scope.cancel()
    await until(lambda: not Path(f"/proc/{pid}").exists(), "it has ended")


async def test_where_the_steward_ends_what_runs_is_ended_and_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    before, others = open_descriptors(), descendants(os.getpid())
    waits = (SH, "-c", f"echo $$ > {path}; exec sleep 600")
    async with commands(waits) as made, trio.open_nursery() as nursery:
        nursery.start_soon(made.run_to_problem, waits, 600)
        await until(lambda: path.exists() and path.read_text(), "the command has begun")
        pid = int(path.read_text())
        nursery.cancel_scope.cancel()
    assert not is_running(pid)
    assert before == open_descriptors()
    assert set(descendants(os.getpid())) <= set(others)


async def test_its_end_is_an_error_for_the_one_that_waits() -> None:
    with may_run(("/bin/sleep", "600")) as privileged:
        made = privileged.commands()
        os.kill(privileged.pid, signal.SIGKILL)
        with pytest.raises(PrivilegedError, match="has ended"):
            await made.run()


async def test_without_the_process_no_command_is_run() -> None:
    assert "not run" in (await Commands().run_to_problem(("/bin/true",), 1) or "")


async def test_garbage_on_the_pairs_costs_a_pause_and_no_answer(tmp_path: Path) -> None:
    with may_run(("/bin/true",)) as privileged:
        made = privileged.commands()
        assert made._process is not None
        nowhere = os.open(os.devnull, os.O_RDONLY)
        with socket.socket(fileno=os.dup(privileged.walkers_fd)) as walkers:
            for garbage in (b"x", b"{" * 5000, b"\xff" * 200):
                made._process.send(garbage)
                walkers.send(garbage)
                socket.send_fds(walkers, [garbage], [nowhere] * 3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.run)
            assert await made.run_to_problem(("/bin/true",), 20) is None
            nursery.cancel_scope.cancel()
        await until(lambda: not _nulls_of(privileged.pid), "what came with it is closed")


def _nulls_of(pid: int) -> list[str]:
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed since it was listed
            if int(fd) > 2 and os.readlink(f"/proc/{pid}/fd/{fd}") == os.devnull:
                found.append(fd)
    return found


def test_quota_that_can_not_be_read_is_the_kernels_error(tmp_path: Path) -> None:
    with may_run() as privileged:
        quotas = ProjectQuotas(os.dup(privileged.walkers_fd))
        fd = os.open(tmp_path, os.O_RDONLY)
        try:
            for project in (7, 8):  # nothing has quotas of projects here
                with pytest.raises(OSError, match=f"project {project}") as caught:
                    quotas.usage(fd, project)
                assert caught.value.errno in {
                    errno.ESRCH,
                    errno.ENOSYS,
                    errno.ENOTTY,
                    errno.EOPNOTSUPP,
                    errno.EPERM,
                    errno.ENOENT,
                    errno.EINVAL,
                }
        finally:
            os.close(fd)
            quotas._connection.close()


def test_end_of_the_process_is_an_error_for_the_walker(tmp_path: Path) -> None:
    with may_run() as privileged:
        quotas = ProjectQuotas(os.dup(privileged.walkers_fd))
        os.kill(privileged.pid, signal.SIGKILL)
        fd = os.open(tmp_path, os.O_RDONLY)
        try:
            with pytest.raises(OSError):  # noqa: PT011 - EPIPE or the end
                quotas.usage(fd, 7)
        finally:
            os.close(fd)
            quotas._connection.close()
