import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.psi import UNPRIVILEGED_WINDOW_US, open_trigger
from reactor.model.wakes import SourceHealth
from reactor.sources.catalogue import PSI, SourceBoard
from reactor.sources.chain import keep_trying
from reactor.sources.memory import MACHINE_PRESSURE, PsiHint
from reactor.sources.wakes import Wakes
from tests.support.this_machine import V1_ROOT, needs_memcg_v1, open_descriptors, remove_cgroup
from tests.support.waiting import until

# Touches pages of a file that does not fit into its cgroup: it stalls for what it had a moment ago.
STALLER = """
import mmap, os, random, sys
open(sys.argv[1], "w").write(str(os.getpid()))
with open(sys.argv[2], "rb") as file:
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
pages.madvise(mmap.MADV_RANDOM)
while True:
    pages[random.randrange(len(pages))]
"""


def granted() -> str:
    """Return what keeps this kernel from granting triggers, nothing where it grants them."""
    try:
        os.close(open_trigger(MACHINE_PRESSURE, "some", 200_000, UNPRIVILEGED_WINDOW_US))
    except OSError as error:
        return f"needs pressure triggers, but {error} (boot with psi=1)"
    return ""


refusal = granted()
pytestmark = [needs_memcg_v1, pytest.mark.skipif(bool(refusal), reason=refusal)]


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    directory = V1_ROOT / f"reactor-sources-psi-{os.getpid()}"
    directory.mkdir()
    try:
        (directory / "memory.limit_in_bytes").write_text(str(16 << 20))
        yield directory
    finally:
        remove_cgroup(directory)


async def armed(nursery: trio.Nursery, hint: PsiHint, board: SourceBoard) -> None:
    nursery.start_soon(keep_trying, PSI, board, hint.watch)
    await until(lambda: board.state(PSI).health is SourceHealth.ARMED)


async def test_the_trigger_is_armed_is_quiet_at_rest_and_leaves_no_descriptor() -> None:
    wakes = Wakes()
    board = wakes.board
    before = open_descriptors()
    async with trio.open_nursery() as nursery:
        await armed(nursery, PsiHint(CgroupTree.discover(), wakes), board)
        await trio.sleep(0.3)
        assert board.state(PSI).wakes <= 1  # an always-ready descriptor would give thousands
        nursery.cancel_scope.cancel()
    await until(lambda: before == open_descriptors())  # closed behind: the kernel takes its time


def triggers() -> int:
    links = (Path(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
    return sum(link.is_symlink() and link.readlink() == MACHINE_PRESSURE for link in links)


async def test_end_of_a_watch_does_not_wait_for_the_kernel_to_let_its_trigger_go() -> None:
    hint = PsiHint(CgroupTree.discover(), Wakes())
    with trio.CancelScope() as scope:
        await hint.watch(lambda _: scope.cancel())
    # Nothing else has run since: a trigger that were closed by now would have been waited for.
    assert triggers() == 1
    await until(lambda: triggers() == 0)


async def test_stalled_tasks_wake_the_loop(small_cgroup: Path, tmp_path: Path) -> None:
    wakes = Wakes()
    board = wakes.board
    big = tmp_path / "big"
    big.write_bytes(bytes(64 << 20))
    os.sync()
    async with trio.open_nursery() as nursery:
        hint = PsiHint(CgroupTree.discover(), wakes)
        hint.stall_us = 1_000
        await armed(nursery, hint, board)
        command = [sys.executable, "-c", STALLER, str(small_cgroup / "cgroup.procs"), str(big)]
        stallers = [subprocess.Popen(command) for _ in range(2)]  # noqa: ASYNC220
        try:
            with trio.fail_after(90):
                assert PSI == (await wakes.wait())[0].source
        finally:
            for staller in stallers:
                staller.kill()
                staller.wait()
        nursery.cancel_scope.cancel()
