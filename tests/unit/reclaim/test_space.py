from collections.abc import Sequence

import pytest
import trio
import trio.testing

from reactor.reclaim.space import Patience, until_space_is_back


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
    await until_space_is_back(disk.look, 0, Patience(every_seconds=1.0, most_looks=20, **kwargs))
    return disk.looks


@pytest.mark.parametrize(
    ("amounts", "still_looks", "expected"),
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
    autojump_clock: trio.testing.MockClock, amounts: Sequence[int | None], still_looks: int, expected: int
) -> None:
    assert expected == await looks(Disk(*amounts), still_looks=still_looks)


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
    patience = Patience(every_seconds=1.0, most_looks=20)
    await until_space_is_back(disk.look, 0, patience, lambda: disk.looks == 3)
    assert 3 == disk.looks
