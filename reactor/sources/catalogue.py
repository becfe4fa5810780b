"""Every source, once: its name, what it watches, on which kernels, its place in its chain, and its state.

The chains, `status`, `doctor`, `tune` and the bench all go by this table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.model.settings import SourceSettings
from reactor.model.signals import MEMORY_SIGNALS, Signal
from reactor.model.wakes import SourceHealth, SourceState

EBPF: Final = "ebpf"
MEMCG_EVENTFD: Final = "memcg-eventfd"
MEMORY_HIGH: Final = "memory-high"
MEMCG_RECLAIM: Final = "memcg-reclaim"
PSI: Final = "psi"
EBPF_PIDS: Final = "ebpf-pids"
PROCESSES: Final = "processes"
EBPF_OOM: Final = "ebpf-oom"
OOM_COUNTERS: Final = "oom-counters"
FILESYSTEMS: Final = "filesystems"
SWAP: Final = "swap"
RULE_PRESSURE: Final = "rule-pressure"
TICKER: Final = "ticker"

NO_LEVELS: Final = "no levels"  # the detail of an armed source that has nothing to watch


class Watched(StrEnum):
    """What a chain of sources watches."""

    MEMORY = "memory"
    PROCESSES = "processes"
    OOM_KILLS = "oom-kills"
    FILESYSTEMS = "filesystems"
    SWAP = "swap"
    RULES = "rules"
    EVERYTHING = "everything"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source. Those of one `watched` are its chain, in the order of the catalogue.

    `is_hint`: it runs beside the chain, since it does not see every crossing.
    `switches` are the fields of SourceSettings that must all be on.
    `version` is that of the memory controller that it needs, None: either.
    `feature` is the name in `kernel.features` of what it needs; one that needs nothing says why in `because`.
    """

    name: str
    watched: Watched
    purpose: str
    is_hint: bool = False
    switches: tuple[str, ...] = ()
    version: CgroupVersion | None = None
    feature: str | None = None
    because: str = ""

    def is_allowed(self, sources: SourceSettings) -> bool:
        return all(getattr(sources, switch) for switch in self.switches)


SOURCES: Final = (
    Source(
        name=EBPF,
        watched=Watched.MEMORY,
        purpose="memory, at the crossing itself",
        switches=("ebpf",),
        version=CgroupVersion.V2,
        feature="eBPF watches",
    ),
    Source(
        name=MEMCG_EVENTFD,
        watched=Watched.MEMORY,
        purpose="memory, at the crossing itself",
        switches=("memcg",),
        version=CgroupVersion.V1,
        feature="memcg eventfd",
    ),
    Source(
        name=MEMORY_HIGH,
        watched=Watched.MEMORY,
        purpose="memory, throttles too",
        switches=("memory_high",),
        version=CgroupVersion.V2,
        feature="memory.high",
    ),
    Source(
        name=MEMCG_RECLAIM,
        watched=Watched.MEMORY,
        purpose="memory, at crossings that page cache hides",
        is_hint=True,
        switches=("memcg",),
        version=CgroupVersion.V1,
        feature="memcg eventfd",
    ),
    Source(
        name=PSI,
        watched=Watched.MEMORY,
        purpose="memory, as a hint",
        is_hint=True,
        switches=("psi",),
        feature="pressure stall information",
    ),
    Source(
        name=EBPF_PIDS,
        watched=Watched.PROCESSES,
        purpose="process ids, at the crossing itself",
        switches=("ebpf", "processes"),
        version=CgroupVersion.V2,
        feature="eBPF process counts",
    ),
    Source(
        name=PROCESSES,
        watched=Watched.PROCESSES,
        purpose="process ids, at each fork",
        switches=("processes",),
        feature="process events",
    ),
    Source(
        name=EBPF_OOM,
        watched=Watched.OOM_KILLS,
        purpose="the kernel's OOM kills, each",
        switches=("ebpf",),
        version=CgroupVersion.V2,
        feature="eBPF OOM kills",
    ),
    Source(
        name=OOM_COUNTERS,
        watched=Watched.OOM_KILLS,
        purpose="the kernel's OOM kills, counted",
        because="every kernel counts them",
    ),
    Source(
        name=FILESYSTEMS,
        watched=Watched.FILESYSTEMS,
        purpose="disks and inodes, as often as they fill",
        because="every kernel has statvfs",
    ),
    Source(
        name=SWAP,
        watched=Watched.SWAP,
        purpose="swap, as often as it fills; only for thresholds on swap.available",
        because="every kernel has /proc/meminfo",
    ),
    Source(
        name=RULE_PRESSURE,
        watched=Watched.RULES,
        purpose="stalls that rules are for, as they happen; only for rules on pressure",
        is_hint=True,
        switches=("psi",),
        feature="pressure stall information",
    ),
    Source(name=TICKER, watched=Watched.EVERYTHING, purpose="everything, the last resort"),
)

BY_NAME: Final[Mapping[str, Source]] = {source.name: source for source in SOURCES}


def steps_of(watched: Watched) -> tuple[Source, ...]:
    """Return the sources that stand in for each other, the preferred one first."""
    return tuple(source for source in SOURCES if source.watched is watched and not source.is_hint)


def chain_of(signal: Signal) -> tuple[Source, ...]:
    """Return the sources that may wake the loop for a signal, the preferred one first, the ticker last."""
    watched = Watched.FILESYSTEMS
    if signal in MEMORY_SIGNALS:
        watched = Watched.MEMORY
    elif signal is Signal.PID_AVAILABLE:
        watched = Watched.PROCESSES
    elif signal is Signal.SWAP_AVAILABLE:
        watched = Watched.SWAP
    return (*steps_of(watched), *steps_of(Watched.EVERYTHING))


def switched_on(sources: SourceSettings) -> dict[str, bool]:
    return {source.name: source.is_allowed(sources) for source in SOURCES}


class SourceBoard:
    """How every source stands, by name, in the order of their first reports.

    `on_change` is called with the new state when a source's health changes, and when a source that is not
    armed has something new to say; the details of an armed one (its levels) change too often for a log.
    """

    def __init__(self, on_change: Callable[[SourceState], None] | None = None) -> None:
        self._states: dict[str, SourceState] = {}
        self._on_change = on_change

    def set(self, name: str, health: SourceHealth, detail: str = "") -> None:
        """Record how the source stands; `detail` is one line for an operator."""
        before = self._states.get(name)
        state = dataclasses.replace(self.state(name), health=health, detail=detail)
        self._states[name] = state
        if self._on_change is not None and _is_news(before, state):
            self._on_change(state)

    def count_wake(self, name: str) -> None:
        """Count one wake that the source gave."""
        state = self.state(name)
        self._states[name] = dataclasses.replace(state, wakes=state.wakes + 1)

    def count_lost(self, name: str, events: int = 1) -> None:
        """Count events that the kernel says it dropped before the source could read them."""
        state = self.state(name)
        self._states[name] = dataclasses.replace(state, lost=state.lost + events)

    def state(self, name: str) -> SourceState:
        """Return how the source stands; one that has not reported is off."""
        found = self._states.get(name)
        return found or SourceState(name=name, health=SourceHealth.OFF, detail="not started")

    def states(self) -> tuple[SourceState, ...]:
        return tuple(self._states.values())


def _is_news(before: SourceState | None, after: SourceState) -> bool:
    if before is None or before.health is not after.health:
        return True
    return after.health is not SourceHealth.ARMED and before.detail != after.detail
