"""What the control plane is still to be told of evictions; a small file, since it may be away for longer than
the daemon lives.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import cattrs
import trio

from reactor.kernel.scheduling import following
from reactor.kube.documents import ObjectReference, Occurrence, event, event_name, failed_status
from reactor.kube.pods import EVICTED

_LOG: Final = logging.getLogger("reactor.announce")
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_VERSION: Final = 1
_MAX_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """One pod that was evicted, or refused at its arrival, and how far the telling has come.

    `uid` is the API server's. `name` and `namespace` are empty where they were not known yet. `disrupted`:
    it ran, and was ended on the node's behalf. `is_over`: it is ended, not just told to end within its grace
    period, so its status may be written.
    """

    uid: str
    name: str
    namespace: str
    cgroup: str | None = None
    spared_cgroups: tuple[str, ...] = ()
    message: str
    at_unix_seconds: float
    grace_period_seconds: float = 0.0
    annotations: Mapping[str, str] = field(default_factory=dict)
    disrupted: bool = True
    is_over: bool = True
    event_written: bool = False
    status_written: bool = False


def event_of(announcement: Announcement, node_name: str) -> dict[str, Any]:
    """Return the event; its name is the same for the same pod, so the server takes it once only."""
    about = ObjectReference(
        kind="Pod", name=announcement.name, uid=announcement.uid, namespace=announcement.namespace
    )
    occurrence = Occurrence(
        name=event_name(announcement.name, announcement.uid, EVICTED),
        about=about,
        reason=EVICTED,
        message=announcement.message,
        annotations=announcement.annotations,
    )
    return event(occurrence, node_name, announcement.at_unix_seconds)


def status_of(announcement: Announcement) -> dict[str, Any]:
    """Return the patch of the pod's status."""
    return failed_status(
        announcement.uid,
        announcement.message,
        announcement.at_unix_seconds,
        disrupted=announcement.disrupted,
    )


class AnnouncementFile:
    """Keeps the announcements at `path`. Nothing raises: a file that can't be had is a `problem`."""

    def __init__(self, path: Path, *, boot_id: Path = BOOT_ID) -> None:
        self._path = path
        self._boot_id = boot_id.read_text().strip()
        self._latest: tuple[Announcement, ...] = ()
        self._changed = trio.Event()
        self.problem: str | None = None

    def load(self) -> tuple[Announcement, ...]:
        """Return what an earlier run left, nothing where that can't be read. Blocks on the disk."""
        try:
            with self._path.open("rb") as file:
                content = file.read(_MAX_BYTES + 1)
            return _parsed(content, self._boot_id)
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self.problem = f"{self._path}: started without it: {type(error).__name__}: {error}"
            return ()

    def show(self, announcements: tuple[Announcement, ...]) -> None:
        """Have them saved soon."""
        self._latest = announcements
        self._changed.set()

    async def run(self) -> None:
        """Save until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            await trio.to_thread.run_sync(following(self._save), self._latest)

    def flush(self) -> None:
        """Save what was shown last, here and now: the daemon ends."""
        if self._changed.is_set():
            self._save(self._latest)

    def _save(self, announcements: tuple[Announcement, ...]) -> None:
        document = {
            "version": _VERSION,
            "boot_id": self._boot_id,
            "announcements": [_CONVERTER.unstructure(one) for one in announcements],
        }
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            beside = self._path.with_name(f".{self._path.name}.new")
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "w") as file:
                json.dump(document, file)
            beside.replace(self._path)
        except OSError as error:
            if self.problem is None:
                _LOG.error("announcements: not saved, a restart would forget them: %s", error)
            self.problem = str(error)
        else:
            self.problem = None


def _parsed(content: bytes, boot_id: str) -> tuple[Announcement, ...]:
    document = json.loads(content)
    if len(content) > _MAX_BYTES or document["version"] != _VERSION:
        raise ValueError(f"no announcements of version {_VERSION}, or more than {_MAX_BYTES} bytes of them")
    if document["boot_id"] != boot_id:
        return ()  # a pod that its kubelet has started since the reboot was evicted by nobody
    return tuple(_CONVERTER.structure(one, Announcement) for one in document["announcements"])


def _text(value: Any, _: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"got {value!r:.80}; accepted: a string")
    return value


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=False)
    converter.register_structure_hook(str, _text)
    return converter


_CONVERTER: Final = _converter()
