"""A cgroup as the node of a warrant, for the tests of the programs that kill at the crossing."""

from __future__ import annotations

import itertools
import os
import time
from typing import Final

from probing import MIB, PAGES, Cgroup

from reactor.kernel.bpf.records import WarrantOutcome
from reactor.kernel.bpf.warrants import ClaimState, Result, Terms, WarrantProbe

FAR: Final = 1 << 40
SECONDS: Final = 60
GENERATIONS: Final = itertools.count(1)


class Node:
    """A cgroup that is the node, with a victim and another pod in it."""

    def __init__(self, probe: WarrantProbe, cgroup: Cgroup) -> None:
        self.probe = probe
        self.cgroup = cgroup
        self.victim = cgroup.child("victim")
        self.other = cgroup.child("other")
        probe.place(self.counter(self.other), 0)
        probe.place(self.counter(self.victim), 1)

    def counter(self, cgroup: Cgroup) -> int:
        return self.probe.counters(cgroup.path).memory

    def terms(
        self,
        level_mib: int,
        *,
        seconds: float = SECONDS,
        least_mib: int = 0,
        cache_pages: int = FAR,
        spared: tuple[tuple[int, int], ...] = (),
        outside_counter: int = 0,
    ) -> Terms:
        victim = self.probe.counters(self.victim.path)
        return Terms(
            victim=victim.cgroup_id,
            victim_level=victim.level,
            victim_counter=victim.memory,
            victim_least=least_mib * PAGES,
            watched_counter=self.counter(self.cgroup),
            level=level_mib * PAGES,
            cache_most=cache_pages,
            expires_ns=time.monotonic_ns() + int(seconds * 1e9),
            spared=spared,
            outside_counter=outside_counter,
        )

    def arm(self, terms: Terms, *, other_mib: int = 1 << 20, active_most: int = 0) -> None:
        generation = next(GENERATIONS)
        arrivals = self.probe.arrivals()
        self.probe.bound(0, other_mib * PAGES)
        assert self.probe.draft(generation, terms)
        assert self.probe.arm(generation, arrivals, active_most=active_most)

    def voided(self) -> WarrantOutcome:
        """Return why there is no warrant any more."""
        deadline = time.monotonic() + SECONDS
        while self.probe.is_claimed():
            assert time.monotonic() < deadline, self.probe.result()
            time.sleep(0.05)
        assert self.probe.withdraw() is None
        return self.probe.result().outcome

    def served(self) -> Result:
        deadline = time.monotonic() + SECONDS
        while self.probe.result().signalled_ns is None:
            assert time.monotonic() < deadline, self.probe.result()
            time.sleep(0.05)
        assert self.probe.withdraw() is ClaimState.SERVED
        return self.probe.result()


def grown(cgroup: Cgroup, mib: int) -> int:
    """Return the pid of a process that has allocated so much."""
    pid = cgroup.allocate(mib)
    deadline = time.monotonic() + SECONDS
    while int((cgroup.path / "memory.current").read_text()) < mib * MIB:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return pid


def is_alive(pid: int) -> bool:
    found, _ = os.waitpid(pid, os.WNOHANG)
    return found == 0
