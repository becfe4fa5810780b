import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Iterator

import pytest
import trio

from reactor.act import processes


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "100"]) as child:
        yield child
        child.kill()


async def test_waiting_returns_when_the_processes_have_ended(sleeper: subprocess.Popen[bytes]) -> None:
    held = processes.open_pidfds([sleeper.pid]).pidfds
    async with trio.open_nursery() as nursery:
        nursery.start_soon(processes.wait_exited, held.values())
        await trio.testing.wait_all_tasks_blocked()
        sleeper.kill()
    assert -signal.SIGKILL == sleeper.wait(0)
    processes.close_all(held.values())


def test_a_process_that_is_gone_has_no_pidfd_and_the_others_have(sleeper: subprocess.Popen[bytes]) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    opened = processes.open_pidfds([gone.pid, sleeper.pid])
    processes.close_all(opened.pidfds.values())
    assert ([sleeper.pid], 2, {}) == (list(opened.pidfds), opened.tried, opened.refused)


def test_a_descriptor_that_can_not_be_closed_keeps_no_other_open() -> None:
    first, second = os.pipe()
    os.close(first)
    processes.close_all([first, second])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(second)


def test_the_reserve_is_there_when_every_other_descriptor_is_taken() -> None:
    reserve = processes.Reserve()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 8, hard))
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.pidfd_open(os.getpid()))
        with pytest.raises(OSError, match="Too many open files"):
            os.pidfd_open(os.getpid())
        with reserve.lent():
            os.close(os.pidfd_open(os.getpid()))
        assert reserve.fill()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        processes.close_all(taken)
        reserve.close()
