"""The disks: the steward observes the filesystems for the guard, and removes and reclaims as it is asked.

Commands and podman are the steward's to call: what they answer, and how long, costs the guard nothing.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from reactor.disks.watch import FilesystemObserver, FilesystemWatch
from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.filesystem import MountTable, same_filesystem
from reactor.kernel.scheduling import following
from reactor.link.orders import Orders
from reactor.link.requests import Request, RequestKind, Space, layout_number
from reactor.model.pods import Image
from reactor.model.settings import ReclaimSettings, Settings
from reactor.model.signals import FILESYSTEM_SIGNALS, Filesystem, Layout, Reclaim, Signal
from reactor.model.thresholds import Observation, Observed
from reactor.model.wakes import SourceHealth
from reactor.observe.filesystems import filesystem_paths
from reactor.podman.client import PodmanClient, PodmanImage, find_socket
from reactor.programs import RunProgram, run_to_problem
from reactor.reclaim import empty_dirs
from reactor.reclaim.images import ImageHistory, ImageReclaim, RemovedImages
from reactor.reclaim.reclaims import NodeReclaim, ReclaimReport, Reclaims
from reactor.sources.catalogue import FILESYSTEMS, SourceBoard
from reactor.steward.guard import Guard
from reactor.supervisor import Supervisor, report
from reactor.threads import in_thread

if TYPE_CHECKING:
    from reactor.steward.kubernetes import Kubernetes

_MADE_HERE: Final = "localhost/"
_IMAGES: Final = "podman-images.json"
_IMAGES_SECONDS: Final = 300.0  # its unit starts podman again for each listing: 70 ms of a CPU
_LOG: Final = logging.getLogger("reactor.filesystems")
_TIMEOUT_SECONDS: Final = 5.0
_UNPLACED: Final = (
    "not observed: the container runtime has not answered yet, and says where it lies; "
    "accepted: reactor.filesystems.imagefs"
)


class CommandReclaim:
    """Runs the commands of a filesystem, one after the other."""

    def __init__(
        self,
        settings: ReclaimSettings,
        *,
        clock_seconds: Callable[[], float] = trio.current_time,
        run: RunProgram = run_to_problem,
    ) -> None:
        self._settings = settings
        self._run = run
        self._clock_seconds = clock_seconds
        self._ran_at_seconds: dict[Filesystem, float] = {}
        self.is_dry_run = False

    async def run(self, filesystems: Collection[Filesystem]) -> ReclaimReport | None:
        """Run the commands configured for these filesystems; None where there are none, or not again yet."""
        did: list[str] = []
        problems: list[str] = []
        for filesystem, commands in self._settings.commands.items():
            since_seconds = self._clock_seconds() - self._ran_at_seconds.get(filesystem, -math.inf)
            if filesystem not in filesystems or since_seconds < self._settings.pause_seconds:
                continue
            for command in commands:
                if self.is_dry_run:  # since a moment ago: what runs may end, what is next is not begun
                    break
                problem = await self._run(command, self._settings.timeout_seconds)
                did.append(" ".join(command))
                problems += [] if problem is None else [f"{command[0]}: {problem}"]
            self._ran_at_seconds[filesystem] = self._clock_seconds()
        return ReclaimReport(did=tuple(did), problems=tuple(problems)) if did else None


# The images that podman keeps on a plain node: those that can be fetched again are removed.
#
# One whose every name begins with `localhost/` was made here and exists nowhere else: it stays. So do images
# that a container is of, running or not, and containers themselves: they may hold what their owner wants.


class PodmanImages:
    """Lists and removes them; see ImageStore."""

    def __init__(self, client: PodmanClient) -> None:
        self._client = client
        self._names: Mapping[str, tuple[str, ...]] = {}

    async def images(self) -> tuple[Image, ...]:
        """List them. Raises PodmanError."""
        images = await self._client.images()
        in_use = await self._client.images_in_use()
        self._names = {image.id: image.names for image in images}
        return tuple(
            Image(
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


# The daemon's part with podman on a plain node: its images, watched, and removed before a pod is
# evicted.
#
# Where there is no socket nothing happens, until there is one. Regular collection by watermarks is not
# done: a node that is not a cluster's has not asked for that.
class Podman:
    """Made at the start; a reload changes what it goes by where `reclaims` is asked for again.

    `description` is what podman calls itself and how many images it has, None where it was not found.
    """

    def __init__(self, settings: Settings, supervisor: Supervisor) -> None:
        self.description: str | None = None
        self._settings = settings
        self._history = ImageHistory(Path(settings.state_path).with_name(_IMAGES))
        self._history.restore()
        self.removed_images = RemovedImages()
        self._problem: str | None = None
        self._supervisor = supervisor

    @property
    def problems(self) -> dict[str, str]:
        """Return what is wrong at present, each in one line."""
        found = {"podman": self._problem, "remembered images": self._history.problem}
        return {name: why for name, why in found.items() if why is not None}

    def reclaims(self, settings: Settings) -> Mapping[Reclaim, NodeReclaim]:
        """Return what podman can reclaim, as these settings have it."""
        self._settings = settings
        paths = filesystem_paths(settings)
        return {Reclaim.IMAGES: PodmanReclaim(self._client, self._images, paths)} if settings.podman else {}

    async def run(self) -> None:
        """List the images now and then, until cancelled: when one was last used only a watcher knows."""
        await self._supervisor.keep_all(
            {"podman images": self._watch, "podman report": lambda: report(lambda: self.problems)}
        )

    async def _watch(self) -> None:
        while True:
            client = self._client()
            if client is None:
                self.description = self._problem = None
            else:
                self._problem = await self._list_images(client)
            await trio.sleep(_IMAGES_SECONDS)

    async def _list_images(self, client: PodmanClient) -> str | None:
        """Return what went wrong, None where nothing did."""
        try:
            info = await client.info()
            images = await self._images(client).refresh()
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


class Disks:
    """Follows the filesystems by the orders in force; in a cluster the runtime's are where it says."""

    def __init__(
        self,
        guard: Guard,
        supervisor: Supervisor,
        orders: Orders,
        kubernetes: Kubernetes | None = None,
        *,
        run: RunProgram = run_to_problem,
    ) -> None:
        self._guard = guard
        self._kubernetes = kubernetes
        self._observed = Observed(stale_seconds=_stale_seconds(orders))
        self._supervisor = supervisor
        self._orders = orders
        self._run = run
        self._podman = None if kubernetes is not None else Podman(orders.settings, supervisor)
        self._commands = CommandReclaim(orders.settings.reclaim, run=run)
        self._scope = trio.CancelScope()
        self._receiver = _GuardReceiver(guard, orders, self._observed)
        self._table = MountTable()
        self._watch = self._watched()
        self._reclaims = Reclaims(self._reclaimed())

    @property
    def problems(self) -> dict[str, str]:
        """Return what is wrong at present, each in one line."""
        unplaced = {str(one): _UNPLACED for one in sorted(self._unplaced())}
        return {**unplaced, **self._watch.problems, **({} if self._podman is None else self._podman.problems)}

    @property
    def removed_images(self) -> RemovedImages:
        """Return how many images the runtime, or podman, was made to remove."""
        source = self._kubernetes or self._podman
        return RemovedImages() if source is None else source.removed_images

    def order(self, orders: Orders) -> None:
        """Go on by other orders."""
        self._commands.is_dry_run = orders.settings.dry_run
        if orders.settings.reclaim != self._orders.settings.reclaim:
            self._commands = CommandReclaim(orders.settings.reclaim, run=self._run)
        self._orders = orders
        self._observed.stale_seconds = _stale_seconds(orders)
        self.renew()

    def renew(self) -> None:
        """Go on by the same orders where the filesystems may lie elsewhere than before."""
        self._receiver = _GuardReceiver(self._guard, self._orders, self._observed)
        self._watch = self._watched()
        self._reclaims.use(self._reclaimed())
        self._scope.cancel()

    def observed(self) -> Mapping[Signal, Observation]:
        """Return what was observed of the filesystems, as far as it is not stale."""
        return self._observed.at(time.monotonic())

    async def run(self) -> None:
        """Follow the filesystems, until cancelled."""
        await self._wait_placed()
        while True:
            with trio.CancelScope() as self._scope:
                await self._watch.run()

    async def run_podman(self) -> None:
        """Watch podman's images, until cancelled."""
        if self._podman is not None:
            await self._podman.run()

    async def refresh(self) -> None:
        """Observe all filesystems now."""
        await self._wait_placed()
        await self._watch.refresh()

    async def reclaim(self, asked: Mapping[str, Any]) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
        """Reclaim what is asked for; return what was done (None: nothing), and what went wrong.

        Raises ReactorError, OSError.
        """
        filesystems = [Filesystem(name) for name in asked["filesystems"]]
        report = await self._reclaims.run(Reclaim(asked["kind"]), filesystems)
        return (None, ()) if report is None else (report.did, report.problems)

    @staticmethod
    async def empty(asked: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Empty an emptyDir; return no line of what was done, and what went wrong. Raises as `reclaim`."""
        why = await empty_dirs.empty(CgroupTree.discover(), asked["path"], asked["cgroup"])
        return (), () if why is None else (why,)

    def completed(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return a status with what the steward knows of the disks."""
        state = self._receiver.board.state(FILESYSTEMS)
        left = {
            str(threshold): seconds
            for threshold in self._orders.settings.eviction.thresholds
            if (seconds := self._watch.seconds_to(threshold)) is not None
        }
        lies = self._watch.document()
        return {
            **document,
            "runtime": document["runtime"] or (None if self._podman is None else self._podman.description),
            "layout_by_devices": lies["layout_by_devices"],
            "filesystems": lies["filesystems"],
            "sources": [_detailed(source, state.detail) for source in document["sources"]],
            "signals": [
                {
                    **signal,
                    "source": signal["source"] and _detailed(signal["source"], state.detail),
                    "thresholds": [one | _reached_in(left, one["threshold"]) for one in signal["thresholds"]],
                }
                for signal in document["signals"]
            ],
        }

    async def _wait_placed(self) -> None:
        """Wait for the runtime's first word, for some seconds: until then it is not known where images lie.

        With the pods' files there may be less left than a threshold of imagefs wants, and images would be
        removed, or pods evicted, for nothing. A runtime that is down leaves them unobserved.
        """
        if self._kubernetes is not None:
            await self._kubernetes.wait_placed()

    def _unplaced(self) -> frozenset[Filesystem]:
        if self._kubernetes is None:
            return frozenset()
        return self._kubernetes.unplaced(self._orders.settings)

    def _watched(self) -> FilesystemWatch:
        settings = self._orders.settings
        if self._kubernetes is not None:
            settings = self._kubernetes.placed(settings)
        return FilesystemWatch(
            FilesystemObserver(settings, unplaced=self._unplaced(), table=self._table),
            settings,
            self._receiver,
            timeout_seconds=_TIMEOUT_SECONDS,
        )

    def _reclaimed(self) -> Mapping[Reclaim, NodeReclaim]:
        by_kind: dict[Reclaim, NodeReclaim] = {Reclaim.COMMANDS: self._commands}
        if self._podman is not None:
            by_kind |= self._podman.reclaims(self._orders.settings)
        if self._kubernetes is not None:
            by_kind |= self._kubernetes.reclaims(self._orders.settings)
        return by_kind


class _GuardReceiver:
    """Sends the guard what the watch of one set of orders finds; `board` has how the watch stands."""

    def __init__(self, guard: Guard, orders: Orders, observed: Observed) -> None:
        self.board = SourceBoard()
        self._guard = guard
        self._observed = observed
        self._order = orders.number

    def take(self, asked: Collection[Signal], seen: Mapping[Signal, Observation], now_seconds: float) -> None:
        """Send what was just seen of the signals asked for: those of filesystems in one place."""
        self._observed.take(asked, seen, now_seconds)
        filesystems = tuple(one for one in Filesystem if FILESYSTEM_SIGNALS[one][0] in asked)
        in_bytes, in_inodes = (seen.get(signal) for signal in FILESYSTEM_SIGNALS[filesystems[0]])
        self._guard.offer(
            Space(
                order=self._order,
                filesystems=filesystems,
                at_ns=min(int(now_seconds * 1e9), time.monotonic_ns()),
                available_bytes=None if in_bytes is None else int(in_bytes.available),
                capacity_bytes=None if in_bytes is None else int(in_bytes.capacity),
                inodes_free=None if in_inodes is None else int(in_inodes.available),
                inodes=None if in_inodes is None else int(in_inodes.capacity),
            )
        )

    def wake(self) -> None:
        self._guard.offer(Request(kind=RequestKind.DISK_WAKE))

    def filling(self) -> None:
        """Report that a threshold is near."""
        self._guard.offer(Request(kind=RequestKind.FILLING))

    def adopt_layout(self, layout: Layout) -> None:
        """Report the layout that the devices show."""
        number = layout_number(layout)
        self._guard.offer(Request(kind=RequestKind.LAYOUT, number=self._order, places=number))


def _stale_seconds(orders: Orders) -> float:
    return 3 * orders.settings.housekeeping_interval_seconds + _TIMEOUT_SECONDS


def _detailed(source: Mapping[str, Any], detail: str) -> Mapping[str, Any]:
    """Return how a source stands; that of filesystems with the steward's words, where all is well."""
    if source["name"] != FILESYSTEMS or source["health"] != SourceHealth.ARMED or not detail:
        return source
    return {**source, "detail": detail}


def _reached_in(left: Mapping[str, float], threshold: str) -> dict[str, float]:
    """Return when a disk's threshold is reached; of memory's the guard has said what it knows."""
    return {"reached_in_seconds": round(left[threshold], 3)} if threshold in left else {}
