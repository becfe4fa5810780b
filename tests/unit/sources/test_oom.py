"""OOM kills are told as the kernel tells them, else counted; those of the node wake the loop."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from reactor.errors import BpfError
from reactor.kernel.bpf.records import OomRecord
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.files import LastingFile
from reactor.model.kills import OomKill, OomScope
from reactor.model.settings import Settings, SourceSettings
from reactor.model.wakes import SourceHealth, WakeKind
from reactor.sources.catalogue import EBPF_OOM, OOM_COUNTERS
from reactor.sources.oom import GuardedLimits, OomSource
from reactor.sources.oom_steps import EbpfOom, GuardedNode, OomCounters, ReportKill
from reactor.sources.wakes import Wakes
from tests.support.waiting import until
from tests.unit.sources.probe_of_records import ProbeOfRecords

PAGE = os.sysconf("SC_PAGESIZE")
PODS = "/node/pods"

MACHINE = GuardedNode("/", ["/kubepods", "/machine.slice/vms"])
VIRTUAL = GuardedNode("/lab/node", ["/lab/node/pods"])


def oom_record(*path: tuple[int, str], limit: int | None) -> OomRecord:
    return OomRecord(
        at_ns=5,
        pid=42,
        comm="java",
        limit_cgroup=limit,
        limit_pages=100,
        usage_pages=None if limit is None else 99,
        victim_pages=50,
        path=path,
    )


class Node:
    """A v2 tree with the node /node and the pods' parent /node/pods, and the source over it."""

    def __init__(self, root: Path, *, ebpf: bool = True) -> None:
        self.root = root
        self.tree = CgroupTree(version=CgroupVersion.V2, memory_root=root)
        self.root_id = root.stat().st_ino
        self.wakes = Wakes()
        self.board = self.wakes.board
        self.probe = ProbeOfRecords[OomRecord]()
        self.failure: Exception | None = None
        self.told: list[OomKill] = []
        self.settings = Settings(
            node_cgroup="/node",
            pod_parents=(PODS,),
            housekeeping_interval_seconds=0.02,
            sources=SourceSettings(ebpf=ebpf),
        )
        for cgroup in ("/node", PODS):
            self.counts(cgroup)

    def counts(self, cgroup: str, *, kills: int = 0, met: int = 0, met_below: int = 0) -> None:
        directory = self.root / cgroup.lstrip("/")
        directory.mkdir(exist_ok=True)
        # As the kernel counts: that a limit was met, and then the kill. A thread reads meanwhile.
        _put(directory / "memory.events.local", f"high 0\noom {met}\noom_kill 0\n")
        _put(directory / "memory.events", f"high 0\noom {met + met_below}\noom_kill {kills}\n")

    def open_probe(self) -> ProbeOfRecords[OomRecord]:
        if self.failure is not None:
            raise self.failure
        return self.probe

    def made(self, report: ReportKill, expect: ReportKill = lambda _: None) -> OomSource:
        return OomSource(
            self.tree,
            self.settings,
            self.wakes,
            report,
            expect=expect,
            open_probe=self.open_probe,
        )

    @asynccontextmanager
    async def source(self) -> AsyncIterator[OomSource]:
        source = self.made(self.told.append)
        async with trio.open_nursery() as nursery:
            await nursery.start(source.run)
            await until(lambda: any(one.health is SourceHealth.ARMED for one in self.board.states()))
            yield source
            nursery.cancel_scope.cancel()


def _put(path: Path, text: str) -> None:
    """Write a control file over what it holds: it is never found empty."""
    path.touch()
    with path.open("r+", encoding="ascii") as file:
        file.write(text)
        file.truncate()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def chain(node: Node, *names: str, limit: str | None) -> None:
    """Have the kernel tell of a kill in the cgroup of these names, at the limit of one of them."""
    path = [(100 + place, name) for place, name in enumerate(names)]
    limits = {name: place_id for place_id, name in path}
    limit_id = None if limit is None else limits[limit]
    node.probe.tell(oom_record(*reversed(path), (node.root_id, ""), limit=limit_id))


async def test_kill_at_the_nodes_limit_is_reported_and_wakes_the_loop(node: Node) -> None:
    async with node.source():
        chain(node, "node", "pods", "web", limit="node")
        (wake,) = await node.wakes.wait()
        (kill,) = node.told
    assert (EBPF_OOM, WakeKind.MEMORY, 5) == (wake.source, wake.kind, wake.at_ns)
    assert (OomScope.NODE, "/node/pods/web", "/node") == (kill.scope, kill.victim_cgroup, kill.limit_cgroup)
    assert (42, "java", 50 * PAGE, 100 * PAGE, 99 * PAGE) == (
        kill.pid,
        kill.comm,
        kill.victim_bytes,
        kill.limit_bytes,
        kill.usage_bytes,
    )


async def test_kill_at_a_pods_own_limit_is_reported_and_does_not_wake_the_loop(node: Node) -> None:
    async with node.source():
        chain(node, "node", "pods", "web", limit="web")
        await until(lambda: node.told)
        assert node.board.state(EBPF_OOM).wakes == 0
    assert [OomScope.OWN_LIMIT] == [kill.scope for kill in node.told]


async def test_kill_outside_the_node_is_not_reported(node: Node) -> None:
    async with node.source():
        chain(node, "other", limit="other")
        chain(node, "node", "pods", "web", limit="pods")
        await until(lambda: node.told)
    assert [OomScope.NODE] == [kill.scope for kill in node.told]


async def test_lost_records_are_counted(node: Node) -> None:
    async with node.source():
        node.probe.lost_records = 3
        chain(node, "node", limit="node")
        await until(lambda: node.told)
        await until(lambda: node.board.state(EBPF_OOM).lost == 3)


async def test_probe_is_closed_at_the_end(node: Node) -> None:
    async with node.source():
        pass
    assert node.probe.closed


async def test_counters_take_over_where_there_is_no_ebpf(node: Node) -> None:
    node.failure = BpfError("eBPF object oom", "no BTF")
    async with node.source():
        await until(lambda: node.board.state(OOM_COUNTERS).health is SourceHealth.ARMED)
        assert "no BTF" in node.board.state(EBPF_OOM).detail
        for count, counters in enumerate(
            (
                {"kills": 2, "met": 2},
                {"kills": 3, "met": 2, "met_below": 1},
                {"kills": 4, "met": 2, "met_below": 1},
            ),
            1,
        ):
            node.counts("/node", **counters)
            await until(lambda count=count: len(node.told) == count)
    assert [(OomScope.NODE, 2), (OomScope.OWN_LIMIT, 1), (OomScope.ABOVE_NODE, 1)] == [
        (kill.scope, kill.kills) for kill in node.told
    ]
    node.probe.close()


async def test_counters_tell_a_parent_of_pods_at_its_limit_as_the_nodes(tmp_path: Path) -> None:
    node = Node(tmp_path, ebpf=False)
    async with node.source():
        assert node.board.state(EBPF_OOM).detail == "switched off in the configuration"
        node.counts(PODS, kills=1, met=1)
        node.counts("/node", kills=1, met_below=1)
        await until(lambda: node.told)
    assert [OomScope.NODE] == [kill.scope for kill in node.told]
    node.probe.close()


async def test_counters_that_stand_still_tell_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, ebpf=False)
    async with node.source():
        node.counts("/node", met_below=7)  # a limit was met, but nobody was killed
        await trio.sleep(0.2)
    assert node.told == []
    node.probe.close()


@pytest.mark.parametrize(("struck", "counted"), [(range(7, 8), 1), (range(300), 100 - 2)])
def test_counters_of_v1_read_so_many_cgroups_and_keep_no_path_of_one_without_a_kill(
    node: Node, monkeypatch: pytest.MonkeyPatch, struck: range, counted: int
) -> None:
    """A tenant makes cgroups as it likes, and the path of each takes up to 4 KiB."""
    monkeypatch.setattr("reactor.sources.oom_steps._MOST_CGROUPS", 302 if counted == 1 else 100)
    tree = CgroupTree(version=CgroupVersion.V1, memory_root=node.root)
    for number in range(300):
        directory = node.root / f"node/pods/{number}-{'x' * 200}"
        directory.mkdir()
        kills = int(number in struck)
        _put(directory / "memory.oom_control", f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")
    _put(node.root / "vmstat", "oom_kill 1\n")
    counters = OomCounters(
        tree,
        GuardedNode("/node", (PODS,)),
        lambda: 0,
        node.told.append,
        interval_seconds=1.0,
        vmstat=LastingFile(node.root / "vmstat"),
    )
    assert counted == len(counters._counted()[1])
    node.probe.close()


def test_ebpf_is_not_loaded_for_kills_alone_on_v1(node: Node) -> None:
    tree = CgroupTree(version=CgroupVersion.V1, memory_root=node.root)
    step = EbpfOom(tree, node.wakes, node=GuardedNode("/", ()), report=node.told.append)
    assert "cgroup v1" in (step.unavailable_because() or "")
    node.probe.close()


async def test_kill_is_known_to_the_passes_before_the_loop_is_woken_by_it(node: Node) -> None:
    happened: list[str] = []
    source = node.made(lambda _: happened.append("told"), lambda _: happened.append("expected"))
    node.wakes.run_memory_pass_inline(lambda _: happened.append("woken"))
    kill = OomKill(source=EBPF_OOM, scope=OomScope.NODE, at_ns=5, pid=42, victim_bytes=1)
    source.on_kill(kill)
    assert happened == ["expected", "woken", "told"]


async def test_kills_that_were_only_counted_are_seconds_old_and_nothing_is_expected_of_them(
    node: Node,
) -> None:
    expected: list[OomKill] = []
    source = node.made(node.told.append, expected.append)
    source.on_kill(OomKill(source=OOM_COUNTERS, scope=OomScope.NODE, at_ns=5, kills=2))
    assert (expected, len(node.told)) == ([], 1)


async def test_pass_takes_kills_that_were_not_reported_yet_and_they_are_reported_all_the_same(
    node: Node,
) -> None:
    async with node.source() as source:
        chain(node, "node", "pods", "web", limit="node")
        (kill,) = source.take_now()
        assert (42, "/node/pods/web") == (kill.pid, kill.victim_cgroup)
        assert node.told == []
        assert not source.take_now()
        await until(lambda: node.told)
        assert node.told == [kill]


async def test_probe_that_fails_in_the_middle_of_a_pass_leaves_the_counters(node: Node) -> None:
    async with node.source() as source:
        await until(lambda: node.board.state(EBPF_OOM).health is SourceHealth.ARMED)

        def fail() -> list[OomRecord]:
            raise OSError(5, "Input/output error")

        node.probe.take = fail  # type: ignore[method-assign]
        assert source.take_now() == ()


async def test_without_ebpf_a_pass_sees_that_a_guarded_limit_was_met(tmp_path: Path) -> None:
    node = Node(tmp_path, ebpf=False)
    node.settings = replace(node.settings, housekeeping_interval_seconds=1000.0)
    async with node.source() as source:
        met = itertools.count(1)

        def is_noticed() -> bool:
            node.counts(PODS, met=next(met))
            return bool(source.take_now())

        await until(is_noticed)
        node.counts("/node", met_below=1)
        assert source.take_now() == ()
        node.counts(PODS, met=next(met))
        (kill,) = source.take_now()
        assert (None, None, OomScope.NODE) == (kill.pid, kill.victim_bytes, kill.scope)
        assert source.take_now() == ()
    node.probe.close()


async def test_notices_of_a_recreated_cgroup_are_taken_again(tmp_path: Path) -> None:
    node = Node(tmp_path, ebpf=False)
    limits = GuardedLimits(node.tree, GuardedNode("/node", (PODS,)), interval_seconds=0.01)
    async with trio.open_nursery() as nursery:
        await nursery.start(limits.run)
        (tmp_path / "node/pods").rename(tmp_path / "node/old")
        node.counts(PODS, met=5)
        assert limits.met() == 0
        met = itertools.count(6)

        def is_noticed() -> bool:
            node.counts(PODS, met=next(met))
            return limits.met() > 0

        await until(is_noticed)
        before = limits.met()
        (tmp_path / "node/pods/memory.events.local").write_text("nonsense")
        assert before == limits.met()
        nursery.cancel_scope.cancel()
    assert before == limits.met()
    node.probe.close()


def test_guarded_are_the_node_and_whatever_holds_parents_of_pods_in_it() -> None:
    assert MACHINE.cgroups == ("/kubepods", "/machine.slice", "/machine.slice/vms")
    assert VIRTUAL.cgroups == ("/lab/node", "/lab/node/pods")
    assert GuardedNode("/lab/node", ["/lab/node"]).cgroups == ("/lab/node",)
    assert GuardedNode("/", []).cgroups == ()


@pytest.mark.parametrize(
    ("node", "at_a_limit", "limit", "victim", "expected"),
    [
        (MACHINE, False, None, "/kubepods/a", OomScope.NODE),
        (MACHINE, False, None, None, OomScope.NODE),
        (MACHINE, True, "/kubepods", "/kubepods/a", OomScope.NODE),
        (MACHINE, True, "/machine.slice", "/machine.slice/vms/a", OomScope.NODE),
        (MACHINE, True, "/kubepods/a", "/kubepods/a/app", OomScope.OWN_LIMIT),
        (MACHINE, True, "/system.slice/cron.service", "/system.slice/cron.service", OomScope.OWN_LIMIT),
        (MACHINE, True, None, None, OomScope.OWN_LIMIT),
        (VIRTUAL, True, "/lab/node", "/lab/node/pods/a", OomScope.NODE),
        (VIRTUAL, True, "/lab/node/pods", "/lab/node/pods/a", OomScope.NODE),
        (VIRTUAL, True, "/lab/node/pods/a", "/lab/node/pods/a", OomScope.OWN_LIMIT),
        (VIRTUAL, True, "/lab", "/lab/node/pods/a", OomScope.ABOVE_NODE),
        (VIRTUAL, False, None, "/lab/node/pods/a", OomScope.ABOVE_NODE),
        (VIRTUAL, True, "/lab", "/lab/other", None),
        (VIRTUAL, False, None, "/lab/other", None),
        (VIRTUAL, False, None, None, None),
        (VIRTUAL, True, "/lab/nodes", "/lab/nodes", None),
    ],
)
def test_scope_of_a_kill(
    node: GuardedNode, *, at_a_limit: bool, limit: str | None, victim: str | None, expected: OomScope | None
) -> None:
    assert expected == node.scope(at_a_limit=at_a_limit, limit=limit, victim=victim)
