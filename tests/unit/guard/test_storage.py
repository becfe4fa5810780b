"""The watch over pods' storage: real directories, real walkers."""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
import sys
from pathlib import Path

import pytest
import trio

from reactor.disks.walk_messages import REPORT_BYTES, Kind, Report, write_report
from reactor.guard.storage import StorageWatch
from reactor.model.pods import StorageKind, StoragePlace, Volume
from tests.support.waiting import until


@pytest.fixture
def known(make_loop):
    return make_loop().known


@pytest.fixture
def make_writer(make_pod, tmp_path: Path):
    def make(name: str):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "file").write_bytes(b"x" * 100_000)
        place = StoragePlace(kind=StorageKind.VOLUME, name="scratch", path=str(directory))
        return dataclasses.replace(make_pod(name), volumes=(Volume(name="scratch"),), storage=(place,))

    return make


async def test_look_that_is_due_finds_what_pods_take(nursery, known, make_writer):
    known.pods = (make_writer("a"), make_writer("b"))
    watch = StorageWatch(known)
    await nursery.start(watch.run)
    watch.due()
    for _ in range(500):
        if len(known.storage.usages(known.pods)) == 2:
            break
        await trio.sleep(0.01)
    assert all(one.ephemeral_storage_bytes >= 100_000 for one in known.storage.usages(known.pods).values())


async def test_urgent_look_is_over_when_what_was_written_before_it_is_known(
    nursery, known, make_writer, tmp_path
):
    known.pods = (make_writer("a"),)
    watch = StorageWatch(known)
    await nursery.start(watch.run)
    watch.due()
    (tmp_path / "a" / "more").write_bytes(b"x" * 1_000_000)
    await watch.look(20)
    assert known.storage.usages(known.pods)["uid-a"].ephemeral_storage_bytes > 1_000_000


async def test_node_without_any_storage_is_waited_for_not_at_all(known, make_pod):
    known.pods = (make_pod("a"),)
    with trio.fail_after(5):
        await StorageWatch(known).look(1000)  # nobody runs it


# The walker itself, with directories that hang as long as they are named so, or at which it dies.
TROUBLED = """
import os, sys, time
from reactor.disks import places
from reactor.disks import walker

shown = places._shown

def troubled(path):
    while os.path.exists(path + "/hangs"):
        time.sleep(0.01)
    if os.path.exists(path + "/kills"):
        os._exit(3)
    return shown(path)

places._shown = troubled
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


def children() -> list[int]:
    """Return the walkers that this process has."""
    return [
        int(pid)
        for task in os.listdir("/proc/self/task")
        for pid in Path(f"/proc/self/task/{task}/children").read_text().split()
    ]


async def test_place_that_hangs_is_left_alone_and_the_others_are_looked_at(
    nursery, known, make_writer, tmp_path
):
    known.pods = (make_writer("a"), make_writer("hung"))
    (tmp_path / "hung" / "hangs").touch()
    watch = StorageWatch(known, hanging_seconds=0.4, left_alone_seconds=(4.0, 4.0), command=troubled())
    await nursery.start(watch.run)
    watch.due()
    await until(lambda: f"storage {tmp_path}/hung" in watch.problems)
    (tmp_path / "a" / "more").write_bytes(b"x" * 1_000_000)
    await watch.look(20)
    assert known.storage.usages(known.pods)["uid-a"].ephemeral_storage_bytes > 1_000_000
    assert "uid-hung" not in known.storage.usages(known.pods)
    (tmp_path / "hung" / "hangs").unlink()
    with trio.fail_after(30):
        while "uid-hung" not in known.storage.usages(known.pods):
            await watch.look(1)
    assert f"storage {tmp_path}/hung" not in watch.problems


async def test_place_at_which_the_walker_ends_again_and_again_costs_no_other_one_its_numbers(
    nursery, known, make_writer, tmp_path
):
    known.pods = (make_writer("a"), make_writer("poison"))
    (tmp_path / "poison" / "kills").touch()
    watch = StorageWatch(known, command=troubled())
    await nursery.start(watch.run)
    watch.due()
    await until(lambda: "uid-a" in known.storage.usages(known.pods))
    assert "uid-poison" not in known.storage.usages(known.pods)


async def test_walker_that_is_killed_is_restarted_and_what_it_counted_stands_meanwhile(
    nursery, known, make_writer, tmp_path
):
    known.pods = (make_writer("a"),)
    watch = StorageWatch(known)
    await nursery.start(watch.run)
    watch.due()
    await until(lambda: bool(known.storage.usages(known.pods)))
    before, (walker,) = known.storage.usages(known.pods), children()
    os.kill(walker, signal.SIGKILL)
    await until(lambda: walker not in children())
    assert before == known.storage.usages(known.pods)
    (tmp_path / "a" / "more").write_bytes(b"x" * 1_000_000)
    await watch.look(20)
    assert known.storage.usages(known.pods)["uid-a"].ephemeral_storage_bytes > 1_000_000


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
        report(kind=Kind.LOOKED, place=2),
    ],
    ids=["short", "cut", "long", "ones", "zeros", "no place", "unknown place", "look never asked for"],
)
async def test_walker_that_says_what_it_can_not_have_to_say_is_ended_and_not_believed(
    nursery, known, make_writer, answer
):
    known.pods = (make_writer("a"),)
    watch = StorageWatch(known, command=[sys.executable, "-c", LIAR, answer.hex()])
    await nursery.start(watch.run)
    watch.due()
    await until(lambda: any("walker" in why for why in watch.problems.values()))
    assert {} == known.storage.usages(known.pods)
    await until(lambda: not children())


async def test_walker_that_says_nothing_is_ended(nursery, known, make_writer):
    known.pods = (make_writer("a"),)
    mute = [sys.executable, "-c", "import signal; signal.pause()"]
    watch = StorageWatch(known, hanging_seconds=0.2, command=mute)
    await nursery.start(watch.run)
    watch.due()
    await until(lambda: any("no answer" in why for why in watch.problems.values()))


async def test_walker_ends_with_the_watch(known, make_writer):
    known.pods = (make_writer("a"),)
    watch = StorageWatch(known)
    async with trio.open_nursery() as nursery:
        await nursery.start(watch.run)
        watch.due()
        await until(lambda: bool(known.storage.usages(known.pods)))
        assert children()
        nursery.cancel_scope.cancel()
    await until(lambda: not children())


async def test_walker_has_no_privilege_no_lock_no_descriptor_but_its_socket_and_a_bound(
    nursery, known, make_writer
):
    known.pods = (make_writer("a"),)
    watch = StorageWatch(known)
    await nursery.start(watch.run)
    watch.due()
    await until(lambda: bool(known.storage.usages(known.pods)))
    (walker,) = children()
    proc = Path(f"/proc/{walker}")
    assert "1000" == (proc / "oom_score_adj").read_text().strip()
    assert os.SCHED_OTHER == os.sched_getscheduler(walker)
    assert "VmLck:\t       0 kB" in (proc / "status").read_text()
    assert min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10) == os.getpriority(os.PRIO_PROCESS, walker)
    assert resource.prlimit(walker, resource.RLIMIT_AS)[1] <= 128 << 20
    opened = {os.readlink(proc / "fd" / fd).partition(":[")[0] for fd in os.listdir(proc / "fd")}
    assert {"socket", "/dev/null"} == opened


# A walker that answers a look as soon as it is not held up, and says that it took a second of CPU.
LAZY = """
import os, socket, sys, time
from reactor.disks.walk_messages import *
directory = {directory!r}
daemon = socket.socket(fileno=0)
while raw := daemon.recv(9000):
    request = read_request(raw)
    if isinstance(request, Look):
        open(directory + "/looks", "a").write("x")
        while os.path.exists(directory + "/held up"):
            time.sleep(0.01)
        daemon.send(write_report(Report(kind=Kind.LOOKED, place=request.number, nanoseconds=10**9)))
        daemon.send(write_report(Report(kind=Kind.IDLE)))
"""


async def test_what_becomes_urgent_during_a_look_is_looked_at_without_a_rest(
    nursery, known, make_writer, tmp_path
):
    looks, held_up = tmp_path / "looks", tmp_path / "held up"
    held_up.touch()
    known.pods = (make_writer("a"),)
    watch = StorageWatch(known, command=[sys.executable, "-c", LAZY.format(directory=str(tmp_path))])
    await nursery.start(watch.run)
    await until(looks.exists)
    watch.due(urgent=True)
    held_up.unlink()
    await until(lambda: looks.read_text() == "xx")


async def test_look_that_took_long_is_followed_by_a_rest_unless_it_is_urgent(
    nursery, known, make_writer, tmp_path
):
    looks = tmp_path / "looks"
    known.pods = (make_writer("a"),)
    watch = StorageWatch(known, command=[sys.executable, "-c", LAZY.format(directory=str(tmp_path))])
    await nursery.start(watch.run)
    watch.due()
    await until(looks.exists)
    for _ in range(10):
        watch.due()
        await trio.sleep(0.1)
    assert "x" == looks.read_text()
    await watch.look(20)
    assert "xxx" == looks.read_text()
