"""What was measured, as values, and as the JSON that is stored: a report can be made of it anywhere."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cattrs import Converter
from cattrs.errors import BaseValidationError

from reactor.errors import ConfigError, Problem
from reactor.plain import read_regular
from reactor.tune.history import History

FORMAT: Final = "reactor-tune/1"
_LARGEST_BYTES: Final = 256 << 20
AS_CONFIGURED: Final = "as configured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """What has to be left where the node is fullest, in bytes, by what it is for.

    `watermark_bytes` is what the kernel wants free before it reclaims in the allocators' own time,
    `batch_bytes` what CPUs may have taken that no counter shows yet, `daemon_bytes` the daemon itself,
    `kernel_bytes` what the kernel itself holds of a machine: it counts as available there.
    """

    watermark_bytes: int
    batch_bytes: int
    daemon_bytes: int
    kernel_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Return the sum."""
        return self.watermark_bytes + self.batch_bytes + self.daemon_bytes + self.kernel_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """The node that thresholds are for. `huge_pages` is the kernel's word: always, madvise, never.

    `largest_pod_bytes` is the working set of the largest pod there is now, None where pods are not known.
    `available_bytes` is memory.available before the measurement, None where that was not stored;
    `swap_bytes` and `swap_free_bytes` are the machine's swap, which memory.available does not count.
    """

    capacity_bytes: int
    cpus: int
    huge_pages: str
    reserve: Reserve
    largest_pod_bytes: int | None = None
    available_bytes: int | None = None
    swap_bytes: int = 0
    swap_free_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """One run of allocators that took memory as fast as it went, each `size_bytes`, and were then killed.

    `rate_bytes` is bytes a second, of all together; `freed_seconds` from SIGKILL to memory back.
    """

    allocators: int
    size_bytes: int
    huge_pages: bool
    rate_bytes: float
    freed_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """One crossing at full speed that was answered, in seconds: to the wake, to the kill, and from there on.

    `way` is how the daemon was configured, `source` what woke it, `load` what else the CPUs did.
    """

    way: str
    load: str
    source: str
    wake_seconds: float
    kill_seconds: float
    freed_seconds: float
    victim_bytes: int
    overshoot_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Everything that a run has measured; `problems` are what could not be.

    `missed` counts, by way, the crossings that the daemon did not answer.
    """

    about: Mapping[str, Any]
    node: NodeFacts
    growths: tuple[Growth, ...] = ()
    reactions: tuple[Reaction, ...] = ()
    missed: Mapping[str, int] = dataclasses.field(default_factory=dict)
    problems: tuple[str, ...] = ()
    seconds: float = 0.0
    interrupted: bool = False


def document_of(measured: Measured, history: History) -> dict[str, Any]:
    """Return it as plain JSON values, with the history that it was held against."""
    return {
        "format": FORMAT,
        "measured": dataclasses.asdict(measured),
        "history": dataclasses.asdict(history),
    }


def stored_in(path: Path) -> tuple[Measured, History]:
    """Return what a file holds. Raises ConfigError where it is no such file, OSError."""
    accepted = "a file that reactor tune has stored"
    try:
        document = json.loads(read_regular(path, _LARGEST_BYTES))
    except (ValueError, RecursionError) as error:
        raise ConfigError([Problem(path=str(path), got=str(error), accepted=accepted)]) from error
    found = document.get("format") if isinstance(document, dict) else None
    if found != FORMAT:
        raise ConfigError([Problem(path=f"{path}: format", got=repr(found), accepted=repr(FORMAT))])
    converter = Converter(forbid_extra_keys=True)
    try:
        return (
            converter.structure(document.get("measured"), Measured),
            converter.structure(document.get("history"), History),
        )
    except (BaseValidationError, ValueError, TypeError, KeyError, AttributeError) as error:
        got = [*str(error).splitlines(), type(error).__name__][0]
        raise ConfigError([Problem(path=str(path), got=got, accepted=accepted)]) from error
