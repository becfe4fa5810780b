"""Warrants against a real kernel: who is killed at the crossing, by whom, and what voids one before."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from probing import MARKS, MIB, PAGES, Cgroup, allocate

from reactor.kernel.bpf.records import WarrantOutcome
from reactor.kernel.bpf.warrants import ClaimState, Result, Terms, WarrantProbe

pytestmark = MARKS

_FAR: Final = 1 << 40
_SECONDS: Final = 60
_GENERATIONS: Final = itertools.count(1)


@pytest.fixture(scope="module")
def probe() -> Iterator[WarrantProbe]:
    with WarrantProbe() as found:
        yield found


@pytest.fixture(autouse=True)
def _no_warrant_is_left(probe: WarrantProbe) -> Iterator[None]:
    yield
    probe.withdraw()


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
        fire_mib: int,
        *,
        seconds: float = _SECONDS,
        least_mib: int = 0,
        cache_pages: int = _FAR,
        spared: tuple[tuple[int, int], ...] = (),
    ) -> Terms:
        victim = self.probe.counters(self.victim.path)
        return Terms(
            victim=victim.cgroup_id,
            victim_level=victim.level,
            victim_counter=victim.memory,
            victim_least=least_mib * PAGES,
            watched_counter=self.counter(self.cgroup),
            fire=fire_mib * PAGES,
            cache_most=cache_pages,
            expires_ns=time.monotonic_ns() + int(seconds * 1e9),
            spared=spared,
        )

    def arm(self, terms: Terms, *, other_mib: int = 1 << 20) -> None:
        generation = next(_GENERATIONS)
        arrivals = self.probe.arrivals()
        self.probe.bound(0, other_mib * PAGES)
        assert self.probe.draft(generation, terms)
        assert self.probe.arm(generation, arrivals)

    def voided(self) -> WarrantOutcome:
        """Return why there is no warrant any more."""
        deadline = time.monotonic() + _SECONDS
        while self.probe.is_claimed():
            assert time.monotonic() < deadline, self.probe.result()
            time.sleep(0.05)
        assert self.probe.withdraw() is None
        return self.probe.result().outcome

    def served(self) -> Result:
        deadline = time.monotonic() + _SECONDS
        while self.probe.result().signalled_ns is None:
            assert time.monotonic() < deadline, self.probe.result()
            time.sleep(0.05)
        assert self.probe.withdraw() is ClaimState.SERVED
        return self.probe.result()


@pytest.fixture
def node(probe: WarrantProbe, cgroup: Cgroup) -> Node:
    return Node(probe, cgroup)


def grown(cgroup: Cgroup, mib: int) -> int:
    """Return the pid of a process that has allocated so much."""
    pid = cgroup.allocate(mib)
    deadline = time.monotonic() + _SECONDS
    while int((cgroup.path / "memory.current").read_text()) < mib * MIB:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return pid


def is_alive(pid: int) -> bool:
    found, _ = os.waitpid(pid, os.WNOHANG)
    return found == 0


def test_victim_that_crosses_is_killed_at_the_crossing_itself(node: Node) -> None:
    grown(node.other, 20)
    node.arm(node.terms(80))
    pid = node.victim.allocate(200)
    result = node.served()
    assert (WarrantOutcome.SERVED, pid, 0) == (result.outcome, result.pid, result.error)
    assert result.crossed_ns is not None
    assert result.signalled_ns is not None
    print(f"signalled {(result.signalled_ns - result.crossed_ns) / 1000:.1f} us after the crossing")
    assert 0 <= result.value_pages - 80 * PAGES <= 4 * PAGES
    assert os.waitpid(pid, 0)[1] == 9
    node.victim.pids.clear()
    peak = int((node.cgroup.path / "memory.peak").read_text())
    print(f"charged at the most {(peak - 80 * MIB) >> 10} KiB past the level")
    assert {WarrantOutcome.SERVED} == {record.outcome for record in node.probe.take()}


def test_crossing_of_another_pod_is_left_to_user_space(node: Node) -> None:
    grown(node.victim, 20)
    node.arm(node.terms(60))
    pid = node.other.allocate(100)
    time.sleep(3)
    assert is_alive(pid)
    assert all(map(is_alive, node.victim.pids))
    assert node.probe.withdraw() is ClaimState.LIVE
    assert node.probe.result().crossed_ns is not None


def test_victim_that_charges_after_anothers_crossing_is_killed(node: Node) -> None:
    node.arm(node.terms(60))
    grown(node.other, 100)
    node.victim.allocate(20)
    assert node.served().outcome is WarrantOutcome.SERVED


def test_another_pods_growth_beyond_its_bound_voids_the_warrant(node: Node) -> None:
    node.arm(node.terms(200), other_mib=30)
    node.other.allocate(40)
    assert node.voided() is WarrantOutcome.GROWN
    pid = node.victim.allocate(220)
    time.sleep(3)
    assert is_alive(pid)


def test_another_pods_growth_voids_a_draft_too(node: Node) -> None:
    generation = next(_GENERATIONS)
    node.probe.bound(0, 30 * PAGES)
    arrivals = node.probe.arrivals()
    assert node.probe.draft(generation, node.terms(200))
    node.other.allocate(40)
    time.sleep(3)
    assert not node.probe.arm(generation, arrivals)


def test_charge_from_so_deep_that_its_pod_is_not_reached_voids_the_warrant(node: Node) -> None:
    deep = node.other
    for number in range(20):
        deep = deep.child(f"d{number}")
    node.arm(node.terms(200), other_mib=1000)
    deep.allocate(10)
    assert node.voided() is WarrantOutcome.GROWN


def test_victim_that_holds_less_than_it_has_to_is_spared(node: Node) -> None:
    grown(node.other, 100)
    node.arm(node.terms(110, least_mib=60))
    pid = node.victim.allocate(30)
    assert node.voided() is WarrantOutcome.SHRUNK
    assert is_alive(pid)


def test_warrant_that_has_expired_is_not_served(node: Node) -> None:
    node.arm(node.terms(40, seconds=0.0))
    pid = node.victim.allocate(80)
    assert node.voided() is WarrantOutcome.EXPIRED
    assert is_alive(pid)


def test_warrant_that_was_withdrawn_is_not_served(node: Node) -> None:
    node.arm(node.terms(40))
    assert node.probe.withdraw() is ClaimState.LIVE
    pid = node.victim.allocate(80)
    time.sleep(3)
    assert is_alive(pid)


def test_draft_is_not_served(node: Node) -> None:
    assert node.probe.draft(next(_GENERATIONS), node.terms(40))
    pid = node.victim.allocate(80)
    time.sleep(3)
    assert is_alive(pid)
    assert node.probe.withdraw() is ClaimState.DRAFT


def test_cgroup_that_comes_voids_the_warrant(node: Node) -> None:
    node.arm(node.terms(40))
    node.cgroup.child("newcomer")
    assert node.voided() is WarrantOutcome.NEWCOMER


def test_cgroup_that_came_since_the_pods_were_listed_keeps_a_draft_from_being_armed(node: Node) -> None:
    arrivals = node.probe.arrivals()
    node.cgroup.child("newcomer")
    generation = next(_GENERATIONS)
    assert node.probe.draft(generation, node.terms(40))
    assert not node.probe.arm(generation, arrivals)
    assert node.voided() is WarrantOutcome.NEWCOMER


def test_removal_of_the_victim_voids_the_warrant(node: Node) -> None:
    node.arm(node.terms(40))
    node.victim.path.rmdir()
    assert node.voided() is WarrantOutcome.GONE


def test_spared_cgroup_in_the_victim_is_left_alone(node: Node) -> None:
    pause, work = node.victim.child("pause"), node.victim.child("work")
    found = node.probe.counters(pause.path)
    node.arm(node.terms(40, spared=((found.cgroup_id, found.level),)))
    spared = pause.allocate(60)
    time.sleep(3)
    assert is_alive(spared)
    pid = work.allocate(20)
    assert node.served().pid == pid


def test_mere_reader_of_files_is_spared(node: Node, tmp_path: Path) -> None:
    path = Path("/var/tmp") / tmp_path.name  # tmp_path may lie in memory
    path.write_bytes(bytes(60 * MIB))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        node.arm(node.terms(20, cache_pages=node.probe.cache_pages() + 2 * PAGES))
        pid = node.victim.run(lambda: len(path.read_bytes()[:1]))
        assert node.voided() is WarrantOutcome.CACHE
        assert is_alive(pid)
    finally:
        path.unlink()


def test_the_machines_own_level_is_served_by_its_working_set(node: Node) -> None:
    terms = node.terms(0)
    node.arm(
        Terms(
            victim=terms.victim,
            victim_level=terms.victim_level,
            victim_counter=terms.victim_counter,
            victim_least=0,
            watched_counter=0,
            fire=node.probe.working_set_pages() + 60 * PAGES,
            cache_most=_FAR,
            expires_ns=terms.expires_ns,
        )
    )
    pid = node.victim.allocate(100)
    assert node.served().pid == pid


def test_races_of_withdrawals_with_crossings_have_one_winner(node: Node) -> None:
    """Whoever took the claim acted, and the other did not: the victim is dead exactly where it was served."""
    served = 0
    for round_number in range(40):
        node.arm(node.terms(24))
        pid = node.victim.run(lambda: allocate(60))
        near = (18 + round_number % 9) * MIB
        while node.probe.result().signalled_ns is None:
            if int((node.cgroup.path / "memory.current").read_text()) >= near:
                break
        state = node.probe.withdraw()
        assert state in {ClaimState.LIVE, ClaimState.SERVED}
        if state is ClaimState.SERVED:
            served += 1
            assert os.waitpid(pid, 0)[1] == 9
            node.victim.pids.clear()
        else:
            time.sleep(0.2)
            assert is_alive(pid)
            node.victim.end()
    print(f"the kernel was first in {served} of 40")
    assert 0 < served < 40, "aimed beside the crossing"
