from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.act.images import ImageHistory, is_named, names_in_use
from reactor.cri.messages import Container, Image, ImageSpec

WEB = Image(id="sha256:web", repo_tags=("shop/web:1",), repo_digests=("shop/web@sha256:d",), size_bytes=7)
OLD = Image(id="sha256:old", size_bytes=3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "images.json"


def loaded(path: Path) -> ImageHistory:
    found = ImageHistory(path)
    found.load()
    return found


def test_an_image_is_detected_when_it_is_first_seen_and_used_while_a_container_is_of_it(path: Path) -> None:
    history = ImageHistory(path)
    history.take([WEB, OLD], {"shop/web:1"}, 100.0)
    web, old = history.take([WEB, OLD], (), 200.0)
    assert (100.0, 100.0, False) == (web.first_detected_seconds, web.last_used_seconds, web.in_use)
    assert (100.0, None, False) == (old.first_detected_seconds, old.last_used_seconds, old.in_use)
    (web,) = history.take([WEB], {"sha256:web"}, 300.0)
    assert (300.0, True) == (web.last_used_seconds, web.in_use)
    (old,) = history.take([OLD], (), 400.0)
    assert old.first_detected_seconds == 400.0  # removed and fetched again since


def test_what_was_seen_outlives_a_restart(path: Path) -> None:
    history = ImageHistory(path)
    history.take([WEB], {"sha256:web"}, 100.0)
    history.save()
    (web,) = loaded(path).take([WEB], (), 500.0)
    assert (100.0, 100.0) == (web.first_detected_seconds, web.last_used_seconds)


def test_a_clock_that_was_set_back_makes_no_image_of_the_future(path: Path) -> None:
    history = ImageHistory(path)
    history.take([WEB], {"sha256:web"}, 1000.0)
    (web,) = history.take([WEB], (), 10.0)
    assert (10.0, 10.0) == (web.first_detected_seconds, web.last_used_seconds)


@given(
    raw=st.binary(max_size=80)
    | st.sampled_from([b"{}", b"[]", b'{"version": 1, "images": {"a": {}}}', b'{"version": 9, "images": {}}'])
)
def test_a_broken_file_is_a_problem_and_not_a_crash(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    path = tmp_path_factory.mktemp("images") / "images.json"
    path.write_bytes(raw)
    history = loaded(path)
    assert str(path) in (history.problem or "")
    assert len(history.take([WEB], (), 1.0)) == 1


def test_without_a_file_nothing_is_wrong(path: Path) -> None:
    assert loaded(path).problem is None


def test_a_directory_that_can_not_be_written_is_a_problem(path: Path) -> None:
    path.parent.parent.joinpath("run").write_text("a file where the directory should be")
    history = ImageHistory(path)
    history.save()
    assert history.problem is not None


@pytest.mark.parametrize("name", ["sha256:web", "shop/web:1", "shop/web@sha256:d"])
def test_an_image_goes_by_any_of_its_names(name: str) -> None:
    assert is_named(WEB, {name})
    assert not is_named(OLD, {name})


def test_the_images_in_use_are_those_of_all_containers_by_every_name() -> None:
    old = Container(id="1", image=ImageSpec(image="shop/web:1"), image_ref="sha256:web")
    new = Container(id="2", image_ref="shop/db@sha256:e", image_id="sha256:db")
    assert {"shop/web:1", "sha256:web", "shop/db@sha256:e", "sha256:db"} == names_in_use([old, new])


def test_a_pause_image_is_pinned_though_the_runtime_does_not_say_so(path: Path) -> None:
    pause = Image(id="p", repo_tags=("registry.example/pause:3.9",))
    (found,) = ImageHistory(path).take([pause], (), 1.0)
    assert found.pinned
