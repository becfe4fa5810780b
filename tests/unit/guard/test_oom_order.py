"""The OOM killer's order: taken, renewed, given back whatever happened meanwhile. On trees of files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio.testing

from reactor.guard import oom_order, own_scores
from reactor.guard.oom_order import OomOrder
from reactor.guard.oom_scores import OomScores
from reactor.guard.own_scores import NAME
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.model.pod_lists import ProcessVictim
from reactor.model.pods import Pod, PodUsage
from reactor.model.signals import Signal
from tests.support.builders import make_observation, make_pod
from tests.support.waiting import until

MIB = 1 << 20
MEMORY = {Signal.MEMORY_AVAILABLE: make_observation(30 * MIB)}


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
        self.order = self.next_guard()

    def next_guard(self) -> OomOrder:
        return OomOrder(
            self.fake.tree,
            self.directory / NAME,
            write=lambda line: self.journal.append(dict(line())),
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
        if self.fake.tree.version is CgroupVersion.V2:
            self.fake.file(where, "memory.oom.group", "0\n")
        inode = self.fake.directory(pod.cgroup).stat().st_ino
        self.pods[name] = replace(pod, cgroup_inode=inode)
        self.list(where, *pids)
        for pid in pids:
            self.process(pid, score)

    def list(self, cgroup: str, *pids: int) -> None:
        self.fake.file(cgroup, "cgroup.procs", "".join(f"{pid}\n" for pid in pids))

    def process(self, pid: int, score: int = 0, *, parent: int = 1, start: int = 100, pages: int = 0) -> None:
        path = self.proc / str(pid)
        path.mkdir(parents=True, exist_ok=True)
        (path / "stat").write_text(f"{pid} (a) b) S {parent}" + " 0" * 17 + f" {start} 0 {pages}\n")
        (path / "oom_score_adj").write_text(f"{score}\n")

    def score(self, pid: int) -> int:
        return int((self.proc / str(pid) / "oom_score_adj").read_text())

    def scores(self, *pids: int) -> list[int]:
        return [self.score(pid) for pid in pids]

    def want(self, name: str | None, **used_mib: int) -> None:
        used_mib = {**({} if name is None else {name: 200}), **used_mib}
        used = {f"uid-{pod}": PodUsage(memory_working_set_bytes=mib * MIB) for pod, mib in used_mib.items()}
        first = None if name is None else self.pods[name]
        self.order.want(first, tuple(self.pods.values()), used, MEMORY)

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


async def test_first_has_the_highest_score_and_gets_back_its_own(node):
    node.add("hog", 10, 11)
    node.process(11, 300)
    node.add("other", 20)
    node.want("hog")
    await node.becomes(lambda: node.scores(10, 11, 20) == [1000, 1000, 0])
    await node.becomes(lambda: node.order.counts() == {"first": 2, "others": 0})
    document = node.order.document()
    assert (document["first"]["pod"], document["first"]["processes"]) == ("cgroup/hog", 2)
    node.want(None)
    await node.becomes(lambda: node.scores(10, 11, 20) == [0, 300, 0])
    await node.becomes(lambda: not node.order.is_ordered("uid-hog"))
    await node.becomes(lambda: node.order.document()["first"] is None)
    assert [line["action"] for line in node.journal] == ["taken", "given back"]
    assert node.order.problem is None


async def test_another_first_takes_its_place(node):
    node.add("hog", 10)
    node.add("other", 20)
    node.want("hog")
    await node.becomes(lambda: node.scores(10, 20) == [1000, 0])
    node.want("other")
    await node.becomes(lambda: node.scores(10, 20) == [0, 1000])
    node.want(None)
    await node.becomes(lambda: node.scores(10, 20) == [0, 0])


async def test_pods_of_the_same_score_are_put_behind_and_others_left(node):
    node.add("hog", 10, score=1000)
    node.add("big", 20, score=1000, priority=10)
    node.add("burstable", 30, score=200, priority=10)
    node.add("protected", 40, score=-997)
    node.want("hog", hog=10, big=300, burstable=1)
    await node.becomes(lambda: node.score(20) < 1000)
    assert node.scores(10, 30, 40) == [1000, 200, -997]
    assert node.score(20) <= 1000 - 1000 * 330 // 512
    await node.becomes(lambda: node.order.counts() == {"first": 1, "others": 1})
    node.want(None)
    await node.becomes(lambda: node.scores(10, 20, 30, 40) == [1000, 1000, 200, -997])


async def test_pod_that_may_overtake_the_first_does_so_by_what_it_takes_above_its_request(node):
    node.add("hog", 10)
    node.process(10, pages=200 * MIB // os.sysconf("SC_PAGESIZE"))
    node.add("near", 20)
    node.add("asks", 30, request_mib=100)
    node.add("far", 40)
    node.add("protected", 50, score=-500)
    node.want("hog", near=180, asks=290, far=160, protected=190)
    await node.becomes(lambda: node.scores(10, 20, 30) == [1000, 1000, 1000 - 196])
    assert node.scores(40, 50) == [0, -500]
    node.want(None)
    await node.becomes(lambda: node.scores(10, 20, 30) == [0, 0, 0])


async def test_first_that_is_split_into_processes_is_overtaken_by_no_smaller_pod(node):
    node.add("hog", 10, 11)
    for pid in (10, 11):
        node.process(pid, pages=100 * MIB // os.sysconf("SC_PAGESIZE"))
    node.add("near", 20)
    node.want("hog", near=180)
    await node.becomes(lambda: node.score(20) > 0)
    points_mib = [mib + 512 * score // 1000 for mib, score in ((100, node.score(10)), (180, node.score(20)))]
    assert points_mib[0] > points_mib[1]


async def test_no_pod_is_raised_where_the_first_can_not_be(node, monkeypatch):
    asked = []

    def refuse(process: int, score: int) -> None:
        asked.append(score)
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(oom_order, "write_score", refuse)
    monkeypatch.setattr(oom_order, "_AGAIN_SECONDS", 0.01)
    node.add("hog", 10)
    node.add("near", 20)
    node.want("hog", near=190)
    await node.becomes(lambda: len(asked) > 2)
    assert set(asked) == {1000}
    assert not node.order.is_ordered("uid-near")
    assert "CAP_DAC_OVERRIDE" in (node.order.problem or "")


async def test_process_that_is_never_to_be_killed_keeps_its_score(node):
    node.add("hog", 10, 11, 12, 13)
    for pid, score in ((11, -1000), (12, -998), (13, -997)):
        node.process(pid, score)
    node.want("hog")
    await node.becomes(lambda: node.scores(10, 11, 12, 13) == [1000, -1000, -998, 1000])
    node.want(None)
    await node.becomes(lambda: node.scores(10, 11, 12, 13) == [0, -1000, -998, -997])


async def test_what_a_kill_spares_is_not_raised(node):
    node.add("hog", 10, cgroup="/app")
    node.add("hog", 11, cgroup="/pause")
    node.pods["hog"] = replace(node.pods["hog"], spared_cgroups=("/node/hog/pause",))
    node.want("hog")
    await node.becomes(lambda: node.score(10) == 1000)
    assert node.score(11) == 0


async def test_process_born_since_gets_back_what_its_parent_had(node):
    node.add("hog", 10, 11)
    node.process(11, 500)
    node.want("hog")
    await node.becomes(lambda: node.scores(10, 11) == [1000, 1000])
    for pid, parent in ((12, 10), (13, 11), (14, 999)):
        node.process(pid, 1000, parent=parent, start=200)
    node.list("/node/hog", 10, 11, 12, 13, 14)
    node.want(None)
    await node.becomes(lambda: node.scores(10, 11) == [0, 500])
    await node.becomes(lambda: node.scores(12, 13, 14) == [0, 500, 0], "an orphan gets the least")


async def test_process_that_sets_its_own_score_again_is_raised_again_and_keeps_what_it_said(
    node, monkeypatch
):
    monkeypatch.setattr(oom_order, "_AGAIN_SECONDS", 0.01)
    node.add("hog", 10)
    node.want("hog")
    await node.becomes(lambda: node.score(10) == 1000)
    node.process(10, 250)
    await node.becomes(lambda: node.score(10) == 1000)
    node.want(None)
    await node.becomes(lambda: node.score(10) == 250)


async def test_score_that_others_wrote_since_is_not_taken_back(node):
    node.add("hog", 10)
    node.want("hog")
    await node.becomes(lambda: node.score(10) == 1000)
    node.process(10, 77)
    node.order.give_back_now()
    assert node.score(10) == 77


async def test_next_process_of_the_same_id_is_left_alone(node):
    node.add("hog", 10)
    node.want("hog")
    await node.becomes(lambda: node.score(10) == 1000)
    node.list("/node/hog")
    node.process(10, 1000, start=999)
    node.order.give_back_now()
    assert node.score(10) == 1000


async def test_next_guard_gives_back_what_a_crash_has_left(node):
    node.add("hog", 10, 11)
    node.process(11, 500)
    node.add("other", 20, score=1000)
    node.want("hog", other=300)
    await node.becomes(lambda: node.scores(10, 11) == [1000, 1000] and node.score(20) < 1000)
    node.process(12, 1000, parent=11, start=200)
    node.list("/node/hog", 10, 11, 12)
    node.next_guard().resume()
    assert node.scores(10, 11, 12, 20) == [0, 500, 500, 1000]
    assert json.loads((node.directory / NAME).read_text())["pods"] == []


async def test_what_was_left_before_a_reboot_is_nobodys(node):
    node.add("hog", 10)
    node.want("hog")
    await node.becomes(lambda: node.score(10) == 1000)
    node.boot_id.write_text("another\n")
    node.next_guard().resume()
    assert node.score(10) == 1000


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"version": 1}', b'{"version": 1, "boot_id": "boot", "pods": [{}]}']
)
def test_file_that_is_none_of_ours_is_passed_over(still, content):
    (still.directory / NAME).write_bytes(content)
    still.order.resume()
    assert still.order.document()["first"] is None


async def test_nothing_is_written_that_could_not_be_given_back_by_the_next(still, nursery):
    (still.directory / NAME).mkdir()
    await nursery.start(still.order.run)
    still.add("hog", 10)
    still.want("hog")
    await until(lambda: still.order.problem is not None)
    assert "can't be saved" in (still.order.problem or "")
    assert still.score(10) == 0


async def test_refusal_is_a_problem_and_what_it_concerns_is_tried_again(node, monkeypatch):
    write = oom_order.write_score

    def refuse(process: int, score: int) -> None:
        if score < 1000:
            raise PermissionError(13, os.strerror(13))
        write(process, score)

    node.add("hog", 10)
    node.want("hog")
    await node.becomes(lambda: node.score(10) == 1000)
    monkeypatch.setattr(oom_order, "write_score", refuse)
    monkeypatch.setattr(oom_order, "_RETRY_SECONDS", 0.01)
    node.want(None)
    await node.becomes(lambda: node.order.problem is not None)
    assert "grant CAP_SYS_RESOURCE" in (node.order.problem or "")
    assert node.score(10) == 1000
    monkeypatch.setattr(oom_order, "write_score", write)
    await node.becomes(lambda: node.score(10) == 0)
    await node.becomes(lambda: node.order.problem is None)


async def test_what_was_written_is_not_read_as_a_pods_own(node):
    node.add("hog", 10, score=900)
    node.want("hog")
    await node.becomes(lambda: node.score(10) == 1000)
    node.process(11, 1000, parent=10, start=200)
    assert [node.order.own_score(pid, "/node/hog/app") for pid in (10, 11)] == [900, 900]
    node.process(20, 1000)
    assert node.order.own_score(20, "/node/hogwash") == 1000


async def test_scores_of_manifests_wait_for_the_order(node):
    node.add("hog", 10, score=1000)
    node.add("other", 20, score=1000)
    node.want("hog", other=300)
    await node.becomes(lambda: node.score(20) < 1000)
    lowered = node.score(20)
    scores = OomScores(
        node.fake.tree,
        lambda: tuple(node.pods.values()),
        lambda: 512 * MIB,
        interval_seconds=10.0,
        is_ordered=node.order.is_ordered,
        proc=node.proc,
    )
    await scores.look()
    assert node.score(20) == lowered


async def test_cgroup_that_was_made_again_is_another_pods(node):
    node.add("hog", 10)
    node.pods["hog"] = replace(node.pods["hog"], cgroup_inode=1)
    node.add("other", 20)
    node.want("hog")
    await trio.testing.wait_all_tasks_blocked()
    node.want("other")
    await node.becomes(lambda: node.score(20) == 1000)
    assert node.score(10) == 0


async def test_plain_pod_is_killed_as_a_whole_on_v2_and_has_its_own_setting_back(
    make_tree, tmp_path, nursery
):
    node = Node(make_tree(CgroupVersion.V2), tmp_path)
    node.order.kills_groups = True
    node.add("hog", 10)
    node.add("whole", 20)
    node.fake.file("/node/whole", "memory.oom.group", "1\n")
    await nursery.start(node.order.run)

    def group(name: str) -> str:
        return node.fake.read(f"/node/{name}", "memory.oom.group").strip()

    node.want("hog")
    await node.becomes(lambda: group("hog") == "1" and node.score(10) == 1000)
    await node.becomes(lambda: (node.order.document()["first"] or {}).get("oom_group") is True)
    node.want("whole")
    await node.becomes(lambda: group("hog") == "0" and node.score(20) == 1000)
    node.want(None)
    await node.becomes(lambda: node.score(20) == 0)
    assert group("whole") == "1"


async def test_cgroup_that_was_made_again_keeps_its_own_group_and_is_no_refusal(make_tree, tmp_path, nursery):
    node = Node(make_tree(CgroupVersion.V2), tmp_path)
    node.order.kills_groups = True
    node.add("hog", 10)
    await nursery.start(node.order.run)
    node.want("hog")
    await node.becomes(lambda: (node.order.document()["first"] or {}).get("oom_group") is True)
    directory = node.fake.directory("/node/hog")
    directory.rename(tmp_path / "removed")
    node.add("hog", 11)
    node.fake.file("/node/hog", "memory.oom.group", "1\n")
    node.want(None)
    await node.becomes(lambda: node.journal[-1]["action"] == "given back")
    assert node.fake.read("/node/hog", "memory.oom.group") == "1\n"
    assert node.order.problem is None


async def test_group_is_left_to_the_kubelet_on_its_nodes(make_tree, tmp_path, nursery):
    node = Node(make_tree(CgroupVersion.V2), tmp_path)
    node.add("hog", 10)
    await nursery.start(node.order.run)
    node.want("hog")
    await node.becomes(lambda: node.score(10) == 1000)
    assert node.fake.read("/node/hog", "memory.oom.group") == "0\n"


async def test_no_more_processes_are_raised_than_the_bound(node, monkeypatch):
    monkeypatch.setattr(oom_order, "MOST_PROCESSES", 3)
    node.add("hog", *range(10, 20))
    node.want("hog")
    await node.becomes(lambda: node.scores(10, 11, 12) == [1000] * 3)
    assert node.score(13) == 0


async def test_pod_that_forks_without_end_is_not_remembered_without_end(node, monkeypatch):
    monkeypatch.setattr(own_scores, "_MOST_KNOWN", 2)
    monkeypatch.setattr(oom_order, "_AGAIN_SECONDS", 0.01)
    node.add("hog", 10, 11)
    node.want("hog")
    await node.becomes(lambda: node.score(11) == 1000)
    node.process(12, 5)
    node.list("/node/hog", 12)
    await node.becomes(lambda: node.score(12) == 1000)
    await node.becomes(lambda: node.order.document()["first"]["processes"] == 1)


def with_rule(node: Node, name: str, *never: str) -> None:
    rule = ProcessVictim(rule=f"unit {name}", never=never)
    node.pods[name] = replace(node.pods[name], process_victim=rule)


def holding(node: Node, pid: int, mib: int, name: str = "tab") -> None:
    status = f"Name:\t{name}\nRssAnon:\t{mib << 10} kB\nRssShmem:\t0 kB\nVmSwap:\t0 kB\n"
    (node.proc / str(pid) / "status").write_text(status)


async def test_where_one_process_is_killed_that_one_alone_is_raised_and_no_group_is_killed(node):
    node.order.kills_groups = True
    node.add("hog", 10, 11, 12, 13)
    with_rule(node, "hog", "editor")
    for pid, mib, name in ((10, 5, "tab"), (11, 50, "tab"), (12, 70, "editor"), (13, 60, "bash")):
        holding(node, pid, mib, name)
    node.want("hog")
    await node.becomes(lambda: node.score(11) == 1000)
    await node.becomes(lambda: node.order.counts() == {"first": 1, "others": 0})
    assert [0, 0, 0] == node.scores(10, 12, 13)
    assert node.order.document()["first"]["oom_group"] is False
    if node.fake.tree.version is CgroupVersion.V2:
        assert "0\n" == node.fake.read("/node/hog", "memory.oom.group")
    node.want(None)
    await node.becomes(lambda: node.scores(10, 11, 12, 13) == [0] * 4)


async def test_another_process_that_holds_more_takes_its_place_and_it_gets_back_its_own(
    node, monkeypatch, autojump_clock
):
    node.add("hog", 10, 11)
    node.process(10, 300)
    with_rule(node, "hog")
    holding(node, 10, 50)
    holding(node, 11, 40)
    node.want("hog")
    await node.becomes(lambda: node.scores(10, 11) == [1000, 0])
    holding(node, 11, 90)
    await node.becomes(lambda: node.scores(10, 11) == [300, 1000])
    node.want(None)
    await node.becomes(lambda: node.scores(10, 11) == [300, 0])


async def test_where_none_may_be_killed_alone_all_are_raised(node):
    node.add("hog", 10, 11)
    with_rule(node, "hog", "tab")
    holding(node, 10, 50)
    holding(node, 11, 40)
    node.want("hog")
    await node.becomes(lambda: node.scores(10, 11) == [1000, 1000])
    await node.becomes(lambda: node.order.counts() == {"first": 2, "others": 0})
