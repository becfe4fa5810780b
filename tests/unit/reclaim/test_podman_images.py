from __future__ import annotations

import pytest

from reactor.model.signals import Filesystem
from reactor.podman.client import PodmanClient, PodmanImage
from reactor.reclaim.images import ImageReclaim
from reactor.reclaim.podman_images import PodmanReclaim, is_made_here


@pytest.mark.parametrize(
    ("names", "made_here"),
    [
        (["localhost/mine:1"], True),
        (["localhost/mine:1", "localhost/mine:2"], True),
        (["localhost/mine:1", "registry.example/mine:1"], False),
        (["registry.example/localhost/mine:1"], False),
        ([], False),
    ],
)
def test_an_image_was_made_here_where_no_name_of_it_is_a_registrys(
    names: list[str], *, made_here: bool
) -> None:
    assert made_here == is_made_here(PodmanImage(id="a", names=tuple(names), size_bytes=1))


async def test_where_there_is_no_podman_nothing_is_to_be_given_back() -> None:
    def images(_: PodmanClient) -> ImageReclaim:
        raise AssertionError

    reclaim = PodmanReclaim(lambda: None, images, {Filesystem.NODEFS: "/"})
    assert await reclaim.run(tuple(Filesystem)) is None
