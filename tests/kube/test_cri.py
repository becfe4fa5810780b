"""The runtime's part, on containerd itself: sandboxes and containers listed, stopped and measured, images."""

from __future__ import annotations

import dataclasses
import json
import signal
import uuid
from collections.abc import Iterator
from functools import partial

import images
import pytest
import trio
from machine import LostError
from sandboxes import OldRuntime, RunningPod, Runtime, image_named, until

from reactor.act.reap import Populated
from reactor.cluster.evicted_pods import stop_containers, stop_sandboxes
from reactor.cluster.pod_specs import read_node_files
from reactor.cluster.runtime import RuntimeWatch
from reactor.config.pod import HASH_ANNOTATION
from reactor.cri.client import RuntimeClient
from reactor.cri.messages import ContainerState, SandboxState
from reactor.errors import ReactorError, RuntimeServiceError, RuntimeUnavailableError
from reactor.guard.kubernetes import RuntimeKills
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_memory import MemoryCounters
from reactor.kernel.procfs import read_meminfo
from reactor.link.frames import FrameKind
from reactor.link.requests import ReclaimOver
from reactor.model.pods import Pod, QosClass
from reactor.model.settings import Settings
from reactor.model.signals import Resource
from reactor.workloads.kubelet_storage import KubeletStorage, NodePaths
from reactor.workloads.kubernetes_pods import KubernetesPods

pytestmark = pytest.mark.trio
MIB = 1 << 20


@pytest.fixture(scope="module", params=[Runtime, OldRuntime])
def runtime_type(request: pytest.FixtureRequest) -> type[Runtime]:
    """Return containerd as the machine has it, and one that speaks the interface of before 1.23 alone."""
    if request.param is OldRuntime:
        try:
            OldRuntime().containerd()
        except LostError as error:
            pytest.skip(f"{error}; DEBIAN_MIRROR names another mirror")
    chosen: type[Runtime] = request.param
    return chosen


@pytest.fixture
def client(runtime: Runtime) -> RuntimeClient:
    return runtime.client()


@pytest.fixture
def tree() -> CgroupTree:
    return CgroupTree.discover()


class Steward:
    """Has containers stopped as the steward does, without the process."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def ask(self, order: FrameKind, *, uid: str, grace_seconds: float) -> ReclaimOver:
        assert order is FrameKind.STOP
        try:
            await stop_containers(self._runtime.client, uid, grace_seconds)
        except ReactorError as error:
            return ReclaimOver(number=1, did=(), problems=(str(error),))
        return ReclaimOver(number=1, did=())


@pytest.fixture
def kills(runtime: Runtime, tree: CgroupTree) -> Iterator[RuntimeKills]:
    found = RuntimeKills(tree, (runtime.kubepods,), Steward(runtime))
    yield found
    found.close()


async def watched(runtime: Runtime) -> RuntimeWatch:
    watch = RuntimeWatch(endpoint=runtime.endpoint, interval_seconds=60)
    assert await watch.ask()
    return watch


async def listed(runtime: Runtime, tree: CgroupTree, *, with_runtime: bool = True) -> dict[str, Pod]:
    watch = await watched(runtime) if with_runtime else None
    logs = runtime.machine.path("/var/log/pods")
    pods = KubernetesPods(
        tree,
        Settings(pod_parents=(runtime.kubepods,)),
        runtime=lambda: watch.inventory if watch else {},
        files=lambda: read_node_files(None, logs),
        paths=NodePaths(logs=logs),
    )
    return {pod.uid: pod for pod in await pods.listed()}


async def wait_until_running(tree: CgroupTree, pod: RunningPod, mib: int) -> None:
    """Wait until a pod's memory has come."""
    counters = MemoryCounters(tree, pod.cgroup)

    async def is_there() -> bool:
        return counters.usage_bytes() >= mib * MIB

    try:
        await until(is_there)
    finally:
        counters.close()


async def exited(client: RuntimeClient, pod: RunningPod) -> bool:
    return {one.state for one in await client.containers(pod.uid)} == {ContainerState.EXITED}


async def test_the_runtime_tells_its_name_and_version_in_the_newest_interface_that_it_speaks(
    runtime: Runtime, client: RuntimeClient
) -> None:
    version = await client.version()
    assert version.runtime_name == "containerd"
    assert version.runtime_version
    assert client.api_version == runtime.api_version


async def test_sandboxes_and_containers_are_listed_with_whose_they_are(runtime: Runtime) -> None:
    hashed = {HASH_ANNOTATION: "h"}
    pod = await runtime.run_pod({"one": ["idle"], "other": ["idle"]}, annotations={"a": "b", **hashed})
    neighbour = await runtime.run_pod({"one": ["idle"]})
    client = runtime.client()
    (sandbox,) = await client.sandboxes(pod.uid)
    assert sandbox.metadata is not None
    assert (pod.sandbox_id, SandboxState.READY) == (sandbox.id, sandbox.state)
    assert (pod.name, pod.uid, "test") == (
        sandbox.metadata.name,
        sandbox.metadata.uid,
        sandbox.metadata.namespace,
    )
    assert sandbox.annotations == hashed  # of a tenant's own none is read
    containers = {one.metadata.name: one for one in await client.containers(pod.uid) if one.metadata}
    assert pod.containers == {name: one.id for name, one in containers.items()}
    assert {ContainerState.RUNNING} == {one.state for one in containers.values()}
    assert {pod.sandbox_id, neighbour.sandbox_id} == {one.id for one in await client.sandboxes()}
    assert len(await client.containers()) == 3


async def test_a_containers_status_tells_its_log_and_a_sandbox_what_it_was_made_of(runtime: Runtime) -> None:
    pod = await runtime.run_pod({"one": ["idle"]})
    answer = await runtime.client().container_status(pod.containers["one"])
    assert answer.status is not None
    assert answer.status.state is ContainerState.RUNNING
    assert answer.status.log_path.endswith("/one/0.log")
    assert "pid" in json.loads(await runtime.client().sandbox_info(pod.sandbox_id))


async def test_images_are_listed_and_removed_and_the_filesystem_they_lie_on_is_told(runtime: Runtime) -> None:
    client = runtime.client()
    by_tag = {tag: one for one in await client.images() for tag in one.repo_tags}
    assert {images.PAUSE, images.LOAD} <= set(by_tag)
    assert by_tag[images.LOAD].size_bytes > MIB
    (filesystem,) = (await client.image_filesystems()).image_filesystems
    assert filesystem.filesystem is not None
    assert runtime.machine.path(filesystem.filesystem.mountpoint).is_dir()
    await client.remove_image(by_tag[images.LOAD].id)
    assert await image_named(client, images.LOAD) is None
    runtime.import_images()
    assert await image_named(client, images.LOAD) is not None


async def test_an_image_in_use_is_the_runtimes_to_remove_all_the_same(runtime: Runtime) -> None:
    """Which is why those in use are spared here, not there."""
    pod = await runtime.run_pod({"one": ["idle"]})
    client = runtime.client()
    image = await image_named(client, images.LOAD)
    assert image is not None
    await client.remove_image(image.id)
    assert await image_named(client, images.LOAD) is None
    runtime.import_images()
    assert [one.id for one in await client.containers(pod.uid)] == list(pod.containers.values())


async def test_the_pods_found_in_the_cgroups_are_the_runtimes(runtime: Runtime, tree: CgroupTree) -> None:
    pod = await runtime.run_pod({"one": ["idle"], "other": ["idle"]})
    found = (await listed(runtime, tree))[pod.uid]
    assert (f"test/{pod.name}", QosClass.BURSTABLE, pod.cgroup) == (found.key, found.qos_class, found.cgroup)
    assert {"one", "other"} == set(found.container_cgroups)
    assert found.spared_cgroups == (runtime.node.container_cgroup(pod.cgroup, pod.sandbox_id),)


async def test_what_a_container_writes_lies_where_it_is_looked_for(
    runtime: Runtime, tree: CgroupTree
) -> None:
    """From within the machine, where the runtime's paths are."""
    script = "dd if=/dev/zero of=/written bs=1024 count=64; echo said; sleep 600"
    pod = await runtime.run_pod({"one": ["/bin/sh", "-c", script]})
    storage = KubeletStorage(tree, NodePaths())
    layer = storage._layer(runtime.node.container_cgroup(pod.cgroup, pod.containers["one"]))
    assert layer is not None

    logs = runtime.machine.path(f"/var/log/pods/test_{pod.name}_{pod.uid}/one/0.log")

    async def written() -> bool:
        path = runtime.machine.path(layer) / "written"
        return path.exists() and path.stat().st_size == 64 << 10 and "said" in logs.read_text()

    await until(written)


async def test_without_the_runtime_pods_are_found_named_and_their_pause_containers_known(
    runtime: Runtime, tree: CgroupTree
) -> None:
    pod = await runtime.run_pod({"one": ["idle"]}, score=750)
    static = await runtime.run_pod({"one": ["idle"]}, namespace="kube-system")
    told = await listed(runtime, tree)
    found = await listed(runtime, tree, with_runtime=False)
    assert told[pod.uid].spared_cgroups == found[pod.uid].spared_cgroups != ()
    assert found[pod.uid].key == f"test/{pod.name}"
    expected = pytest.approx(read_meminfo().total_bytes / 4, rel=0.01)
    assert expected == found[pod.uid].requests[Resource.MEMORY]
    assert found[pod.uid].critical_because is None
    assert found[static.uid].critical_because is not None


@pytest.mark.parametrize("by_hand", [True, False])
async def test_annotations_that_the_runtime_keeps_tell_a_static_pod_by_a_uid_that_no_api_server_makes(
    runtime: Runtime, tree: CgroupTree, *, by_hand: bool
) -> None:
    uid = f"static.{uuid.uuid4().hex[:8]}" if by_hand else str(uuid.uuid4())
    annotations = {"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": uid}
    pod = await runtime.run_pod({"one": ["idle"]}, uid=uid, annotations=annotations)
    expected = "static pod (source file)" if by_hand else None
    assert (await listed(runtime, tree))[pod.uid].critical_because == expected


async def test_a_kill_spares_the_pause_container_and_leaves_no_shim_behind(
    runtime: Runtime, tree: CgroupTree, kills: RuntimeKills
) -> None:
    hog = await runtime.run_pod({"one": ["hold", "20"], "other": ["idle"]})
    innocent = await runtime.run_pod({"one": ["idle"]})
    await wait_until_running(tree, hog, 20)
    pod = (await listed(runtime, tree))[hog.uid]
    report = kills.kill_now(pod)
    assert (2, ()) == (report.processes, report.problems)
    assert (await kills.reap(pod)).freed_ns is not None
    assert Populated(tree)(pod) is False
    assert len(tree.processes(runtime.node.container_cgroup(hog.cgroup, hog.sandbox_id))) == 1

    client = runtime.client()
    (sandbox,) = await client.sandboxes(hog.uid)
    assert sandbox.state is SandboxState.READY
    await until(partial(exited, client, hog))

    await stop_sandboxes(runtime.client, hog.uid)
    (sandbox,) = await client.sandboxes(hog.uid)
    assert sandbox.state is SandboxState.NOT_READY

    async def one_shim() -> bool:
        return runtime.shims() == 1

    await until(one_shim)
    (alive,) = await client.containers(innocent.uid)
    assert alive.state is ContainerState.RUNNING


async def test_a_grace_period_is_given_by_the_runtime_and_a_container_that_uses_it_well_is_not_killed(
    runtime: Runtime, tree: CgroupTree, kills: RuntimeKills
) -> None:
    made = await runtime.run_pod({"one": ["hold", "1", "0"], "other": ["hold", "1", "1"]})
    await wait_until_running(tree, made, 2)
    pod = (await listed(runtime, tree))[made.uid]
    began = trio.current_time()
    assert await kills.terminate(pod, 30) is None
    assert trio.current_time() - began < 30
    codes = [
        (await runtime.client().container_status(one)).status.exit_code  # type: ignore[union-attr]
        for one in made.containers.values()
    ]
    assert codes == [0, 0]
    assert len(tree.processes(made.cgroup)) == 1  # the pause container


async def test_a_container_that_outstays_its_grace_period_is_killed(
    runtime: Runtime, tree: CgroupTree, kills: RuntimeKills
) -> None:
    made = await runtime.run_pod({"one": ["hold", "1", "600"]})
    await wait_until_running(tree, made, 1)
    pod = (await listed(runtime, tree))[made.uid]
    await kills.terminate(pod, 1)
    await kills.reap(pod)
    assert Populated(tree)(pod) is False
    await until(partial(exited, runtime.client(), made))
    answer = await runtime.client().container_status(made.containers["one"])
    assert answer.status is not None
    assert answer.status.exit_code == 128 + signal.SIGKILL


async def test_with_the_runtime_gone_a_grace_period_is_still_given(
    runtime: Runtime, tree: CgroupTree, kills: RuntimeKills
) -> None:
    made = await runtime.run_pod({"one": ["hold", "1", "0"]})
    await wait_until_running(tree, made, 1)
    pod = (await listed(runtime, tree))[made.uid]
    runtime.node.stop_containerd()
    try:
        assert await kills.terminate(pod, 30) is None
        assert Populated(tree)(pod) is False
    finally:
        await runtime.start_again()


async def test_a_hard_kill_needs_no_runtime_and_the_sandbox_is_taken_down_when_it_is_back(
    runtime: Runtime, tree: CgroupTree, kills: RuntimeKills
) -> None:
    made = await runtime.run_pod({"one": ["hold", "20"]})
    pod = (await listed(runtime, tree))[made.uid]
    assert runtime.node.containerd is not None
    runtime.node.containerd.kill()
    try:
        assert kills.kill_now(pod).processes == 1
        assert (await kills.reap(pod)).freed_ns is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_sandboxes, runtime.client, made.uid)
            await trio.sleep(0.2)
            await runtime.start_again()
    finally:
        if not runtime.node.containerd.is_alive():
            await runtime.start_again()
    (sandbox,) = await runtime.client().sandboxes(made.uid)
    assert sandbox.state is SandboxState.NOT_READY


async def test_a_runtime_that_goes_and_comes_is_named_and_asked_again(runtime: Runtime) -> None:
    pod = await runtime.run_pod({"one": ["idle"]})
    watch = RuntimeWatch(endpoint=runtime.endpoint, interval_seconds=0.1)

    async def is_troubled() -> bool:
        return watch.state.problem is not None

    async def is_well() -> bool:
        return watch.state.problem is None

    async with trio.open_nursery() as nursery:
        await nursery.start(watch.run)
        assert watch.state.description is not None
        assert watch.state.description.startswith("containerd 1.")
        assert set(watch.inventory) == {pod.uid}
        runtime.node.stop_containerd()
        await until(is_troubled)
        assert runtime.endpoint in (watch.state.problem or "")
        assert set(watch.inventory) == {pod.uid}
        await runtime.start_again()
        await until(is_well)
        assert set(watch.inventory) == {pod.uid}
        nursery.cancel_scope.cancel()


async def test_errors_name_the_endpoint_and_the_call(runtime: Runtime) -> None:
    with pytest.raises(RuntimeServiceError, match=rf"{runtime.endpoint}: ContainerStatus: NOT_FOUND"):
        await runtime.client().container_status("none")
    with pytest.raises(RuntimeUnavailableError, match=r"/nowhere: Version: No such file"):
        await RuntimeClient("/nowhere").version()


async def test_a_sandbox_that_is_gone_is_no_error_to_be_stopped(runtime: Runtime) -> None:
    client = runtime.client()
    await client.stop_sandbox("none")
    await client.remove_sandbox("none")
    await client.remove_container("none")
    assert not dataclasses.asdict(await client.image_filesystems())["container_filesystems"]
