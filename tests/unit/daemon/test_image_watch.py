from __future__ import annotations

from pathlib import Path

import trio

from reactor.act.images import ImageHistory
from reactor.act.runtime_reclaim import ImageReclaim
from reactor.cri.client import RuntimeClient
from reactor.daemon.image_watch import ImageWatch
from reactor.model.settings import ImageGcSettings


def images(tmp_path: Path) -> ImageReclaim:
    client = RuntimeClient(str(tmp_path / "none.sock"))
    return ImageReclaim(lambda: client, ImageHistory(tmp_path / "images.json"), ImageGcSettings())


async def test_a_runtime_that_is_not_there_is_a_problem_and_asked_again(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    for collects in (False, True):
        watch = ImageWatch(dict, collects=collects)
        watch.images = images(tmp_path)
        nursery.start_soon(watch.run)
        await trio.sleep(200)
        assert "none.sock" in (watch.problem or "")


async def test_before_there_is_a_configuration_nothing_is_looked_at(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    watch = ImageWatch(dict, collects=False)
    nursery.start_soon(watch.run)
    await trio.sleep(200)
    assert watch.problem is None
