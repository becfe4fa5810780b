"""The layouts that the eBPF programs share with user space, and what their records say.

The same layouts stand in bpf/records.h for C; a test holds the two together.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final

from reactor.errors import KernelInterfaceError
from reactor.forms import U32, U64, Field, Form, choice

LEVELS_PER_WATCH: Final = 4
UNUSED: Final = (1 << 64) - 1

LEVEL: Final = struct.Struct("=QQQQ")
WATCH_HEAD: Final = struct.Struct("=QQQ")
OOM_HEAD: Final = struct.Struct("=IIQQQQQ16s")
OOM_CGROUP: Final = struct.Struct("=Q128s")
OOM_PATH_LEVELS: Final = 12
OOM_RECORD_BYTES: Final = OOM_HEAD.size + OOM_PATH_LEVELS * OOM_CGROUP.size
COUNTERS_RECORD: Final = struct.Struct("=QQQQ")
NODE_COUNTING: Final = struct.Struct("=QQQ")
_KIND: Final = struct.Struct("=I")


def _text(comm: bytes) -> str:
    """Return a task's name; the kernel cuts it at 15 bytes, in the midst of a character if need be."""
    return comm.split(b"\0", 1)[0].decode("utf-8", "replace")


_Comm = Annotated[str, Field("16s", _text)]


class RecordKind(IntEnum):
    """The kind of a record, which is the first number in it."""

    CROSSING = 1
    RECLAIM = 2
    REMOVED = 3
    OOM_KILL = 4
    WARRANT = 5


class Watched(IntEnum):
    """What a watch is on."""

    CGROUP_MEMORY = 1
    NODE_MEMORY = 2
    CGROUP_TASKS = 3
    NODE_TASKS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Fires at `fire` and above; again at doubling distances while the value rises, `step` being the first.

    Fires at `fire` again once a value below `rearm` was seen. `reported` is the last that user space knows
    (None: none): the next one to fire is `step` above it. All in pages or tasks.
    """

    fire: int
    rearm: int
    step: int
    reported: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCounting:
    """How the node's memory counts as MemAvailable leaves it of `total`, in pages; see bpf/records.h."""

    total: int
    reserved: int
    low: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRecord:
    """A level was crossed, a watched cgroup's memory is being reclaimed, or the cgroup is gone.

    `watch_id` is what the watch was given. `value` and `fire` are pages or tasks; `level` is the place of the
    level in its watch. `pid` and `comm` are of the process whose charge it was.
    """

    kind: Annotated[RecordKind, choice(RecordKind, "I")]
    watched: Annotated[Watched, choice(Watched, "I")]
    at_ns: U64
    watch_id: U64
    value: U64
    fire: U64
    level: U32
    pid: U32
    comm: _Comm


@dataclass(frozen=True, slots=True, kw_only=True)
class OomRecord:
    """The kernel's OOM killer has chosen a victim.

    `limit_cgroup` is the id (inode number) of the cgroup whose limit was met, None where the machine itself
    ran out; `limit_pages` that limit, or the machine's pages; `usage_pages` None for the machine. `path` is
    the victim's cgroup and those above it, up to the hierarchy's root or the twelfth, each id with its name.
    """

    at_ns: int
    pid: int
    comm: str
    limit_cgroup: int | None
    limit_pages: int
    usage_pages: int | None
    victim_pages: int
    path: tuple[tuple[int, str], ...]

    def cgroup_path(self, root_id: int, cgroup_id: int | None = None) -> str | None:
        """Return the path of the victim's cgroup, or of one above it, below the cgroup `root_id`.

        None where that root, or the cgroup asked for, is not above the victim.
        """
        names: list[str] = []
        is_met = cgroup_id is None
        for place_id, name in self.path:
            is_met = is_met or place_id == cgroup_id
            if place_id == root_id:
                return "/" + "/".join(reversed(names)) if is_met else None
            if is_met:
                names.append(name)
        return None


class WarrantOutcome(IntEnum):
    """What has come of a warrant, as bpf/records.h numbers it: by the names of its ends, or not ended."""

    OPEN = 0
    SERVED = 1
    REFUSED = 2
    EXPIRED = 3
    OTHERS = 4
    SHRANK = 5
    OTHER_GREW = 6
    CACHE_GREW = 7
    NEW_CGROUP = 8
    REMOVED = 9
    WITHDRAWN = 10
    OUTSIDE_GREW = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class WarrantRecord:
    """The warrant of this generation was served, or voided by the kernel."""

    outcome: Annotated[WarrantOutcome, choice(WarrantOutcome, "I")]
    at_ns: U64
    generation: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterAddresses:
    """Where the kernel keeps a cgroup's counters; 0 for a controller that the cgroup does not have.

    `level` is how deep the cgroup lies in the whole hierarchy, the root at 0; 0 where BCC was asked.
    """

    cgroup_id: int
    memory: int
    tasks: int
    level: int = 0


WATCH_RECORD: Final = Form(WatchRecord)
WARRANT_RECORD: Final = Form(WarrantRecord, prefix=_KIND.pack(RecordKind.WARRANT))


def pack_watch(watch_id: int, levels: Sequence[Level], *, of_node: bool = False) -> bytes:
    """Return a watch for the kernel. Raises ValueError for more levels than it holds.

    The watch `of_node` is one on the machine, which is not watched without levels.
    """
    if len(levels) > LEVELS_PER_WATCH:
        raise ValueError(f"{len(levels)} levels on one counter; accepted: {LEVELS_PER_WATCH} at the most")
    packed = [
        LEVEL.pack(
            level.fire,
            level.rearm,
            level.step,
            level.fire if level.reported is None else level.reported + level.step,
        )
        for level in levels
    ]
    packed += [LEVEL.pack(*[UNUSED] * 4)] * (LEVELS_PER_WATCH - len(levels))
    return WATCH_HEAD.pack(watch_id, of_node and bool(levels), 0) + b"".join(packed)


def parse_record(raw: bytes) -> WatchRecord | OomRecord | WarrantRecord:
    """Return what a ring buffer record says. Raises KernelInterfaceError for anything but a whole record."""
    kind = _KIND.unpack_from(raw)[0] if len(raw) >= _KIND.size else None
    try:
        if kind == RecordKind.OOM_KILL:
            return _oom_record(raw)
        if kind == RecordKind.WARRANT:
            return WARRANT_RECORD.read(raw)
        if kind is not None:
            return WATCH_RECORD.read(raw)
    except (struct.error, ValueError):
        pass
    raise KernelInterfaceError("eBPF ring buffer", raw[:96], "a record as in bpf/records.h")


def pack_node_counting(counting: NodeCounting | None) -> bytes:
    """Return the value of the map `node_counting`; None counts the working set."""
    if counting is None:
        return bytes(NODE_COUNTING.size)
    return NODE_COUNTING.pack(counting.total, counting.reserved, counting.low)


def parse_counters(raw: bytes) -> tuple[CounterAddresses, ...]:
    """Return what the cgroup iterator wrote. Raises KernelInterfaceError where it is no row of records."""
    if len(raw) % COUNTERS_RECORD.size:
        raise KernelInterfaceError(
            "eBPF cgroup iterator", raw[:96], f"a multiple of {COUNTERS_RECORD.size} bytes"
        )
    return tuple(
        CounterAddresses(cgroup_id=cgroup_id, memory=memory, tasks=tasks, level=level)
        for cgroup_id, memory, tasks, level in COUNTERS_RECORD.iter_unpack(raw)
    )


def _oom_record(raw: bytes) -> OomRecord:
    if len(raw) != OOM_RECORD_BYTES:
        raise ValueError
    _, pid, at_ns, limit_cgroup, limit, usage, victim_pages, comm = OOM_HEAD.unpack_from(raw)
    places = OOM_CGROUP.iter_unpack(raw[OOM_HEAD.size :])
    return OomRecord(
        at_ns=at_ns,
        pid=pid,
        comm=_text(comm),
        limit_cgroup=limit_cgroup or None,
        limit_pages=limit,
        usage_pages=usage if limit_cgroup else None,
        victim_pages=victim_pages,
        path=tuple((place_id, os.fsdecode(name.split(b"\0", 1)[0])) for place_id, name in places if place_id),
    )
