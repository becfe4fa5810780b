"""How fast memory can be taken on this node, and how soon it is back: by size, by number of allocators."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from reactor.errors import RefusedError
from reactor.kernel.cgroup import CgroupTree
from reactor.testbed.allocator import MIB, Record
from reactor.testbed.crossing import CAPACITY_BYTES
from reactor.testbed.daemon_process import wait_until
from reactor.testbed.virtual_node import VirtualNode
from reactor.tune.measured import Growth

SIZES_BYTES: Final = (16 * MIB, 64 * MIB, 256 * MIB, 768 * MIB)
_TOGETHER_BYTES: Final = 768 * MIB  # of all allocators of a run
_MOST_ALLOCATORS: Final = 16
_POD: Final = "growth"
_SLACK_BYTES: Final = 4 * MIB
_TIMEOUT_SECONDS: Final = 60.0
_USAGE_READY, _BACK = 0, 3  # words of the observer's record
_STARTED, _DONE = 0, 3  # words of an allocator's


def growth_plans(cpus: int, huge_pages: str) -> Iterator[Callable[[VirtualNode, Path, Path], Growth]]:
    """Yield the runs of one round: one allocator of each size, then several, then huge pages."""
    for size_bytes in SIZES_BYTES:
        yield _plan(1, size_bytes, huge_pages=False)
    for allocators in sorted({2, min(cpus, _MOST_ALLOCATORS)} - {1}):
        yield _plan(allocators, _TOGETHER_BYTES // allocators, huge_pages=False)
    if huge_pages != "never":
        yield _plan(1, SIZES_BYTES[-1], huge_pages=True)


def _plan(
    allocators: int, size_bytes: int, *, huge_pages: bool
) -> Callable[[VirtualNode, Path, Path], Growth]:
    def run(node: VirtualNode, tool: Path, directory: Path) -> Growth:
        return grow(
            node, tool, directory, allocators=allocators, size_bytes=size_bytes, huge_pages=huge_pages
        )

    return run


@contextmanager
def growth_node(tree: CgroupTree, name: str) -> Iterator[VirtualNode]:
    """Make a virtual node that no daemon guards and that no run fills."""
    with VirtualNode(tree, CAPACITY_BYTES, name) as node:
        yield node


def grow(
    node: VirtualNode,
    tool: Path,
    directory: Path,
    *,
    allocators: int,
    size_bytes: int,
    huge_pages: bool,
) -> Growth:
    """Have allocators take `size_bytes` each, kill them, and return how fast all of that went.

    Raises RefusedError where they don't come to an end.
    """
    back_bytes = node.usage_bytes() + _SLACK_BYTES
    with ExitStack() as stack:
        fillers = stack.enter_context(
            _fillers(node, tool, directory, [size_bytes] * allocators, huge_pages=huge_pages)
        )
        observed = stack.enter_context(Record(directory, "observed"))
        first = fillers.children[0].pid
        observer = stack.enter_context(_observer(tool, observed, node, back_bytes, first))
        fillers.go()
        if not wait_until(fillers.are_done, _TIMEOUT_SECONDS):
            raise RefusedError(f"{allocators} allocators did not get {size_bytes // MIB} MiB each")
        words = [record.words() for record in fillers.records]
        killed_ns = time.monotonic_ns()
        for child in fillers.children:
            child.kill()
        observer.wait(_TIMEOUT_SECONDS)
        back_ns = observed.words()[_BACK]
    if not back_ns:
        raise RefusedError(f"the memory of {allocators} allocators was not freed")
    took_ns = max(word[_DONE] for word in words) - min(word[_STARTED] for word in words)
    return Growth(
        allocators=allocators,
        size_bytes=size_bytes,
        huge_pages=huge_pages,
        rate_bytes=allocators * size_bytes / took_ns * 1e9,
        freed_seconds=(back_ns - killed_ns) / 1e9,
    )


class _Fillers:
    """Allocators that wait for the word, each with its record."""

    def __init__(self, children: Sequence[subprocess.Popen[bytes]], records: Sequence[Record]) -> None:
        self.children = children
        self.records = records

    def go(self) -> None:
        for record in self.records:
            record.go()

    def are_done(self) -> bool:
        return all(record.words()[_DONE] for record in self.records)


@contextmanager
def _fillers(
    node: VirtualNode, tool: Path, directory: Path, sizes_bytes: Sequence[int], *, huge_pages: bool
) -> Iterator[_Fillers]:
    """Start allocators in a new pod; at the end the pod is gone, and what was in it."""
    cgroup = node.add_pod(_POD)
    try:
        with ExitStack() as stack:
            records = [
                stack.enter_context(Record(directory, f"filled-{number}"))
                for number in range(len(sizes_bytes))
            ]
            pages = "huge" if huge_pages else "small"
            children = [
                node.spawn(cgroup, [str(tool), "fill", str(record.path), str(size_bytes), pages])
                for record, size_bytes in zip(records, sizes_bytes, strict=True)
            ]
            yield _Fillers(children, records)
    finally:
        node.remove_pod(cgroup)


@contextmanager
def _observer(
    tool: Path, record: Record, node: VirtualNode, back_bytes: int, pid: int
) -> Iterator[subprocess.Popen[bytes]]:
    """Start what watches the process's end and the node's usage, and wait until it does."""
    command = [tool, "observe", record.path, node.usage_path(), str(back_bytes)]
    observer = subprocess.Popen(
        [*map(str, command), str(int(_TIMEOUT_SECONDS * 1000)), str(pid)], stdin=subprocess.DEVNULL
    )
    try:
        if not wait_until(lambda: record.words()[_USAGE_READY] > 0, _TIMEOUT_SECONDS):
            raise RefusedError(f"the observer of the growth has not started within {_TIMEOUT_SECONDS:g} s")
        yield observer
    finally:
        observer.kill()
        observer.wait()
