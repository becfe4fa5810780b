from collections.abc import Collection

import trio
import trio.testing

from reactor.model.signals import Filesystem, Reclaim
from reactor.reclaim.reclaims import ReclaimReport, Reclaims


class Images:
    async def run(self, filesystems: Collection[Filesystem]) -> ReclaimReport | None:
        return ReclaimReport(did=tuple(filesystems))


async def test_each_kind_is_given_back_by_its_own_and_a_missing_one_not_at_all() -> None:
    reclaims = Reclaims({Reclaim.IMAGES: Images()})
    given = await reclaims.run(Reclaim.IMAGES, [Filesystem.IMAGEFS])
    assert ReclaimReport(did=("imagefs",)) == given
    assert await reclaims.run(Reclaim.CONTAINERS, [Filesystem.IMAGEFS]) is None


async def test_a_plain_node_has_nothing_to_give_back() -> None:
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
