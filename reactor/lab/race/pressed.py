"""Courses under pressure: a node with swap that stalls, and one beside a cgroup that thrashes in its limit.

A node of 256 MiB that may swap 256 MiB, and whose disk reads 300 times a second, so that page faults wait
as they do on a machine. Beside the pod that is the trouble there are a probe, which answers every 20 ms by
some of the memory that it holds, and two pods that hold memory: none of the three is ever to be killed.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from reactor.lab.hog import MIB

MEMORY_BYTES: Final = 256 * MIB
SWAP_BYTES: Final = 256 * MIB
INTERVAL_MS: Final = 20  # of the probe's answers
PROBE_BYTES: Final = 32 * MIB
PROBE_PAGES: Final = 32  # of these, at random, for each answer
RESIDENT_BYTES: Final = 48 * MIB
IDLE_BYTES: Final = 16 * MIB
GROW_BYTES_A_SECOND: Final = 8 * MIB
THRASH_LIMIT_BYTES: Final = 64 * MIB
THRASH_BYTES: Final = 112 * MIB
THREADS: Final = 4
READS_A_SECOND: Final = 300
_LATE_MULTIPLE: Final = 10
_LATE_NS: Final = 50_000_000

Answer = tuple[int, int]  # begin and end, ns on CLOCK_MONOTONIC


@dataclass(frozen=True, slots=True, kw_only=True)
class PressedCourse:
    """One kind of heat. Without a kill it is over after `patience_seconds`."""

    name: str
    description: str
    patience_seconds: float


SWAP: Final = PressedCourse(
    name="swap",
    description=f"a pod grows by {GROW_BYTES_A_SECOND // MIB} MiB/s beyond the memory of a node with "
    f"swap, and writes to all that it has in {THREADS} threads",
    patience_seconds=90.0,
)
THRASH: Final = PressedCourse(
    name="thrash",
    description=f"a pod with a limit of {THRASH_LIMIT_BYTES // MIB} MiB writes to {THRASH_BYTES // MIB} MiB "
    f"in {THREADS} threads; the node has memory and swap available",
    patience_seconds=60.0,
)
PRESSED: Final = (SWAP, THRASH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Innocent:
    """A pod that is not to be killed: how it is called, what it holds, and whether it lived."""

    name: str
    held_bytes: int
    lives: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PressedFinish:
    """One heat's instants, in ns on CLOCK_MONOTONIC; None is what did not happen.

    `condition_ns` is before the page that filled the node's memory, or what the pod may have; `dead_ns` is
    when the pod that is the trouble had ended. `oom_kills` are those of the kernel's in the node.
    """

    began_ns: int
    condition_ns: int | None
    dead_ns: int | None
    ended_ns: int
    answers: Sequence[Answer]
    innocents: Sequence[Innocent]
    oom_kills: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """The probe's: its longest answer, and the end of its last late one, None where none was late."""

    longest_ns: int
    last_late_ns: int | None


def late_from_ns(before: Sequence[Answer]) -> int:
    """Return how long an answer takes at least that is late: ten times what was usual, and 50 ms longer.

    Raises ValueError where there is no answer from before.
    """
    usual_ns = statistics.median(end - begin for begin, end in before)
    return int(max(_LATE_MULTIPLE * usual_ns, usual_ns + _LATE_NS))


def stall(answers: Sequence[Answer], began_ns: int, ended_ns: int) -> Stall:
    """Return how the probe fared from `began_ns` to `ended_ns`.

    An answer that was not given any more took until the end. Raises ValueError where there is no answer from
    before.
    """
    late_ns = late_from_ns([(begin, end) for begin, end in answers if end <= began_ns])
    after = [(begin, end) for begin, end in answers if began_ns < end <= ended_ns]
    last_ns = after[-1][1] if after else began_ns
    if ended_ns - last_ns > _LATE_NS:
        after.append((last_ns, ended_ns))
    return Stall(
        longest_ns=max((end - begin for begin, end in after), default=0),
        last_late_ns=max((end for begin, end in after if end - begin >= late_ns), default=None),
    )


def measured_under_pressure(finish: PressedFinish) -> dict[str, Any]:
    """Return a heat's figures, with the names of other heats where they mean the same.

    `answers_ms` is from the condition until the probe's last late answer is given, None where the trouble was
    not ended. A kill before the condition has no latency and is `early`: a threshold on memory, for example.
    """
    condition_ns, dead_ns = finish.condition_ns, finish.dead_ns
    fared = stall(finish.answers, finish.began_ns, finish.ended_ns)
    early = dead_ns is not None and (condition_ns is None or dead_ns < condition_ns)
    kill_ms = answers_ms = None
    if dead_ns is not None and condition_ns is not None and not early:
        kill_ms = round((dead_ns - condition_ns) / 1e6, 1)
        answers_ms = round(max(0, (fared.last_late_ns or 0) - condition_ns) / 1e6, 1)
    lost = [one for one in finish.innocents if not one.lives]
    return {
        "kill_ms": kill_ms,
        "early": early,
        "back_ms": None,
        "overshoot_mib": None,
        "stall_ms": round(fared.longest_ns / 1e6, 1),
        "answers_ms": answers_ms,
        "wrong": [one.name for one in lost],
        "lost_mib": round(sum(one.held_bytes for one in lost) / MIB, 1),
        "kernel_oom_kills": finish.oom_kills,
    }
