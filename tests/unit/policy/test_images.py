from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.pods import Image
from reactor.model.settings import ImageGcSettings
from reactor.model.thresholds import Observation
from reactor.policy.images import images_to_collect, unused_images

GC = ImageGcSettings(high_threshold_percent=85, low_threshold_percent=80, minimum_age_seconds=120.0)
IMAGES = st.lists(
    st.builds(
        Image,
        id=st.uuids().map(str),
        size_bytes=st.integers(0, 50),
        first_detected_seconds=st.none() | st.floats(-1000, 0),
        last_used_seconds=st.none() | st.floats(-1000, 0),
        in_use=st.booleans(),
        pinned=st.booleans(),
    ),
    unique_by=lambda image: image.id,
)


def _image(name: str, size: int = 10, *, first: float | None = -9000.0, used: float | None = None) -> Image:
    return Image(id=name, size_bytes=size, first_detected_seconds=first, last_used_seconds=used)


def _collect(
    images: list[Image],
    available: int | None,
    *,
    gc: ImageGcSettings = GC,
    now: float = 0.0,
    since: float = 0.0,
    capacity: int = 100,
) -> list[str]:
    seen = None if available is None else Observation(available=available, capacity=capacity)
    return [image.id for image in images_to_collect(images, gc, seen, now, watched_since_seconds=since)]


def test_images_go_in_order_of_last_use_then_detection_and_the_never_used_first() -> None:
    images = [
        _image("recent", used=-10.0),
        _image("older", first=-8000.0, used=-20.0),
        _image("oldest", used=-20.0),
        _image("never", first=-200.0),
        _image("unknown", first=None),
    ]
    assert ["unknown", "never", "oldest", "older", "recent"] == [
        image.id for image in unused_images(images, GC, 0.0)
    ]


def test_images_in_use_pinned_or_young_stay() -> None:
    images = [
        replace(_image("used"), in_use=True),
        replace(_image("pinned"), pinned=True),
        _image("young", first=-119.9),
        _image("used just now", used=0.0),
        _image("ripe", first=-120.0),
    ]
    assert ["ripe"] == [image.id for image in unused_images(images, GC, 0.0)]


@pytest.mark.parametrize(
    ("available", "collected"),
    [(16, []), (15, ["a"]), (10, ["a"]), (9, ["a", "b"]), (0, ["a", "b"]), (None, [])],
)
def test_images_go_at_the_high_watermark_until_the_low_one(
    available: int | None, collected: list[str]
) -> None:
    assert collected == _collect([_image("a"), _image("b")], available)


@pytest.mark.parametrize(("available", "capacity"), [(0, 0), (-1, 100), (101, 100)])
def test_no_image_goes_for_an_absurd_statistic(available: int, capacity: int) -> None:
    assert [] == _collect([_image("a")], available, capacity=capacity)


def test_images_unused_for_longer_than_the_maximum_age_go() -> None:
    gc = replace(GC, maximum_age_seconds=3600.0)
    images = [_image("long ago", used=-5000.0), _image("never"), _image("since", used=1000.0)]
    assert [] == _collect(images, None, gc=gc, now=3600.0)
    assert ["never", "long ago"] == _collect(images, None, gc=gc, now=3600.1)
    assert ["never", "long ago", "since"] == _collect(images, None, gc=gc, now=4600.1)


def test_an_image_of_the_maximum_age_to_the_nanosecond_stays() -> None:
    gc = replace(GC, maximum_age_seconds=0.3)
    images = [_image("used", used=0.1)]
    assert 0.4 - 0.1 > 0.3
    assert [] == _collect(images, None, gc=gc, now=0.4)
    assert ["used"] == _collect(images, None, gc=gc, now=0.400000001)


def test_an_image_that_came_late_and_was_never_used_is_not_old() -> None:
    gc = replace(GC, maximum_age_seconds=3600.0)
    assert [] == _collect([_image("new", first=3000.0)], None, gc=gc, now=4000.0)


def test_what_went_for_its_age_counts_towards_the_low_watermark() -> None:
    gc = replace(GC, maximum_age_seconds=3600.0)
    images = [_image("old", 15, used=0.0), _image("recent", used=3000.0), _image("newest", used=3500.0)]
    assert ["old"] == _collect(images, 5, gc=gc, now=3700.0)
    assert ["old", "recent"] == _collect(images, 4, gc=gc, now=3700.0)


@given(IMAGES, st.integers(0, 100), st.sampled_from([0.0, 300.0]))
def test_nothing_that_is_held_goes_and_nothing_twice(
    images: list[Image], available: int, maximum_age: float
) -> None:
    gc = replace(GC, maximum_age_seconds=maximum_age)
    seen = Observation(available=available, capacity=100)
    gone = images_to_collect(images, gc, seen, 1000.0, watched_since_seconds=0.0)
    assert not any(image.in_use or image.pinned for image in gone)
    assert len({image.id for image in gone}) == len(gone)


@given(IMAGES, st.integers(0, 14))
def test_without_the_last_image_the_low_watermark_would_not_be_reached(
    images: list[Image], available: int
) -> None:
    seen = Observation(available=available, capacity=100)
    gone = images_to_collect(images, GC, seen, 1.0, watched_since_seconds=0.0)
    assert available + sum(image.size_bytes for image in gone[:-1]) < 20


@pytest.mark.parametrize(
    ("capacity", "available", "high", "low", "collected"),
    [
        (1000, 150, 85, 85, ["a"]),  # nothing to free, and one image goes once collection is triggered
        (1000, 151, 85, 80, ["a", "b", "c", "d", "e"]),  # 84.9 % used: 100 - 15 are 85
        (1000, 160, 85, 80, []),
        (999, 140, 85, 80, ["a", "b", "c", "d", "e", "f"]),  # 199 wanted, 140 there
    ],
)
def test_collection_counts_in_whole_numbers_as_upstream(
    capacity: int, available: int, high: int, low: int, collected: list[str]
) -> None:
    gc = ImageGcSettings(high_threshold_percent=high, low_threshold_percent=low)
    assert collected == _collect([_image(name) for name in "abcdefg"], available, gc=gc, capacity=capacity)
