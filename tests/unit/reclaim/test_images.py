from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.errors import RuntimeUnavailableError
from reactor.model.pods import Image
from reactor.model.settings import ImageGcSettings
from reactor.model.thresholds import Observation
from reactor.reclaim.images import ImageHistory, ImageReclaim, RemovedFor, RemovedImages

WEB = Image(id="sha256:web", size_bytes=7)
USED = replace(WEB, in_use=True)
OLD = Image(id="sha256:old", size_bytes=3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "images.json"


def loaded(path: Path) -> ImageHistory:
    found = ImageHistory(path)
    found.restore()
    return found


def test_an_image_is_detected_when_it_is_first_seen_and_used_while_a_container_is_of_it(path: Path) -> None:
    history = ImageHistory(path)
    history.take([USED, OLD], 100.0)
    web, old = history.take([WEB, OLD], 200.0)
    assert (100.0, 100.0, False) == (web.first_detected_seconds, web.last_used_seconds, web.in_use)
    assert (100.0, None, False) == (old.first_detected_seconds, old.last_used_seconds, old.in_use)
    (web,) = history.take([USED], 300.0)
    assert (300.0, True) == (web.last_used_seconds, web.in_use)
    (old,) = history.take([OLD], 400.0)
    assert old.first_detected_seconds == 400.0  # removed and fetched again since


def test_what_was_seen_outlives_a_restart(path: Path) -> None:
    history = ImageHistory(path)
    history.take([USED], 100.0)
    history.keep()
    (web,) = loaded(path).take([WEB], 500.0)
    assert (100.0, 100.0) == (web.first_detected_seconds, web.last_used_seconds)


def test_a_clock_that_was_set_back_makes_no_image_of_the_future(path: Path) -> None:
    history = ImageHistory(path)
    history.take([USED], 1000.0)
    (web,) = history.take([WEB], 10.0)
    assert (10.0, 10.0) == (web.first_detected_seconds, web.last_used_seconds)


@given(
    raw=st.binary(max_size=80)
    | st.sampled_from([b"{}", b"[]", b'{"version": 1, "images": {"a": {}}}', b'{"version": 9, "images": {}}'])
)
def test_a_broken_file_is_a_problem_and_not_a_crash(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    path = tmp_path_factory.mktemp("images") / "images.json"
    path.touch(0o600)
    path.write_bytes(raw)
    history = loaded(path)
    assert str(path) in (history.problem or "")
    assert len(history.take([WEB], 1.0)) == 1


def test_without_a_file_nothing_is_wrong(path: Path) -> None:
    assert loaded(path).problem is None


def test_a_directory_that_can_not_be_written_is_a_problem(path: Path) -> None:
    path.parent.parent.joinpath("run").write_text("a file where the directory should be")
    history = ImageHistory(path)
    history.keep()
    assert history.problem is not None


class _Store:
    """Holds images of 10 bytes; those named in `stuck` can't be removed."""

    def __init__(self, *names: str, stuck: tuple[str, ...] = ()) -> None:
        self.names = list(names)
        self._stuck = stuck

    async def images(self) -> tuple[Image, ...]:
        return tuple(Image(id=name, size_bytes=10) for name in self.names)

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
    await reclaim.refresh()
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
    await reclaim.refresh()
    clock.now += 3600
    store.names.append("c")
    await reclaim.refresh()
    clock.now += 5000
    await reclaim.collect(Observation(available=5, capacity=100))
    assert {RemovedFor.AGE: 2} == counted
    later = ImageReclaim(store, history, ImageGcSettings(), counted)
    clock.now += 3600
    await later.collect(Observation(available=5, capacity=100))
    assert {RemovedFor.AGE: 2, RemovedFor.SPACE: 1} == counted
