"""The images that a container runtime keeps, by its CRI."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final

from reactor.cri import messages
from reactor.cri.client import RuntimeClient
from reactor.errors import ReactorError
from reactor.reclaim.images import ListedImage

_PAUSE: Final = "/pause:"

Client = Callable[[], RuntimeClient]  # raises RuntimeUnavailableError where there is none


class RuntimeImages:
    """Lists and removes them; see ImageStore."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._sandbox_images: dict[str, str] = {}

    async def images(self) -> tuple[ListedImage, ...]:
        """List them. An image is in use while a container, a dead one too, or a sandbox is of it."""
        client = self._client()
        images = await client.images()
        in_use = names_in_use(await client.containers()) | await self._of_sandboxes(client)
        return tuple(listed(image, in_use) for image in images)

    async def remove(self, image_id: str) -> None:
        """Remove an image; one that is gone already is no error."""
        await self._client().remove_image(image_id)

    async def _of_sandboxes(self, client: RuntimeClient) -> frozenset[str]:
        """Return the images that pause containers are of; asked once of each, as nothing else tells it."""
        sandboxes = [one.id for one in await client.sandboxes()]
        known = {one: self._sandbox_images[one] for one in sandboxes if one in self._sandbox_images}
        for sandbox_id in sandboxes:
            if sandbox_id not in known:
                with suppress(ReactorError):
                    known[sandbox_id] = _image_of(await client.sandbox_info(sandbox_id))
        self._sandbox_images = known
        return frozenset(known.values()) - {""}


def listed(image: messages.Image, in_use: Collection[str]) -> ListedImage:
    """Return an image as the history takes it; `in_use` are names of images, by id, tag or digest."""
    return ListedImage(
        id=image.id,
        size_bytes=image.size_bytes,
        in_use=is_named(image, in_use),
        pinned=image.pinned or any(_PAUSE in tag for tag in image.repo_tags),
    )


def is_named(image: messages.Image, names: Collection[str]) -> bool:
    """Return whether one of the names is the image's: its id, a tag or a digest of it."""
    return image.id in names or any(name in names for name in (*image.repo_tags, *image.repo_digests))


def names_in_use(containers: Iterable[messages.Container]) -> frozenset[str]:
    """Return the names of the images that containers are of."""
    names = {
        name
        for one in containers
        for name in (one.image_id, one.image_ref, one.image.image if one.image else "")
    }
    return frozenset(names - {""})


def _image_of(info: str) -> str:
    """Return the image in what the runtime says of a sandbox besides; containerd and CRI-O name it alike."""
    try:
        found = json.loads(info)
    except ValueError:
        return ""
    image = found.get("image") if isinstance(found, dict) else None
    return image if isinstance(image, str) else ""
