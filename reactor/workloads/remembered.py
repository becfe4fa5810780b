"""The specs of the node's pods, kept in a file for a start at which nobody tells them.

A reactor that begins while the API server is away still knows who is critical, who asked for what and whose
priority is which, of all pods that ran when it was last told. A spec counts for the pod of its uid and for no
other, so one that is out of date does no harm: there is no cgroup of that uid any more.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import cattrs
import trio

from reactor.kernel.scheduling import following
from reactor.model.pods import Pod

_LOG: Final = logging.getLogger("reactor.pods")
_VERSION: Final = 1
_MAX_BYTES: Final = 16 << 20  # a spec takes one or two KiB
_BETWEEN_SECONDS: Final = 5.0


class RememberedSpecs:
    """Keeps specs at `path`, by uid. Nothing raises: what can't be read or written is a `problem`."""

    def __init__(self, path: Path, *, between_seconds: float = _BETWEEN_SECONDS) -> None:
        self._path = path
        self._between_seconds = between_seconds
        self._latest: Mapping[str, Pod] = {}
        self._changed = trio.Event()
        self.specs: Mapping[str, Pod] = {}
        self.problem: str | None = None

    def load(self) -> None:
        """Take over what an earlier run left. Blocks on the disk."""
        try:
            with self._path.open("rb") as file:
                content = file.read(_MAX_BYTES + 1)
            self.specs = {pod.uid: pod for pod in _parsed(content)}
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self.problem = f"{self._path}: started without it: {type(error).__name__}: {error}"

    def show(self, specs: Mapping[str, Pod]) -> None:
        """Have the specs saved soon; all that there are."""
        self._latest = specs
        self._changed.set()

    async def run(self) -> None:
        """Save until cancelled, the latest wins."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            # Not abandoned: two writers of one file are worse than a late one.
            await trio.to_thread.run_sync(following(self._save), self._latest)
            await trio.sleep(self._between_seconds)

    def flush(self) -> None:
        """Save what was shown last, here and now: the daemon ends."""
        if self._changed.is_set():
            self._save(self._latest)

    def _save(self, specs: Mapping[str, Pod]) -> None:
        # Where a pod's files and cgroups lie is looked for anew.
        pods = [replace(pod, cgroup=None, storage=()) for pod in specs.values()]
        document = {"version": _VERSION, "pods": [_CONVERTER.unstructure(pod, Pod) for pod in pods]}
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            beside = self._path.with_name(f".{self._path.name}.new")
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "w") as file:
                json.dump(document, file)
            beside.replace(self._path)
        except OSError as error:
            if self.problem is None:
                _LOG.error("pods: not saved, a restart without the API server would not know them: %s", error)
            self.problem = str(error)
        else:
            self.problem = None


def _parsed(content: bytes) -> list[Pod]:
    document = json.loads(content)
    if len(content) > _MAX_BYTES or document["version"] != _VERSION:
        raise ValueError(f"no pods of version {_VERSION}, or more than {_MAX_BYTES} bytes of them")
    return [_CONVERTER.structure(one, Pod) for one in document["pods"]]


def _text(value: Any, _: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"got {value!r:.80}; accepted: a string")
    return value


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=False)
    converter.register_structure_hook(str, _text)
    converter.register_unstructure_hook(Fraction, str)
    converter.register_structure_hook(Fraction, lambda text, _: Fraction(text))
    return converter


_CONVERTER: Final = _converter()
