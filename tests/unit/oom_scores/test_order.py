"""The OOM killer's order: taken, renewed, restored whatever happened meanwhile. On trees of files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio.testing

from reactor.model.decisions import Inputs, PolicyState, Snapshot
from reactor.model.pods import Pod, PodUsage
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Signal
from reactor.oom_scores import order, pods, written
from reactor.oom_scores.order import OomOrder, OrderError
from reactor.oom_scores.pods import ManifestScores
from reactor.oom_scores.written import NAME
from reactor.policy.forecast import Forecast
from tests.support.builders import make_observation, make_pod
from tests.support.waiting import until

MIB = 1 << 20
BEFORE = 100  # the start of a process, in ticks: before anything was written, and since
SINCE = 1 << 60
# What 512 MiB make of it: 60 MiB at 1000 are as many points as 200 MiB and all the room that is left at 658.
BEHIND = 657
MEMORY = {Signal.MEMORY_AVAILABLE: make_observation(30 * MIB)}


class StandIn:
    """Stands by to restore, or is `refused`."""

    def __init__(self) -> None:
        self.stands_by = False
        self.is_ended = False
        self.refused = False
        self.beats = 0

    async def stand_by(self) -> None:
        if self.refused:
            raise OrderError("no process stands by to restore scores: killed by signal 9")
        self.stands_by = True
        self.beats += 1

    async def relax(self) -> None:
        self.stands_by = False

    async def end(self) -> None:
        self.is_ended = True


class Node:
    """Pods' cgroups and processes in files, and who keeps the order over them."""

    def __init__(self, fake, directory: Path) -> None:
        self.fake = fake
        self.directory = directory
        self.proc = directory / "proc"
        self.boot_id = directory / "boot_id"
        self.boot_id.write_text("boot\n")
        self.journal: list[dict[str, object]] = []
        self.pods: dict[str, Pod] = {}
        self.proc.mkdir()
        self.machine(512)
        self.restorer = StandIn()
        self.order = self.next_guard()

    def machine(self, mib: int, swap_mib: int = 0) -> None:
        kib = {"MemTotal": mib << 10, "MemFree": 0, "SwapTotal": swap_mib << 10, "SwapFree": 0}
        (self.proc / "meminfo").write_text("".join(f"{name}: {size} kB\n" for name, size in kib.items()))

    def next_guard(self) -> OomOrder:
        return OomOrder(
            self.fake.tree,
            self.directory / NAME,
            write=lambda line: self.journal.append(dict(line())),
            restorer=self.restorer,  # type: ignore[arg-type]
            proc=self.proc,
            boot_id=self.boot_id,
        )

    def add(
        self, name: str, *pids: int, score: int = 0, cgroup: str = "", request_mib: int = 0, priority: int = 0
    ) -> None:
        """Make a pod with these processes; `cgroup` is one inside of it."""
        pod = make_pod(name, request_mib * MIB, priority)
        where = f"{pod.cgroup}{cgroup}"
        self.fake.add(where)
        inode = self.fake.directory(pod.cgroup).stat().st_ino
        self.pods[name] = replace(pod, cgroup_inode=inode)
        self.list(where, *pids)
        for pid in pids:
            self.process(pid, score)

    def list(self, cgroup: str, *pids: int) -> None:
        self.fake.file(cgroup, "cgroup.procs", "".join(f"{pid}\n" for pid in pids))

    def process(
        self,
        pid: int,
        score: int = 0,
        *,
        parent: int = 1,
        start: int = BEFORE,
        mib: int = 0,
        session: int = 0,
        cgroup: str = "/",
    ) -> None:
        path = self.proc / str(pid)
        path.mkdir(parents=True, exist_ok=True)
        pages = mib * MIB // os.sysconf("SC_PAGESIZE")
        middle = f" {parent} 0 {session}" + " 0" * 15
        (path / "stat").write_text(f"{pid} (a) b) S{middle} {start} 0 {pages}\n")
        (path / "oom_score_adj").write_text(f"{score}\n")
        (path / "cgroup").write_text(f"4:memory:{cgroup}\n0::{cgroup}\n")

    def score(self, pid: int) -> int:
        return int((self.proc / str(pid) / "oom_score_adj").read_text())

    def scores(self, *pids: int) -> list[int]:
        return [self.score(pid) for pid in pids]

    def want(self, name: str | None, **used_mib: int) -> None:
        used_mib = {**({} if name is None else {name: 200}), **used_mib}
        used = {f"uid-{pod}": PodUsage(memory_working_set_bytes=mib * MIB) for pod, mib in used_mib.items()}
        ranked = () if name is None else (self.pods[name],)
        if ranked:
            snapshot, pods = Snapshot(signals=MEMORY, pods=used), tuple(self.pods.values())
            inputs = Inputs(EvictionSettings(), PolicyState(), snapshot, pods, now_seconds=0.0)
            self.order.near(Forecast(inputs=inputs, first=ranked))
        else:
            self.order.far()

    async def becomes(self, true: Callable[[], bool], what: str = "it is so") -> None:
        await until(true, what)


@pytest.fixture
async def node(fake, tmp_path, nursery):
    made = Node(fake, tmp_path)
    await nursery.start(made.order.run)
    return made


@pytest.fixture
def still(fake, tmp_path):
    """A node of which the order is kept by nobody yet."""
    return Node(fake, tmp_path)


def with_two(node: Node, *pids: int) -> None:
    """Have a first of 60 MiB, and one of higher priority that the kernel would take before it."""
    node.add("hog", 10, score=1000)
    node.process(10, 1000, mib=60)
    node.add("vital", *pids, score=1000, priority=10)
    for pid in pids:
        node.process(pid, 1000, mib=200 if pid == pids[0] else 0)


def want_two(node: Node) -> None:
    node.want("hog", hog=60, vital=200)


async def test_pod_that_would_go_before_the_first_is_lowered_and_gets_its_own_score_again(node):
    with_two(node, 20, 21)
    want_two(node)
    await node.becomes(lambda: node.scores(10, 20, 21) == [1000, BEHIND, BEHIND])
    await node.becomes(lambda: node.order.document()["first"] is not None)
    document = node.order.document()
    first = document["first"]
    assert ("cgroup/hog", 1, 1000, False) == (
        first["pod"],
        first["processes"],
        first["oom_score_adj"],
        first["oom_group"],
    )
    assert document["others"] == 2
    assert node.restorer.stands_by
    assert node.order.is_ordered("uid-vital")
    assert not node.order.is_ordered("uid-hog")
    node.want(None)
    await node.becomes(lambda: node.scores(10, 20, 21) == [1000] * 3)
    await node.becomes(lambda: not node.order.is_ordered("uid-vital"))
    await node.becomes(lambda: node.order.document()["first"] is None)
    await node.becomes(lambda: not node.restorer.stands_by)
    assert [line["action"] for line in node.journal] == ["taken", "given back"]
    assert node.order.problem is None


async def test_nothing_is_written_where_no_score_is_above_0(node, monkeypatch):
    monkeypatch.setattr(order, "_AGAIN_SECONDS", 0.01)
    read = []
    monkeypatch.setattr(order, "read_file", lambda path: read.append(path) or path.read_bytes())
    with_two(node, 20)
    for pid in (10, 20):
        (node.proc / str(pid) / "oom_score_adj").write_text("0\n")
    want_two(node)
    await node.becomes(lambda: len(read) > 3)
    assert node.scores(10, 20) == [0, 0]
    assert not (node.directory / NAME).exists()
    assert node.restorer.beats == 0
    assert node.order.document() == {"first": None, "others": 0}


async def test_where_one_can_not_be_put_behind_the_first_nobody_is(node, monkeypatch):
    monkeypatch.setattr(order, "_AGAIN_SECONDS", 0.01)
    with_two(node, 20)
    want_two(node)
    await node.becomes(lambda: node.score(20) == BEHIND)
    node.process(10, -900, mib=60)  # now that takes a score below 0
    await node.becomes(lambda: node.score(20) == 1000)
    await node.becomes(lambda: node.order.document() == {"first": None, "others": 0})


async def test_what_a_limit_that_is_a_part_of_the_machine_gets_is_that_part(node):
    node.machine(512, swap_mib=512)
    with_two(node, 20)
    want_two(node)
    await node.becomes(lambda: node.score(20) < 1000)
    assert node.score(20) == 837  # half of what is to 1000


async def test_another_first_has_its_own_score_again(node):
    with_two(node, 20)
    want_two(node)
    await node.becomes(lambda: node.score(20) == BEHIND)
    node.want("vital", hog=60, vital=200)
    await node.becomes(lambda: node.scores(10, 20) == [1000, 1000])
    node.want(None)
    await node.becomes(lambda: node.order.document() == {"first": None, "others": 0})


async def test_pod_that_may_not_be_evicted_keeps_its_score_and_gets_it_again(node, monkeypatch):
    monkeypatch.setattr(order, "_AGAIN_SECONDS", 0.01)
    with_two(node, 20)
    node.add("other", 30, score=1000, priority=10)
    node.process(30, 1000, mib=110)
    want_two(node)
    await node.becomes(lambda: node.scores(20, 30) == [BEHIND, 837])
    node.pods["vital"] = replace(node.pods["vital"], critical_because="user.oomd_omit")
    want_two(node)
    await node.becomes(lambda: node.score(20) == 1000)
    assert node.score(30) == 837


async def test_no_score_is_raised_and_a_lower_one_of_its_own_stays(node):
    with_two(node, 20, 21, 22, 23)
    for pid, score in ((21, 400), (22, -500), (23, -1000)):
        node.process(pid, score)
    want_two(node)
    await node.becomes(lambda: node.score(20) == BEHIND)
    assert node.scores(10, 21, 22, 23) == [1000, 400, -500, -1000]
    node.want(None)
    await node.becomes(lambda: node.score(20) == 1000)
    assert node.scores(21, 22, 23) == [400, -500, -1000]


async def test_what_a_kill_spares_keeps_its_score(node):
    with_two(node, 20)
    node.add("vital", 21, cgroup="/pause", score=1000, priority=10)
    node.add("vital", 20, score=1000, priority=10)
    node.process(20, 1000, mib=200)
    node.pods["vital"] = replace(node.pods["vital"], spared_cgroups=("/node/vital/pause",))
    want_two(node)
    await node.becomes(lambda: node.score(20) == BEHIND)
    assert node.score(21) == 1000


@pytest.mark.parametrize(
    ("pid", "born"),
    [
        (30, {"parent": 20}),
        (31, {"session": 21}),
        (32, {"parent": 999, "cgroup": "/node/vital/deep/cgroup"}),
        (33, {"parent": 999, "cgroup": "/user.slice/session-1.scope"}),
    ],
    ids=["child that moved", "session", "orphan of the pod", "orphan that moved"],
)
@pytest.mark.parametrize("by", ["recovery", "end", "next guard"])
async def test_process_born_with_what_was_written_gets_what_its_parent_had(node, pid, born, by):
    with_two(node, 20, 21)
    node.process(21, 900)
    want_two(node)
    await node.becomes(lambda: node.scores(20, 21) == [BEHIND, BEHIND])
    node.process(pid, BEHIND, **{"start": SINCE, "cgroup": "/elsewhere", **born})
    if by == "recovery":
        node.want(None)
        await node.becomes(lambda: node.order.document()["others"] == 0)
    elif by == "end":
        node.order.restore_now()
    else:
        node.next_guard().resume()
    assert node.scores(20, 21) == [1000, 900]
    assert node.score(pid) == (1000 if pid == 30 else 900)


@pytest.mark.parametrize(
    "born",
    [
        {"start": BEFORE, "cgroup": "/user.slice"},
        {"start": SINCE, "cgroup": "/node/beside"},
        {"start": SINCE, "cgroup": "/node/vital", "score": 500},
    ],
    ids=["was there", "another pod's", "another score"],
)
async def test_score_that_was_not_written_here_stays(node, born):
    with_two(node, 20)
    want_two(node)
    await node.becomes(lambda: node.score(20) == BEHIND)
    node.process(40, **{"score": BEHIND, "parent": 999, **born})
    before = node.score(40)
    node.order.restore_now()
    assert node.scores(20, 40) == [1000, before]


async def test_process_that_sets_its_own_score_again_is_lowered_again_and_keeps_what_it_said(
    node, monkeypatch
):
    monkeypatch.setattr(order, "_AGAIN_SECONDS", 0.01)
    with_two(node, 20)
    want_two(node)
    await node.becomes(lambda: node.score(20) == BEHIND)
    node.process(20, 950, mib=200)
    await node.becomes(lambda: node.score(20) == BEHIND)
    node.want(None)
    await node.becomes(lambda: node.score(20) == 950)


async def test_score_that_others_wrote_since_is_not_taken_back(node):
    with_two(node, 20)
    want_two(node)
    await node.becomes(lambda: node.score(20) == BEHIND)
    node.process(20, 77)
    node.order.restore_now()
    assert node.score(20) == 77


async def test_next_process_of_the_same_id_is_left_alone(node):
    with_two(node, 20)
    want_two(node)
    await node.becomes(lambda: node.score(20) == BEHIND)
    node.process(20, BEHIND, start=BEFORE + 1)
    node.order.restore_now()
    assert node.score(20) == BEHIND


async def test_next_guard_restores_what_a_crash_has_left(node):
    with_two(node, 20, 21)
    node.process(21, 900)
    want_two(node)
    await node.becomes(lambda: node.scores(20, 21) == [BEHIND, BEHIND])
    node.next_guard().resume()
    assert node.scores(20, 21) == [1000, 900]
    assert json.loads((node.directory / NAME).read_text())["pods"] == []


async def test_what_was_left_before_a_reboot_is_nobodys(node):
    with_two(node, 20)
    want_two(node)
    await node.becomes(lambda: node.score(20) == BEHIND)
    node.boot_id.write_text("another\n")
    node.next_guard().resume()
    assert node.score(20) == BEHIND


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"version": 1}', b'{"version": 2, "boot_id": "boot", "pods": [{}]}', b"\xff"]
)
def test_file_that_is_none_of_ours_is_passed_over(still, content):
    (still.directory / NAME).write_bytes(content)
    still.order.resume()
    assert still.order.document()["first"] is None
    assert "started without it" in (still.order.problem or "")


async def test_nothing_is_written_that_could_not_be_restored_by_the_next(still, nursery):
    (still.directory / NAME).mkdir()
    await nursery.start(still.order.run)
    with_two(still, 20)
    want_two(still)
    await until(lambda: still.order.problem is not None)
    assert "can't be saved" in (still.order.problem or "")
    assert still.score(20) == 1000


async def test_nothing_is_written_where_no_process_stands_by_to_restore_it(node):
    node.restorer.refused = True
    with_two(node, 20)
    want_two(node)
    await node.becomes(lambda: node.order.problem is not None)
    assert "stands by" in (node.order.problem or "")
    assert node.score(20) == 1000
    assert node.order.document() == {"first": None, "others": 0}


async def test_process_that_stands_by_hears_of_the_guard_while_scores_are_written(
    node, monkeypatch, autojump_clock
):
    with_two(node, 20)
    want_two(node)
    await node.becomes(lambda: node.score(20) == BEHIND)
    before = node.restorer.beats
    await trio.sleep(100)
    assert node.restorer.beats >= before + 10
    node.want(None)
    await node.becomes(lambda: node.score(20) == 1000)
    await trio.sleep(1)
    before = node.restorer.beats
    await trio.sleep(100)
    assert node.restorer.beats == before


async def test_end_restores_and_ends_the_process_that_stands_by(fake, tmp_path):
    node = Node(fake, tmp_path)
    with_two(node, 20)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.order.run)
        want_two(node)
        await node.becomes(lambda: node.score(20) == BEHIND)
        nursery.cancel_scope.cancel()
    assert node.score(20) == 1000
    assert node.restorer.is_ended


async def test_refusal_is_a_problem_and_nobody_stays_lowered(node, monkeypatch):
    write = written.write_score

    def refuse(process: int, score: int) -> None:
        if score == BEHIND:
            raise PermissionError(13, os.strerror(13))
        write(process, score)

    monkeypatch.setattr(written, "write_score", refuse)
    node.add("near", 5, score=1000, priority=10)
    with_two(node, 20)
    want_two(node)
    await node.becomes(lambda: node.order.problem is not None)
    assert "grant CAP_SYS_RESOURCE" in (node.order.problem or "")
    assert node.scores(5, 20) == [1000, 1000]
    assert node.journal == []


async def test_what_can_not_be_restored_is_a_problem_and_tried_again(node, monkeypatch, autojump_clock):
    write = written.write_score

    def refuse(process: int, score: int) -> None:
        if score == 1000:
            raise PermissionError(13, os.strerror(13))
        write(process, score)

    with_two(node, 20)
    want_two(node)
    await node.becomes(lambda: node.score(20) == BEHIND)
    monkeypatch.setattr(written, "write_score", refuse)
    node.want(None)
    await node.becomes(lambda: node.order.problem is not None)
    assert node.score(20) == BEHIND
    assert node.order.is_ordered("uid-vital")
    monkeypatch.setattr(written, "write_score", write)
    await node.becomes(lambda: node.score(20) == 1000)
    await node.becomes(lambda: node.order.problem is None)


@pytest.mark.parametrize("what", ["processes", "cgroups"])
async def test_pods_of_which_not_all_processes_can_be_read_keep_their_scores(node, monkeypatch, what):
    if what == "processes":
        monkeypatch.setattr(order, "MOST_PROCESSES", 2)
    else:
        monkeypatch.setattr(pods, "_MOST_CGROUPS", 1)
        node.fake.add("/node/vital/deep")
    with_two(node, 20, 21)
    want_two(node)
    await node.becomes(lambda: node.order.problem is not None)
    assert "more than" in (node.order.problem or "")
    assert node.scores(10, 20, 21) == [1000] * 3


async def test_what_was_written_is_not_read_as_a_pods_own(node):
    with_two(node, 20)
    want_two(node)
    await node.becomes(lambda: node.score(20) == BEHIND)
    node.process(21, BEHIND, parent=20, start=SINCE)
    assert [node.order.own_score(pid, "/node/vital/app") for pid in (20, 21)] == [1000, 1000]
    node.process(22, BEHIND)
    assert node.order.own_score(22, "/node/vitality") == BEHIND


async def test_scores_of_manifests_wait_for_the_order(node):
    with_two(node, 20)
    want_two(node)
    await node.becomes(lambda: node.score(20) == BEHIND)
    scores = ManifestScores(
        node.fake.tree,
        lambda: tuple(node.pods.values()),
        lambda: 512 * MIB,
        interval_seconds=10.0,
        is_ordered=node.order.is_ordered,
        proc=node.proc,
    )
    await scores.set_scores()
    assert node.score(20) == BEHIND


async def test_cgroup_that_was_made_again_is_another_pods(node):
    with_two(node, 20)
    node.pods["vital"] = replace(node.pods["vital"], cgroup_inode=1)
    node.add("other", 30, score=1000, priority=10)
    node.process(30, 1000, mib=110)
    want_two(node)
    await node.becomes(lambda: node.score(30) < 1000)
    assert node.score(20) == 1000
