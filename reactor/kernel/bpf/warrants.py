"""Warrants as the kernel holds them (bpf/warrant.bpf.c): one at a time, and a bound for each other pod.

    draft      the warrant is written, and bounds count from here on; nothing is served
    arm        the draft is served at the crossing from here on
    withdraw   the claim is taken back; what stood there says whether the kernel was first

The claim word is moved by the kernel's programs alone, also on user space's behalf, by compare-and-exchange.
Everything else is written and read through mappings, without a system call.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

from reactor.errors import BpfError
from reactor.kernel.bpf.libbpf import LIBRARY
from reactor.kernel.bpf.objects import OBJECTS, BpfObject
from reactor.kernel.bpf.probes import KEY, NEEDS_SYSLOG, Probe, counters_of
from reactor.kernel.bpf.records import UNUSED, CounterAddresses, WarrantOutcome, WarrantRecord

SPARED: Final = 8
PLACES: Final = 4096
CLAIM_BITS: Final = 2

CLAIM: Final = struct.Struct("=Q")
WARRANT_TERMS: Final = struct.Struct(f"=9Q{SPARED}Q{SPARED}II")
WARRANT_RESULT: Final = struct.Struct("=IQQQQIi16s")
_FIRE: Final = struct.Struct("=Q")  # the kernel's own
WARRANT_ARRIVALS: Final = struct.Struct("=Q")
WARRANT_ORDER: Final = struct.Struct("=QQQ")
_START: Final = struct.Struct("=qqqq")
_PLACE: Final = struct.Struct("=I")
_BOUND: Final = struct.Struct("=Q")
_TERMS_AT: Final = CLAIM.size
_RESULT_AT: Final = _TERMS_AT + WARRANT_TERMS.size
_FIRE_AT: Final = _RESULT_AT + WARRANT_RESULT.size
_ARRIVALS_AT: Final = _FIRE_AT + _FIRE.size
WARRANT_BYTES: Final = _ARRIVALS_AT + WARRANT_ARRIVALS.size
EXPIRES_AT: Final = _TERMS_AT + 6 * CLAIM.size
ACTIVE_MOST_AT: Final = _TERMS_AT + 8 * CLAIM.size
_NO_RESULT: Final = bytes(WARRANT_RESULT.size)


class ClaimState(IntEnum):
    """What stands in a claim word beside its generation."""

    DRAFT = 1
    LIVE = 2
    SERVED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Who may be killed, at which crossing, and under which conditions; counted in pages.

    `victim` is a cgroup's id, `victim_level` how deep it lies; of `spared` cgroups below it each id with its
    level. `watched_counter` is whose working set crosses `level`, 0 the machine's: of a cgroup what is
    charged to it less its inactive page cache. `cache_most` is how much page cache the machine may have
    then. From `expires_ns` (CLOCK_MONOTONIC) on nothing is served. A charge of `outside_counter` that is no
    pod's voids them, as does a pod's removal; 0: neither does.
    """

    victim: int
    victim_level: int
    victim_counter: int
    victim_least: int
    watched_counter: int
    level: int
    cache_most: int
    expires_ns: int
    outside_counter: int = 0
    spared: Sequence[tuple[int, int]] = ()

    def pack(self) -> bytes:
        """Return them for the kernel. Raises ValueError for more spared cgroups than it holds."""
        if len(self.spared) > SPARED:
            raise ValueError(f"{len(self.spared)} spared cgroups; accepted: {SPARED} at the most")
        spared = [*self.spared, *[(0, 0)] * (SPARED - len(self.spared))]
        return WARRANT_TERMS.pack(
            self.victim,
            self.victim_counter,
            self.victim_least,
            self.watched_counter,
            self.level,
            self.cache_most,
            self.expires_ns,
            self.outside_counter,
            0,
            *(one for one, _ in spared),
            *(level for _, level in spared),
            self.victim_level,
        )


class PageCache(NamedTuple):
    """The machine's page cache without shared memory and tmpfs, and how much of files is in use; in pages.

    `on_its_way` is what CPUs have gathered and not put on a list of the kernel's yet, where it is inactive.
    """

    pages: int
    active: int
    on_its_way: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What has come of the warrant. Instants are CLOCK_MONOTONIC nanoseconds, None: it did not come to that.

    `value_pages` is what was charged at the crossing, `inactive_pages` what of it was inactive page cache,
    `pid` and `comm` the process that was signalled, `error` a negative errno where the kernel refused the
    signal.
    """

    outcome: WarrantOutcome
    crossed_ns: int | None
    signalled_ns: int | None
    value_pages: int
    inactive_pages: int
    pid: int
    error: int
    comm: str


def parse_result(raw: bytes) -> Result:
    """Return what stands behind the terms of a warrant."""
    outcome, crossed_ns, signalled_ns, value, inactive, pid, error, comm = WARRANT_RESULT.unpack(raw)
    known = outcome in WarrantOutcome.__members__.values()
    return Result(
        outcome=WarrantOutcome(outcome) if known else WarrantOutcome.OPEN,
        crossed_ns=crossed_ns or None,
        signalled_ns=signalled_ns or None,
        value_pages=value,
        inactive_pages=inactive,
        pid=pid,
        error=error,
        comm=comm.split(b"\0", 1)[0].decode("utf-8", "replace"),
    )


class WarrantProbe(Probe[WarrantRecord]):
    """The programs that serve warrants, attached; no warrant is there at first.

    Raises BpfError where the kernel refuses them or hides its counters.
    """

    record = WarrantRecord

    def __init__(self, *, directory: Path = OBJECTS, library: str = LIBRARY) -> None:
        self._object = BpfObject("warrant", directory=directory, library=library)
        try:
            self._counters = self._object.caller("warrant_counters", _START.size)
            if self.working_set_pages() <= 0 or min(self.page_cache()) < 0:
                raise BpfError("eBPF object warrant", NEEDS_SYSLOG)  # noqa: TRY301 - closed as for any other
        except BaseException:
            self._object.close()
            raise
        super().__init__(self._object)
        try:
            self._draft, self._arm, self._withdraw = (
                self._object.caller(name, WARRANT_ORDER.size)
                for name in ("warrant_draft", "warrant_arm", "warrant_withdraw")
            )
            self._places = self._object.map("warrant_places")
            self._bounds = mmap.mmap(self._object.map("warrant_bounds").fd, PLACES * _BOUND.size)
            self._owned.callback(self._bounds.close)
            self._warrant = mmap.mmap(self._object.map("warrants").fd, mmap.PAGESIZE)
            self._owned.callback(self._warrant.close)
        except BaseException:
            self.close()
            raise

    def counters(self, directory: Path) -> CounterAddresses:
        """Return where the kernel keeps a cgroup's counters. Raises OSError where the cgroup is gone."""
        return counters_of(self._object, directory)

    def place(self, address: int, place: int) -> None:
        """Have the pod with this counter held to the bound at `place`. Raises OSError."""
        self.bound(place, UNUSED)
        self._places.put(KEY.pack(address), _PLACE.pack(place))

    def displace(self, address: int) -> bool:
        """Hold a pod to no bound any more; return whether it was to one."""
        return self._places.delete(KEY.pack(address))

    def bound(self, place: int, pages: int) -> None:
        """Let the pod at `place` have so many pages."""
        _BOUND.pack_into(self._bounds, place * _BOUND.size, pages)

    def arrivals(self) -> int:
        """Return how many cgroups have come so far."""
        return int(WARRANT_ARRIVALS.unpack_from(self._warrant, _ARRIVALS_AT)[0])

    def page_cache(self) -> PageCache:
        """Return the machine's page cache, all of it read at once. Raises BpfError."""
        return PageCache(*_START.unpack(self._counters(bytes(_START.size)))[1:])

    def working_set_pages(self) -> int:
        """Return the machine's working set, as the kernel compares it with a level. Raises BpfError."""
        return int(_START.unpack(self._counters(bytes(_START.size)))[0])

    def is_claimed(self) -> bool:
        """Return whether there is a draft, a warrant, or one that was served and is not recorded yet."""
        return bool(CLAIM.unpack_from(self._warrant)[0])

    def is_live(self) -> bool:
        """Return whether a warrant stands there that may be served; also one that has expired since."""
        return bool(CLAIM.unpack_from(self._warrant)[0] & ((1 << CLAIM_BITS) - 1) == ClaimState.LIVE)

    def draft(self, generation: int, terms: Terms) -> bool:
        """Write a warrant; return False where another stands there. Raises BpfError."""
        if self.is_claimed():
            return False
        packed = terms.pack()
        self._warrant[_TERMS_AT:_FIRE_AT] = packed + _NO_RESULT
        return bool(WARRANT_ORDER.unpack(self._draft(WARRANT_ORDER.pack(generation, 0, 0)))[2])

    def arm(self, generation: int, arrivals: int, *, active_most: int = 0) -> bool:
        """Have the draft served; return False where a bound was passed or a cgroup came. Raises BpfError.

        `arrivals` are those of before the pods were listed. `active_most` pages of the machine's page cache
        may be active at the crossing; 0: as many as there are.
        """
        CLAIM.pack_into(self._warrant, ACTIVE_MOST_AT, active_most)
        return bool(WARRANT_ORDER.unpack(self._arm(WARRANT_ORDER.pack(generation, arrivals, 0)))[2])

    def withdraw(self) -> ClaimState | None:
        """Take the claim; return what stood there, None where nothing did any more.

        Where the kernel has no memory for the call, the warrant expires at once instead.
        """
        try:
            found = WARRANT_ORDER.unpack(self._withdraw(WARRANT_ORDER.pack(0, 0, 0)))[2]
        except BpfError:
            CLAIM.pack_into(self._warrant, EXPIRES_AT, 0)
            found = CLAIM.unpack_from(self._warrant)[0]
        return ClaimState(found & ((1 << CLAIM_BITS) - 1)) if found else None

    def result(self) -> Result:
        """Return what has come of the last warrant, as far as that is written."""
        return parse_result(self._warrant[_RESULT_AT:_FIRE_AT])
