"""What the control plane is still to be told of evictions; a small file, since it may be away for longer than
the daemon lives.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import cattrs

from reactor.kernel.small_file import KeptFile, document_of
from reactor.kube.documents import (
    ObjectReference,
    Occurrence,
    event,
    event_name,
    failed_status,
    ordered_status,
)
from reactor.kube.pods import EVICTED

_LOG: Final = logging.getLogger("reactor.announce")
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_VERSION: Final = 1
_MAX_BYTES: Final = 4 << 20
_REFUSED: Final = "Pod was rejected: "


def _text(value: Any, _: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"got {value!r:.80}; accepted: a string")
    return value


_CONVERTER: Final = cattrs.Converter(detailed_validation=False)
_CONVERTER.register_structure_hook(str, _text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """One pod that was evicted, or refused at its arrival, and how far the telling has come.

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
    """Keeps the announcements at `path`, for one boot."""

    def __init__(self, path: Path, *, boot_id: Path = BOOT_ID) -> None:
        self._boot_id = boot_id.read_text().strip()
        super().__init__(path, self._document, "announcements: not saved, a restart would forget them", _LOG)

    def load(self) -> tuple[Announcement, ...]:
        """Return what an earlier run left, nothing where that can't be read. Blocks on the disk."""
        return self._restore(_MAX_BYTES, partial(_parsed, boot_id=self._boot_id)) or ()

    def _document(self, announcements: tuple[Announcement, ...]) -> object:
        return {
            "version": _VERSION,
            "boot_id": self._boot_id,
            "announcements": [_CONVERTER.unstructure(one) for one in announcements],
        }


def _parsed(content: bytes, boot_id: str) -> tuple[Announcement, ...]:
    document = document_of(content, version=_VERSION, max_bytes=_MAX_BYTES)
    if document["boot_id"] != boot_id:
        return ()  # a pod that its kubelet has started since the reboot was not evicted
    return tuple(_CONVERTER.structure(one, Announcement) for one in document["announcements"])
