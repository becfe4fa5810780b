import pytest

from reactor.model.signals import Layout, Reclaim, Signal
from reactor.policy.reclaim import node_reclaim

BOTH = (Reclaim.CONTAINERS, Reclaim.IMAGES)


@pytest.mark.parametrize(
    ("layout", "nodefs", "imagefs", "containerfs"),
    [
        (Layout.SINGLE, BOTH, BOTH, BOTH),
        (Layout.DEDICATED, (), BOTH, BOTH),
        (Layout.SPLIT, (Reclaim.CONTAINERS,), (Reclaim.IMAGES,), (Reclaim.CONTAINERS,)),
    ],
)
def test_the_node_gives_back_what_lies_on_the_starved_filesystem(
    layout: Layout,
    nodefs: tuple[Reclaim, ...],
    imagefs: tuple[Reclaim, ...],
    containerfs: tuple[Reclaim, ...],
) -> None:
    for signals, wanted in (
        ((Signal.NODEFS_AVAILABLE, Signal.NODEFS_INODES_FREE), nodefs),
        ((Signal.IMAGEFS_AVAILABLE, Signal.IMAGEFS_INODES_FREE), imagefs),
        ((Signal.CONTAINERFS_AVAILABLE, Signal.CONTAINERFS_INODES_FREE), containerfs),
    ):
        assert [wanted, wanted] == [node_reclaim(signal, layout) for signal in signals]


@pytest.mark.parametrize("layout", Layout)
def test_the_node_has_no_memory_and_no_processes_to_give_back(layout: Layout) -> None:
    for signal in (Signal.MEMORY_AVAILABLE, Signal.ALLOCATABLE_MEMORY_AVAILABLE, Signal.PID_AVAILABLE):
        assert () == node_reclaim(signal, layout)
