"""The container runtime, watched: what it tells of pods is asked for at intervals and kept at hand."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
from reactor.model.node_pods import Inventory, RuntimePod
from reactor.model.pods import PodSource
from reactor.model.signals import Filesystem
from reactor.threads import in_thread
from reactor.workloads.kubepods import may_be_api_uid

_LOG: Final = logging.getLogger("reactor.runtime")
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeState:
    """How the runtime stands: what it calls itself, and what is wrong (None: nothing)."""

    description: str | None = None
    problem: str | None = None


@dataclass(slots=True)
class RuntimeWatch:
    """Asks the runtime every `interval_seconds` and whenever it is `due`.

    `inventory` is what it told last, for as long as it tells nothing new. While it gives no answer it is
    asked again with a growing pause, found again where its endpoint is not configured; that is logged when it
    begins and when it ends. `on_change` is called when the inventory has changed, `on_filesystems` when
    `filesystems` has: paths on those that hold images and writable layers, as far as they are seen from here.
    `was_asked` is set after the first try, whatever came of it; `has_told` is whether it has ever answered.
    """

    endpoint: str | None
    interval_seconds: float
    on_change: Callable[[], None] = lambda: None
    on_filesystems: Callable[[], None] = lambda: None
    inventory: Inventory = field(default_factory=dict)
    filesystems: Mapping[Filesystem, str] = field(default_factory=dict)
    state: RuntimeState = field(default_factory=RuntimeState)
    was_asked: trio.Event = field(default_factory=trio.Event)
    has_told: bool = False
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
        """Have it asked soon."""
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
            told = await client.image_filesystems()
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
        paths = await in_thread(following(_paths), told, abandon_on_cancel=True)
        if paths != self.filesystems or not self.has_told:
            self.filesystems, self.has_told = paths, True
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


def _paths(told: ImageFilesystems) -> dict[Filesystem, str]:
    """Return a path on each filesystem that the runtime names and that is seen from here."""
    found = {
        Filesystem.IMAGEFS: _first(told.image_filesystems),
        Filesystem.CONTAINERFS: _first(told.container_filesystems),
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
