"""The images that podman keeps on a plain node: those that can be fetched again are removed.

One whose every name begins with `localhost/` was made here and exists nowhere else: it stays. So do images
that a container is of, running or not, and containers themselves: they may hold what their owner wants.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from reactor.kernel.filesystem import same_filesystem
from reactor.kernel.scheduling import following
from reactor.model.signals import Filesystem
from reactor.podman.client import PodmanClient, PodmanImage
from reactor.reclaim.images import ImageReclaim, ListedImage
from reactor.reclaim.reclaims import ReclaimReport
from reactor.threads import in_thread

_MADE_HERE: Final = "localhost/"


class PodmanImages:
    """Lists and removes them; see ImageStore."""

    def __init__(self, client: PodmanClient) -> None:
        self._client = client
        self._names: Mapping[str, tuple[str, ...]] = {}

    async def images(self) -> tuple[ListedImage, ...]:
        """List them. Raises PodmanError."""
        images = await self._client.images()
        in_use = await self._client.images_in_use()
        self._names = {image.id: image.names for image in images}
        return tuple(
            ListedImage(
                id=image.id,
                size_bytes=image.size_bytes,
                in_use=image.id in in_use,
                pinned=is_made_here(image),
            )
            for image in images
        )

    async def remove(self, image_id: str) -> None:
        """Remove an image name by name: podman refuses the id of one that has several.

        Raises PodmanError.
        """
        for name in self._names.get(image_id) or (image_id,):
            await self._client.remove(name)


class PodmanReclaim:
    """Removes podman's unused images where that helps: on the filesystem that they lie on.

    `client` gives what calls podman, None where there is none; `paths` are the node's filesystems.
    """

    def __init__(
        self,
        client: Callable[[], PodmanClient | None],
        images: Callable[[PodmanClient], ImageReclaim],
        paths: Mapping[Filesystem, str],
    ) -> None:
        self._client = client
        self._images = images
        self._paths = paths

    async def run(self, filesystems: Collection[Filesystem]) -> ReclaimReport | None:
        """Remove every image that may go; None where they lie elsewhere. See NodeReclaim.run."""
        client = self._client()
        if client is None:
            return None
        root = (await client.info()).graph_root
        wanting = tuple(path for filesystem, path in self._paths.items() if filesystem in filesystems)
        call = following(_lies_on_any)
        if not await in_thread(call, root, wanting, abandon_on_cancel=True):
            return None
        return await self._images(client).run(filesystems)


def is_made_here(image: PodmanImage) -> bool:
    """Return whether an image could not be fetched again. One without a name is what a build left over."""
    return bool(image.names) and all(name.startswith(_MADE_HERE) for name in image.names)


def _lies_on_any(path: str, others: Collection[str]) -> bool:
    return any(same_filesystem(path, other) for other in others)
