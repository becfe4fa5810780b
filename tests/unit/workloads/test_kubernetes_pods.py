from __future__ import annotations

import dataclasses
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from reactor.cluster.pod_specs import read_node_files
from reactor.kernel.cgroup import CgroupVersion
from reactor.kube.pods import PodStore
from reactor.model.pod_lists import PodEntry, PodLists, ProcessVictimEntry, VictimUnit
from reactor.model.pods import Inventory, Pod, PodSource, QosClass, RuntimePod, Volume
from reactor.model.settings import Settings
from reactor.model.signals import Resource
from reactor.workloads.kubelet_storage import KubeletStorage, NodePaths
from reactor.workloads.kubepods import container_cgroups
from reactor.workloads.kubernetes_pods import KubernetesPods, OwnScore
from tests.support.api_faults import pod_document
from tests.support.this_machine import without_descriptors

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree

MIB = 1 << 20
GIB = 1 << 30
UID = "0e4a3c0a-1111-4222-8333-0123456789ab"
HASH = "8ef1c1bd3a0b4f5a9d2e7c6b5a493827"
BURSTABLE = f"/kubepods/burstable/pod{UID}"
OTHER = f"/kubepods/burstable/pod{UID.replace('1111', '2222')}"
SANDBOX, APP, SIDECAR = "a" * 64, "b" * 64, "c" * 64


@dataclass
class Node:
    """A node's cgroup tree and /proc, and what is told of its pods."""

    fake: FakeTree
    proc: Path
    logs: Path
    specs: dict[str, Pod] = field(default_factory=dict)
    inventory: Inventory = field(default_factory=dict)
    is_complete: bool = False
    now_seconds: float = 1000.0
    next_pid: int = 100
    own_score: OwnScore | None = None
    take_waiting: Callable[[], object] = bool

    def list(
        self, *, timeout_seconds: float = 5.0, known: Mapping[str, Any] | None = None, **settings: Any
    ) -> KubernetesPods:
        return KubernetesPods(
            self.fake.tree,
            Settings(pod_parents=("/kubepods", "/kubepods.slice"), **settings),
            specs=lambda: self.specs,
            runtime=lambda: self.inventory,
            is_complete=lambda: self.is_complete,
            own_score=self.own_score,
            take_waiting=self.take_waiting,
            known=known or {},
            files=lambda: read_node_files(settings.get("static_pods_path"), self.logs),
            paths=NodePaths(proc=self.proc, logs=self.logs, kubelet=self.logs / "kubelet"),
            clock_seconds=lambda: self.now_seconds,
            timeout_seconds=timeout_seconds,
        )

    def run(
        self, cgroup: str, name: str = "app", score: int = 1000, *, mib: int = 1, processes: int = 1
    ) -> None:
        """Have processes live in a container's cgroup."""
        self.fake.add(cgroup, usage_bytes=mib * MIB)
        pids = range(self.next_pid, self.next_pid + processes)
        self.next_pid += processes
        for pid in pids:
            (self.proc / str(pid)).mkdir(parents=True)
            (self.proc / str(pid) / "comm").write_text(f"{name}\n")
            (self.proc / str(pid) / "oom_score_adj").write_text(f"{score}\n")
        self.fake.file(cgroup, "cgroup.procs", "".join(f"{pid}\n" for pid in pids))

    def pod(self, cgroup: str, score: int = 1000) -> None:
        """Make a pod with a pause container and a container of its own."""
        self.fake.add(cgroup)
        self.run(f"{cgroup}/{SANDBOX}", "pause", -998)
        self.run(f"{cgroup}/{APP}", score=score)


@pytest.fixture
def node(fake: FakeTree, tmp_path: Path) -> Node:
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "meminfo").write_text(f"MemTotal: {4 << 20} kB\nMemFree: 1 kB\n")
    return Node(fake=fake, proc=proc, logs=tmp_path / "logs")


def spec(uid: str = UID, **changes: object) -> Pod:
    made = Pod(name="web", namespace="shop", uid=uid, priority=7, qos_class=QosClass.BURSTABLE)
    return dataclasses.replace(made, **changes)


def only(pods: tuple[Pod, ...]) -> Pod:
    (pod,) = pods
    return pod


def test_a_pod_of_the_system_partition_is_listed_and_never_a_candidate(node: Node) -> None:
    """It counts as a pod's memory, not as memory outside the pods; the node's thresholds never evict it."""
    cgroup = f"/kubepods/system/burstable/pod{UID}"
    node.pod(cgroup)
    node.specs = {UID: spec()}
    pods = node.list()
    for found in (only(trio.run(pods.listed)), only(pods.refresh())):
        assert (cgroup, QosClass.BURSTABLE) == (found.cgroup, found.qos_class)
        assert (
            "in the system partition (kubepods/system), which has a limit of its own"
            == found.critical_because
        )
        assert "/kubepods/system" == found.partition


def test_a_critical_pod_of_the_partition_is_spared_for_itself(node: Node) -> None:
    node.pod(f"/kubepods/system/burstable/pod{UID}")
    node.specs = {UID: replace(spec(), critical_because="priority 2000001000")}
    found = only(trio.run(node.list().listed))
    assert ("priority 2000001000", None) == (found.critical_because, found.partition)


def test_a_pod_of_the_partition_that_is_guarded_alone_is_a_candidate(node: Node) -> None:
    node.pod(f"/kubepods/system/burstable/pod{UID}")
    node.specs = {UID: spec()}
    settings = Settings(pod_parents=("/kubepods/system",), node_cgroup="/kubepods/system")
    pods = KubernetesPods(node.fake.tree, settings, specs=lambda: node.specs, paths=NodePaths(proc=node.proc))
    assert only(trio.run(pods.listed)).critical_because is None


def test_a_pod_with_a_spec_is_that_spec_in_its_cgroup(node: Node) -> None:
    node.pod(BURSTABLE)
    node.specs = {UID: spec(requests={Resource.MEMORY: 5})}
    pods = node.list()
    found = only(trio.run(pods.listed))
    assert ("shop/web", 7, {Resource.MEMORY: 5}, BURSTABLE) == (
        found.key,
        found.priority,
        found.requests,
        found.cgroup,
    )
    assert found.critical_because is None
    assert pods.problems == {}


def uid_of(number: int) -> str:
    return f"{number:08}{UID[8:]}"


async def test_pod_that_comes_while_the_others_are_read_is_listed_and_the_loop_goes_first(node: Node) -> None:
    for number in range(10):
        node.pod(f"/kubepods/burstable/pod{uid_of(number)}")
    pods, turns, found = node.list(), 0, []

    async def listed() -> None:
        found.extend(await pods.listed())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listed)
        while not found:
            await trio.lowlevel.checkpoint()
            turns += 1
            if turns == 2:
                node.pod(f"/kubepods/burstable/pod{uid_of(10)}")
                assert uid_of(10) in [pod.uid for pod in pods.refresh()]
    assert turns > 2
    assert {uid_of(number) for number in range(11)} == {pod.uid for pod in found}


async def test_places_stay_as_they_were_known_where_the_disk_hangs_and_the_pods_are_listed_all_the_same(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.pod(BURSTABLE)
    node.specs = {UID: spec(volumes=(Volume(name="data", is_empty_dir=True),))}
    (node.logs / "kubelet/pods" / UID / "volumes/kubernetes.io~empty-dir/data").mkdir(parents=True)
    pods, answers = node.list(timeout_seconds=0.2), threading.Event()
    (place,) = only(await pods.listed()).storage
    assert place.name == "data"
    monkeypatch.setattr(KubeletStorage, "places", lambda *_: (answers.wait(), {})[1])
    node.pod(f"/kubepods/burstable/pod{uid_of(1)}")
    try:
        assert {UID: (place,), uid_of(1): ()} == {pod.uid: pod.storage for pod in await pods.listed()}
        assert "no answer within" in pods.problems["pods' files"]
    finally:
        answers.set()


def test_a_spec_without_a_cgroup_is_no_pod_that_could_be_ended(node: Node) -> None:
    node.specs = {UID: spec()}
    assert trio.run(node.list().listed) == ()


def test_with_api_server_and_runtime_gone_from_the_start_pods_are_ranked_by_their_cgroups(node: Node) -> None:
    """4 GiB in all; a quarter of it asked for gives a score of 750."""
    node.pod(BURSTABLE, score=750)
    node.run(f"{BURSTABLE}/{SIDECAR}", score=900)
    node.pod("/kubepods/besteffort/podb")
    pods = node.list()
    by_uid = {pod.uid: pod for pod in trio.run(pods.listed)}
    request = by_uid[UID].requests[Resource.MEMORY]
    assert abs(request - (GIB + 410 * MIB)) <= 2 * (4 * GIB // 2000) + MIB
    assert by_uid[UID].qos_class is QosClass.BURSTABLE
    assert by_uid["b"].qos_class is QosClass.BEST_EFFORT
    assert by_uid["b"].requests == {}
    assert {None} == {pod.critical_because for pod in by_uid.values()}
    assert "2 pods are ranked without their spec" in pods.problems["specs"]


def test_what_was_written_for_the_order_of_the_oom_killer_is_not_read_as_a_request(node: Node) -> None:
    """The first to go has 1000 then, by which it would have asked for nothing."""
    node.pod(BURSTABLE, score=1000)
    app = f"{BURSTABLE}/{APP}"
    node.own_score = lambda _, cgroup: 750 if cgroup == app else 0
    found = only(trio.run(node.list().listed))
    assert abs(found.requests[Resource.MEMORY] - GIB) <= 4 * GIB // 1000


@pytest.mark.parametrize("fake", [CgroupVersion.V2], indirect=True)
def test_what_the_kubelet_protects_is_the_request_where_it_protects_any(node: Node) -> None:
    node.pod(BURSTABLE, score=750)
    node.fake.file(BURSTABLE, "memory.min", f"{300 * MIB}\n")
    assert only(trio.run(node.list().listed)).requests == {Resource.MEMORY: 300 * MIB}


def test_a_guaranteed_pod_without_a_spec_asked_for_its_limit_and_is_never_ended(node: Node) -> None:
    cgroup = f"/kubepods/pod{UID}"
    node.pod(cgroup, score=-997)
    node.fake.tree.set_memory_limit(cgroup, 64 * MIB)
    found = only(trio.run(node.list().listed))
    assert found.requests == {Resource.MEMORY: 64 * MIB}
    assert found.critical_because is not None


def test_a_pod_whose_score_says_critical_is_never_ended_without_a_spec(node: Node) -> None:
    node.pod(BURSTABLE, score=-997)
    assert "node-critical" in (only(trio.run(node.list().listed)).critical_because or "")


def test_a_pod_whose_score_says_critical_is_ended_where_its_spec_says_that_it_may_be(node: Node) -> None:
    node.pod(BURSTABLE, score=-997)
    node.specs = {UID: spec()}
    assert only(trio.run(node.list().listed)).critical_because is None


def test_a_static_pod_is_never_ended_though_its_mirror_is_missing(node: Node) -> None:
    node.pod(f"/kubepods/burstable/pod{HASH}")
    assert only(trio.run(node.list().listed)).critical_because == "static pod"


def test_a_static_pod_is_found_by_its_hash_in_the_spec_of_its_mirror(node: Node) -> None:
    node.pod(f"/kubepods/burstable/pod{HASH}")
    node.specs = {HASH: spec(HASH, critical_because="mirror pod", name="etcd-node")}
    pods = node.list()
    found = only(trio.run(pods.listed))
    assert ("etcd-node", HASH, "mirror pod") == (found.name, found.uid, found.critical_because)
    node.specs = {}  # two claim it now, or the node object was made anew
    assert "static pod" == only(pods.refresh()).critical_because


def test_a_pod_whose_object_is_deleted_keeps_its_spec_while_it_runs(node: Node) -> None:
    """Deleting a pod with its grace period set to 0 removes the object at once, and what runs later."""
    cgroup = f"/kubepods/pod{UID}"
    node.pod(cgroup, score=-997)
    node.specs = {UID: spec(qos_class=QosClass.GUARANTEED)}
    pods = node.list()
    before = only(trio.run(pods.listed))
    node.specs = {}
    assert before is only(pods.refresh())
    found = only(trio.run(pods.listed))
    assert (7, None) == (found.priority, found.critical_because)
    assert pods.problems == {}


@pytest.mark.parametrize("key", ["config.hash", "config.mirror", "config.source"])
def test_a_pod_annotated_with_another_pods_uid_leaves_that_pod_as_it_is(node: Node, key: str) -> None:
    hog = "0e4a3c0a-2222-4222-8333-0123456789ab"
    node.pod(BURSTABLE)
    node.pod(f"/kubepods/besteffort/pod{hog}")
    store = PodStore(node_name="node-a")
    store.listing()
    store.take(pod_document("web", metadata={"uid": UID}, spec={"priority": 2_000_001_000}))
    annotations = {f"kubernetes.io/{key}": UID}
    store.take(pod_document("hog", metadata={"uid": hog, "annotations": annotations}))
    store.listed()
    node.specs = dict(store.specs)
    found = {pod.name: (pod.uid, pod.critical_because) for pod in trio.run(node.list().listed)}
    assert {"web": (UID, "priority 2000001000"), "hog": (hog, None)} == found


def test_a_mirror_that_is_gone_leaves_nothing_behind(node: Node) -> None:
    node.pod(BURSTABLE)
    node.specs = {UID: spec(critical_because="mirror pod")}
    pods = node.list()
    assert "mirror pod" == only(trio.run(pods.listed)).critical_because
    node.specs = {}
    assert only(pods.refresh()).critical_because is None


def test_requests_equal_to_limits_exempt_no_pod_that_the_api_server_does_not_list(node: Node) -> None:
    cgroup = f"/kubepods/pod{UID}"
    node.pod(cgroup, score=-997)
    node.is_complete = True
    pods = node.list()
    assert only(trio.run(pods.listed)).critical_because is not None  # it may have come just now
    node.now_seconds += 61
    assert only(trio.run(pods.listed)).critical_because is None
    node.is_complete = False
    assert only(trio.run(pods.listed)).critical_because is not None


def test_no_listing_says_of_a_static_pod_that_it_is_none(node: Node) -> None:
    node.pod(f"/kubepods/burstable/pod{HASH}")
    node.specs[HASH] = Pod(name="etcd", namespace="default", uid=HASH, priority=0)
    assert only(trio.run(node.list().listed)).critical_because == "static pod"


def test_a_pod_that_is_node_critical_by_its_score_stays_so_though_no_listing_has_it(node: Node) -> None:
    node.pod(BURSTABLE, score=-997)
    node.is_complete = True
    pods = node.list()
    trio.run(pods.listed)
    node.now_seconds += 120
    assert only(trio.run(pods.listed)).critical_because == "Guaranteed or node-critical, its spec unknown"


def test_no_later_listing_takes_away_the_priority_by_which_a_pod_is_critical(node: Node) -> None:
    node.pod(BURSTABLE)
    critical = Pod(
        name="dns", namespace="a", uid=UID, priority=2_000_000_000, critical_because="priority 2000000000"
    )
    node.specs[UID] = critical
    pods = node.list()
    assert only(trio.run(pods.listed)).critical_because == "priority 2000000000"
    node.specs[UID] = dataclasses.replace(critical, priority=1_999_999_999, critical_because=None)
    assert only(pods.refresh()).critical_because == "priority 2000000000"
    assert only(trio.run(pods.listed)).critical_because == "priority 2000000000"


def test_no_later_listing_makes_a_pod_of_a_static_one(node: Node) -> None:
    node.pod(BURSTABLE)
    node.specs = {UID: spec(critical_because="static pod (source file)")}
    pods = node.list()
    trio.run(pods.listed)
    for specs in ({UID: spec()}, {}):
        node.specs = specs
        assert only(pods.refresh()).critical_because == "static pod (source file)"


def test_no_later_listing_makes_a_mirror_of_a_pod_to_end_its_claim_with_it(node: Node) -> None:
    node.pod(BURSTABLE)
    critical = spec(priority=2_000_000_000, critical_because="priority 2000000000")
    node.specs = {UID: critical}
    pods = node.list()
    trio.run(pods.listed)
    for specs in ({UID: replace(critical, critical_because="mirror pod")}, {}):
        node.specs = specs
        assert only(pods.refresh()).critical_because == "priority 2000000000"


@pytest.mark.parametrize("later", [{}, {UID: spec()}], ids=["left out", "of less priority"])
def test_another_configuration_takes_no_priority_away_either(node: Node, later: dict[str, Pod]) -> None:
    """The steward asks for another one where it sees another layout of the disks."""
    node.pod(BURSTABLE)
    node.specs = {UID: spec(priority=2_000_000_000, critical_because="priority 2000000000")}
    pods = node.list()
    trio.run(pods.listed)
    node.specs = later
    again = node.list(known=pods.known)
    assert only(again.refresh()).critical_because == "priority 2000000000"
    assert only(trio.run(again.listed)).critical_because == "priority 2000000000"


def test_what_an_earlier_configuration_has_known_is_read_by_the_new_one(node: Node) -> None:
    node.pod(BURSTABLE)
    node.specs = {UID: spec(labels={"app": "a"})}
    pods = node.list()
    assert only(trio.run(pods.listed)).spared_cgroups
    node.run(f"{BURSTABLE}/{SIDECAR}")
    again = node.list(known=pods.known)
    assert 2 == len(only(again.refresh()).container_cgroups)


def test_a_static_pod_stays_one_though_the_api_server_does_not_list_it(node: Node) -> None:
    node.pod(f"/kubepods/burstable/pod{HASH}")
    node.is_complete = True
    pods = node.list()
    trio.run(pods.listed)
    node.now_seconds += 61
    assert only(trio.run(pods.listed)).critical_because == "static pod"


def test_a_static_pod_whose_manifest_gives_it_a_uid_is_never_ended(node: Node, tmp_path: Path) -> None:
    node.pod(BURSTABLE)
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    (manifests / "broken.yaml").write_text("{")
    (manifests / "pod.yaml").write_text(f"kind: Pod\nmetadata: {{name: a, uid: {UID}}}\n")
    assert only(trio.run(node.list(static_pods_path=str(manifests)).listed)).critical_because == "static pod"
    assert only(trio.run(node.list().listed)).critical_because is None


def test_what_the_runtime_reports_of_a_pod_is_taken_where_no_spec_is_known(node: Node) -> None:
    node.pod(BURSTABLE)
    told = RuntimePod(name="web", namespace="shop", sandboxes=(SANDBOX,), containers={APP: "nginx"})
    node.inventory = {UID: told}
    found = only(trio.run(node.list().listed))
    assert found.key == "shop/web"
    assert found.container_cgroups == {"nginx": f"{BURSTABLE}/{APP}"}
    node.inventory = {UID: dataclasses.replace(told, source=PodSource.FILE)}
    assert only(trio.run(node.list().listed)).critical_because == "static pod (source file)"


def test_a_pod_of_the_system_namespace_is_never_ended_without_its_spec(node: Node) -> None:
    """Pods of system-cluster-critical live there, and nothing on the node tells their priority."""
    node.pod(BURSTABLE)
    (node.logs / f"kube-system_coredns-5d78_{UID}").mkdir(parents=True)
    found = only(trio.run(node.list().listed))
    assert found.key == "kube-system/coredns-5d78"
    assert found.critical_because is not None
    node.specs = {UID: spec(namespace="kube-system")}
    assert only(trio.run(node.list().listed)).critical_because is None


def test_a_pods_name_is_read_off_its_log_directory_where_no_source_has_it(node: Node) -> None:
    node.pod(BURSTABLE)
    for name in (f"shop_web_{UID}", "no-pod", "a_b_c_d"):
        (node.logs / name).mkdir(parents=True)
    assert only(trio.run(node.list().listed)).key == "shop/web"
    (node.logs / f"kube-system_web_{UID}").mkdir()  # two names for one pod are none
    found = only(trio.run(node.list().listed))
    assert (f"kubepods/pod{UID}", None) == (found.key, found.critical_because)
    shutil.rmtree(node.logs)
    assert only(trio.run(node.list().listed)).key == f"kubepods/pod{UID}"


def test_the_pause_container_is_spared_by_what_the_runtime_reports_or_by_what_it_looks_like(
    node: Node,
) -> None:
    node.pod(BURSTABLE)
    assert only(trio.run(node.list().listed)).spared_cgroups == (f"{BURSTABLE}/{SANDBOX}",)
    node.run("/kubepods/besteffort/podb/" + SANDBOX, "sleeper", 1000)
    node.run("/kubepods/besteffort/podb/" + APP, "app", 1000)
    by_uid = {pod.uid: pod for pod in trio.run(node.list().listed)}
    assert by_uid["b"].spared_cgroups == ()
    node.inventory = {"b": RuntimePod(name="b", namespace="n", sandboxes=(SANDBOX,))}
    by_uid = {pod.uid: pod for pod in trio.run(node.list().listed)}
    assert by_uid["b"].spared_cgroups == (f"/kubepods/besteffort/podb/{SANDBOX}",)


def test_a_pause_container_that_an_eviction_has_left_alone_is_still_spared(node: Node) -> None:
    node.run(f"{BURSTABLE}/{SANDBOX}", "pause", 0)
    node.run(f"{BURSTABLE}/{APP}", "app", 0)
    pods = node.list()
    oldest, other = container_cgroups(node.fake.tree, BURSTABLE)
    node.run(oldest.cgroup, "pause", 0)
    node.run(other.cgroup, "app", 0)
    assert only(trio.run(pods.listed)).spared_cgroups == (oldest.cgroup,)
    shutil.rmtree(node.fake.tree.path(other.cgroup))
    assert only(trio.run(pods.listed)).spared_cgroups == (oldest.cgroup,)


@pytest.mark.parametrize("looks", [{"processes": 2}, {"mib": 100}])
def test_a_sandbox_in_which_the_pod_itself_runs_is_not_spared(node: Node, looks: dict[str, int]) -> None:
    """As with gVisor and Kata."""
    node.run(f"{BURSTABLE}/{SANDBOX}", "pause", -998, **looks)
    node.inventory = {UID: RuntimePod(name="b", namespace="n", sandboxes=(SANDBOX,))}
    assert only(trio.run(node.list().listed)).spared_cgroups == ()


@pytest.mark.parametrize("score", [-998, 0])
def test_a_younger_container_is_not_spared_for_what_its_process_calls_itself(node: Node, score: int) -> None:
    node.run(f"{BURSTABLE}/{SANDBOX}", "pause", score)
    node.run(f"{BURSTABLE}/{APP}", "pause", 1000)
    pods = node.list()
    sandbox, app = container_cgroups(node.fake.tree, BURSTABLE)  # the directories' inodes tell the older one
    if score == -998:
        sandbox = next(one for one in (sandbox, app) if one.id == SANDBOX)
    assert only(trio.run(pods.listed)).spared_cgroups == (sandbox.cgroup,)
    shutil.rmtree(node.fake.directory(sandbox.cgroup))
    assert only(trio.run(pods.listed)).spared_cgroups == ()


def test_a_single_container_is_not_spared_for_what_its_process_calls_itself(node: Node) -> None:
    """As where a runtime makes no sandboxes, and is not asked."""
    node.run(f"{BURSTABLE}/{APP}", "pause", 1000)
    assert only(trio.run(node.list().listed)).spared_cgroups == ()


def test_the_sandbox_that_the_runtime_reports_is_the_only_one_spared_from_then_on(node: Node) -> None:
    """Until then a privileged container may pass for it, by a score that nobody else can have."""
    node.run(f"{BURSTABLE}/{SANDBOX}", "odd", 0)
    node.run(f"{BURSTABLE}/{APP}", "pause", -998)
    pods = node.list()
    assert only(trio.run(pods.listed)).spared_cgroups == (f"{BURSTABLE}/{APP}",)
    node.inventory = {UID: RuntimePod(name="web", namespace="shop", sandboxes=(SANDBOX,))}
    assert only(pods.refresh()).spared_cgroups == (f"{BURSTABLE}/{SANDBOX}",)
    node.inventory = {UID: RuntimePod(name="web", namespace="shop", sandboxes=("d" * 64,))}
    assert only(trio.run(pods.listed)).spared_cgroups == ()


@pytest.mark.parametrize("told", [True, False])
def test_no_more_than_one_container_is_spared(node: Node, *, told: bool) -> None:
    for identity in (SANDBOX, APP, SIDECAR):
        node.run(f"{BURSTABLE}/{identity}", "pause", -998)
    if told:
        node.inventory = {UID: RuntimePod(name="web", namespace="shop", sandboxes=(APP, SANDBOX))}
    assert 1 == len(only(trio.run(node.list().listed)).spared_cgroups)


@pytest.mark.parametrize("told", [True, False])
def test_what_was_spared_is_spared_no_longer_once_it_has_grown(node: Node, *, told: bool) -> None:
    node.run(f"{BURSTABLE}/{SANDBOX}", "pause", -998)
    monitor = f"{BURSTABLE}/crio-conmon-{SANDBOX}.scope"
    node.run(monitor, "conmon", 0)
    if told:
        node.inventory = {UID: RuntimePod(name="web", namespace="shop", sandboxes=(SANDBOX,))}
    pods = node.list()
    assert 2 == len(only(trio.run(pods.listed)).spared_cgroups)
    for grown in (f"{BURSTABLE}/{SANDBOX}", monitor):
        node.fake.counters(grown, usage_bytes=100 * MIB, inactive_file_bytes=0)
    assert only(trio.run(pods.listed)).spared_cgroups == ()


def test_what_can_not_be_read_of_a_sandbox_leaves_it_as_it_was(node: Node) -> None:
    node.pod(BURSTABLE)
    pods = node.list()
    before = only(trio.run(pods.listed)).spared_cgroups
    node.fake.file(f"{BURSTABLE}/{SANDBOX}", "cgroup.procs", "garbage")
    assert before == only(trio.run(pods.listed)).spared_cgroups != ()
    assert () == only(trio.run(node.list().listed)).spared_cgroups


def test_cri_os_monitors_are_spared_and_are_no_containers(node: Node) -> None:
    monitor = f"{BURSTABLE}/crio-conmon-{APP}.scope"
    node.run(f"{BURSTABLE}/crio-{APP}.scope")
    node.run(monitor, "conmon", 0)
    found = only(trio.run(node.list().listed))
    assert found.spared_cgroups == (monitor,)
    assert list(found.container_cgroups.values()) == [f"{BURSTABLE}/crio-{APP}.scope"]


def test_a_refresh_finds_a_new_pod_and_misses_one_that_has_gone(node: Node) -> None:
    node.pod(BURSTABLE)
    pods = node.list()
    assert only(trio.run(pods.listed)).uid == UID
    node.pod("/kubepods/besteffort/podb")
    assert {UID, "b"} == {pod.uid for pod in pods.refresh()}
    shutil.rmtree(node.fake.directory(BURSTABLE))
    assert only(pods.refresh()).uid == "b"


def test_a_refresh_reads_nothing_of_a_pod_that_it_knows(node: Node) -> None:
    node.pod(BURSTABLE)
    pods = node.list()
    before = only(trio.run(pods.listed))
    node.fake.file(BURSTABLE, "cgroup.procs", "garbage")
    shutil.rmtree(node.proc)
    assert only(pods.refresh()) is before
    assert only(pods.refresh()).uid == UID


def test_a_refresh_takes_over_a_spec_that_has_come_or_changed(node: Node) -> None:
    node.pod(BURSTABLE)
    pods = node.list()
    assert only(trio.run(pods.listed)).priority == 0
    node.specs = {UID: spec()}
    assert only(pods.refresh()).priority == 7
    node.specs = {UID: spec(priority=8)}
    assert only(pods.refresh()).priority == 8


def test_a_pod_has_no_spec_only_if_none_was_sent_by_now(node: Node) -> None:
    """It may be critical: without its spec, it is a pod like any other."""
    sent = {UID: spec(critical_because="priority 2000000000")}
    taken: list[str] = []

    def take_waiting() -> None:
        taken.append("taken")
        node.specs = sent

    node.take_waiting = take_waiting
    pods = node.list()
    assert () == trio.run(pods.listed)
    assert [] == taken
    node.pod(BURSTABLE)
    for _ in range(2):
        assert "priority 2000000000" == only(pods.refresh()).critical_because
    assert ["taken"] == taken


def test_a_refresh_looks_again_for_the_pause_container_of_a_pod_that_is_starting(node: Node) -> None:
    node.fake.add(BURSTABLE)
    pods = node.list()
    assert only(trio.run(pods.listed)).spared_cgroups == ()
    node.run(f"{BURSTABLE}/{SANDBOX}", "pause", -998)
    assert only(pods.refresh()).spared_cgroups == (f"{BURSTABLE}/{SANDBOX}",)


def test_a_refresh_looks_no_longer_for_a_pause_container_that_has_not_come(node: Node) -> None:
    """CRI-O runs most pods without one."""
    node.run(f"{BURSTABLE}/{APP}")
    pods = node.list()
    trio.run(pods.listed)
    node.now_seconds += 61
    before = only(pods.refresh())
    assert only(pods.refresh()) is before


def test_a_pod_recreated_under_the_same_uid_is_read_again(node: Node) -> None:
    node.pod(BURSTABLE)
    pods = node.list()
    trio.run(pods.listed)
    old = node.fake.directory(BURSTABLE)
    old.rename(old.parent / "kept")  # so that its inode is not given out again
    node.run(f"{BURSTABLE}/{SIDECAR}")
    assert list(only(pods.refresh()).container_cgroups) == [SIDECAR]


def test_the_reactors_own_pod_is_never_ended(node: Node) -> None:
    node.pod(BURSTABLE)
    node.specs = {UID: spec()}
    own = f"{BURSTABLE}/{APP}"
    (node.proc / "self").mkdir()
    (node.proc / "self/cgroup").write_text(f"4:memory:{own}\n0::{own}\n")
    assert only(trio.run(node.list().listed)).critical_because == "reactor's own cgroup"


def test_a_tree_that_can_not_be_listed_leaves_the_pods_as_they_were_known(node: Node) -> None:
    node.pod(BURSTABLE)
    pods = node.list()
    node.specs = {UID: spec()}
    before = trio.run(pods.listed)
    kubepods = node.fake.directory("/kubepods")
    kubepods.rename(kubepods.with_name("elsewhere"))
    os.symlink("elsewhere", kubepods)  # refused, as a name from outside would be
    assert before == pods.refresh()
    assert "symlink" in pods.problems["/kubepods"]


BLIND = "reactor has no descriptors left to see which pods there are"


def test_no_pod_is_evicted_if_descriptors_lack_to_list_what_has_come(node: Node) -> None:
    """It may be the hog. Where nothing has changed nothing is listed, and all are known."""
    node.pod(BURSTABLE)
    node.specs = {UID: spec()}
    pods = node.list()
    before = trio.run(pods.listed)
    with without_descriptors():
        assert before == pods.refresh()
    node.pod(OTHER)
    with without_descriptors():
        assert tuple(replace(pod, critical_because=BLIND) for pod in before) == pods.refresh()
    assert [None, None] == [pod.critical_because for pod in pods.refresh()]


def test_no_pod_is_evicted_if_descriptors_lack_while_one_has_not_been_read(node: Node) -> None:
    node.pod(BURSTABLE)
    node.pod(OTHER)
    node.specs = {UID: spec()}
    meminfo = node.proc / "meminfo"
    read = meminfo.read_text()
    meminfo.write_text("what is left of a pod without a spec can't be read")
    pods = node.list()
    assert {None, "its cgroup can't be read"} == {pod.critical_because for pod in trio.run(pods.listed)}
    with without_descriptors():
        assert [BLIND, BLIND] == [pod.critical_because for pod in pods.refresh()]
    meminfo.write_text(read)
    assert [None, None] == [pod.critical_because for pod in trio.run(pods.listed)]


def test_a_node_without_any_pods_yet_has_none_and_no_problem(node: Node) -> None:
    pods = node.list()
    assert trio.run(pods.listed) == ()
    assert pods.refresh() == ()
    assert pods.problems == {}


AGENTS = PodLists(
    process_victims=(
        ProcessVictimEntry(pods=PodEntry(namespace="shop", labels=(("app", "web"),)), unit=VictimUnit.TREE),
    )
)


def test_one_process_is_killed_in_pods_of_an_allowed_namespace_and_label_by_their_spec_alone(
    node: Node,
) -> None:
    node.pod(BURSTABLE)
    pods = node.list(pod_lists=AGENTS)
    node.inventory = {UID: RuntimePod(name="web", namespace="shop", sandboxes=(SANDBOX,), containers={})}
    assert only(trio.run(pods.listed)).process_victim is None, "no spec"
    node.specs = {UID: spec()}
    assert only(pods.refresh()).process_victim is None, "no label"
    node.specs = {UID: spec(labels={"app": "web"})}
    victim = only(pods.refresh()).process_victim
    assert victim is not None
    assert ("namespace shop, label app=web", VictimUnit.TREE) == (victim.entry, victim.unit)
    node.specs = {UID: spec(namespace="other", labels={"app": "web"})}
    assert only(pods.refresh()).process_victim is None, "another namespace"


def test_a_critical_pod_of_an_allowed_namespace_stays_spared(node: Node) -> None:
    node.pod(BURSTABLE)
    node.specs = {UID: spec(labels={"app": "web"}, critical_because="priority 2000001000")}
    assert "priority 2000001000" == only(trio.run(node.list(pod_lists=AGENTS).listed)).critical_because
