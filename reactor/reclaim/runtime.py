"""What can be reclaimed from a container runtime by its CRI: dead containers, and unused images.

Dead containers go as upstream removes them (kuberuntime_gc.go), and before images: an image counts as used
for as long as a dead container is of it.
"""

from __future__ import annotations

import glob
import json
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import trio

from reactor.cri import messages
from reactor.cri.client import RuntimeClient
from reactor.cri.messages import POD_UID_LABEL, Container, ContainerState, Sandbox, SandboxState
from reactor.errors import ReactorError
from reactor.kernel.scheduling import following
from reactor.model.pods import Image
from reactor.model.signals import Filesystem
from reactor.reclaim.reclaims import (
    LATE,
    MOST_SECONDS,
    Patience,
    ReclaimReport,
    free_bytes_on,
    shortened,
    tried,
    until_space_is_back,
)
from reactor.threads import in_thread

_PAUSE: Final = "/pause:"

Client = Callable[[], RuntimeClient]  # raises RuntimeUnavailableError where there is none


class RuntimeImages:
    """Lists and removes them; see ImageStore."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._sandbox_images: dict[str, str] = {}

    async def images(self) -> tuple[Image, ...]:
        """List them. An image is in use while a container, a dead one too, or a sandbox is of it."""
        client = self._client()
        images = await client.images()
        in_use = names_in_use(await client.containers()) | await self._of_sandboxes(client)
        return tuple(listed(image, in_use) for image in images)

    async def remove(self, image_id: str) -> None:
        await self._client().remove_image(image_id)

    async def _of_sandboxes(self, client: RuntimeClient) -> frozenset[str]:
        """Return the images that pause containers are of; asked once of each, as nothing else shows it."""
        sandboxes = [one.id for one in await client.sandboxes()]
        known = {one: self._sandbox_images[one] for one in sandboxes if one in self._sandbox_images}
        for sandbox_id in sandboxes:
            if sandbox_id not in known:
                with suppress(ReactorError):
                    known[sandbox_id] = _image_of(await client.sandbox_info(sandbox_id))
        self._sandbox_images = known
        return frozenset(known.values()) - {""}


def listed(image: messages.Image, in_use: Collection[str]) -> Image:
    """Return an image as the history takes it; `in_use` are names of images, by id, tag or digest."""
    return Image(
        id=image.id,
        size_bytes=image.size_bytes,
        in_use=is_named(image, in_use),
        pinned=image.pinned or any(_PAUSE in tag for tag in image.repo_tags),
    )


def is_named(image: messages.Image, names: Collection[str]) -> bool:
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


_STARTING_NS: Final = 60 * 10**9  # one that was only made is about to be started
_GIVEN_BACK_SECONDS: Final = 5.0
_PATIENCE: Final = Patience(every_seconds=0.2, most_times=25, notable=1 << 20, waits_for_the_first=True)


@dataclass(eq=False)
class ContainerReclaim:
    """Removes dead containers with their logs, and sandboxes that are down, the oldest first.

    Of a pod that is still to run (`runs`) the youngest sandbox and the `kept` youngest dead ones of each
    container stay: a kubelet that misses them would make the sandbox again and run the container once more,
    be it one that has done its work. Source: kuberuntime_gc.go.

    `layers` are paths on the filesystems on which writable layers lie.
    """

    client: Client
    runs: Callable[[str], bool]
    logs: Path
    layers: Callable[[], Collection[str]] = tuple
    _: KW_ONLY
    kept: int = 1

    async def run(self, filesystems: Collection[Filesystem]) -> ReclaimReport | None:  # noqa: ARG002 - all of it
        """Remove what is dead; see NodeReclaim.run."""
        client = self.client()
        removed, gone, problems = set[str](), list[str](), list[str]()
        with trio.move_on_after(MOST_SECONDS) as scope:
            layers = tuple(self.layers())
            free_bytes = await free_bytes_on(layers)
            containers = await client.containers()
            for one in _dead_containers(containers, self._kept_of, time.time_ns()):
                if await self._remove(client, one, problems):
                    removed.add(one.id)
            left = {one.sandbox_id for one in containers if one.id not in removed}
            for sandbox in _idle_sandboxes(await client.sandboxes(), left, self.runs):
                if await tried(_remove_sandbox(client, sandbox.id), problems):
                    gone.append(sandbox.id)
            if removed:
                await _wait_space_freed(layers, free_bytes)
        problems += [LATE] if scope.cancelled_caught else []
        if not removed and not gone and not problems:
            return None
        did = (f"removed {len(removed)} dead containers", f"removed {len(gone)} sandboxes")
        return ReclaimReport(did=did, problems=shortened(problems))

    def _kept_of(self, pod_uid: str) -> int:
        return self.kept if self.runs(pod_uid) else 0

    async def _remove(self, client: RuntimeClient, container: Container, problems: list[str]) -> bool:
        log_path = ""
        with suppress(ReactorError):
            answer = await client.container_status(container.id)
            log_path = answer.status.log_path if answer.status else ""
        if not await tried(client.remove_container(container.id), problems):
            return False
        if log_path:
            problem = await in_thread(following(_remove_log), Path(log_path), self.logs)
            problems += [] if problem is None else [problem]
        return True


async def _wait_space_freed(layers: tuple[str, ...], before_bytes: int) -> None:
    """Wait until what was removed shows as free, for some seconds at the most.

    containerd answers at once and deletes the layers when its garbage collector runs next: 0.9 s later on an
    idle machine. Observing the disk before that would evict a pod for nothing. The layers are those from
    before the removal: if the runtime reports them only meanwhile, all that is free there is no gain.
    """
    with trio.move_on_after(_GIVEN_BACK_SECONDS):
        await until_space_is_back(partial(free_bytes_on, layers), before_bytes, _PATIENCE)


def _dead_containers(
    containers: Iterable[Container], kept_of: Callable[[str], int], now_ns: int
) -> list[Container]:
    """Return the containers that may go, the oldest first.

    Of each name in a pod's sandbox as many of the youngest stay as `kept_of` says for the pod's uid.
    """
    by_name: dict[tuple[str, str], list[Container]] = {}
    for one in sorted(containers, key=lambda one: one.created_at_ns):
        is_left_over = one.state is ContainerState.CREATED and now_ns - one.created_at_ns > _STARTING_NS
        if one.state is ContainerState.EXITED or is_left_over:
            name = one.metadata.name if one.metadata else one.id
            by_name.setdefault((one.sandbox_id, name), []).append(one)
    dead = []
    for same in by_name.values():
        kept = kept_of(same[0].labels.get(POD_UID_LABEL, ""))
        dead += same[: max(0, len(same) - kept)]
    return sorted(dead, key=lambda one: one.created_at_ns)


def _idle_sandboxes(
    sandboxes: Iterable[Sandbox], with_containers: Collection[str], runs: Callable[[str], bool]
) -> list[Sandbox]:
    """Return the sandboxes that may go, the oldest first."""
    by_pod: dict[str, list[Sandbox]] = {}
    for one in sorted(sandboxes, key=lambda one: one.created_at_ns):
        by_pod.setdefault(one.metadata.uid if one.metadata else one.id, []).append(one)
    idle = []
    for uid, same in by_pod.items():
        candidates = same[:-1] if runs(uid) else same
        idle += [
            one for one in candidates if one.state is SandboxState.NOT_READY and one.id not in with_containers
        ]
    return sorted(idle, key=lambda one: one.created_at_ns)


async def _remove_sandbox(client: RuntimeClient, sandbox_id: str) -> None:
    await client.stop_sandbox(sandbox_id)  # frees its network, if that was not done
    await client.remove_sandbox(sandbox_id)


def _remove_log(path: Path, logs: Path) -> str | None:
    """Remove a container's log and what was rotated from it; return what went wrong.

    Nothing is removed outside the directory of all logs, whatever the path says.
    """
    try:
        directory = path.parent.resolve(strict=True)
        if not directory.is_relative_to(logs.resolve(strict=True)):
            return f"{path}: log not removed: not below {logs}"
        for found in (directory / path.name, *directory.glob(f"{glob.escape(path.name)}.*")):
            found.unlink(missing_ok=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        return str(error)
    return None
