"""Scores of pods' processes for the kernel's OOM killer, on trees that stand for cgroups and /proc."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from reactor.act.kill_path import KillPath
from reactor.config.settings import settings_from_text
from reactor.errors import ConfigError
from reactor.guard.build import loop_of
from reactor.guard.evictor import Evictor
from reactor.guard.loop import Loop
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.procfs import PROC, read_oom_score_adj
from reactor.model.pods import Pod, QosClass
from reactor.model.settings import Settings
from reactor.model.signals import Resource
from reactor.oom_scores import written
from reactor.oom_scores.pods import ManifestScores, is_to_be_set, wanted_score
from reactor.workloads.kubernetes_pods import KubernetesPods
from tests.support.waiting import until
from tests.unit.guard.conftest import Nothing, lasting
from tests.unit.guard.test_loop import SETTINGS

GIB = 1 << 30
CGROUP = "/pods/web"


class Scored:
    """A pod's cgroup, what /proc says of its processes, and who sets scores."""

    def __init__(self, fake, directory: Path) -> None:
        self.fake = fake
        self.fake.add(CGROUP)
        self.proc = directory / "proc"
        self.pods: list[Pod] = [self.pod()]
        self.scores = ManifestScores(
            fake.tree,
            lambda: self.pods,
            lambda: 16 * GIB,
            interval_seconds=10.0,
            proc=self.proc,
        )

    def pod(self, **changes) -> Pod:
        inode = self.fake.tree.path(CGROUP).stat().st_ino
        return Pod(name="web", namespace="shop", uid="u", cgroup=CGROUP, cgroup_inode=inode, **changes)

    def has(self, *pids: int, cgroup: str = CGROUP) -> None:
        self.fake.file(cgroup, "cgroup.procs", "".join(f"{pid}\n" for pid in pids))

    def process(self, pid: int, score: int = 0) -> Path:
        path = self.proc / str(pid) / "oom_score_adj"
        path.parent.mkdir(parents=True)
        path.write_text(f"{score}\n")
        path.with_name("stat").write_text(f"{pid} (a) S 1 0 0{' 0' * 15} 100 0 1\n")
        return path


@pytest.fixture
def node(fake, tmp_path: Path) -> Scored:
    return Scored(fake, tmp_path)


def _burstable(request: int) -> dict[str, object]:
    return {"qos_class": QosClass.BURSTABLE, "requests": {Resource.MEMORY: request}}


@pytest.mark.parametrize(
    ("changes", "score"),
    [
        ({}, 1000),
        ({"qos_class": QosClass.GUARANTEED}, -997),
        ({"priority": 2_000_001_000}, -997),
        ({"priority": 2_000_000_000}, 1000),
        (_burstable(4 * GIB), 750),
        (_burstable(1), 999),
        (_burstable(17 * GIB), 3),
    ],
)
def test_the_score_is_that_of_the_class(node: Scored, changes: dict[str, object], score: int) -> None:
    assert score == wanted_score(node.pod(**changes), 16 * GIB)


@pytest.mark.parametrize(
    ("present", "score", "before", "expected"),
    [
        (0, 1000, None, True),
        (0, -997, None, True),
        (1000, 1000, None, False),
        (-500, 1000, None, False),  # said on purpose: it takes a privilege
        (-500, -997, None, False),
        (700, 300, None, False),  # it offers itself
        (700, -997, None, False),
        (1, 1000, None, True),  # nobody escapes by a little
        (750, 500, 750, True),  # the manifest asks for more
        (-997, 1000, -997, True),  # it is no longer Guaranteed
    ],
)
def test_what_was_said_on_purpose_stays(present: int, score: int, before: int | None, expected: bool) -> None:  # noqa: FBT001
    assert expected == is_to_be_set(present, score, before)


async def test_every_process_of_the_pod_has_its_score_and_no_other(node: Scored) -> None:
    node.fake.add(f"{CGROUP}/inner")
    node.has(11, 12)
    node.has(13, cgroup=f"{CGROUP}/inner")
    inside = [node.process(pid) for pid in (11, 12, 13)]
    outside = node.process(14)
    await node.scores.set_scores()
    assert ["1000"] * 3 == [path.read_text() for path in inside]
    assert "0\n" == outside.read_text()
    assert node.scores.problem is None


async def test_a_process_that_has_left_meanwhile_is_left_alone(node: Scored, monkeypatch) -> None:
    """Its id may be another's by now: the cgroup is asked again once the process is held."""
    stays, leaves = node.process(11), node.process(12)
    node.has(11, 12)
    opened = os.open

    def leave(path: str, *rest: object, **more: object) -> int:
        if str(path) == f"{node.proc}/12":
            node.has(11)
        return opened(path, *rest, **more)

    monkeypatch.setattr(os, "open", leave)
    await node.scores.set_scores()
    assert ("1000", "0\n") == (stays.read_text(), leaves.read_text())


async def test_another_cgroup_of_the_same_path_is_another_pod(node: Scored) -> None:
    path = node.process(11)
    node.has(11)
    node.pods = [replace(node.pods[0], cgroup_inode=1)]
    await node.scores.set_scores()
    assert "0\n" == path.read_text()


async def test_pods_that_are_known_are_gone_through_again_only_when_all_are_or_they_ask_for_another_score(
    node: Scored,
) -> None:
    path = node.process(11)
    node.has(11)
    await node.scores.set_scores()
    path.write_text("0\n")
    await node.scores.set_scores(of_all=False)
    assert "0\n" == path.read_text()
    node.pods = [node.pod(**_burstable(4 * GIB))]
    await node.scores.set_scores(of_all=False)
    assert "750" == path.read_text()
    path.write_text("0\n")
    await node.scores.set_scores()
    assert "750" == path.read_text()


async def test_what_is_gone_is_no_problem_and_what_is_refused_is_one_until_it_is_granted(
    node: Scored, monkeypatch
) -> None:
    node.has(11, 12)
    node.process(12)

    def refuse(process: int, score: int) -> None:
        raise PermissionError(13, os.strerror(13))

    with monkeypatch.context() as refused:
        refused.setattr(written, "write_score", refuse)
        await node.scores.set_scores()
    assert "CAP_SYS_RESOURCE" in (node.scores.problem or "")
    await node.scores.set_scores()
    assert node.scores.problem is None
    node.pods = [replace(node.pods[0], cgroup="/pods/gone")]
    await node.scores.set_scores()
    assert node.scores.problem is None


async def test_the_part_goes_on_and_sees_new_pods(
    node: Scored, autojump_clock, nursery: trio.Nursery
) -> None:
    node.pods = []
    await nursery.start(node.scores.run)
    path = node.process(11)
    node.has(11)
    await trio.sleep(5)
    node.pods = [node.pod()]
    await trio.sleep(10)
    assert "1000" == path.read_text()


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1) as process:
        yield process.pid
        process.kill()


async def test_a_real_process_takes_its_score(fake, sleeper: int) -> None:
    fake.add(CGROUP)
    fake.file(CGROUP, "cgroup.procs", f"{sleeper}\n")
    pod = Pod(name="web", namespace="shop", uid="u", cgroup=CGROUP)
    scores = ManifestScores(fake.tree, lambda: [pod], lambda: GIB, interval_seconds=10.0, proc=PROC)
    before = read_oom_score_adj(sleeper)
    await scores.set_scores()
    assert read_oom_score_adj(sleeper) == (before if before < 0 else 1000)


def _generation(fake, settings: Settings, nursery: trio.Nursery, **more) -> Loop:
    kills = KillPath(fake.tree, settings.pod_parents)
    kept = lasting(fake.tree, settings, kills)
    evictor = Evictor(kills, nursery, kept.known, Nothing, deadline_seconds=10.0)
    return loop_of(settings, kept, evictor, arming_seconds=0.1, **more)


async def test_the_guard_sets_the_scores_of_pods_in_manifests_and_of_no_others(
    fake, tmp_path: Path, sleeper: int, nursery: trio.Nursery
) -> None:
    fake.add("/node", usage_bytes=1 << 20)
    fake.tree.set_memory_limit("/node", GIB)
    if fake.tree.version is CgroupVersion.V2:
        fake.file("/node", "memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n")
    for name in ("web", "other"):
        fake.add(f"/node/{name}", usage_bytes=1 << 20)
    fake.file("/node/web", "cgroup.procs", f"{sleeper}\n")
    fake.file("/node/other", "cgroup.procs", f"{os.getpid()}\n")
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    (manifests / "web.yaml").write_text(
        "metadata: {name: web, annotations: {reactor/cgroup: /node/web}}\n"
        "spec: {containers: [{name: main}]}\n"
    )
    before, own = read_oom_score_adj(sleeper), read_oom_score_adj(os.getpid())
    settings = replace(SETTINGS, dry_run=False, manifests_path=str(manifests))
    loop = _generation(fake, settings, nursery)
    await nursery.start(loop.run, lambda _: None)
    await until(lambda: read_oom_score_adj(sleeper) == (before if before < 0 else 1000))
    assert own == read_oom_score_adj(os.getpid())
    reported = [one.problems() for one in loop.reports]
    assert not any("oom_score_adj of pods" in one for one in reported)
    nursery.cancel_scope.cancel()
    loop.close()


@pytest.mark.parametrize("changes", [{"dry_run": True}, {"pod_oom_scores": False}, {"manifests_path": None}])
async def test_no_score_is_set_where_that_is_not_wanted(
    fake, nursery: trio.Nursery, changes: dict[str, object]
) -> None:
    fake.add("/node")
    wanted = replace(SETTINGS, dry_run=False, manifests_path="/manifests")
    loop = _generation(fake, replace(wanted, **changes), nursery)
    assert "oom scores" not in loop.parts
    loop.close()


async def test_a_kubelet_sets_the_scores_of_its_pods_itself(fake, nursery: trio.Nursery) -> None:
    fake.add("/node")
    settings = replace(SETTINGS, dry_run=False, manifests_path="/manifests")
    loop = _generation(fake, settings, nursery, pods=KubernetesPods(fake.tree, settings))
    assert "oom scores" not in loop.parts
    loop.close()


def test_it_is_on_unless_it_is_switched_off() -> None:
    assert settings_from_text("{}", "x").pod_oom_scores
    assert not settings_from_text("reactor: {pods: {oomScoreAdj: false}}", "x").pod_oom_scores
    with pytest.raises(ConfigError, match=r"reactor\.pods\.oomScoreAdj"):
        settings_from_text("reactor: {pods: {oomScoreAdj: 5}}", "x")
