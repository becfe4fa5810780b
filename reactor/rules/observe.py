"""The numbers that rules go by, of one cgroup at a time, and whether any cgroup's tasks stall at all.

cgroup v1 knows pressure, swap's limit and reclaim of the machine alone, and of the events only `max`
(memory.failcnt). What a kernel or a cgroup does not have is None: not observed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree, CgroupVersion
from reactor.kernel.cgroup_directory import parse_limit
from reactor.kernel.files import READ_BYTES, parse_field, parse_integer, read_file, read_value
from reactor.kernel.procfs import PROC, parse_meminfo, parse_swap
from reactor.kernel.psi import PRESSURE, Pressure, parse_pressure
from reactor.kernel.swap import cgroup_swap, machine_swap, parse_swap_traffic, read_swap_traffic
from reactor.model.rules import MACHINE_SWAP, Measure, Metric, PressureResource

_ROOT: Final = "/"
_LIMIT_FRESH_SECONDS: Final = 60.0
_FAR: Final = 0.5
_OF_V1: Final = frozenset({"", "max", MACHINE_SWAP.of})
_ON_V2_ALONE: Final = frozenset({Measure.PAGES_SCANNED, Measure.SWAP_TRAFFIC})
_read: Final = partial(read_value, most_bytes=READ_BYTES)  # all that is read here comes in one piece
_SCANNED: Final = (b"pgscan_kswapd", b"pgscan_direct")
_REFAULTED: Final = b"workingset_refault_file"


@dataclass(eq=False)
class RuleObserver:
    """Reads metrics of cgroups. Nothing is held open; nothing here raises but `value`."""

    tree: CgroupTree
    _: KW_ONLY
    proc: Path = PROC
    pressure: Path = PRESSURE
    clock_seconds: Callable[[], float]

    def __post_init__(self) -> None:
        self._is_v2 = self.tree.version is CgroupVersion.V2
        self._proc, self._pressure = os.fspath(self.proc), os.fspath(self.pressure)
        self._limits: dict[tuple[str, Measure], tuple[float, int | None]] = {}
        self._reads: Mapping[Measure, Callable[[str, str, str], float | None]] = {
            Measure.PRESSURE: self._pressure_of,
            Measure.STALL: self._pressure_of,
            Measure.EVENTS: self._events,
            Measure.USAGE: self._usage_percent,
            Measure.SWAP_USED: self._swap_percent,
            Measure.PAGES_SCANNED: self._pages_scanned,
            Measure.SWAP_TRAFFIC: self._swap_traffic,
            Measure.REFAULTS: self._refaults,
        }

    def read(self, cgroup: str, directory: str, metrics: Iterable[Metric]) -> dict[Metric, float | None]:
        """Return a cgroup's metrics, None of what can't be observed. `directory` is the cgroup's."""
        found: dict[Metric, float | None] = {}
        for metric in metrics:
            try:
                found[metric] = self.value(cgroup, directory, metric)
            except (OSError, ReactorError):
                found[metric] = None
        return found

    def value(self, cgroup: str, directory: str, metric: Metric) -> float | None:
        """Return one metric, None if there is none of this cgroup. Raises OSError, ReactorError."""
        return self._reads[metric.measure](cgroup, directory, metric.of)

    def never_because(self, selector: str, metric: Metric) -> str | None:
        """Return why no cgroup of these can ever have a metric on this machine, None where one may."""
        is_root = selector == _ROOT
        if metric.resource is not None:
            if not self._is_v2 and not is_root:
                return "cgroup v1 has pressure of / alone"
            path = self.pressure_path(_ROOT, "", metric.resource)
            return None if os.path.exists(path) else f"this kernel has no {path}"
        if is_root:
            return "/ does not count it" if metric.measure is Measure.EVENTS else None
        if not self._is_v2 and (metric.measure in _ON_V2_ALONE or metric.of not in _OF_V1):
            return "cgroup v1 does not count it"
        return None

    def machine_stall_seconds(self, resource: PressureResource) -> float | None:
        """Return for how long some task of the machine has stalled so far; None where that is not known.

        While it stands still no cgroup's tasks stall.
        """
        try:
            return self._pressures(_ROOT, "", resource)["some"].total_seconds
        except (OSError, ReactorError, KeyError):
            return None

    def forget_absent(self, present: Collection[str]) -> None:
        """Forget the limits of cgroups that are not among these."""
        for key in [key for key in self._limits if key[0] not in present]:
            del self._limits[key]

    def pressure_path(self, cgroup: str, directory: str, resource: str) -> str:
        """Return the file of a cgroup's pressure; on cgroup v1 there is that of / alone."""
        return f"{self._pressure}/{resource}" if cgroup == _ROOT else f"{directory}/{resource}.pressure"

    def _pressures(self, cgroup: str, directory: str, resource: str) -> dict[str, Pressure]:
        path = self.pressure_path(cgroup, directory, resource)
        return parse_pressure(_read(path), path)

    def _pressure_of(self, cgroup: str, directory: str, of: str) -> float | None:
        """Return an average, or where none is named the seconds of stall."""
        resource, kind, *average = of.split()
        found = self._pressures(cgroup, directory, resource).get(kind)
        if found is None or not average:
            return None if found is None else found.total_seconds
        return found.avg10 if average == ["avg10"] else found.avg60

    def _events(self, cgroup: str, directory: str, of: str) -> float | None:
        if cgroup == _ROOT:
            return None
        if self._is_v2:
            path = f"{directory}/memory.events"
            return parse_field(_read(path), of.encode(), path)
        if of != "max":
            return None
        path = f"{directory}/memory.failcnt"
        return parse_integer(_read(path), path)

    def _usage_percent(self, cgroup: str, directory: str, _: str) -> float | None:
        if cgroup == _ROOT:
            path = f"{self._proc}/meminfo"
            machine = parse_meminfo(_read(path), path)
            if machine.available_bytes is None or not machine.capacity_bytes:
                return None
            return 100.0 * (1 - min(1.0, machine.available_bytes / machine.capacity_bytes))
        path = f"{directory}/{'memory.current' if self._is_v2 else 'memory.usage_in_bytes'}"
        usage_bytes = parse_integer(_read(path), path)
        of_limit = f"{directory}/{'memory.max' if self._is_v2 else 'memory.limit_in_bytes'}"
        limit_bytes = self._limit(
            cgroup, Measure.USAGE, lambda: parse_limit(_read(of_limit), of_limit), usage_bytes
        )
        if not limit_bytes:
            return None
        if usage_bytes < limit_bytes * _FAR:
            # It is far from its limit even with its page cache: the time for memory.stat is saved.
            return 100.0 * usage_bytes / limit_bytes
        path = f"{directory}/memory.stat"
        key = b"inactive_file" if self._is_v2 else b"total_inactive_file"
        return 100.0 * max(0, usage_bytes - parse_field(_read(path), key, path)) / limit_bytes

    def _swap_percent(self, cgroup: str, directory: str, of: str) -> float | None:
        if cgroup == _ROOT or of == MACHINE_SWAP.of:
            path = f"{self._proc}/meminfo"
            total_bytes, free_bytes = parse_swap(_read(path), path)
            return 100.0 * (total_bytes - free_bytes) / total_bytes if total_bytes else None
        path = f"{directory}/{'memory.swap.current' if self._is_v2 else 'memory.stat'}"
        raw = _read(path)
        used_bytes = parse_integer(raw, path) if self._is_v2 else parse_field(raw, b"total_swap", path)
        most_bytes = self._limit(
            cgroup,
            Measure.SWAP_USED,
            lambda: cgroup_swap(self.tree, cgroup, machine_swap(self.proc)).total_bytes,
            used_bytes,
        )
        return 100.0 * used_bytes / most_bytes if most_bytes else None

    def _pages_scanned(self, cgroup: str, directory: str, _: str) -> float | None:
        if cgroup == _ROOT:
            path = f"{self._proc}/vmstat"
            raw = read_file(path)  # it comes in pieces
            return sum(parse_field(raw, key, path) for key in _SCANNED)
        if not self._is_v2:
            return None
        path = f"{directory}/memory.stat"
        return parse_field(_read(path), b"pgscan", path)

    def _refaults(self, cgroup: str, directory: str, _: str) -> float | None:
        """Return how many pages of files were refaulted: of a cgroup since Linux 5.9, on v1 since 6.5."""
        if cgroup == _ROOT:
            path = f"{self._proc}/vmstat"
            return parse_field(read_file(path), _REFAULTED, path)  # it comes in pieces
        path = f"{directory}/memory.stat"
        return parse_field(_read(path), _REFAULTED if self._is_v2 else b"total_" + _REFAULTED, path)

    def _swap_traffic(self, cgroup: str, directory: str, _: str) -> float | None:
        if cgroup == _ROOT:
            return read_swap_traffic(None, None, proc=self.proc).total_bytes
        if not self._is_v2:
            return None
        path = f"{directory}/memory.stat"
        found = parse_swap_traffic(_read(path), path)
        return None if found is None else found.total_bytes

    def _limit(
        self, cgroup: str, measure: Measure, read: Callable[[], int | None], used_bytes: int
    ) -> int | None:
        """Return a limit; where it is not far from what is used it is read afresh, else once in a minute."""
        now_seconds = self.clock_seconds()
        at_seconds, limit_bytes = self._limits.get((cgroup, measure), (-math.inf, None))
        is_far = limit_bytes is None or used_bytes < limit_bytes * _FAR
        if not is_far or now_seconds - at_seconds >= _LIMIT_FRESH_SECONDS:
            limit_bytes = read()
            self._limits[cgroup, measure] = (now_seconds, limit_bytes)
        return limit_bytes


def share_of_machine(share: float, cpus: int) -> float:
    """Return for what share of the time the machine stalls at the least where one cgroup does for `share`.

    The kernel weighs each CPU's stalls by how long that CPU is not idle. In the cgroup one CPU stalls for
    that share or more; in the machine the other CPUs may be busy with tasks that do not stall. Half of it,
    since the two are not read at one instant. Source: collect_percpu_times in kernel/sched/psi.c.
    """
    return share * share / (2 * max(1, cpus))
