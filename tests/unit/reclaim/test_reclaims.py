from collections.abc import Collection, Sequence

import pytest
import trio
import trio.testing

from reactor.model.signals import Filesystem, Reclaim
from reactor.reclaim.reclaims import Patience, ReclaimReport, Reclaims, until_space_is_back


class Images:
    async def run(self, filesystems: Collection[Filesystem]) -> ReclaimReport | None:
        return ReclaimReport(did=tuple(filesystems))


async def test_each_kind_is_reclaimed_by_its_own_and_a_missing_one_not_at_all() -> None:
    reclaims = Reclaims({Reclaim.IMAGES: Images()})
    given = await reclaims.run(Reclaim.IMAGES, [Filesystem.IMAGEFS])
    assert ReclaimReport(did=("imagefs",)) == given
    assert await reclaims.run(Reclaim.CONTAINERS, [Filesystem.IMAGEFS]) is None


async def test_a_plain_node_has_nothing_to_reclaim() -> None:
    assert [None] * len(Reclaim) == [await Reclaims().run(kind, [Filesystem.NODEFS]) for kind in Reclaim]


class Slow:
    """Removes what there is at once, and has its space back when `is_back`."""

    def __init__(self, left: list[str]) -> None:
        self.left = left
        self.is_back = trio.Event()

    async def run(self, filesystems: Collection[Filesystem]) -> ReclaimReport | None:  # noqa: ARG002 - as NodeReclaim has it
        if not self.left:
            return None
        did = tuple(self.left)
        self.left.clear()
        await self.is_back.wait()
        return ReclaimReport(did=did)


async def test_second_reclaim_waits_for_the_space_that_the_first_has_freed_also_by_other_settings(
    nursery: trio.Nursery,
) -> None:
    left = ["container"]
    first, second = Slow(left), Slow(left)
    reclaims = Reclaims({Reclaim.CONTAINERS: first})
    over: list[ReclaimReport | None] = []

    async def reclaim() -> None:
        over.append(await reclaims.run(Reclaim.CONTAINERS, [Filesystem.NODEFS]))

    nursery.start_soon(reclaim)
    await trio.testing.wait_all_tasks_blocked()
    reclaims.use({Reclaim.CONTAINERS: second})
    nursery.start_soon(reclaim)
    await trio.testing.wait_all_tasks_blocked()
    assert over == []
    first.is_back.set()
    await trio.testing.wait_all_tasks_blocked()
    assert over == [ReclaimReport(did=("container",)), None]


async def test_reclaims_of_different_kinds_do_not_wait_for_each_other(nursery: trio.Nursery) -> None:
    reclaims = Reclaims({Reclaim.CONTAINERS: Slow(["container"]), Reclaim.IMAGES: Images()})
    nursery.start_soon(reclaims.run, Reclaim.CONTAINERS, [Filesystem.IMAGEFS])
    await trio.testing.wait_all_tasks_blocked()
    with trio.fail_after(90):
        given = await reclaims.run(Reclaim.IMAGES, [Filesystem.IMAGEFS])
    assert given is not None
    nursery.cancel_scope.cancel()


class Disk:
    """Shows one amount after the other, and the last one for good."""

    def __init__(self, *amounts: int | None) -> None:
        self._amounts = list(amounts)
        self.looks = 0

    async def look(self) -> int | None:
        await trio.lowlevel.checkpoint()
        self.looks += 1
        return self._amounts.pop(0) if len(self._amounts) > 1 else self._amounts[0]


async def looks(disk: Disk, **kwargs: int) -> int:
    await until_space_is_back(disk.look, 0, Patience(every_seconds=1.0, most_times=20, **kwargs))
    return disk.looks


@pytest.mark.parametrize(
    ("amounts", "still_times", "expected"),
    [
        ([0], 1, 1),
        ([0], 2, 2),
        ([5, 5], 1, 2),
        ([5, 9, 9, 12, 12, 12], 2, 6),
        ([None, 5, 5], 1, 1),
        ([9, 3], 1, 2),
    ],
)
async def test_it_looks_until_nothing_more_comes_back(
    autojump_clock: trio.testing.MockClock, amounts: Sequence[int | None], still_times: int, expected: int
) -> None:
    assert expected == await looks(Disk(*amounts), still_times=still_times)


async def test_less_than_what_is_notable_is_nothing(autojump_clock: trio.testing.MockClock) -> None:
    assert 2 == await looks(Disk(100, 109, 200), notable=10)


async def test_it_waits_for_the_first_to_come_back_where_that_is_late(
    autojump_clock: trio.testing.MockClock,
) -> None:
    assert 5 == await looks(Disk(0, 0, 0, 50, 50), waits_for_the_first=True)


async def test_it_gives_up_after_so_many_looks(autojump_clock: trio.testing.MockClock) -> None:
    assert 20 == await looks(Disk(*range(1, 100)))
    assert 20 == await looks(Disk(0), waits_for_the_first=True)


async def test_it_looks_no_more_once_it_is_enough(autojump_clock: trio.testing.MockClock) -> None:
    disk = Disk(*range(1, 100))
    patience = Patience(every_seconds=1.0, most_times=20)
    await until_space_is_back(disk.look, 0, patience, lambda: disk.looks == 3)
    assert 3 == disk.looks
