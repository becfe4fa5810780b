"""The steward's part with the container runtime: what is watched and tidied up through it.

watch    what it tells of pods, kept at hand
images   when each was last used; collected where no kubelet does that
reclaims dead containers and unused images, given back before a pod is evicted for a disk
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from reactor.cluster.image_watch import ImageWatch, Observed, Told
from reactor.cluster.runtime_watch import RuntimeWatch
from reactor.cri.client import RuntimeClient
from reactor.errors import ReactorError
from reactor.model.settings import Role, Settings
from reactor.model.signals import Filesystem, Reclaim
from reactor.reclaim.images import ImageHistory, ImageReclaim, RemovedImages
from reactor.reclaim.reclaims import NodeReclaim, ReclaimReport
from reactor.reclaim.runtime import ContainerReclaim, RuntimeImages
from reactor.workloads.kubelet_storage import NodePaths

_IMAGES: Final = "images.json"


class NodeRuntime:
    """Made at the start; a reload changes what it goes by where `reclaims` is asked for again.

    `runs` tells whether a pod of a uid is still to run; `on_change` is called when what the runtime tells
    has changed, `on_filesystems` when its filesystems lie elsewhere than before; `told` are those who want to
    know of image collection.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        runs: Callable[[str], bool],
        observed: Observed,
        on_change: Callable[[], None],
        on_filesystems: Callable[[], None],
        told: Told,
    ) -> None:
        self.watch = RuntimeWatch(
            settings.runtime_endpoint, settings.housekeeping_interval_seconds, on_change, on_filesystems
        )
        self._runs = runs
        self._history = ImageHistory(Path(settings.state_path).with_name(_IMAGES))
        self._history.load()
        self.removed_images = RemovedImages()
        is_sole = settings.kubernetes is not None and settings.kubernetes.role is Role.SOLE
        self._told = told if is_sole else Told()  # beside a kubelet those are its own events
        self._images = ImageWatch(observed, collects=is_sole and not settings.dry_run, told=told)

    @property
    def problems(self) -> Mapping[str, str | None]:
        """Return what is wrong at present, None where nothing is."""
        return {
            "runtime": self.watch.state.problem,
            "images": self._images.problem if self.watch.state.problem is None else None,
            "remembered images": self._history.problem,
        }

    @property
    def services(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Return what is to run for as long as the daemon does."""
        return {"runtime": self.watch.run, "images": self._images.run}

    def client(self) -> RuntimeClient:
        """Return what calls the runtime. Raises RuntimeUnavailableError where there is none."""
        return self.watch.client

    def placed(self, settings: Settings) -> Settings:
        """Return the settings with the paths of filesystems that the runtime tells; configured ones hold."""
        return replace(settings, filesystems={**self.watch.filesystems, **settings.filesystems})

    def unplaced(self, settings: Settings) -> frozenset[Filesystem]:
        """Return the filesystems of which only the runtime, which has never answered, says where they lie."""
        if self.watch.has_told or Filesystem.IMAGEFS in settings.filesystems:
            return frozenset()
        return frozenset({Filesystem.IMAGEFS, Filesystem.CONTAINERFS} - settings.filesystems.keys())

    def reclaims(self, settings: Settings) -> Mapping[Reclaim, NodeReclaim]:
        """Return what the runtime can give back, as these settings have it."""
        images = ImageReclaim(
            RuntimeImages(self.client), self._history, settings.eviction.image_gc, self.removed_images
        )
        self._images.use(images)
        return {
            Reclaim.CONTAINERS: _Reported(
                ContainerReclaim(
                    self.client,
                    self._runs,
                    NodePaths().logs,
                    lambda: tuple(self.watch.filesystems.values()),
                    kept=settings.dead_containers_kept,
                ),
                self._told.containers_failed,
            ),
            Reclaim.IMAGES: images,
        }


class _Reported:
    """A reclaim whose failures are reported; see NodeReclaim."""

    def __init__(self, reclaim: NodeReclaim, failed: Callable[[str], None]) -> None:
        self._reclaim = reclaim
        self._failed = failed

    async def run(self, filesystems: Collection[Filesystem]) -> ReclaimReport | None:
        try:
            report = await self._reclaim.run(filesystems)
        except ReactorError as error:
            self._failed(str(error))
            raise
        if report is not None and report.problems:
            self._failed("; ".join(report.problems))
        return report
