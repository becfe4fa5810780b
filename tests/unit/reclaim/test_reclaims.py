from collections.abc import Collection

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
