"""Reports evictions to the control plane: a pod's status and one event, until both are there and stay there.

    announce     called when the guard reports an eviction; returns at once
    see through  a task for each pod: the event, and the status
    withdraw     called when an eviction is called off: what the status says of it is removed

The status of a pod that is asked to end within a grace period says why, and the phase stays. Once the pod is
over, or the kubelet reports that, its phase is Failed as well. So the kubelet, which reports the containers'
ends by itself, never shows a failed pod that is no disruption target.

The status is kept, not just written. A kubelet that has not seen it yet sends its own (phase Running) over
it, and one older than 1.22 drops reason and message from every terminal status at its next turn, ten seconds
later at most: whatever of it was taken away is written again for as long as the pod is there.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from reactor.backoff import Backoff
from reactor.config.decode import decode
from reactor.config.documents import load_document
from reactor.config.kubelet import KubeletConfiguration
from reactor.errors import ConfigError
from reactor.kernel.small_file import KeptFile
from reactor.kube.client import ApiClient
from reactor.kube.documents import (
    ObjectReference,
    Occurrence,
    event,
    event_name,
    events_path,
    failed_status,
    ordered_status,
    pod_path,
    withdrawn_status,
)
from reactor.kube.errors import ApiError, ConflictError, NotFoundError
from reactor.kube.pods import EVICTED, FAILED, SUCCEEDED, TERMINATED, KnownPod, PodStore
from reactor.model.signals import RESOURCE, Layout, Resource
from reactor.plain import from_plain, to_plain
from reactor.threads import in_thread

_LARGEST_BYTES: Final = 4 << 20

_LOG: Final = logging.getLogger("reactor.announce")
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_REFUSED: Final = "Pod was rejected: "
_LIMIT: Final = 256
_AT_ONCE: Final = 4
_REWRITE_SECONDS: Final = (0.1, 1.0)
_RETRY_SECONDS: Final = (0.25, 30.0)
_UNREACHED_SECONDS: Final = 5.0  # there is something to report, and nobody to be spared by longer pauses
_RETRY_AFTER_SECONDS: Final = 1.0
_MARGIN_SECONDS: Final = 15.0
_REPORTED_SECONDS: Final = 10.0
# A pod may be evicted before the server, or a kubelet that is asked every few seconds, has reported it.
_UNREPORTED_SECONDS: Final = 60.0
# After this long without another write to the status, and with the pod's cgroup gone, it is settled.
_SETTLED_SECONDS: Final = 30.0
# So long after a pod's end the kubelet reports what it has evicted the pod for.
_KUBELET_SECONDS: Final = 5.0
_RESOURCE: Final = "starved_resource"


# For what the kubelet itself evicts softly: beside it, both may ask the same pod to end.


def soft_resources(path: str) -> frozenset[Resource]:
    """Return what the kubelet has soft thresholds on, by its configuration; none if that can't be read.

    Blocks on the disk.
    """
    try:
        with Path(path).open("rb") as file:
            text = file.read(_LARGEST_BYTES).decode()
        settings = decode(load_document(text, path) or {}, KubeletConfiguration).eviction_settings(
            Layout.SINGLE, evictions_per_minute=None, in_flight_deadline_seconds=0.0
        )
    except (OSError, UnicodeDecodeError, ConfigError):
        return frozenset()
    return frozenset(RESOURCE[one.signal] for one in settings.thresholds if not one.is_hard)


# The evictions that are not reported to the control plane yet; a small file, since it may be away for
# longer than the daemon lives.


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """One pod that was evicted, or refused at its arrival, and how far its report has come.

    `uid` is the API server's. `name` and `namespace` are empty where they were not known yet. `disrupted`:
    it ran, and was killed on the node's behalf, not for a limit of its own. `refused`: it was not admitted,
    which its status says before the message, and its event does not. `reason` is that of the status
    and the event: a pod that is ended for a shutdown of the node is Terminated, and has no event. `is_over`:
    it is ended, not just asked to end within its grace period, so it may be reported as failed.
    `is_called_off`: it lives on, and what its status says of the eviction is to be removed.
    """

    uid: str
    name: str
    namespace: str
    message: str
    at_unix_seconds: float
    grace_period_seconds: float = 0.0
    annotations: Mapping[str, str] = field(default_factory=dict)
    disrupted: bool = True
    refused: bool = False
    reason: str = EVICTED
    is_over: bool = True
    is_called_off: bool = False
    event_written: bool = False
    status_written: bool = False


def event_of(announcement: Announcement, node_name: str) -> dict[str, Any]:
    """Return the event; its name is the same for the same pod, so the server takes it once only."""
    about = ObjectReference(
        kind="Pod", name=announcement.name, uid=announcement.uid, namespace=announcement.namespace
    )
    occurrence = Occurrence(
        name=event_name(announcement.name, announcement.uid, announcement.reason),
        about=about,
        reason=announcement.reason,
        message=announcement.message,
        annotations=announcement.annotations,
    )
    return event(occurrence, node_name, announcement.at_unix_seconds)


def status_of(announcement: Announcement, generation: int = 0) -> dict[str, Any]:
    """Return the patch of the pod's status; `generation` is the pod's. Source of the prefix: rejectPod."""
    message = announcement.message
    status = failed_status if announcement.is_over else ordered_status
    return status(
        announcement.uid,
        f"{_REFUSED}{message}" if announcement.refused else message,
        announcement.at_unix_seconds,
        disrupted=announcement.disrupted,
        reason=announcement.reason,
        generation=generation,
    )


class AnnouncementFile(KeptFile[tuple[Announcement, ...]]):
    """Keeps the announcements at `path`, for one boot: a pod that started since was not evicted."""

    def __init__(self, path: Path, *, boot_id: Path = BOOT_ID) -> None:
        super().__init__(
            path,
            lambda announcements: {"announcements": to_plain(announcements)},
            lambda document: tuple(from_plain(Announcement, one) for one in document["announcements"]),
            "announcements: not saved, a restart would forget them",
            _LOG,
            boot_id=boot_id,
        )


class OnNode(Protocol):
    """What is to be done on the node itself about a pod that is announced."""

    async def wait_gone(self, announcement: Announcement) -> None:
        """Return when nothing is left of the pod: the kubelet has let go of it."""

    async def take_down(self, announcement: Announcement) -> None:
        """Take down what is left of the pod: its status is written."""


class Announcer:
    """Sees every announcement through.

    `kubelets_soft` returns the resources for which the kubelet evicts softly, too; it may block on the disk.
    """

    def __init__(  # noqa: PLR0913 - what it needs to know is known in different places
        self,
        client: ApiClient,
        pods: PodStore,
        node_name: str,
        file: AnnouncementFile,
        node: OnNode,
        *,
        kubelets_soft: Callable[[], Collection[str]] = tuple,
        clock_unix_seconds: Callable[[], float] = time.time,
        settled_seconds: float = _SETTLED_SECONDS,
    ) -> None:
        self._client = client
        self._pods = pods
        self._node_name = node_name
        self._file = file
        self._node = node
        self._clock_unix_seconds = clock_unix_seconds
        self._settled_seconds = settled_seconds
        self._kubelets_soft = kubelets_soft
        self._kubelet_seconds = min(_KUBELET_SECONDS, settled_seconds)
        self._announcements: dict[str, Announcement] = {}
        self._over: dict[str, trio.Event] = {}
        self._scopes: dict[str, trio.CancelScope] = {}
        self._seen: set[str] = set()
        self._new = trio.Event()
        self._limiter = trio.CapacityLimiter(_AT_ONCE)
        self._problems: dict[str, str] = {}

    @property
    def pending(self) -> Sequence[Announcement]:
        """Return what is not reported yet."""
        return [
            one
            for one in self._announcements.values()
            if not (one.is_called_off or (one.event_written and one.status_written))
        ]

    @property
    def problems(self) -> dict[str, str]:
        """Return why something is not reported yet."""
        found = {
            f"eviction of {self._announcements[uid].name or uid}": why
            for uid, why in self._problems.items()
            if uid in self._announcements
        }
        if self._file.problem is not None:
            found["announcements"] = self._file.problem
        return found

    def is_announced(self, uid: str) -> bool:
        """Return whether the pod of this uid was evicted or refused already."""
        announcement = self._announcements.get(uid)
        return announcement is not None and not announcement.is_called_off

    def announce(self, announcement: Announcement) -> None:
        """Report this from now on. Never waits; one pod is announced once, and over once it is over."""
        if not self.is_announced(announcement.uid):
            known = self._pods.known.get(announcement.uid)
            # Who evicted it before us, the kubelet, has an event of its own.
            is_known = known is not None and known.has_failed_for(announcement.reason)
            self._begin(replace(announcement, event_written=announcement.event_written or is_known))
        elif announcement.is_over:
            self.over(announcement.uid)

    def over(self, uid: str) -> None:
        """Note that an announced pod has ended: it may be reported as failed."""
        if self.is_announced(uid):
            self._note(replace(self._announcements[uid], is_over=True))
            self._over.setdefault(uid, trio.Event()).set()

    def withdraw(self, uid: str) -> None:
        """Report no more of this pod: it is not evicted after all. Its status says so; an event stays."""
        if self.is_announced(uid):
            self._begin(replace(self._announcements[uid], is_called_off=True))

    def _begin(self, announcement: Announcement) -> None:
        """Have this seen through, in place of what is announced of the pod."""
        self._announcements[announcement.uid] = announcement
        if announcement.uid in self._scopes:
            self._scopes[announcement.uid].cancel()
        self._forget_most()
        self._new.set()
        self._show()

    async def wait_saved(self) -> None:
        await self._file.wait_saved()

    async def run(self) -> None:
        """Report until cancelled, beginning with what an earlier run left unreported."""
        for left in await in_thread(self._file.load) or ():
            self._announcements.setdefault(left.uid, left)
        self._scopes = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._file.run)
            while True:
                self._new = trio.Event()
                for uid in self._announcements.keys() - self._scopes.keys():
                    self._scopes[uid] = trio.CancelScope()
                    nursery.start_soon(self._see_through, uid)
                await self._new.wait()

    async def _see_through(self, uid: str) -> None:
        with self._scopes[uid] as scope:
            backoff = Backoff(*_RETRY_SECONDS)
            while True:
                try:
                    await self._see_once(uid)
                    break
                except Exception as error:  # noqa: BLE001
                    # A defect of ours in one must not cost the others; and what it was about stands.
                    _LOG.exception("pod %s: its eviction could not be announced; trying again", uid)
                    self._problems[uid] = f"{type(error).__name__}: {error}"
                    await backoff.pause()
        if not scope.cancel_called:
            del self._announcements[uid]
        self._scopes.pop(uid)
        self._seen.discard(uid)
        self._over.pop(uid, None)
        self._problems.pop(uid, None)
        if uid in self._announcements:
            self._new.set()  # it was announced again while this task was ending
        self._show()

    async def _see_once(self, uid: str) -> None:
        if self._announcements[uid].is_called_off:
            await self._withdraw_status(uid)
            return
        let_go = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_event, uid)
            if not self._announcements[uid].is_over:
                async with trio.open_nursery() as ordered:
                    ordered.start_soon(self._keep_status, uid, let_go)
                    await self._wait_over(uid)
                    ordered.cancel_scope.cancel()
            nursery.start_soon(self._wait_gone, uid, let_go)
            nursery.start_soon(self._keep_status, uid, let_go)
            await self._wait_status_written(uid)
            await self._node.take_down(self._announcements[uid])

    async def _wait_over(self, uid: str) -> None:
        """Wait for the pod's end, or its grace period's where that is not reported (there was a restart)."""
        announcement = self._announcements[uid]
        end = announcement.at_unix_seconds + announcement.grace_period_seconds + _MARGIN_SECONDS
        with trio.move_on_after(max(0.0, end - self._clock_unix_seconds())):
            while not self._announcements[uid].is_over:
                await self._over.setdefault(uid, trio.Event()).wait()
        self.over(uid)

    async def _wait_status_written(self, uid: str) -> None:
        """Wait until the status is written, or there is no such pod any more to write it to."""
        while not self._announcements[uid].status_written and not self._is_gone(uid):
            await self._wait_changed()

    async def _wait_gone(self, uid: str, let_go: trio.Event) -> None:
        await self._node.wait_gone(self._announcements[uid])
        let_go.set()

    async def _write_event(self, uid: str) -> None:
        """Create the event; one of its name is there already when an earlier attempt, or run, got through."""
        if await self._is_kubelets(uid):
            self._note(replace(self._announcements[uid], event_written=True))
        backoff = Backoff(*_RETRY_SECONDS)
        while not self._announcements[uid].event_written:
            announcement = self._named(uid)
            if announcement is None:
                if self._is_gone(uid):
                    return  # and its name is not known
                await self._wait_changed()
                continue
            try:
                async with self._limiter:
                    await self._client.create(
                        events_path(announcement.namespace), event_of(announcement, self._node_name)
                    )
            except (ConflictError, NotFoundError):  # there already; or the namespace is going
                pass
            except ApiError as error:
                await self._failed(uid, error, backoff)
                continue
            self._problems.pop(uid, None)
            self._note(replace(self._announcements[uid], event_written=True))

    async def _is_kubelets(self, uid: str) -> bool:
        """Return whether the kubelet evicts the pod as well, and so reports that by an event of its own.

        It may where it has a soft threshold on the same resource. At the latest when the pod has ended its
        message is in the status, in place of ours.
        """
        announcement = self._announcements[uid]
        if announcement.event_written or announcement.grace_period_seconds <= 0:
            return False
        if announcement.annotations.get(_RESOURCE) not in await in_thread(self._kubelets_soft):
            return False
        until = math.inf
        while trio.current_time() < until:
            if self._has_other_message(uid):
                return True
            if self._announcements[uid].is_over:
                until = min(until, trio.current_time() + self._kubelet_seconds)
            await self._wait_changed(min(_RETRY_AFTER_SECONDS, self._kubelet_seconds))
        return False

    def _has_other_message(self, uid: str) -> bool:
        known, announcement = self._pods.known.get(uid), self._announcements[uid]
        if known is None or not known.has_failed_for(announcement.reason):
            return False
        return known.message not in {"", announcement.message}

    async def _keep_status(self, uid: str, let_go: trio.Event) -> None:
        """Write the status, and again where it was overwritten; return once it is settled or the pod gone.

        Of a pod that is asked to end it says why, until the server has its end, or the guard reports it: the
        kubelet drops the reason where it reports the end first. A conflict is either a quarrel over
        the status, and tried again, or another pod by that name: the watch reports that.
        """
        retry, rewrite = Backoff(*_RETRY_SECONDS), Backoff(*_REWRITE_SECONDS)
        while True:
            announcement = self._named(uid)
            if self._is_gone(uid):
                return
            if uid not in self._pods.known:
                await self._wait_changed()
            elif self._is_reported(uid):
                self._status_written(uid)
                had_ended = self._has_ended(uid)
                if await self._stays(uid, let_go):
                    return
                if had_ended == self._has_ended(uid):
                    await rewrite.pause()
            elif announcement is not None:
                before = self._pods.known[uid]
                ended = replace(announcement, is_over=self._has_ended(uid))
                try:
                    if await self._is_patched(announcement, status_of(ended, before.generation), retry):
                        self._status_written(uid)
                        await self._wait_reported(before)
                except NotFoundError:
                    return

    async def _withdraw_status(self, uid: str) -> None:
        """Remove from the status what it says of an eviction that is called off, unless the pod has ended.

        Once is enough: a kubelet that has adopted the reason reports it until the phase changes.
        """
        retry = Backoff(*_RETRY_SECONDS)
        while not self._is_gone(uid):
            announcement, known = self._named(uid), self._pods.known.get(uid)
            if announcement is None or known is None:
                await self._wait_changed()
                continue
            if known.is_terminal:
                return
            try:
                if await self._is_patched(announcement, withdrawn_status(uid), retry):
                    return
            except NotFoundError:
                return

    async def _is_patched(self, announcement: Announcement, patch: Mapping[str, Any], retry: Backoff) -> bool:
        """Patch the pod's status; False, after a pause, where that failed. Raises NotFoundError."""
        path = pod_path(announcement.namespace, announcement.name)
        try:
            async with self._limiter:
                await self._client.patch(f"{path}/status", patch)
        except NotFoundError:
            raise
        except ApiError as error:
            await self._failed(announcement.uid, error, retry)
            return False
        retry.reset()
        self._problems.pop(announcement.uid, None)
        return True

    def _status_written(self, uid: str) -> None:
        """Note that the pod's end is in its status, where it is over."""
        announcement = self._announcements[uid]
        self._note(replace(announcement, status_written=announcement.is_over))

    async def _wait_reported(self, before: KnownPod) -> None:
        """Wait until the watch reports the pod as it is since, but not for ever: it may be down."""
        with trio.move_on_after(_REPORTED_SECONDS):
            while self._pods.known.get(before.pod.uid) is before:
                await self._pods.wait_changed()

    async def _stays(self, uid: str, let_go: trio.Event) -> bool:
        """Wait until the status is overwritten; True where it stayed long enough after the pod was let go."""
        settled_at = math.inf
        while self._is_reported(uid):
            now = trio.current_time()
            if let_go.is_set():
                settled_at = min(settled_at, now + self._settled_seconds)
            if now >= settled_at:
                return True
            await self._wait_changed(min(_RETRY_AFTER_SECONDS, settled_at - now))
        return False

    async def _wait_changed(self, seconds: float = _RETRY_AFTER_SECONDS) -> None:
        """Wait until the watch reports anything, or for so long."""
        with trio.move_on_after(seconds):
            await self._pods.wait_changed()

    def _is_gone(self, uid: str) -> bool:
        """Return whether the server has no such pod any more; it may have one that is not reported yet."""
        if uid in self._pods.known:
            self._seen.add(uid)
            return False
        if not self._pods.is_complete:
            return False
        # A clock that was set back makes it no younger.
        age_seconds = abs(self._clock_unix_seconds() - self._announcements[uid].at_unix_seconds)
        return uid in self._seen or age_seconds >= _UNREPORTED_SECONDS

    def _has_ended(self, uid: str) -> bool:
        """Return whether the pod has ended, as the guard reports or the server says.

        Of a pod that the kubelet evicts as well, one before 1.24 reports Failed when it begins.
        """
        known = self._pods.known.get(uid)
        return self._announcements[uid].is_over or (known is not None and known.is_terminal)

    def _is_reported(self, uid: str) -> bool:
        """Return whether the status says what it is to say; a pod ended for a shutdown may have succeeded."""
        known, announcement = self._pods.known.get(uid), self._announcements[uid]
        if known is None:
            return False
        reason = announcement.reason
        if reason == TERMINATED and known.phase == SUCCEEDED:
            return True
        is_failed = known.phase == FAILED or not self._has_ended(uid)
        return is_failed and known.reason == reason and (known.is_disrupted or not announcement.disrupted)

    def _named(self, uid: str) -> Announcement | None:
        """Return the announcement with the pod's name, None where that is not known (yet)."""
        announcement = self._announcements[uid]
        known = self._pods.known.get(uid)
        if known is not None:
            return replace(announcement, name=known.pod.name, namespace=known.pod.namespace)
        return announcement if announcement.name and announcement.namespace else None

    async def _failed(self, uid: str, error: ApiError, backoff: Backoff) -> None:
        if uid not in self._problems:
            _LOG.warning(
                "eviction of %s: not reported to the API server yet: %s",
                self._announcements[uid].name or uid,
                error,
            )
        self._problems[uid] = str(error)
        await self._client.recovery.pause(backoff, error, last_seconds=_UNREACHED_SECONDS)

    def _note(self, announcement: Announcement) -> None:
        if announcement != self._announcements.get(announcement.uid):
            self._announcements[announcement.uid] = announcement
            self._show()

    def _forget_most(self) -> None:
        """Keep the queue bounded: leave out what is reported, then the oldest."""
        while len(self._announcements) > _LIMIT:
            pending = {one.uid for one in self.pending}
            reported = (uid for uid in self._announcements if uid not in pending)
            uid = next(reported, next(iter(self._announcements)))
            _LOG.warning(
                "more than %d evictions to report to the API server: pod %s is left out", _LIMIT, uid
            )
            self._drop(uid)

    def _drop(self, uid: str) -> None:
        del self._announcements[uid]
        if uid in self._scopes:
            self._scopes[uid].cancel()

    def _show(self) -> None:
        self._file.show(tuple(self._announcements.values()))
