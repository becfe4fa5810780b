"""The daemon's part with podman on a plain node: its images, watched, and given back before a pod is evicted.

Where there is no socket nothing happens, until there is one. Regular collection by watermarks is not done:
a node that is not a cluster's has not asked for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import trio

from reactor.errors import ReactorError
from reactor.model.settings import Settings
from reactor.model.signals import Reclaim
from reactor.observe.filesystems import filesystem_paths
from reactor.podman.client import PodmanClient, find_socket
from reactor.reclaim.images import ImageHistory, ImageReclaim, RemovedImages
from reactor.reclaim.podman_images import PodmanImages, PodmanReclaim
from reactor.reclaim.reclaims import NodeReclaim
from reactor.supervisor import Supervisor, report

_IMAGES: Final = "podman-images.json"
_LOOK_SECONDS: Final = 300.0  # its unit starts podman again for each look: 70 ms of a CPU


class Podman:
    """Made at the start; a reload changes what it goes by where `reclaims` is asked for again.

    `description` is what podman calls itself and how many images it has, None where it was not found.
    """

    def __init__(
        self, settings: Settings, supervisor: Supervisor, *, look_seconds: float = _LOOK_SECONDS
    ) -> None:
        self.description: str | None = None
        self._settings = settings
        self._look_seconds = look_seconds
        self._history = ImageHistory(Path(settings.state_path).with_name(_IMAGES))
        self._history.load()
        self.removed_images = RemovedImages()
        self._problem: str | None = None
        self._supervisor = supervisor

    @property
    def problems(self) -> dict[str, str]:
        """Return what is wrong at present, each in one line."""
        found = {"podman": self._problem, "remembered images": self._history.problem}
        return {name: why for name, why in found.items() if why is not None}

    def reclaims(self, settings: Settings) -> Mapping[Reclaim, NodeReclaim]:
        """Return what podman can give back, as these settings have it."""
        self._settings = settings
        paths = filesystem_paths(settings)
        return {Reclaim.IMAGES: PodmanReclaim(self._client, self._images, paths)} if settings.podman else {}

    async def run(self) -> None:
        """Look at the images now and then, until cancelled: when one was last used only a watcher knows."""
        await self._supervisor.keep_all(
            {"podman images": self._watch, "podman report": lambda: report(lambda: self.problems)}
        )

    async def _watch(self) -> None:
        while True:
            client = self._client()
            if client is None:
                self.description = self._problem = None
            else:
                self._problem = await self._look(client)
            await trio.sleep(self._look_seconds)

    async def _look(self, client: PodmanClient) -> str | None:
        """Return what went wrong, None where nothing did."""
        try:
            info = await client.info()
            images = await self._images(client).look()
        except ReactorError as error:
            return str(error)
        self.description = f"podman {info.version} at {client.endpoint}, {len(images)} images"
        return None

    def _client(self) -> PodmanClient | None:
        endpoint = find_socket(self._settings.podman_socket) if self._settings.podman else None
        return None if endpoint is None else PodmanClient(endpoint)

    def _images(self, client: PodmanClient) -> ImageReclaim:
        gc = self._settings.eviction.image_gc
        return ImageReclaim(PodmanImages(client), self._history, gc, self.removed_images)
