from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.kernel.proc_events import MAXIMUM_SAMPLE
from reactor.model.settings import SourceSettings
from reactor.model.wakes import SourceHealth
from reactor.sources.catalogue import EBPF_PIDS, PROCESSES
from reactor.sources.proc_connector import sample_for
from reactor.sources.processes import ProcessSource
from reactor.sources.wakes import SourceBoard, Wakes


@pytest.mark.parametrize(
    ("margin", "one_in"), [(None, 4096), (-5, 1), (0, 1), (15, 1), (16, 2), (30_000, 2048), (10**7, 4096)]
)
def test_the_sample_is_an_eighth_of_the_margin(margin: int | None, one_in: int) -> None:
    assert one_in == sample_for(margin)


def test_a_crowd_of_forks_is_thinned_out_further() -> None:
    assert 64 == sample_for(8, 64)


@given(st.none() | st.integers(-(10**9), 10**9), st.integers(1, 4096))
def test_the_sample_is_always_one_that_the_filter_takes(margin: int | None, crowding: int) -> None:
    one_in = sample_for(margin, crowding)
    assert 1 <= one_in <= MAXIMUM_SAMPLE
    assert 0 == one_in & (one_in - 1)


async def test_a_source_that_is_switched_off_says_so_and_watches_nothing(tmp_path: Path) -> None:
    board = SourceBoard()
    tree = CgroupTree(version=CgroupVersion.V2, memory_root=tmp_path)
    source = ProcessSource(tree, SourceSettings(processes=False), Wakes(), board)
    async with trio.open_nursery() as nursery:
        await nursery.start(source.run)
    source.expect(None)
    assert [SourceHealth.OFF] * 2 == [board.state(name).health for name in (EBPF_PIDS, PROCESSES)]
