from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from reactor.model.pods import QosClass
from reactor.model.settings import Settings
from reactor.model.signals import Resource
from reactor.workloads.cgroups import CgroupPods
from reactor.workloads.manifests import ManifestDirectory

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree


def manifest(name: str, annotation: str, spec: str = "{priority: 9}") -> str:
    return f"kind: Pod\nmetadata: {{name: {name}, annotations: {{{annotation}}}}}\nspec: {spec}\n"


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    (tmp_path / "manifests").mkdir()
    return tmp_path / "manifests"


async def test_loop_goes_first_while_many_pods_are_listed(fake: FakeTree, tmp_path: Path) -> None:
    for number in range(40):
        fake.add(f"/pods/{number}")
    workloads = CgroupPods(fake.tree, Settings(pod_parents=("/pods",)), proc=tmp_path / "proc")
    turns, found = 0, []

    async def listed() -> None:
        found.extend(await workloads.listed())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listed)
        while not found:
            await trio.lowlevel.checkpoint()
            turns += 1
    assert len(found) == 40
    assert turns >= 10


async def test_manifests_that_hang_cost_no_cgroup_its_place_in_the_list(
    fake: FakeTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.add("/pods/a")
    settings = Settings(pod_parents=("/pods",), manifests_path=str(tmp_path))
    workloads = CgroupPods(fake.tree, settings, proc=tmp_path / "proc", timeout_seconds=0.05)
    answers = threading.Event()
    monkeypatch.setattr(ManifestDirectory, "read", lambda _: (answers.wait(), ())[1])
    try:
        assert ["a"] == [pod.name for pod in await workloads.listed()]
        assert "no answer within" in workloads.problems["manifests"]
    finally:
        answers.set()


@pytest.fixture
def workloads(fake: FakeTree, manifests: Path, tmp_path: Path) -> CgroupPods:
    for cgroup in ("/pods/a", "/pods/b", "/system.slice/web.service", "/other/c"):
        fake.add(cgroup)
    settings = Settings(pod_parents=("/pods", "/system.slice"), manifests_path=str(manifests))
    return CgroupPods(fake.tree, settings, proc=tmp_path / "proc")


def test_manifest_gives_its_cgroup_a_full_spec(workloads: CgroupPods, manifests: Path) -> None:
    spec = "{priority: 9, containers: [{name: c, resources: {limits: {cpu: 1, memory: 1Mi}}}]}"
    (manifests / "a.yaml").write_text(manifest("database", "reactor/cgroup: /pods/a", spec))
    pods = {pod.cgroup: pod for pod in trio.run(workloads.listed)}
    assert {"/pods/a", "/pods/b", "/system.slice/web.service"} == pods.keys()
    database = pods["/pods/a"]
    assert ("default/database", 9, QosClass.GUARANTEED) == (
        database.key,
        database.priority,
        database.qos_class,
    )
    assert {Resource.MEMORY: 1 << 20} == database.requests
    assert "cgroup/b" == pods["/pods/b"].key
    assert {} == workloads.problems


def test_unit_is_the_child_of_that_name(workloads: CgroupPods, manifests: Path) -> None:
    (manifests / "a.yaml").write_text(manifest("web", "reactor/unit: web.service"))
    assert "web" in [
        pod.name for pod in trio.run(workloads.listed) if pod.cgroup == "/system.slice/web.service"
    ]


@pytest.mark.parametrize(
    "annotation",
    [
        "reactor/cgroup: /other/c",
        "reactor/cgroup: /pods/../other/c",
        "reactor/cgroup: /pods",
        "reactor/cgroup: /",
        "reactor/cgroup: pods/a",
        "reactor/cgroup: /sys/fs/cgroup/memory/pods/a",
        "reactor/cgroup: /pods/link",
        "reactor/unit: ../other/c",
        "reactor/unit: link",
        'reactor/unit: ""',
        'reactor/cgroup: "/pods/a\\0"',
    ],
)
def test_manifest_that_names_a_cgroup_outside_is_refused_and_costs_nothing_else(
    workloads: CgroupPods, fake: FakeTree, manifests: Path, annotation: str
) -> None:
    (fake.directory("/pods") / "link").symlink_to(fake.directory("/other/c"))
    (fake.directory("/system.slice") / "link").symlink_to(fake.directory("/other/c"))
    (manifests / "a.yaml").write_text(manifest("evil", annotation))
    (manifests / "b.yaml").write_text(manifest("good", "reactor/cgroup: /pods/b"))
    assert {"a", "good", "web.service"} == {pod.name for pod in trio.run(workloads.listed)}
    assert [f"{manifests}/a.yaml[0]"] == list(workloads.problems)


def test_second_manifest_of_a_cgroup_is_refused(workloads: CgroupPods, manifests: Path) -> None:
    for name in ("first", "second"):
        (manifests / f"{name}.yaml").write_text(manifest(name, "reactor/cgroup: /pods/a"))
    assert {"first", "b", "web.service"} == {pod.name for pod in trio.run(workloads.listed)}
    assert "first.yaml" in workloads.problems[f"{manifests}/second.yaml[0]"]


def test_manifest_of_what_does_not_run_is_no_pod_and_no_problem(
    workloads: CgroupPods, fake: FakeTree, manifests: Path
) -> None:
    (manifests / "a.yaml").write_text(manifest("later", "reactor/cgroup: /pods/later"))
    (manifests / "b.yaml").write_text(manifest("unit", "reactor/unit: later.service"))
    assert "later" not in {pod.name for pod in trio.run(workloads.listed)}
    assert {} == workloads.problems
    fake.add("/pods/later")
    assert "later" in {pod.name for pod in workloads.refresh()}


def test_evicted_pod_that_is_started_again_is_another_pod(
    workloads: CgroupPods, fake: FakeTree, manifests: Path
) -> None:
    (manifests / "a.yaml").write_text(manifest("database", "reactor/cgroup: /pods/a"))
    uids = {pod.uid for pod in trio.run(workloads.listed) if pod.name == "database"}
    fake.directory("/pods/a").rename(fake.tree.memory_root / "kept")
    fake.add("/pods/a")
    uids |= {pod.uid for pod in trio.run(workloads.listed) if pod.name == "database"}
    assert 2 == len(uids)


def test_a_pod_with_a_manifest_is_built_anew_only_if_its_cgroup_or_its_manifest_has_changed(
    workloads: CgroupPods, fake: FakeTree, manifests: Path
) -> None:
    (manifests / "a.yaml").write_text(manifest("database", "reactor/cgroup: /pods/a"))
    (before,) = (pod for pod in trio.run(workloads.listed) if pod.name == "database")
    fake.add("/pods/new")
    assert any(pod is before for pod in workloads.refresh())
    (manifests / "a.yaml").write_text(manifest("database", "reactor/cgroup: /pods/a", "{priority: 11}"))
    (after,) = (pod for pod in trio.run(workloads.listed) if pod.name == "database")
    assert (before.uid, 9, 11) == (after.uid, before.priority, after.priority)


def test_pods_are_listed_without_manifests(fake: FakeTree, tmp_path: Path) -> None:
    fake.add("/pods/a")
    workloads = CgroupPods(fake.tree, Settings(pod_parents=("/pods",)), proc=tmp_path / "proc")
    assert ["a"] == [pod.name for pod in trio.run(workloads.listed)]
    assert {} == workloads.problems
