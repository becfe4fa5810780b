"""Warrants against every way in which a process is charged: who is current there, and what dies of it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from probing import MARKS, MIB, ROOT, Cgroup, allocate
from warranting import Node, grown, is_alive

from reactor.kernel.bpf.records import WarrantOutcome
from reactor.kernel.bpf.warrants import ClaimState, WarrantProbe

pytestmark = MARKS

FIRE_MIB: Final = 80
WANTED_MIB: Final = 200
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWPID: Final = 0x20000000
# Of include/uapi/linux/io_uring.h, as the kernel has them on all machines.
_SYS_IO_URING_SETUP, _SYS_IO_URING_ENTER = 425, 426
_OFF_SQ_RING, _OFF_SQES = 0, 0x10000000
_PARAMS: Final = 120
_OP_FALLOCATE: Final = 17
_BY_A_WORKER: Final = 1 << 4  # IOSQE_ASYNC
_GETEVENTS: Final = 1


@pytest.fixture(scope="module")
def probe() -> Iterator[WarrantProbe]:
    with WarrantProbe() as found:
        yield found
        found.withdraw()


@pytest.fixture
def node(probe: WarrantProbe, cgroup: Cgroup) -> Iterator[Node]:
    yield Node(probe, cgroup)
    probe.withdraw()


def by_threads() -> None:
    for _ in range(4):
        threading.Thread(target=lambda: [allocate(WANTED_MIB // 4), signal.pause()], daemon=True).start()
    signal.pause()


def populated() -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    return mmap.mmap(-1, WANTED_MIB * MIB, flags=flags)


def written_to_tmpfs() -> int:
    fd = os.memfd_create("of-a-test")
    for _ in range(WANTED_MIB):
        os.write(fd, bytes(MIB))
    return fd


def allocated_on_tmpfs() -> int:
    fd = os.memfd_create("of-a-test")
    os.posix_fallocate(fd, 0, WANTED_MIB * MIB)
    return fd


def by_io_uring() -> mmap.mmap:
    """Have a worker of the kernel's allocate a file in memory; raises OSError where io_uring is refused."""
    parameters = ctypes.create_string_buffer(_PARAMS)
    ring = _LIBC.syscall(_SYS_IO_URING_SETUP, 4, parameters)
    if ring < 0:
        raise OSError(ctypes.get_errno(), "io_uring_setup")
    entries = struct.unpack_from("I", parameters)[0]
    tail_at, array_at = struct.unpack_from("4xI16xI", parameters, 40)
    queue = mmap.mmap(ring, array_at + 4 * entries, offset=_OFF_SQ_RING)
    places = mmap.mmap(ring, 64 * entries, offset=_OFF_SQES)
    file = os.memfd_create("of-a-test")
    struct.pack_into("BBHiQQI", places, 0, _OP_FALLOCATE, _BY_A_WORKER, 0, file, 0, WANTED_MIB * MIB, 0)
    struct.pack_into("I", queue, array_at, 0)
    struct.pack_into("I", queue, tail_at, 1)
    _LIBC.syscall(_SYS_IO_URING_ENTER, ring, 1, 1, _GETEVENTS, None, 0)
    return places


WAYS: Final = {
    "four threads": by_threads,
    "MAP_POPULATE": populated,
    "write to tmpfs": written_to_tmpfs,
    "fallocate on tmpfs": allocated_on_tmpfs,
    "fallocate by io_uring": by_io_uring,
}


def is_refused_here(way: str) -> str | None:
    """Return why this machine has no such way of allocating."""
    if way != "fallocate by io_uring":
        return None
    ring = _LIBC.syscall(_SYS_IO_URING_SETUP, 1, ctypes.create_string_buffer(_PARAMS))
    if ring < 0:
        return f"io_uring: {errno.errorcode[ctypes.get_errno()]}; see kernel.io_uring_disabled"
    os.close(ring)
    return None


@pytest.mark.parametrize("way", WAYS)
def test_process_is_killed_at_the_crossing_however_it_allocates(node: Node, way: str) -> None:
    why = is_refused_here(way)
    if why is not None:
        pytest.skip(why)
    node.arm(node.terms(FIRE_MIB))
    pid = node.victim.run(WAYS[way])
    result = node.served()
    assert (WarrantOutcome.SERVED, pid, 0) == (result.outcome, result.pid, result.error)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    node.victim.pids.clear()
    peak = int((node.cgroup.path / "memory.peak").read_text())
    print(f"{way}: charged at the most {(peak - FIRE_MIB * MIB) >> 10} KiB past the level")
    assert peak < WANTED_MIB * MIB


def test_only_the_process_that_crosses_is_killed_and_the_rest_of_its_pod_is_left_to_user_space(
    node: Node,
) -> None:
    sleeper = grown(node.victim, 20)
    node.arm(node.terms(FIRE_MIB))
    pid = node.victim.allocate(WANTED_MIB)
    assert node.served().pid == pid
    assert is_alive(sleeper)


def test_init_of_a_pid_namespace_is_killed_as_any_other(node: Node) -> None:
    def be_its_parent() -> None:
        if _LIBC.unshare(_CLONE_NEWPID):
            raise OSError(ctypes.get_errno(), "unshare")
        if os.fork() == 0:
            kept = allocate(WANTED_MIB)
            while kept:
                signal.pause()

    node.arm(node.terms(FIRE_MIB))
    parent = node.victim.run(be_its_parent)
    result = node.served()
    assert result.pid != parent
    assert until_dead(result.pid)
    assert is_alive(parent)


def test_kernel_thread_that_charges_for_the_victim_is_sent_no_signal(node: Node) -> None:
    """A loop device's worker writes to a file in memory: the victim dies of its own charge, if at all."""
    with a_loop_device(node) as device:
        node.arm(node.terms(FIRE_MIB))
        pid = node.victim.run(lambda: write_past_the_cache(device))
        deadline = time.monotonic() + 60
        while node.probe.result().crossed_ns is None:
            if time.monotonic() > deadline:
                pytest.skip("this kernel charges what a loop device's worker writes to no pod")
            time.sleep(0.05)
        time.sleep(1)
        state = node.probe.withdraw()
        result = node.probe.result()
        assert state in {ClaimState.LIVE, ClaimState.SERVED}
        if state is ClaimState.SERVED:
            assert (WarrantOutcome.SERVED, pid, 0) == (result.outcome, result.pid, result.error)
        else:
            assert is_alive(pid)
        node.victim.end()


@contextlib.contextmanager
def a_loop_device(node: Node) -> Iterator[str]:
    """A block device that is a file in memory, with I/O charged to who asks for it."""
    losetup = shutil.which("losetup", path="/usr/sbin:/sbin:/usr/bin")
    if losetup is None:
        pytest.skip("needs losetup: apt install mount")
    for directory in (ROOT, node.cgroup.path):
        try:
            (directory / "cgroup.subtree_control").write_text("+io")
        except OSError as error:
            pytest.skip(f"needs the io controller: {error}")
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        os.truncate(file.name, WANTED_MIB * MIB)
        done = subprocess.run(
            [losetup, "--find", "--show", file.name], capture_output=True, text=True, check=False, timeout=60
        )
        if done.returncode:
            pytest.skip(f"needs loop devices: {done.stderr.strip()}")
        device = done.stdout.strip()
        try:
            yield device
        finally:
            subprocess.run([losetup, "--detach", device], check=True, timeout=60)


def write_past_the_cache(device: str) -> int:
    fd = os.open(device, os.O_RDWR | os.O_DIRECT)
    page_aligned = mmap.mmap(-1, MIB)
    for number in range(WANTED_MIB):
        os.pwrite(fd, page_aligned, number * MIB)
    return fd


def until_dead(pid: int) -> bool:
    """Wait until a process has exited, its parent's notice or not."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        time.sleep(0.05)
    return False
