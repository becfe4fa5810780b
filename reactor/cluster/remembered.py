"""The specs of the node's pods, kept in a file for a start without the API server.

A reactor that begins while the API server is away still knows who is critical, who asked for what and whose
priority is which, of all pods that ran when it was last told. A spec counts for the pod of its uid and for no
other, so one that is out of date does no harm: there is no cgroup of that uid any more.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from reactor.cluster.plain_values import CONVERTER
from reactor.kernel.small_file import KeptFile, document_of
from reactor.model.pods import Pod

_LOG: Final = logging.getLogger("reactor.pods")
_VERSION: Final = 2  # 1: with static pods by what their annotations said
_MAX_BYTES: Final = 16 << 20  # a spec takes one or two KiB
_BETWEEN_SECONDS: Final = 5.0


class RememberedSpecs(KeptFile[Mapping[str, Pod]]):
    """Keeps specs at `path`, by uid; `specs` are those of an earlier run."""

    def __init__(self, path: Path, *, between_seconds: float = _BETWEEN_SECONDS) -> None:
        super().__init__(
            path,
            _document,
            "pods: not saved, a restart without the API server would not know them",
            _LOG,
            between_seconds=between_seconds,
        )
        self.specs: Mapping[str, Pod] = {}

    def load(self) -> None:
        """Take over what an earlier run left. Blocks on the disk."""
        self.specs = self._restore(_MAX_BYTES, _parsed) or {}


def _document(specs: Mapping[str, Pod]) -> object:
    # Where a pod's files and cgroups lie is looked for again.
    pods = [replace(pod, cgroup=None, storage=()) for pod in specs.values()]
    return {"version": _VERSION, "pods": [CONVERTER.unstructure(pod, Pod) for pod in pods]}


def _parsed(content: bytes) -> dict[str, Pod]:
    document = document_of(content, version=_VERSION, max_bytes=_MAX_BYTES)
    pods = [CONVERTER.structure(one, Pod) for one in document["pods"]]
    return {pod.uid: pod for pod in pods}
