from __future__ import annotations

from pathlib import Path

import trio

from reactor.cluster.image_watch import ImageWatch, Told
from reactor.cri.client import RuntimeClient
from reactor.model.settings import ImageGcSettings
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation
from reactor.reclaim.images import Collected, ImageHistory, ImageReclaim
from reactor.reclaim.runtime import RuntimeImages


def images(tmp_path: Path) -> ImageReclaim:
    client = RuntimeClient(str(tmp_path / "none.sock"))
    return ImageReclaim(
        RuntimeImages(lambda: client), ImageHistory(tmp_path / "images.json"), ImageGcSettings()
    )


async def test_a_runtime_that_is_not_there_is_a_problem_and_asked_again(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    for collects in (False, True):
        watch = ImageWatch(dict, collects=collects)
        watch.use(images(tmp_path))
        nursery.start_soon(watch.run)
        await trio.sleep(200)
        assert "none.sock" in (watch.problem or "")


async def test_a_collection_that_fails_again_and_again_is_told(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    failures: list[str] = []
    watch = ImageWatch(dict, collects=True, told=Told(failed=failures.append), interval_seconds=60)
    watch.use(images(tmp_path))
    nursery.start_soon(watch.run)
    await trio.sleep(59)
    assert failures == []
    await trio.sleep(60)
    assert len(failures) == 1
    assert "none.sock" in failures[0]


class Images:
    """Images of which too few can go."""

    async def collect(self, _: object) -> Collected:
        return Collected(wanted_bytes=100, freed_bytes=30, report=None)


async def test_a_collection_that_frees_too_little_is_told_in_upstreams_words(nursery: trio.Nursery) -> None:
    shortages: list[str] = []
    watch = ImageWatch(dict, collects=True, told=Told(not_enough=shortages.append))
    watch.use(Images())  # type: ignore[arg-type]
    nursery.start_soon(watch.run)
    await trio.testing.wait_all_tasks_blocked()
    [message] = shortages
    assert message.startswith(
        "Failed to garbage collect required amount of images. Attempted to free 100 bytes"
    )
    assert message.endswith("but only found 30 bytes eligible to free.")


async def test_before_there_is_a_configuration_nothing_is_looked_at(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    watch = ImageWatch(dict, collects=False)
    nursery.start_soon(watch.run)
    await trio.sleep(200)
    assert watch.problem is None


async def test_as_soon_as_there_is_one_the_first_look_is_made(nursery: trio.Nursery) -> None:
    shortages: list[str] = []
    watch = ImageWatch(dict, collects=True, told=Told(not_enough=shortages.append))
    nursery.start_soon(watch.run)
    await trio.testing.wait_all_tasks_blocked()
    watch.use(Images())  # type: ignore[arg-type]
    await trio.testing.wait_all_tasks_blocked()
    assert len(shortages) == 1


async def test_an_image_filesystem_without_capacity_is_told_in_upstreams_words(nursery: trio.Nursery) -> None:
    told: list[str] = []
    observed = {Signal.IMAGEFS_AVAILABLE: Observation(available=0, capacity=0)}
    watch = ImageWatch(lambda: observed, collects=True, told=Told(invalid_capacity=told.append))
    watch.use(NoImages())  # type: ignore[arg-type]
    nursery.start_soon(watch.run)
    await trio.testing.wait_all_tasks_blocked()
    assert told == ["invalid capacity 0 on image filesystem"]
    assert watch.problem == "invalid capacity 0 on image filesystem"


class NoImages:
    async def collect(self, _: object) -> Collected:
        return Collected(wanted_bytes=0, freed_bytes=0, report=None)
