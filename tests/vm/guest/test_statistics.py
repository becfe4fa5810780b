"""Page cache that has just gone, which memory.stat does not show yet, counts as used by nobody."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from probing import MARKS, MIB, PAGE, ROOT, Cgroup

from reactor.kernel.cgroup import CgroupTree
from reactor.model.settings import Settings
from reactor.model.signals import Signal
from reactor.observe.node import NodeObserver

_PAGES: Final = 60  # fewer than the kernel adds up for a reader of memory.stat
_GATHERED_PAGES: Final = 31  # by a CPU, before it puts them on a list
_FEW_PAGES: Final = 8
_TIMES: Final = 5
_ADDED_UP_SECONDS: Final = 2.5  # the kernel does so every 2 s
_LAST_KERNEL: Final = (6, 15)  # that adds up memory's statistics for a reader of cpu.stat


def kernel() -> tuple[int, ...]:
    return tuple(int(number) for number in os.uname().release.split("-")[0].split(".")[:2])


pytestmark = [
    *MARKS,
    pytest.mark.skipif(kernel() > _LAST_KERNEL, reason="the kernel adds up the CPUs' own statistics alone"),
]


@pytest.fixture
def node() -> Iterator[Cgroup]:
    made = Cgroup(ROOT / f"reactor-statistics-{os.getpid()}", [])
    made.write("memory.max", str(256 * MIB))
    try:
        yield made
    finally:
        made.remove()


def test_a_removed_files_pages_are_no_page_cache_any_more(node: Cgroup, tmp_path: Path) -> None:
    file = Path("/var/tmp") / tmp_path.name
    settings = Settings(node_cgroup=f"/{node.path.name}")
    seen = []
    with closing(NodeObserver(CgroupTree.discover(), settings)) as observer:
        for _ in range(_TIMES):
            node.run(lambda: written(file, tmp_path / "written"))
            while not (tmp_path / "written").exists():
                time.sleep(0.01)
            time.sleep(_ADDED_UP_SECONDS)
            before = observer.memory()[Signal.MEMORY_AVAILABLE].inactive_file_bytes
            file.unlink()
            after = observer.memory()[Signal.MEMORY_AVAILABLE].inactive_file_bytes
            assert before is not None
            assert after is not None
            seen.append((before // PAGE, after // PAGE))
            (tmp_path / "written").unlink()
            node.end()
    print(seen)
    assert all(before >= _PAGES - _GATHERED_PAGES and after <= _FEW_PAGES for before, after in seen)


def written(file: Path, mark: Path) -> None:
    with file.open("wb") as to:
        to.write(bytes(_PAGES * PAGE))
        os.fsync(to.fileno())
    mark.touch()
