import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

import pytest

from reactor.act import processes

SLEEPER = [sys.executable, "-S", "-c", "import signal; signal.pause()"]


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    children = [subprocess.Popen(SLEEPER) for _ in range(3)]
    yield children
    for child in children:
        child.kill()
        child.wait()


def fired(
    members: Callable[[], list[int]], number: signal.Signals, ready: Mapping[int, int] | None = None
) -> tuple[int, dict[int, int]]:
    volley = processes.Volley(members, number, ready=ready)
    while volley.fire():
        pass
    return volley.sent, volley.held


def listings(*rounds: list[int]) -> Iterator[list[int]]:
    yield from rounds
    while True:
        yield rounds[-1]


def test_a_process_that_has_left_the_cgroup_before_the_signal_is_spared(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    first, second, third = (child.pid for child in sleepers)
    listing = listings([first, second, third], [first], [first])
    sent, held = fired(lambda: next(listing), signal.SIGKILL)
    processes.close_all(held.values())
    assert (1, [first]) == (sent, list(held))
    assert -signal.SIGKILL == sleepers[0].wait(5)
    assert [None, None] == [child.poll() for child in sleepers[1:]]


def test_a_process_that_is_born_during_the_round_is_signalled_in_the_next(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    pids = [child.pid for child in sleepers]
    listing = listings(pids[:1], pids[:1], pids)
    sent, held = fired(lambda: next(listing), signal.SIGKILL)
    processes.close_all(held.values())
    assert (3, pids) == (sent, list(held))


def test_a_process_that_is_held_ready_is_signalled_without_a_second_look(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    pid = sleepers[0].pid
    looks = []
    sent, held = fired(lambda: looks.append(None) or [pid], signal.SIGKILL, ready={pid: os.pidfd_open(pid)})
    processes.close_all(held.values())
    assert (1, [pid], 2) == (sent, list(held), len(looks))  # to begin with, and for who was born meanwhile
    assert -signal.SIGKILL == sleepers[0].wait(5)


def test_a_process_that_is_held_ready_and_has_left_the_cgroup_is_not_signalled(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    inside, left, _ = (child.pid for child in sleepers)
    ready = {pid: os.pidfd_open(pid) for pid in (inside, left)}
    sent, held = fired(lambda: [inside], signal.SIGKILL, ready=ready)
    processes.close_all(held.values())
    assert (1, [inside]) == (sent, list(held))
    assert sleepers[1].poll() is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(ready[left])


def test_who_has_the_id_of_one_that_was_held_ready_is_signalled_by_a_pidfd_of_its_own(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    gone, present, _ = sleepers
    gone_fd = os.pidfd_open(gone.pid)
    gone.kill()
    gone.wait()
    sent, held = fired(lambda: [present.pid], signal.SIGKILL, ready={present.pid: gone_fd})
    processes.close_all(held.values())
    assert (1, [present.pid]) == (sent, list(held))
    assert -signal.SIGKILL == present.wait(5)


def test_a_process_that_is_gone_is_passed_over() -> None:
    child = subprocess.Popen(SLEEPER)
    child.kill()
    child.wait()
    sent, held = fired(lambda: [child.pid], signal.SIGKILL)
    assert (0, {}) == (sent, held)


async def test_waiting_returns_when_the_processes_have_ended(sleepers: list[subprocess.Popen[bytes]]) -> None:
    _, held = fired(lambda: [child.pid for child in sleepers], signal.SIGKILL)
    await processes.wait_exited(held.values())
    assert [-signal.SIGKILL] * 3 == [child.wait(0) for child in sleepers]
    processes.close_all(held.values())
