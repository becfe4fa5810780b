"""The container runtime: what it reports of pods, and how unused images and dead containers are reclaimed."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import trio

from reactor.backoff import Backoff
from reactor.config.pod import HASH_ANNOTATION, SOURCE_ANNOTATION
from reactor.cri.client import KNOWN_ENDPOINTS, RuntimeClient, described, find_endpoint
from reactor.cri.messages import (
    Container,
    ContainerState,
    FilesystemUsage,
    ImageFilesystems,
    Sandbox,
    SandboxState,
)
from reactor.errors import ReactorError, RuntimeUnavailableError
from reactor.kernel.scheduling import following
from reactor.kube.pods import source_of
from reactor.model.pods import Inventory, PodSource, RuntimePod
from reactor.model.settings import Role, Settings
from reactor.model.signals import Filesystem, Reclaim, Signal
from reactor.model.thresholds import Observation
from reactor.reclaim.images import ImageHistory, ImageReclaim, RemovedImages
from reactor.reclaim.reclaims import NodeReclaim, ReclaimReport
from reactor.reclaim.runtime import ContainerReclaim, RuntimeImages
from reactor.threads import in_thread
from reactor.workloads.kubelet_storage import NodePaths
from reactor.workloads.kubepods import may_be_api_uid

_IMAGES_LOG: Final = logging.getLogger("reactor.reclaim")
_LOOK_SECONDS: Final = 60.0
_NO_CAPACITY: Final = "invalid capacity 0 on image filesystem"  # upstream's words

Observed = Callable[[], Mapping[Signal, Observation]]

_LOG: Final = logging.getLogger("reactor.runtime")
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 30.0

_IMAGES: Final = "images.json"


# Images, listed now and then: when each was last used can only be known by who has watched.


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarms:
    """Called if collection was not enough, failed more than once in a row, or can't be done.

    `containers_failed`: dead containers could not be removed.
    """

    not_enough: Callable[[str], None] = lambda _: None
    failed: Callable[[str], None] = lambda _: None
    invalid_capacity: Callable[[str], None] = lambda _: None
    containers_failed: Callable[[str], None] = lambda _: None


class ImageWatch:
    """Lists the images, and if it `collects`, removes what garbage collection would.

    Beside a kubelet that does the same it only lists. Each configuration has it `use` its own. `problem` is
    why it could not list them the last time. Source: Kubelet.StartGarbageCollection.
    """

    def __init__(
        self,
        observed: Observed,
        *,
        collects: bool,
        alarms: Alarms | None = None,
        interval_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._observed = observed
        self.collects = collects
        self._alarms = alarms or Alarms()
        self._interval_seconds = interval_seconds
        self.problem: str | None = None
        self._images: ImageReclaim | None = None
        self._configured = trio.Event()

    def use(self, images: ImageReclaim) -> None:
        """List by these from now on."""
        self._images = images
        self._configured.set()

    async def run(self) -> None:
        """List until cancelled, for the first time once it is known by which configuration."""
        await self._configured.wait()
        while True:
            if self._images is not None:
                problem = await self._list(self._images)
                if problem is not None and self.problem is not None and self.collects:
                    self._alarms.failed(problem)
                self.problem = problem
            await trio.sleep(self._interval_seconds)

    async def _list(self, images: ImageReclaim) -> str | None:
        """Return what went wrong, None where nothing did."""
        try:
            if not self.collects:
                await images.refresh()
                return None
            filesystem = self._observed().get(Signal.IMAGEFS_AVAILABLE)
            collected = await images.collect(filesystem)
        except ReactorError as error:
            return str(error)
        report = collected.report
        if report is not None:
            _IMAGES_LOG.info("image garbage collection: %s", "; ".join(report.did))
        if filesystem is not None and filesystem.capacity == 0:
            self._alarms.invalid_capacity(_NO_CAPACITY)
            return _NO_CAPACITY
        if collected.freed_bytes < collected.wanted_bytes:
            # Upstream's words.
            message = (
                "Failed to garbage collect required amount of images. "
                f"Attempted to free {collected.wanted_bytes} bytes, "
                f"but only found {collected.freed_bytes} bytes eligible to free."
            )
            self._alarms.not_enough(message)
            return message
        return None if report is None or not report.problems else "; ".join(report.problems)


# The container runtime, watched: its pods are asked for at intervals and kept at hand.


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeState:
    """How the runtime stands: what it calls itself, and what is wrong (None: nothing)."""

    description: str | None = None
    problem: str | None = None


@dataclass(slots=True)
class RuntimeWatch:
    """Asks the runtime every `interval_seconds` and whenever it is `due`.

    `inventory` is what it reported last, for as long as nothing is new. While it gives no answer it is
    asked again with a growing pause, found again where its endpoint is not configured; that is logged when it
    begins and when it ends. `on_change` is called when the inventory has changed, `on_filesystems` when
    `filesystems` has: paths on those that hold images and writable layers, as far as they are seen from here.
    `was_asked` is set after the first try, whatever came of it; `has_answered` once it has answered.
    """

    endpoint: str | None
    interval_seconds: float
    on_change: Callable[[], None] = lambda: None
    on_filesystems: Callable[[], None] = lambda: None
    inventory: Inventory = field(default_factory=dict)
    filesystems: Mapping[Filesystem, str] = field(default_factory=dict)
    state: RuntimeState = field(default_factory=RuntimeState)
    was_asked: trio.Event = field(default_factory=trio.Event)
    has_answered: bool = False
    _client: RuntimeClient | None = None
    _due: trio.Event = field(default_factory=trio.Event)

    @property
    def client(self) -> RuntimeClient:
        """Return what calls the runtime. Raises RuntimeUnavailableError where there is none."""
        if self._client is None:
            endpoint = self.endpoint or find_endpoint()
            if endpoint is None:
                tried = ", ".join(KNOWN_ENDPOINTS)
                raise RuntimeUnavailableError(
                    "an unknown place", "connect", f"no socket at {tried}; set reactor.runtime.endpoint"
                )
            self._client = RuntimeClient(endpoint)
        return self._client

    def due(self) -> None:
        self._due.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ask until cancelled; started after the first try, whatever came of it."""
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        has_started = False
        while True:
            answered = await self.ask()
            self.was_asked.set()
            if not has_started:
                has_started = True
                task_status.started()
            if answered:
                backoff.reset()
                with trio.move_on_after(self.interval_seconds):
                    await self._due.wait()
                self._due = trio.Event()
            else:
                await backoff.pause()

    async def ask(self) -> bool:
        """Ask once; return whether there was an answer."""
        try:
            client = self.client
            version = await client.version()
            sandboxes, containers = await client.sandboxes(), await client.containers()
            images = await client.image_filesystems()
        except ReactorError as error:
            self._note(RuntimeState(description=self.state.description, problem=str(error)))
            if self.endpoint is None:
                self._client = None  # another runtime may have come in its place
            return False
        found = await in_thread(following(inventory_of), sandboxes, containers)
        self._note(RuntimeState(description=described(version, client)))
        if found != self.inventory:
            self.inventory = found
            self.on_change()
        paths = await in_thread(following(_paths), images, abandon_on_cancel=True)
        if paths != self.filesystems or not self.has_answered:
            self.filesystems, self.has_answered = paths, True
            self.on_filesystems()
        return True

    def _note(self, state: RuntimeState) -> None:
        """Take over how it stands; a change of heart is logged, the same trouble in other words is not."""
        if (state.problem is None) != (self.state.problem is None):
            if state.problem is not None:
                _LOG.warning("%s; its last answers stay in force", state.problem)
            else:
                _LOG.info("answers again: %s", state.description)
        elif state.description != self.state.description:
            _LOG.info("%s", state.description)
        self.state = state


def _paths(images: ImageFilesystems) -> dict[Filesystem, str]:
    """Return a path on each filesystem that the runtime names and that is seen from here."""
    found = {
        Filesystem.IMAGEFS: _first(images.image_filesystems),
        Filesystem.CONTAINERFS: _first(images.container_filesystems),
    }
    return {name: path for name, path in found.items() if path is not None}


def _first(usages: Sequence[FilesystemUsage]) -> str | None:
    """Return the first path that is a directory here; in a pod only what was mounted into it is."""
    paths = (one.filesystem.mountpoint for one in usages if one.filesystem is not None)
    return next((path for path in paths if os.path.isdir(path)), None)


def inventory_of(sandboxes: Iterable[Sandbox], containers: Iterable[Container]) -> Inventory:
    """Return the pods that are up: those with a sandbox that is ready."""
    running: dict[str, dict[str, str]] = {}
    for container in containers:
        if container.state is ContainerState.RUNNING and container.metadata is not None:
            running.setdefault(container.sandbox_id, {})[container.id] = container.metadata.name
    found: dict[str, RuntimePod] = {}
    for sandbox in sandboxes:
        if sandbox.state is not SandboxState.READY or sandbox.metadata is None:
            continue
        before = found.get(sandbox.metadata.uid)
        found[sandbox.metadata.uid] = RuntimePod(
            name=sandbox.metadata.name,
            namespace=sandbox.metadata.namespace,
            sandboxes=(*(before.sandboxes if before else ()), sandbox.id),
            containers={**(before.containers if before else {}), **running.get(sandbox.id, {})},
            source=_source(sandbox.metadata.uid, sandbox.annotations),
        )
    return found


def _source(uid: str, annotations: Mapping[str, str]) -> PodSource:
    if annotations.get(HASH_ANNOTATION) != uid or may_be_api_uid(uid):
        return PodSource.API
    return source_of(annotations.get(SOURCE_ANNOTATION))


# The steward's part with the container runtime: what is watched and tidied up through it.
#
# watch    what it reports of pods, kept at hand
# images   when each was last used; collected where no kubelet does that
# reclaims dead containers and unused images, removed before a pod is evicted for a disk


class NodeRuntime:
    """Made at the start; a reload changes what it goes by where `reclaims` is asked for again.

    `runs` returns whether a pod of a uid is still to run; `on_change` is called when what the runtime reports
    has changed, `on_filesystems` when its filesystems lie elsewhere than before; `alarms` are called for
    problems of image collection.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        runs: Callable[[str], bool],
        observed: Observed,
        on_change: Callable[[], None],
        on_filesystems: Callable[[], None],
        alarms: Alarms,
    ) -> None:
        self.watch = RuntimeWatch(
            settings.runtime_endpoint, settings.housekeeping_interval_seconds, on_change, on_filesystems
        )
        self._runs = runs
        self._history = ImageHistory(Path(settings.state_path).with_name(_IMAGES))
        self._history.restore()
        self.removed_images = RemovedImages()
        self._is_sole = settings.kubernetes is not None and settings.kubernetes.role is Role.SOLE
        self._alarms = alarms if self._is_sole else Alarms()  # beside a kubelet those are its own events
        self._images = ImageWatch(observed, collects=False, alarms=alarms)

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
        """Return the settings with the paths of filesystems that the runtime names; configured ones hold."""
        return replace(settings, filesystems={**self.watch.filesystems, **settings.filesystems})

    def unplaced(self, settings: Settings) -> frozenset[Filesystem]:
        """Return the filesystems of which only the runtime, which has never answered, says where they lie."""
        if self.watch.has_answered or Filesystem.IMAGEFS in settings.filesystems:
            return frozenset()
        return frozenset({Filesystem.IMAGEFS, Filesystem.CONTAINERFS} - settings.filesystems.keys())

    def reclaims(self, settings: Settings) -> Mapping[Reclaim, NodeReclaim]:
        """Return what the runtime can reclaim, as these settings have it."""
        images = ImageReclaim(
            RuntimeImages(self.client), self._history, settings.eviction.image_gc, self.removed_images
        )
        self._images.collects = self._is_sole and not settings.dry_run
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
                self._alarms.containers_failed,
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
