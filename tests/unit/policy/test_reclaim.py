import pytest

from reactor.model.signals import Filesystem, Layout, Reclaim, Signal
from reactor.policy.disks import node_reclaim

BOTH = (Reclaim.CONTAINERS, Reclaim.IMAGES)


@pytest.mark.parametrize(
    ("layout", "nodefs", "imagefs", "containerfs"),
    [
        (Layout.SINGLE, BOTH, BOTH, BOTH),
        (Layout.DEDICATED, (Reclaim.CONTAINERS,), BOTH, BOTH),
        (Layout.SPLIT, (Reclaim.CONTAINERS,), (Reclaim.IMAGES,), (Reclaim.CONTAINERS,)),
    ],
)
def test_the_node_reclaims_what_lies_on_the_starved_filesystem(
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


@pytest.mark.parametrize(
    ("layout", "signal", "commands_for", "runs"),
    [
        (Layout.SINGLE, Signal.IMAGEFS_AVAILABLE, Filesystem.NODEFS, True),
        (Layout.DEDICATED, Signal.NODEFS_AVAILABLE, Filesystem.NODEFS, True),
        (Layout.DEDICATED, Signal.NODEFS_INODES_FREE, Filesystem.IMAGEFS, False),
        (Layout.DEDICATED, Signal.CONTAINERFS_AVAILABLE, Filesystem.IMAGEFS, True),
        (Layout.SPLIT, Signal.CONTAINERFS_AVAILABLE, Filesystem.NODEFS, True),
        (Layout.SPLIT, Signal.IMAGEFS_AVAILABLE, Filesystem.NODEFS, False),
        (Layout.SINGLE, Signal.MEMORY_AVAILABLE, Filesystem.NODEFS, False),
    ],
)
def test_commands_of_the_starved_filesystem_come_first_and_those_of_another_not_at_all(
    layout: Layout, signal: Signal, commands_for: Filesystem, *, runs: bool
) -> None:
    found = node_reclaim(signal, layout, {commands_for})
    assert ((Reclaim.COMMANDS,) if runs else ()) + node_reclaim(signal, layout) == found
