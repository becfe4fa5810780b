"""The watch over pods' storage: real directories, real walkers."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from reactor.disks.walk_messages import (
    REPORT_BYTES,
    Add,
    Drop,
    Hurry,
    Kind,
    Report,
    Round,
    read_report,
    write_report,
    write_request,
)
from reactor.link.orders import CountedPlace, Places
from reactor.link.requests import UsageKind
from reactor.steward.storage import COMMAND, StorageWatch
from reactor.supervisor import Supervisor
from tests.support.processes import descendants
from tests.support.waiting import until


class Watched:
    """Directories that are watched, and what the guard is told of them, by their names."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.used_bytes: dict[str, int] = {}
        self.supervisor = Supervisor()
        self._names: dict[int, str] = {}
        self._others = set(descendants(os.getpid()))

    def walkers(self) -> list[int]:
        """Return the processes that this one has started since."""
        return [pid for pid in descendants(os.getpid()) if pid not in self._others]

    def watch(self, *names: str, **options) -> StorageWatch:
        """Return a watch over directories of these names, each with 100 kB."""
        watch = StorageWatch(self._tell, supervisor=self.supervisor, **options)
        for number, name in enumerate(names, 1):
            directory = self.directory / name
            directory.mkdir()
            (directory / "file").write_bytes(b"x" * 100_000)
            self._names[number] = name
        watch.know(
            Places(
                count=tuple(
                    CountedPlace(number=number, uid=name, pod=name, path=str(self.directory / name))
                    for number, name in self._names.items()
                )
            )
        )
        return watch

    async def _tell(self, usages) -> None:
        for one in usages.places:
            if one.kind is UsageKind.COUNTED:
                self.used_bytes[self._names[one.place]] = one.used_bytes


@pytest.fixture
def watched(tmp_path):
    return Watched(tmp_path)


async def test_places_that_become_known_are_counted(nursery, watched):
    nursery.start_soon(watched.watch("a", "b").run)
    await until(lambda: len(watched.used_bytes) == 2)
    assert all(used >= 100_000 for used in watched.used_bytes.values())


async def test_look_is_over_when_the_guard_knows_what_was_written_before_it(nursery, watched, tmp_path):
    watch = watched.watch("a")
    nursery.start_soon(watch.run)
    (tmp_path / "a" / "more").write_bytes(b"x" * 1_000_000)
    with trio.fail_after(90):
        await watch.refresh()
    assert watched.used_bytes["a"] > 1_000_000


async def test_place_that_is_forgotten_is_reported_no_longer(nursery, watched, tmp_path):
    watch = watched.watch("a", "b")
    nursery.start_soon(watch.run)
    await until(lambda: len(watched.used_bytes) == 2)
    watch.know(Places(forget=(1,)))
    watched.used_bytes.clear()
    with trio.fail_after(90):
        await watch.refresh()
    assert ["b"] == list(watched.used_bytes)


async def test_node_without_any_storage_is_observed_not_at_all(watched):
    with trio.fail_after(90):
        await watched.watch().refresh()  # nobody runs it


# The walker itself, with directories that hang as long as they are named so, or at which it dies.
TROUBLED = """
import os, sys, time
from reactor.disks import walker

shown = walker._shown

def troubled(path):
    while os.path.exists(path + "/hangs"):
        time.sleep(0.01)
    if os.path.exists(path + "/kills"):
        os._exit(3)
    return shown(path)

walker._shown = troubled
walker.main(sys.argv[1:])
"""
# Whatever it is asked it answers with what comes on its command line, and waits.
LIAR = """
import socket, sys
daemon = socket.socket(fileno=0)
daemon.recv(9000)
daemon.send(bytes.fromhex(sys.argv[1]))
daemon.recv(9000)
while daemon.recv(9000):
    pass
"""


def troubled() -> list[str]:
    return [sys.executable, "-c", TROUBLED]


async def test_place_that_hangs_is_left_alone_and_the_others_are_observed(nursery, watched, tmp_path):
    watch = watched.watch("a", "hung", hanging_seconds=6.0, left_alone_seconds=(4.0, 4.0), command=troubled())
    (tmp_path / "hung" / "hangs").touch()
    nursery.start_soon(watch.run)
    watch.due()
    await until(lambda: f"storage {tmp_path}/hung" in watch.problems)
    (tmp_path / "a" / "more").write_bytes(b"x" * 1_000_000)
    with trio.fail_after(90):
        await watch.refresh()
    assert watched.used_bytes["a"] > 1_000_000
    assert "hung" not in watched.used_bytes
    (tmp_path / "hung" / "hangs").unlink()
    with trio.fail_after(90):
        while "hung" not in watched.used_bytes:
            with trio.move_on_after(1):
                await watch.refresh()
    assert f"storage {tmp_path}/hung" not in watch.problems


async def test_place_at_which_the_walker_ends_again_and_again_costs_no_other_one_its_numbers(
    nursery, watched, tmp_path
):
    watch = watched.watch("a", "poison", command=troubled())
    (tmp_path / "poison" / "kills").touch()
    nursery.start_soon(watch.run)
    watch.due()
    await until(lambda: "a" in watched.used_bytes)
    assert "poison" not in watched.used_bytes


async def test_walker_that_is_killed_is_restarted_and_told_everything(nursery, watched, tmp_path):
    watch = watched.watch("a")
    nursery.start_soon(watch.run)
    watch.due()
    await until(lambda: bool(watched.used_bytes))
    (walker,) = watched.walkers()
    os.kill(walker, signal.SIGKILL)
    await until(lambda: walker not in watched.walkers())
    (tmp_path / "a" / "more").write_bytes(b"x" * 1_000_000)
    with trio.fail_after(90):
        await watch.refresh()
    assert watched.used_bytes["a"] > 1_000_000


def report(**fields: int) -> bytes:
    return write_report(Report(**{"kind": Kind.COUNTED, **fields}))


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00",
        bytes(REPORT_BYTES - 1),
        bytes(REPORT_BYTES + 1),
        b"\xff" * REPORT_BYTES,
        bytes(REPORT_BYTES),
        report(place=0),
        report(place=77),
        report(kind=Kind.ROUND_OVER, place=2),
    ],
    ids=["short", "cut", "long", "ones", "zeros", "no place", "unknown place", "look never asked for"],
)
async def test_walker_that_says_what_it_can_not_have_to_say_is_ended_and_not_believed(
    nursery, watched, answer
):
    watch = watched.watch("a", command=[sys.executable, "-c", LIAR, answer.hex()])
    nursery.start_soon(watch.run)
    watch.due()
    await until(lambda: any("walker" in why for why in watched.supervisor.problems.values()))
    assert {} == watched.used_bytes
    await until(lambda: not watched.walkers())


async def test_walker_that_says_nothing_is_ended(nursery, watched):
    mute = [sys.executable, "-c", "import signal; signal.pause()"]
    watch = watched.watch("a", hanging_seconds=0.2, command=mute)
    nursery.start_soon(watch.run)
    watch.due()
    await until(lambda: any("no answer" in why for why in watched.supervisor.problems.values()))


async def test_walker_ends_with_the_watch(watched):
    watch = watched.watch("a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        watch.due()
        await until(lambda: bool(watched.used_bytes))
        assert watched.walkers()
        nursery.cancel_scope.cancel()
    await until(lambda: not watched.walkers())


async def test_walker_has_no_privilege_no_lock_no_descriptor_but_its_socket_and_a_bound(nursery, watched):
    watch = watched.watch("a")
    nursery.start_soon(watch.run)
    watch.due()
    await until(lambda: bool(watched.used_bytes))
    (walker,) = watched.walkers()
    proc = Path(f"/proc/{walker}")
    assert "1000" == (proc / "oom_score_adj").read_text().strip()
    assert os.SCHED_OTHER == os.sched_getscheduler(walker)
    assert "VmLck:\t       0 kB" in (proc / "status").read_text()
    assert min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10) == os.getpriority(os.PRIO_PROCESS, walker)
    assert (128 << 20,) * 2 == resource.prlimit(walker, resource.RLIMIT_AS)  # no limit would be -1
    opened = {os.readlink(proc / "fd" / fd).partition(":[")[0] for fd in os.listdir(proc / "fd")}
    assert {"socket", "/dev/null"} == opened


# A walker that answers a look as soon as it is not held up, and says that it took a second of CPU. Its file
# `looks` is a letter longer with each look, its file `dropped` with each place that it is to forget.
LAZY = """
import os, socket, sys, time
from reactor.disks.walk_messages import *
directory = {directory!r}
daemon = socket.socket(fileno=0)
while raw := daemon.recv(9000):
    request = read_request(raw)
    if isinstance(request, Round):
        open(directory + "/looks", "a").write("x")
        while os.path.exists(directory + "/held up"):
            time.sleep(0.01)
        daemon.send(write_report(Report(kind=Kind.ROUND_OVER, place=request.number, nanoseconds=10**9)))
        daemon.send(write_report(Report(kind=Kind.IDLE)))
    if isinstance(request, Drop):
        open(directory + "/dropped", "a").write("x")
"""


async def test_what_becomes_urgent_during_a_look_is_observed_without_a_rest(nursery, watched, tmp_path):
    looks, held_up = tmp_path / "looks", tmp_path / "held up"
    held_up.touch()
    watch = watched.watch("a", command=[sys.executable, "-c", LAZY.format(directory=str(tmp_path))])
    nursery.start_soon(watch.run)
    await until(looks.exists)
    watch.due(urgent=True)
    held_up.unlink()
    await until(lambda: looks.read_text() == "xx")


async def test_look_that_took_long_is_followed_by_a_rest_unless_it_is_urgent(nursery, watched, tmp_path):
    looks = tmp_path / "looks"
    watch = watched.watch("a", command=[sys.executable, "-c", LAZY.format(directory=str(tmp_path))])
    nursery.start_soon(watch.run)
    watch.due()
    await until(looks.exists)
    for _ in range(10):
        watch.due()
        await trio.sleep(0.1)
    assert "x" == looks.read_text()
    with trio.fail_after(90):
        await watch.refresh()
    assert "xxx" == looks.read_text()


async def test_forgotten_place_is_dropped_without_waiting_for_the_next_look(nursery, watched, tmp_path):
    looks, dropped = tmp_path / "looks", tmp_path / "dropped"
    watch = watched.watch("a", "b", command=[sys.executable, "-c", LAZY.format(directory=str(tmp_path))])
    nursery.start_soon(watch.run)
    await until(looks.exists)
    watch.know(Places(forget=(1,)))
    await until(dropped.exists)
    assert "x" == looks.read_text()


def test_walker_says_that_it_is_idle_after_each_request():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(90)
    with subprocess.Popen([*COMMAND, str(os.getpid()), "60"], stdin=theirs.fileno()) as walker, ours:
        theirs.close()
        for request in (Add(1, 1, "/proc/self/fd"), Drop(1), Drop(1), Hurry(), Round(1)):
            ours.send(write_request(request))
            while read_report(ours.recv(REPORT_BYTES)).kind is not Kind.IDLE:
                pass
    assert 0 == walker.returncode
