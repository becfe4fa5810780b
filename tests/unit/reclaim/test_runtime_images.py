from __future__ import annotations

import pytest

from reactor.cri.messages import Container, Image, ImageSpec
from reactor.reclaim.runtime_images import _image_of, is_named, listed, names_in_use

WEB = Image(id="sha256:web", repo_tags=("shop/web:1",), repo_digests=("shop/web@sha256:d",), size_bytes=7)
OLD = Image(id="sha256:old", size_bytes=3)


@pytest.mark.parametrize("name", ["sha256:web", "shop/web:1", "shop/web@sha256:d"])
def test_an_image_goes_by_any_of_its_names(name: str) -> None:
    assert is_named(WEB, {name})
    assert not is_named(OLD, {name})


def test_the_images_in_use_are_those_of_all_containers_by_every_name() -> None:
    old = Container(id="1", image=ImageSpec(image="shop/web:1"), image_ref="sha256:web")
    new = Container(id="2", image_ref="shop/db@sha256:e", image_id="sha256:db")
    assert {"shop/web:1", "sha256:web", "shop/db@sha256:e", "sha256:db"} == names_in_use([old, new])


def test_an_image_is_in_use_while_a_container_is_of_it() -> None:
    assert listed(WEB, {"shop/web:1"}).in_use
    assert not listed(OLD, {"shop/web:1"}).in_use


def test_a_pause_image_is_pinned_though_the_runtime_does_not_say_so() -> None:
    assert listed(Image(id="p", repo_tags=("registry.example/pause:3.9",)), ()).pinned
    assert not listed(WEB, ()).pinned


def test_a_sandboxs_image_is_found_in_what_the_runtime_says_besides_if_it_is_there() -> None:
    assert _image_of('{"image": "pause:3.9", "pid": 1}') == "pause:3.9"
    for info in ("", "{", "[]", '{"image": 5}', "{}"):
        assert _image_of(info) == ""
