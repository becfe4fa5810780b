"""Warrants against a real kernel: who is killed at the crossing, by whom, and what voids one before."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from probing import MARKS, MIB, PAGE, PAGES, Cgroup, allocate
from warranting import FAR, GENERATIONS, Node, grown, is_alive

from reactor.kernel.bpf.records import WarrantOutcome
from reactor.kernel.bpf.warrants import ClaimState, Terms, WarrantProbe

pytestmark = MARKS
_FEW_PAGES = 5
_FEW_TIMES = 40
_READ_MIB = 30
_MANY_CGROUPS = 300
_STATISTICS_SECONDS = 4.5  # the kernel brings them up to date every two


def forget(path: Path) -> None:
    """Have no page of a file in memory."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.fixture(scope="module")
def probe() -> Iterator[WarrantProbe]:
    with WarrantProbe() as found:
        yield found


@pytest.fixture(autouse=True)
def _no_warrant_is_left(probe: WarrantProbe) -> Iterator[None]:
    yield
    probe.withdraw()


@pytest.fixture
def node(probe: WarrantProbe, cgroup: Cgroup) -> Node:
    return Node(probe, cgroup)


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
    assert node.voided() is WarrantOutcome.OTHER_GREW
    pid = node.victim.allocate(220)
    time.sleep(3)
    assert is_alive(pid)


def test_another_pods_growth_voids_a_draft_too(node: Node) -> None:
    generation = next(GENERATIONS)
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
    assert node.voided() is WarrantOutcome.OTHER_GREW


def test_victim_that_holds_less_than_it_has_to_is_spared(node: Node) -> None:
    grown(node.other, 100)
    node.arm(node.terms(110, least_mib=60))
    pid = node.victim.allocate(30)
    assert node.voided() is WarrantOutcome.SHRANK
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
    assert node.probe.draft(next(GENERATIONS), node.terms(40))
    pid = node.victim.allocate(80)
    time.sleep(3)
    assert is_alive(pid)
    assert node.probe.withdraw() is ClaimState.DRAFT


def test_cgroup_that_comes_voids_the_warrant(node: Node) -> None:
    node.arm(node.terms(40))
    node.cgroup.child("newcomer")
    assert node.voided() is WarrantOutcome.NEW_CGROUP


def test_cgroup_that_came_since_the_pods_were_listed_keeps_a_draft_from_being_armed(node: Node) -> None:
    arrivals = node.probe.arrivals()
    node.cgroup.child("newcomer")
    generation = next(GENERATIONS)
    assert node.probe.draft(generation, node.terms(40))
    assert not node.probe.arm(generation, arrivals)
    assert node.voided() is WarrantOutcome.NEW_CGROUP


def test_removal_of_the_victim_voids_the_warrant(node: Node) -> None:
    node.arm(node.terms(40))
    node.victim.path.rmdir()
    assert node.voided() is WarrantOutcome.REMOVED


@pytest.mark.parametrize("is_heeded", [True, False])
def test_charge_outside_the_pods_voids_a_warrant_that_heeds_it_and_no_other(
    node: Node, *, is_heeded: bool
) -> None:
    outside = node.cgroup.child("outside")
    node.arm(node.terms(200, outside_counter=node.counter(node.cgroup) if is_heeded else 0))
    grown(node.other, 10)
    grown(node.victim, 10)
    assert node.probe.result().outcome is not WarrantOutcome.OUTSIDE_GREW
    grown(outside, 10)
    if is_heeded:
        assert node.voided() is WarrantOutcome.OUTSIDE_GREW
    else:  # a cgroup that the machine makes meanwhile may have voided it
        assert node.probe.result().outcome is not WarrantOutcome.OUTSIDE_GREW


@pytest.mark.parametrize("is_heeded", [True, False])
def test_removal_of_another_pod_voids_a_warrant_that_heeds_what_it_leaves_and_no_other(
    node: Node, *, is_heeded: bool
) -> None:
    node.arm(node.terms(200, outside_counter=node.counter(node.cgroup) if is_heeded else 0))
    node.other.path.rmdir()
    if is_heeded:
        assert node.voided() is WarrantOutcome.OUTSIDE_GREW
    else:  # a cgroup that the machine makes meanwhile may have voided it
        assert node.probe.result().outcome is not WarrantOutcome.OUTSIDE_GREW


def test_page_cache_that_is_used_again_voids_a_warrant_that_heeds_it_and_no_other(node: Node) -> None:
    active = node.probe.page_cache().active
    told = Path("/proc/vmstat").read_text().split()
    assert abs(active - int(told[told.index("nr_active_file") + 1])) < 4 * PAGES
    if active < PAGES:
        pytest.skip(f"{active} pages of page cache are active here: none could be more than a bound")
    node.arm(node.terms(40), active_most=active // 2)
    pid = node.victim.allocate(80)
    assert node.voided() is WarrantOutcome.OUTSIDE_GREW
    assert is_alive(pid)
    node.victim.end()
    node.arm(node.terms(40), active_most=active * 2)
    pid = node.victim.allocate(80)
    assert node.served().pid == pid


def test_full_ring_buffer_hinders_no_kill_and_the_claim_tells_of_it(node: Node) -> None:
    """Nobody takes the records: each cgroup that is made voids a warrant, and leaves one."""
    node.probe.take()
    lost, made = node.probe.lost(), 0
    while node.probe.lost() == lost:
        assert made < 5000, "the ring buffer holds more than that"
        node.arm(node.terms(40))
        newcomer = node.cgroup.path / "newcomer"
        newcomer.mkdir()
        newcomer.rmdir()
        made += 1
    print(f"full after {made} records")
    node.arm(node.terms(40))
    pid = node.victim.allocate(80)
    assert node.served().pid == pid
    assert os.waitpid(pid, 0)[1] == 9
    node.victim.pids.clear()
    told = node.probe.take()
    assert told
    assert WarrantOutcome.SERVED not in {record.outcome for record in told}


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
    forget(path)
    try:
        node.arm(node.terms(20, cache_pages=node.probe.page_cache().pages + 2 * PAGES))
        pid = node.victim.run(lambda: len(path.read_bytes()[:1]))
        assert node.voided() is WarrantOutcome.CACHE_GREW
        assert is_alive(pid)
    finally:
        path.unlink()


@pytest.mark.parametrize("goes_outside", [False, True])
def test_page_cache_that_comes_moves_the_crossing_by_as_much(
    node: Node, tmp_path: Path, *, goes_outside: bool
) -> None:
    """It is idle, which is no memory in use: the victim may take as much more, whatever goes elsewhere."""
    inside, outside = (Path("/var/tmp") / f"{tmp_path.name}-{where}" for where in "io")
    usage = node.cgroup.path / "memory.current"
    try:
        for path in (inside, outside):
            path.write_bytes(bytes(_READ_MIB * MIB))
            forget(path)
        if goes_outside:
            outside.read_bytes()
        node.arm(node.terms(60))
        grown(node.victim, 5)  # looked at once before there is any
        read_in(node.other, inside, 0, 1, tmp_path)
        forget(outside)
        first = grown(node.victim, 45)
        assert int(usage.read_text()) > 70 * MIB
        assert is_alive(first)
        assert node.probe.result().crossed_ns is None
        pid = node.victim.allocate(45)
        result = node.served()
        assert result.pid == pid
        assert result.inactive_pages > (_READ_MIB - 1) * PAGES
        assert 0 <= result.value_pages - result.inactive_pages - 60 * PAGES < 4 * PAGES
    finally:
        inside.unlink()
        outside.unlink()


def test_page_cache_counts_in_cgroups_below_and_in_one_that_is_gone(node: Node, tmp_path: Path) -> None:
    path = Path("/var/tmp") / tmp_path.name
    path.write_bytes(bytes(_READ_MIB * MIB))
    try:
        parts = [node.other.child("a").child("b"), node.victim.child("c"), node.cgroup.child("gone")]
        for number, reader in enumerate(parts):
            read_in(reader, path, number, len(parts), tmp_path)
        parts[-1].end()
        parts[-1].remove()
        for number in range(_MANY_CGROUPS):
            node.other.child(f"e{number}")
        worker = node.victim.child("worker")
        time.sleep(_STATISTICS_SECONDS)
        told = (node.cgroup.path / "memory.stat").read_text().split()
        told_pages = int(told[told.index("inactive_file") + 1]) // PAGE
        node.arm(node.terms(1))
        worker.allocate(3)
        result = node.served()
        assert result.crossed_ns is not None
        assert result.signalled_ns is not None
        print(f"{(result.signalled_ns - result.crossed_ns) / 1000:.0f} us with {_MANY_CGROUPS} cgroups")
        assert told_pages > (_READ_MIB - 1) * PAGES
        assert 0 <= result.inactive_pages - told_pages <= node.probe.page_cache().on_its_way + _FEW_PAGES
    finally:
        path.unlink()


def read_in(reader: Cgroup, path: Path, number: int, parts: int, marks: Path) -> None:
    """Have one part of a file read, and charged, in a cgroup; return once it was."""
    mark = marks / f"{path.name}-{number}"
    size = path.stat().st_size // parts

    def read() -> None:
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
            file.seek(number * size)
            for start in range(0, size, PAGE):
                file.read(min(PAGE, size - start))
        mark.touch()

    if number == 0:
        forget(path)
    reader.run(read)
    deadline = time.monotonic() + 60
    while not mark.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_few_pages_of_a_file_move_the_crossing_before_they_are_on_a_list(node: Node, tmp_path: Path) -> None:
    """CPUs gather pages before they put them on a list, and the statistics lag behind that."""
    path = Path("/var/tmp") / tmp_path.name
    reader = node.other.child("reader")
    moved = []
    try:
        for pages in (1, 5, 20, 30):
            path.write_bytes(bytes(pages * (MIB // PAGES)))
            (tmp_path / str(pages)).mkdir()
            before = node.probe.page_cache().on_its_way
            read_in(reader, path, 0, 1, tmp_path / str(pages))
            node.arm(node.terms(1))
            node.victim.allocate(3)
            moved.append((before, pages, node.served().inactive_pages))
            node.victim.end()
            forget(path)
    finally:
        path.unlink()
    print(moved)
    assert all(inactive >= pages for _, pages, inactive in moved)


def test_page_cache_is_counted_to_the_page(node: Node, tmp_path: Path) -> None:
    """Each CPU keeps some pages to itself before the kernel's own counters have them."""
    path = Path("/var/tmp") / tmp_path.name
    grown_pages = []
    try:
        with path.open("ab", buffering=0) as file:
            for _ in range(_FEW_TIMES):
                before_pages = node.probe.page_cache().pages
                file.write(bytes(_FEW_PAGES * (MIB // PAGES)))
                grown_pages.append(node.probe.page_cache().pages - before_pages)
    finally:
        path.unlink()
    print(grown_pages)
    assert min(grown_pages) >= _FEW_PAGES
    assert sorted(grown_pages)[_FEW_TIMES // 2] < 2 * _FEW_PAGES


def test_the_machines_own_level_is_served_by_its_working_set(node: Node) -> None:
    terms = node.terms(0)
    node.arm(
        Terms(
            victim=terms.victim,
            victim_level=terms.victim_level,
            victim_counter=terms.victim_counter,
            victim_least=0,
            watched_counter=0,
            level=node.probe.working_set_pages() + 60 * PAGES,
            cache_most=FAR,
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
