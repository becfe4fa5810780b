"""The eBPF probes against a real kernel: what they tell, and that they leave nothing. cgroup v2 only."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from reactor.kernel.bpf_probes import MemoryProbe, OomProbe, TasksProbe
from reactor.kernel.bpf_records import Level, OomRecord, RecordKind, Watched, WatchRecord
from reactor.kernel.procfs import read_meminfo, read_task_count

ROOT = Path("/sys/fs/cgroup")
PAGE = mmap.PAGESIZE
MIB = 1 << 20
PAGES = MIB // PAGE

pytestmark = [
    pytest.mark.skipif(
        not (ROOT / "cgroup.controllers").exists(), reason="the memory controller is not on cgroup v2 here"
    ),
    # from Python 3.12 on; nothing of what the children do takes a lock
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


class Cgroup:
    """A cgroup of this test, and the processes that the test has put there."""

    def __init__(self, path: Path, made: list[Cgroup]) -> None:
        self.path = path
        self.pids: list[int] = []
        self._made = made
        path.mkdir()
        made.append(self)

    def child(self, name: str) -> Cgroup:
        (self.path / "cgroup.subtree_control").write_text("+memory +pids")
        return Cgroup(self.path / name, self._made)

    def run(self, work: Callable[[], object]) -> int:
        """Do `work` in a process of this cgroup; the process then waits to be killed."""
        self.pids.append(spawn(self.path, work))
        return self.pids[-1]

    def allocate(self, mib: int) -> int:
        return self.run(lambda: allocate(mib))

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)

    def end(self) -> None:
        while self.pids:
            pid = self.pids.pop()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def remove(self) -> None:
        self.end()
        deadline = time.monotonic() + 30
        while self.path.exists():
            try:
                for child in self.path.glob("*/"):
                    child.rmdir()
                self.path.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def spawn(cgroup: Path, work: Callable[[], object]) -> int:
    """Return the pid of a process in the cgroup that does `work`, keeps its result and waits to be killed."""
    pid = os.fork()
    if pid == 0:
        try:
            (cgroup / "cgroup.procs").write_text("0")
            kept = work()
            while kept is not pid:
                signal.pause()
        finally:
            os._exit(1)
    return pid


def allocate(mib: int) -> mmap.mmap:
    memory = mmap.mmap(-1, mib * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for offset in range(0, mib * MIB, PAGE):
        memory[offset] = 1
    return memory


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    (ROOT / "cgroup.subtree_control").write_text("+memory +pids")
    made: list[Cgroup] = []
    try:
        yield Cgroup(ROOT / f"reactor-bpf-{os.getpid()}", made)
    finally:
        for one in made:
            one.end()
        for one in reversed(made):
            one.remove()


@pytest.fixture(scope="module")
def memory() -> Iterator[MemoryProbe]:
    with MemoryProbe() as probe:
        yield probe


def level(fire_pages: int, *, step_pages: int = PAGES) -> Level:
    return Level(fire=fire_pages, rearm=fire_pages - 2 * PAGES, step=step_pages)


def told(
    probe: MemoryProbe | TasksProbe, watch_id: int, kind: RecordKind, *, seconds: float = 60
) -> list[WatchRecord]:
    """Return the records of a watch up to the first of this kind; fails where none comes."""
    found: list[WatchRecord] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        select.select([probe.fd], [], [], 0.2)
        found += [record for record in probe.take() if record.watch_id == watch_id]
        if any(record.kind is kind for record in found):
            return found
    raise AssertionError(f"no {kind.name} in {seconds} s, only {found}")


def silent(probe: MemoryProbe | TasksProbe, watch_id: int) -> bool:
    time.sleep(0.5)
    return not any(record.watch_id == watch_id for record in probe.take())


def test_crossing_of_a_nested_cgroup_is_told_with_who_made_it(memory: MemoryProbe, cgroup: Cgroup) -> None:
    """The watch is on the grandparent, the memory is charged two levels below."""
    leaf = cgroup.child("pods").child("pod")
    memory.watch(memory.counters(cgroup.path).memory, 10, [level(60 * PAGES)])
    leaf.allocate(40)
    assert silent(memory, 10)
    leaf.end()
    pid = leaf.allocate(80)
    (record, *_) = told(memory, 10, RecordKind.CROSSING)
    assert (Watched.CGROUP_MEMORY, 60 * PAGES, 0, pid) == (
        record.watched,
        record.fire,
        record.level,
        record.pid,
    )
    past = record.value - record.fire
    print(f"told {past * PAGE >> 10} KiB past the level")
    assert 0 <= past <= 4 * PAGES


def test_crossing_is_told_anew_after_usage_fell(memory: MemoryProbe, cgroup: Cgroup) -> None:
    memory.watch(memory.counters(cgroup.path).memory, 20, [level(60 * PAGES)])
    for _ in range(3):
        cgroup.allocate(70)
        told(memory, 20, RecordKind.CROSSING)
        cgroup.end()
        assert all(record.value >= 60 * PAGES for record in memory.take())
        cgroup.allocate(20)  # lets the kernel see usage below the level
        assert silent(memory, 20)
        cgroup.end()


def test_usage_that_rises_on_is_told_at_doubling_distances(memory: MemoryProbe, cgroup: Cgroup) -> None:
    memory.watch(memory.counters(cgroup.path).memory, 30, [level(40 * PAGES)])
    cgroup.allocate(120)
    time.sleep(1)
    distances = [record.value - record.fire for record in told(memory, 30, RecordKind.CROSSING)]
    time.sleep(3)
    distances += [record.value - record.fire for record in memory.take()]
    print([distance * PAGE >> 10 for distance in distances])
    assert 5 <= len(distances) <= 9
    assert all(
        later >= 2 * sooner or later - sooner >= PAGES for sooner, later in itertools.pairwise(distances)
    )


def test_soft_and_hard_level_are_told_one_after_the_other(memory: MemoryProbe, cgroup: Cgroup) -> None:
    far = 1 << 40
    memory.watch(
        memory.counters(cgroup.path).memory,
        40,
        [level(40 * PAGES, step_pages=far), level(60 * PAGES, step_pages=far)],
    )
    cgroup.allocate(80)
    time.sleep(3)
    assert [0, 1] == [record.level for record in told(memory, 40, RecordKind.CROSSING)]


def test_reclaim_at_a_limit_is_told(memory: MemoryProbe, cgroup: Cgroup, tmp_path: Path) -> None:
    leaf = cgroup.child("pod")
    leaf.write("memory.max", str(40 * MIB))
    memory.watch(memory.counters(cgroup.path).memory, 50, [level(500 * PAGES)])
    leaf.run(lambda: write_file(Path(f"/var/tmp/reactor-{os.getpid()}"), 80))
    told(memory, 50, RecordKind.RECLAIM)


def write_file(path: Path, mib: int) -> None:
    with path.open("wb") as file:
        path.unlink()
        for _ in range(mib):
            file.write(bytes(MIB))


def test_removed_cgroup_takes_its_watch_with_it(memory: MemoryProbe, cgroup: Cgroup) -> None:
    child = cgroup.child("gone")
    address = memory.counters(child.path).memory
    memory.watch(address, 60, [level(40 * PAGES)])
    child.remove()
    told(memory, 60, RecordKind.REMOVED)
    assert not memory.unwatch(address)


def test_cgroup_that_loses_its_controller_loses_its_watch(memory: MemoryProbe, cgroup: Cgroup) -> None:
    child = cgroup.child("bereft")
    memory.watch(memory.counters(child.path).memory, 70, [level(40 * PAGES)])
    cgroup.write("cgroup.subtree_control", "-memory")
    told(memory, 70, RecordKind.REMOVED)


@pytest.mark.parametrize("count", [1, 100, 1000])
def test_each_of_many_watches_tells_its_own_crossing(memory: MemoryProbe, cgroup: Cgroup, count: int) -> None:
    children = [cgroup.child(f"pod-{number}") for number in range(count)]
    began = time.monotonic()
    for number, child in enumerate(children):
        memory.watch(memory.counters(child.path).memory, 10_000 + number, [level(20 * PAGES)])
    print(f"{count} watches in {time.monotonic() - began:.2f} s")
    for number in sorted({0, count // 2, count - 1}):
        children[number].allocate(30)
        told(memory, 10_000 + number, RecordKind.CROSSING)
    assert not [record for record in memory.take() if record.watch_id in {9_999, 10_000 + count}]


def test_full_map_is_an_error_that_names_it(memory: MemoryProbe) -> None:
    made = 0
    with pytest.raises(OSError, match="eBPF map memory_watches"):  # noqa: PT012 - the one that does not fit
        for made in range(5000):
            memory.watch(1 + made, 80, [])
    for address in range(made):
        memory.unwatch(1 + address)
    assert made == 4096


def test_ten_thousand_cgroups_come_and_go_with_their_watches(memory: MemoryProbe, cgroup: Cgroup) -> None:
    cgroup.write("cgroup.subtree_control", "+memory")
    addresses = set()
    lost_before = memory.lost()
    removed = 0
    for number in range(10_000):
        path = cgroup.path / f"churn-{number}"
        path.mkdir()
        address = memory.counters(path).memory
        addresses.add(address)
        memory.watch(address, 100_000 + number, [Level(fire=1, rearm=0, step=1)])
        path.rmdir()
        if number % 100 == 99:
            removed += removals(memory, 100_000)
    deadline = time.monotonic() + 60
    while removed < 10_000 and time.monotonic() < deadline:
        time.sleep(0.2)
        removed += removals(memory, 100_000)
    lost = memory.lost() - lost_before
    print(f"{removed} removals told, {lost} lost, {len(addresses)} addresses")
    assert removed <= 10_000 <= removed + lost
    assert not any(memory.unwatch(address) for address in addresses)


def removals(memory: MemoryProbe, first_id: int) -> int:
    """Return how many removals from a watch on were told, and that no such watch has fired."""
    records = [record for record in memory.take() if record.watch_id >= first_id]
    assert all(record.kind is RecordKind.REMOVED for record in records)
    return len(records)


def test_crossing_of_the_machine_itself_is_told(memory: MemoryProbe, cgroup: Cgroup) -> None:
    memory.prepare_node()
    machine = read_meminfo()
    capacity = machine.total_bytes // PAGE
    inactive = int((ROOT / "memory.stat").read_text().split("inactive_file ")[1].split()[0]) // PAGE
    fire = capacity - machine.free_bytes // PAGE - inactive + 150 * PAGES
    memory.watch_node(90, [level(fire)], capacity_pages=capacity)
    assert silent(memory, 90)
    cgroup.allocate(600)
    (record, *_) = told(memory, 90, RecordKind.CROSSING)
    memory.watch_node(90, [], capacity_pages=0)
    assert (Watched.NODE_MEMORY, fire) == (record.watched, record.fire)


def test_memory_that_is_charged_to_no_cgroup_is_seen_by_the_timer(memory: MemoryProbe) -> None:
    """A tmpfs page is charged to its writer; what the root cgroup itself uses is charged to nobody."""
    memory.prepare_node()
    machine = read_meminfo()
    capacity = machine.total_bytes // PAGE
    inactive = int((ROOT / "memory.stat").read_text().split("inactive_file ")[1].split()[0]) // PAGE
    fire = capacity - machine.free_bytes // PAGE - inactive + 100 * PAGES
    memory.watch_node(91, [level(fire)], capacity_pages=capacity)
    pid = spawn(ROOT, lambda: allocate(600))  # what earlier tests gave back late counts as well
    try:
        (record, *_) = told(memory, 91, RecordKind.CROSSING)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        memory.watch_node(91, [], capacity_pages=0)
    assert record.watched is Watched.NODE_MEMORY


def test_forks_in_a_cgroup_are_counted(cgroup: Cgroup) -> None:
    leaf = cgroup.child("pod")
    with TasksProbe() as tasks:
        tasks.watch(tasks.counters(cgroup.path).tasks, 1, [Level(fire=5, rearm=4, step=1000)])
        leaf.run(lambda: [os.fork() for _ in range(3)])  # 8 processes
        (record, *_) = told(tasks, 1, RecordKind.CROSSING)
        assert (Watched.CGROUP_TASKS, 5, 5) == (record.watched, record.fire, record.value)
        (leaf.path / "cgroup.kill").write_text("1")
        leaf.remove()
        cgroup.path.rmdir()
        told(tasks, 1, RecordKind.REMOVED)
        cgroup.path.mkdir()


def test_forks_on_the_machine_are_counted(cgroup: Cgroup) -> None:
    with TasksProbe() as tasks:
        fire = read_task_count() + 40
        tasks.watch_node(1, [Level(fire=fire, rearm=fire - 20, step=1000)])
        for _ in range(60):
            cgroup.run(lambda: None)
        (record, *_) = told(tasks, 1, RecordKind.CROSSING)
        assert (Watched.NODE_TASKS, fire) == (record.watched, record.fire)


def kills(probe: OomProbe, pids: Sequence[int]) -> list[OomRecord]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        select.select([probe.fd], [], [], 0.2)
        found = [record for record in probe.take() if record.pid in pids]
        if found:
            return found
    raise AssertionError(f"no OOM kill of {pids}")


def test_kill_at_a_containers_own_limit_names_the_limit_and_the_victim(cgroup: Cgroup) -> None:
    leaf = cgroup.child("container")
    cgroup.write("memory.max", str(50 * MIB))
    with OomProbe() as probe:
        pid = leaf.allocate(90)
        (record,) = kills(probe, [pid])
    assert (cgroup.path.stat().st_ino, 50 * PAGES) == (record.limit_cgroup, record.limit_pages)
    assert leaf.path.stat().st_ino == record.victim_cgroup
    assert 30 * PAGES < record.victim_pages < 120 * PAGES  # its libraries count, and are charged elsewhere


def test_kill_because_the_node_is_out_of_memory_has_no_limit(cgroup: Cgroup) -> None:
    with OomProbe() as probe:

        def take_all() -> list[mmap.mmap]:
            Path("/proc/self/oom_score_adj").write_text("1000")
            # in pieces: one mapping of more than there is would be refused at once
            return [allocate(100) for _ in range(read_meminfo().total_bytes // (100 * MIB) + 1)]

        pid = cgroup.run(take_all)
        (record,) = kills(probe, [pid])
    assert record.limit_cgroup is None
    assert record.usage_pages is None
    assert cgroup.path.stat().st_ino == record.victim_cgroup


def test_nothing_stays_loaded_after_a_probe_was_closed() -> None:
    before = programs()
    probe = MemoryProbe()
    probe.prepare_node()
    assert programs() > before
    probe.close()
    deadline = time.monotonic() + 30
    while programs() > before and time.monotonic() < deadline:
        time.sleep(0.2)  # programs are freed after an RCU grace period
    assert before == programs()


def programs() -> int:
    """Return how many eBPF programs the kernel holds (BPF_PROG_GET_NEXT_ID, x86-64)."""
    libc = ctypes.CDLL(None)
    attributes = (ctypes.c_uint32 * 32)()
    count = 0
    while libc.syscall(321, 11, attributes, ctypes.sizeof(attributes)) == 0:
        attributes[0] = attributes[1]  # start_id: the id that was found
        count += 1
    return count
