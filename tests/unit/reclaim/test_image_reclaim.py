"""Images that are removed, and what they are counted for."""

from __future__ import annotations

from pathlib import Path

import pytest

from reactor.errors import RuntimeUnavailableError
from reactor.model.settings import ImageGcSettings
from reactor.model.thresholds import Observation
from reactor.reclaim.image_reclaim import ImageReclaim
from reactor.reclaim.images import ImageHistory, ListedImage
from reactor.reclaim.removed_images import RemovedFor, RemovedImages


class _Store:
    """Holds images of 10 bytes; those named in `stuck` can't be removed."""

    def __init__(self, *names: str, stuck: tuple[str, ...] = ()) -> None:
        self.names = list(names)
        self._stuck = stuck

    async def images(self) -> tuple[ListedImage, ...]:
        return tuple(ListedImage(id=name, size_bytes=10) for name in self.names)

    async def remove(self, image_id: str) -> None:
        if image_id in self._stuck:
            raise RuntimeUnavailableError("no.sock", "RemoveImage", "it is gone")
        self.names.remove(image_id)


class _Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr("time.time", clock)
    return clock


async def test_images_that_eviction_removes_are_counted_for_space_but_not_those_that_stay(
    tmp_path: Path, clock: _Clock
) -> None:
    counted, store = RemovedImages(), _Store("a", "b", "c", stuck=("b",))
    reclaim = ImageReclaim(store, ImageHistory(tmp_path / "images.json"), ImageGcSettings(), counted)
    await reclaim.look()
    clock.now += 3600
    await reclaim.run(())
    assert {RemovedFor.SPACE: 2} == counted


async def test_images_that_collection_removes_are_counted_for_their_age_or_for_space(
    tmp_path: Path, clock: _Clock
) -> None:
    counted, store = RemovedImages(), _Store("a", "b")
    history = ImageHistory(tmp_path / "images.json")
    gc = ImageGcSettings(maximum_age_seconds=7200)
    reclaim = ImageReclaim(store, history, gc, counted)
    await reclaim.look()
    clock.now += 3600
    store.names.append("c")
    await reclaim.look()
    clock.now += 5000
    await reclaim.collect(Observation(available=5, capacity=100))
    assert {RemovedFor.AGE: 2} == counted
    later = ImageReclaim(store, history, ImageGcSettings(), counted)
    clock.now += 3600
    await later.collect(Observation(available=5, capacity=100))
    assert {RemovedFor.AGE: 2, RemovedFor.SPACE: 1} == counted
